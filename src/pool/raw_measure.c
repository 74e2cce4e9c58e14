/* SPDX-License-Identifier: Apache-2.0 */
/* The status of a device over the image's id. */
#include "pool/raw_measure.h"

#include "disk/mapped.h"
#include "disk/tagged.h"
#include "disk/thin_pool.h"
#include "pool/private.h"
#include "pool/raw.h"
#include "pool/thin_fill.h"

#include <errno.h>
#include <stdio.h>

void raw_measure_put(struct raw_measure *ret, struct pool_object *o)
{
	char tag[64];
	*ret = (struct raw_measure){0};
	if (o->rec == NULL || pool_entry(o)->thin_id == 0)
		return;
	ret->id = pool_entry(o)->thin_id;
	ret->size_bytes = record_image_bytes(o->rec);
	snprintf(tag, sizeof(tag), "ringvol:%s:%s", o->pool->uuid8, o->rec->random);
	(void)tagged_uuid(tag, MAPPED_UUID_PREFIX, o->image_ino, ret->uuid);
}

int raw_measure(const struct disk *disk, const struct raw_measure *m, uint64_t *ret_bytes)
{
	_cleanup_dm_ struct dm dm = {.fd = -1};
	struct thin_fill moment = {.fd = -1};
	struct err err = {0};
	int r = dm_open(&dm, DM_CONTROL_PATH);
	if (r == 0)
		r = thin_volume_bytes(&dm, m->uuid, ret_bytes);
	if (r != -ENXIO)
		return r;
	r = thin_fill_make(&moment, &dm, disk, m->id, m->size_bytes, NULL, &err);
	if (r == 0)
		r = thin_volume_bytes(&dm, moment.uuid, ret_bytes);
	thin_fill_close(&moment);
	return r;
}
