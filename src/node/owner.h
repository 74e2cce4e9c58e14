/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding a device, and whose it is. A device is a volume's if it is bound to the volume's image
 * (backend_dev_serves), whatever its tag says: a tenant with a raw block volume can rewrite that,
 * free the device, and swap its file. The tag is a hint for devices that no known volume owns.
 */
#ifndef RINGVOL_NODE_OWNER_H
#define RINGVOL_NODE_OWNER_H

#include "backends/backend.h"
#include "pool/pool.h"
#include "reactor/op.h"

struct node;

/*
 * A child operation that looks for a device: by its number, or by an image and, failing that, by a
 * tag. The one it was, as far as memory knows, is looked at first, and all of them only if it is
 * not that.
 */
struct node_owner {
	struct op op;
	/* in, after init */
	const struct backend *backend; /* the only one to look at; NULL: all */
	struct backend_dev was;        /* attached: look at this one first; its backend is set */
	uint32_t major, minor;         /* by number; 0:0: not */
	uint64_t image_dev, image_ino; /* by image; 0: not */
	char tag[64];                  /* what `tagged` has; "": none is looked for */
	/* out */
	bool found, tagged;
	/* `was` did not say what it is (its pool's file system has shut down), and nothing else was
	 * found: `dev` is what it was. */
	bool unclear;
	struct backend_dev dev, tagged_dev;
	const struct backend *dev_backend, *tagged_backend;
	struct err why; /* the job's */
};
void node_owner_by_number(
	struct node_owner *owner, struct reactor *reactor, uint32_t major, uint32_t minor);
/* volume NULL: by the tag that belongs to the id, if it has one. */
void node_owner_of_volume(struct node_owner *owner, struct reactor *reactor,
	const struct pool_object *volume, const char *id);

/* The known volume, maybe a quarantined one, that a device is bound to the image of; or NULL. */
struct pool_object *node_dev_volume(const struct node *node, const struct backend_dev *dev);
/* Whether it has a tag of ours, and of no other volume than that of the id, if that says one. */
bool node_dev_may_be(const struct backend_dev *dev, const char *id);

#endif
