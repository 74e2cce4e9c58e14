/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One export of a volume: an attachment to another node (pool/attachment.h), made true in the
 * kernel. The export is one more user of the volume's device, which stays while there is one.
 */
#ifndef RINGVOL_NODE_EXPORT_H
#define RINGVOL_NODE_EXPORT_H

#include "export/target.h"
#include "node/take_device.h"
#include "pool/attachment.h"

struct node;

struct node_exports_config {
	const char
		*address; /* IP:PORT, also what other nodes are told; NULL: nothing is exported */
	bool without_auth;
	bool tls;         /* exports are reached within TLS alone; not with without_auth */
	uint32_t wait_ms; /* exports.h; 0: NODE_EXPORTS_WAIT_MS */
	const struct export_target *target;
};

/*
 * A child operation of a node with an export_config; the caller has the volume alone. Making: the
 * device is attached, if it is not
 * -> the export is made. Both look first at what is there, so it also adopts what an earlier run
 * has made. When it fails, the device goes again if this attached it. Ending: no I/O of that node
 * is in flight or comes any more, and nothing is left but the device.
 */
struct node_export {
	struct op op;
	struct node *node;
	struct pool_object *volume;
	/* private */
	struct node_take_device take;
	struct node_let_go let_go;
	char key[ATTACHMENT_KEY_MAX + 1];
	struct nvmet_export export;
	struct err err; /* the call's */
};
void node_export_make_init(struct node_export *e, struct node *node, struct pool_object *volume,
	const struct attachment *of);
/* Between init and start: the node cannot reach it until exports.c opens the address. */
void node_export_keep_closed(struct node_export *e);
void node_export_end_init(struct node_export *e, struct node *node, struct pool_object *volume,
	const struct attachment *of);
/* A call in the place of making: whether the kernel can. */
void node_export_check_init(struct node_export *e, struct node *node, struct pool_object *volume);
/* The device has grown. */
void node_export_resize_init(struct node_export *e, struct node *node, struct pool_object *volume,
	const struct attachment *of);
/* Overwrites the key. */
void node_export_free(struct node_export *e);

typedef void node_export_init_fn(struct node_export *e, struct node *node,
	struct pool_object *volume, const struct attachment *of);

/* A child operation: one of these for each export of the volume, one after the other, up to the
 * first that fails. None where the driver exports nothing. */
struct node_export_all {
	struct op op;
	struct node *node;
	struct pool_object *volume;
	/* Between init and start: of this node alone, and not reached yet. */
	const char *only; /* "": of all */
	bool keep_closed;
	/* private */
	node_export_init_fn *init;
	unsigned at; /* of the attachments */
	struct node_export one;
};
void node_export_all_init(struct node_export_all *all, struct node *node,
	struct pool_object *volume, node_export_init_fn *init);
/* Whether there is none to go on with. */
bool node_export_all_done(struct node_export_all *all);

#endif
