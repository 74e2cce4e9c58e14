/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The first stage of an encrypted volume gives it its header and its file system, because only then
 * somebody has its key. No code formats what has a volume's name: the new image lies in the trash
 * until it is whole, and takes the old one's place by one rename.
 */
#ifndef RINGVOL_NODE_FIRST_STAGE_H
#define RINGVOL_NODE_FIRST_STAGE_H

#include "backends/backend.h"
#include "node/volume.h"
#include "pool/renew.h"
#include "pool/template.h"

struct secret;

/*
 * new image, parked -> attached with a new header -> mkfs -> detached -> it becomes the volume's
 * [commit]. The caller has the volume's lock. Before the commit the volume stays unformatted, and
 * nothing is left but trash. Errors: the backend's, mkfs's, and those of pool/renew.h.
 */
struct node_first_stage {
	struct op op;
	struct node *node;
	struct pool_object *volume;
	const struct backend *backend;
	const struct secret *key; /* the caller's */
	char id[RECORD_ID_MAX];
	/* private */
	struct node_formatting formatting;
	struct pool_renew renew;
	struct backend_req dev;
	struct fsimg_spec spec;
	uint8_t uuid[16];
	struct pool_mkfs mkfs;
	int fd; /* of the device */
	bool attached;
};
/* On the heap: it is 10 KiB, and wanted once in a volume's life. NULL: out of memory. */
struct node_first_stage *node_first_stage_new(
	struct node *node, struct pool_object *volume, const struct secret *key);
/* NULL is legal. */
void node_first_stage_free(struct node_first_stage *f);

#endif
