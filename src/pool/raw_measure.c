/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Happy path: the device over the image's id says it; an image without a device is written by
 * nobody, so what the last commit of the metadata says is the truth. It fails as dm's calls and
 * thin_ids_read() do, and then nothing is said of the image.
 */
#include "pool/raw_measure.h"

#include "disk/mapped.h"
#include "disk/tagged.h"
#include "disk/thin_pool.h"
#include "pool/private.h"
#include "pool/raw.h"

#include <errno.h>
#include <stdio.h>

void raw_measure_put(struct raw_measure *ret, struct pool_object *o)
{
	char tag[64];
	*ret = (struct raw_measure){0};
	if (o->rec == NULL || pool_entry(o)->thin_id == 0)
		return;
	ret->id = pool_entry(o)->thin_id;
	snprintf(tag, sizeof(tag), "ringvol:%s:%s", record_id_pool(o->rec, o->pool->uuid8),
		o->rec->random);
	(void)tagged_uuid(tag, MAPPED_UUID_PREFIX, o->image_ino, ret->uuid);
}

int raw_measure(const struct raw_measure *m, uint64_t *ret_bytes)
{
	_cleanup_dm_ struct dm dm = {.fd = -1};
	int r = dm_open(&dm, DM_CONTROL_PATH);
	return r == 0 ? thin_volume_bytes(&dm, m->uuid, ret_bytes) : r;
}

void raw_measures_init(struct raw_measures *ret, const struct pool *pool)
{
	*ret = (struct raw_measures){0};
	if (pool->raw == NULL)
		return;
	ret->disk = disk_ref(pool->raw->disk);
	ret->metadata = pool->raw->thin.metadata;
}

void raw_measures_free(struct raw_measures *measures)
{
	if (measures->disk != NULL)
		disk_unref(measures->disk);
	thin_ids_free(&measures->ids);
}

int raw_measures_ask(struct raw_measures *ms, const struct raw_measure *m, uint64_t *ret_bytes)
{
	int r = raw_measure(m, ret_bytes);
	if (r != -ENXIO)
		return r;
	if (!ms->read)
		ms->res = thin_ids_read(ms->disk, &ms->metadata, &ms->ids);
	ms->read = true;
	if (ms->res < 0)
		return ms->res;
	const struct thin_id *id = thin_ids_find(&ms->ids, m->id);
	if (id == NULL)
		return -ENXIO;
	*ret_bytes = id->blocks * ms->ids.commit.block_bytes;
	return 0;
}
