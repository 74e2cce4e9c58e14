/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding a device, whose it is, and where it is mounted. A device is a volume's if it is bound to
 * the volume's image (backend_dev_serves), whatever its tag says: a tenant with a raw block volume
 * can rewrite that, free the device, and swap its file. The tag is a hint for devices that no known
 * volume owns.
 */
#ifndef RINGVOL_NODE_OWNER_H
#define RINGVOL_NODE_OWNER_H

#include "backends/backend.h"
#include "mount/mnt.h"
#include "pool/pool.h"
#include "reactor/op.h"

struct node;

/*
 * A child operation that looks for a device: by its number, or by an image and, failing that, by a
 * tag. It looks at the device first that memory knows, and at all devices only if that is not the
 * one.
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

/* The known volume, maybe a quarantined one, that has the image a device is bound to; NULL: none
 * has. */
struct pool_object *node_dev_volume(const struct node *node, const struct backend_dev *dev);
/* Whether it has a tag of ours that fits the id: the tag of that volume, or of none that can be
 * told. */
bool node_dev_may_be(const struct backend_dev *dev, const char *id);

/* ---- where it is mounted ---- */

/* Fills a request about the mount of a device, or its node. */
void node_on(struct mnt_on_req *on, const char *path, const struct backend_dev *dev);
/* True when info is a mount (or bound node) of the device. */
bool node_info_is_dev(const struct mnt_info *info, const struct backend_dev *dev);

/*
 * A child operation that counts the mounts of a device in the kernel's own list, except at up to
 * two paths. It costs a read of mountinfo: for the rare moments when memory says there are some.
 */
struct node_others {
	struct op op;
	uint32_t major, minor;
	const char *except[2];     /* NULL: none */
	const char *only;          /* not NULL: count this path alone */
	unsigned count;            /* out */
	char path[MNT_PATH_BYTES]; /* out: one of them */
};
void node_others_init(struct node_others *others, struct reactor *reactor,
	const struct backend_dev *dev, const char *except, const char *except_too);

#endif
