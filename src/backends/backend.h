/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a volume's bytes become a block device. A backend is a `struct backend` of functions, and a
 * folder here: loop, ublk and disk. Functions with an `op` serve its current step, like a step's
 * run(): they return 0, OP_PENDING, or a negative errno with op->err set. So a backend may take a
 * work job or a whole child operation. Every function converges on what the kernel says.
 *
 * A new backend (volumes on device mapper, say) is a folder, a value of enum backend_type, and a
 * backend_add() before the services open. Its name is the value of the StorageClass parameter.
 *
 * A filter (encryption, say; tests inject faults so) is a struct backend that has the type of the
 * one below it, calls that one's functions from its own, and takes its place in the table by
 * backend_add(). It gets itself as the first argument: put the struct backend into a struct that
 * also names the one below. A device that a filter stacks on another is dev.major and minor, with
 * the device that is bound to the image in below_major and below_minor, as a guard has it.
 */
#ifndef RINGVOL_BACKENDS_BACKEND_H
#define RINGVOL_BACKENDS_BACKEND_H

#include "base/io_limits.h"
#include "reactor/op.h"

#include <stdbool.h>
#include <stdint.h>

struct secret;

enum backend_type { BACKEND_LOOP, BACKEND_UBLK, BACKEND_DISK, BACKEND_TYPES };

/* What waited for its I/O limits; [0] reads, [1] writes. From 0 when what serves the device starts
 * anew. */
struct backend_throttled {
	uint64_t requests[2], wait_ns[2];
};

/* A device as seen from above: what is mounted, or published to a tenant. */
struct backend_dev {
	bool attached;
	uint32_t major, minor;
	char path[32]; /* /dev/loop7, /dev/dm-3 */
	/* Of a stacked device, such as a guard: the device below it, which is bound to the image
	 * and which the block layer's tracepoints count. 0:0: the device itself. See
	 * backend_dev_below(). */
	uint32_t below_major, below_minor;
	/* It shows what an encrypted image holds, by dm-crypt over the device below. Without a
	 * device below: that was made half, and goes with this device. */
	bool crypt;
	/* Any process that has its node open may tell it to serve another image, without any
	 * capability; and the operator has not accepted that. */
	bool bare;
	uint64_t size_bytes;
	uint64_t image_dev, image_ino;
	char tag[64];
	bool direct_io, read_only;
	bool suspended;  /* of scan: all I/O on it waits, by an operation or for good (wake) */
	bool going_away; /* still bound, but only until its last user elsewhere lets go */
	bool found;      /* of attach: it was there before */
	/* Of backends with limit(): what is in force, and what it held up. */
	struct io_limits limits;
	struct backend_throttled throttled;
};

/* Parameters and results of one call; lives until the step's end. */
struct backend_req {
	int dirfd;         /* where the image is */
	const char *image; /* its name there */
	char tag[64];      /* "ringvol:<pool uuid>:<random>" */
	uint32_t block_size;
	bool read_only, no_discard, direct_io;
	bool raw; /* the device's node goes to a tenant: it must not obey those that have it open */
	struct io_limits limits; /* of attach and limit: those that are to be in force */
	/* The image holds LUKS2, and the device is what it holds (backends/crypt). Only a stack
	 * with that filter takes it; any other refuses with ERR_PRECONDITION. */
	bool encrypted;
	/* attach: makes the LUKS2 header first. For images alone that have no key yet, whose bytes
	 * nobody was given. */
	bool format;
	/* attach and resize of encrypted ones; the caller's, until the step ends. NULL: what is
	 * attached already is found, and nothing is opened. */
	const struct secret *secret;
	/* What keeps other drivers from the image's pool, flock'ed; 0 and less: nothing does. A
	 * child that makes devices has it too, so that the next driver does not begin before that
	 * child has ended, even one that was killed in a slow call into the kernel. */
	int lock_fd;
	struct backend_dev dev; /* out of attach; in and out of detach and resize */
	struct err err;
};

struct backend {
	enum backend_type type;
	const char *name; /* the StorageClass parameter's value */
	/* So many devices of it a node can have: the numbers that there are. Fewer may be to be had
	 * at any time; then attach says ERR_NO_ROOM. */
	uint32_t devices_max;
	/* What serves the device may start anew without the image. So a driver that finds a device
	 * of an earlier run, or hears of a new start, attaches it once more, which brings the image
	 * along. */
	bool needs_image_again;
	/* Since when (ring_now_ns) the process that serves these devices has not answered; 0: it
	 * answers. NULL: the kernel serves them. */
	uint64_t (*away_since_ns)(const struct backend *backend);
	/* Whether this node can have such devices (raw: for tenants, as in backend_req): 0, or
	 * ERR_PRECONDITION naming what is missing and the remedy. Does not block. NULL: always. */
	int (*check)(const struct backend *backend, bool raw, struct err *err);
	/* The same of what encrypted volumes need besides. NULL: nothing. */
	int (*check_encrypted)(struct err *err);
	/* Blocking, for work threads: all that attach does, but not for encrypted images. NULL:
	 * attach waits for more. */
	int (*attach_call)(struct backend_req *req);
	/* An image that is attached by us already is returned as it is, after what is missing for a
	 * raw one was added. A raw one that an earlier version has published bare stays so
	 * (dev.bare) as long as it is published. */
	int (*attach)(const struct backend *backend, struct op *op, struct backend_req *req);
	/* A device that is gone, or not ours any more, is success. Afterwards dev.attached tells
	 * whether a user elsewhere still keeps it bound. */
	int (*detach)(const struct backend *backend, struct op *op, struct backend_req *req);
	/* The image has grown. */
	int (*resize)(const struct backend *backend, struct op *op, struct backend_req *req);
	/* Puts req->limits in force for a device that is there, and tells what they held up. NULL:
	 * the kernel limits it in the cgroups of its users (node/limits.h). ERR_UNIMPLEMENTED: what
	 * serves the device is too old to have limits. */
	int (*limit)(const struct backend *backend, struct op *op, struct backend_req *req);
	/* Blocking, for work jobs: calls each for every device that is bound, whatever its tag, and
	 * changes nothing. 0, or -errno with *err set: then it may not have been called for all of
	 * them. */
	int (*scan)(const struct backend *backend,
		void (*each)(void *arg, const struct backend_dev *dev), void *arg, struct err *err);
	/* Blocking, for work jobs: lets a suspended device go on. Only for one that no operation
	 * has, which a run cut short left so: others are suspended for a reason. -ENXIO: it is
	 * gone; -errno with *err set. NULL: none is ever told as suspended. */
	int (*wake)(const struct backend_dev *dev, struct err *err);
	/* Blocking, for work jobs: what the kernel says of that number now. 0; -ENXIO: nothing is
	 * bound there; another -errno: it cannot be told. NULL: only the process that serves a
	 * device can change what it is. */
	int (*look)(const struct backend *backend, const struct backend_dev *dev,
		struct backend_dev *ret);
	/* Blocking, for work jobs. */
	int (*set_read_only)(
		const struct backend *backend, const struct backend_dev *dev, bool read_only);
};

/* NULL: nobody has added that type. Loop is there from the start. */
const struct backend *backend_get(enum backend_type type);
/* Whether volumes of this type can be made and used on this node (raw: volumes that tenants get as
 * devices): 0, or ERR_PRECONDITION naming what is missing. Does not block. */
int backend_check(enum backend_type type, bool raw, struct err *err);
int backend_check_encrypted(enum backend_type type, struct err *err);
/* The device that is bound to the image and that the probes count: below, or the device itself. */
static inline void backend_dev_below(
	const struct backend_dev *dev, uint32_t *ret_major, uint32_t *ret_minor)
{
	*ret_major = dev->below_major != 0 ? dev->below_major : dev->major;
	*ret_minor = dev->below_major != 0 ? dev->below_minor : dev->minor;
}
/* Before the services open, and after they closed. */
void backend_add(const struct backend *backend);
void backend_remove(const struct backend *backend);
extern const struct backend backend_loop; /* loop.h has its settings */

/* A device belongs to an image if it is bound to that file (st_dev and inode): this is the rule
 * everywhere. Its tag is a hint, which a tenant may have rewritten. */
static inline bool backend_dev_serves(
	const struct backend_dev *dev, uint64_t image_dev, uint64_t image_ino)
{
	return dev->attached && dev->image_ino == image_ino && dev->image_dev == image_dev;
}

/* The end() of every step that called a backend: moves req->err into op->err. Returns res. */
int backend_end(struct op *op, struct backend_req *req, int res);

#endif
