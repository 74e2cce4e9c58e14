/* SPDX-License-Identifier: Apache-2.0 */
/* The node's own goes before what a controller offers: it shares its blocks. */
#include "csi/image.h"

#include "pool/golden.h"
#include "pool/index.h"
#include "transfer/offer.h"

#include <string.h>

static int keep_id(struct arena *arena, const char *id, const char **ret, struct err *err)
{
	const char *kept = arena_strdup(arena, id);
	if (kept == NULL)
		return err_set(err, ERR_NO_ROOM, "out of memory");
	*ret = kept;
	return 0;
}

int csi_image_find(struct csi *csi, struct arena *arena, const char *name, const char *volume_name,
	const char **ret_id, struct err *err)
{
	struct pool_object *object = NULL;
	struct err why = {0};
	struct offer offer;
	int r = pools_find_golden(csi->pools, name, &object, &why);
	if (object != NULL) {
		char id[RECORD_ID_MAX];
		pool_object_id(object, id);
		return keep_id(arena, id, ret_id, err);
	}
	if (csi->transfer != NULL && offer_find_key(csi->transfer, name, volume_name, &offer))
		return keep_id(arena, offer.source_id, ret_id, err);
	if (r < 0) {
		*err = why;
		return r;
	}
	return err_set(err, ERR_NO_ROOM,
		"golden image %s is not on node %s: import it there, too (ringvol import), or have the pod scheduled where it is; ringvol controller has it copied from another node",
		name, csi->config.node_id);
}

bool csi_image_made(const struct record *rec, const char *name)
{
	struct record_id id;
	return rec->source == RECORD_SOURCE_SNAPSHOT && record_id_parse(rec->source_id, &id) == 0 &&
	       strcmp(id.key, name) == 0;
}
