/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The guard over a loop device: what a tenant gets of a raw block volume. A loop device obeys every
 * process that has it open, without any capability (LOOP_CLR_FD, LOOP_CHANGE_FD,
 * LOOP_SET_STATUS64). A guard is a device-mapper device with two targets over the one loop device.
 * The kernel passes an ioctl on only where one target covers all of a device
 * (Linux 6.1, 6.12, 7.2).
 *
 * A guard's name and uuid follow from the volume's tag. It is ours if both are so *and* its table
 * is a guard's over the very loop device that is bound to the volume's image. Synchronous, for work
 * jobs.
 */
#ifndef RINGVOL_BACKENDS_DM_GUARD_H
#define RINGVOL_BACKENDS_DM_GUARD_H

#include "base/err.h"
#include "disk/dm.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GUARD_UUID_PREFIX "RINGVOL-guard-"
#define GUARD_KEEPER_NAME "ringvol-keeper"
/* Of guards whose tags are "ringvol:cover:..." (attach/calls.h). */
#define GUARD_COVER_UUID_PREFIX GUARD_UUID_PREFIX "cover-"

/* What a guard is to stand over. */
struct guard_spec {
	const char *tag;       /* "ringvol:<pool uuid, 8>:<random, 8>" */
	uint32_t major, minor; /* the device below */
	uint64_t size_bytes;   /* its size */
	bool read_only;        /* whether it takes no writes */
};

struct guard {
	char tag[64];                      /* as its name says */
	uint32_t minor, major;             /* /dev/dm-<minor> */
	uint32_t below_major, below_minor; /* 0:0: it has no table, or is foreign or retired */
	uint64_t size_bytes;
	bool foreign;    /* its table is not a guard's: somebody else's device */
	bool retired;    /* its table leads nowhere: it was let go */
	bool suspended;  /* by guard_suspend(), or by somebody else */
	bool read_only;  /* also by BLKROSET */
	bool going_away; /* the kernel removes it when nobody has it open any more */
	bool open;       /* somebody has it open */
};

/* The two targets; the second one serves TAGGED_TAIL_SECTORS (disk/tagged.h). -EINVAL: the device
 * is too small for two. */
int guard_table(const struct guard_spec *spec, struct dm_target ret[2]);

/* Whether there is one of this tag's uuid; costs one call. */
bool guard_exists(struct dm *dm, const char *tag);
/* The guard of this tag. 0; -ENXIO: there is none; -EEXIST: its name is another's. */
int guard_look(struct dm *dm, const char *tag, struct guard *ret);
/* Makes what is missing, whatever half of it is there: device, table, the size of the table. Errors
 * in *err: ERR_PRECONDITION (the name is another's, the guard stands over another device or is
 * about to go, the device below is in use; each with the remedy), ERR_INTERNAL. */
int guard_make(struct dm *dm, const struct guard_spec *spec, struct guard *ret, struct err *err);
/* Lets nothing through until guard_resume() or guard_swap(); what was under way has ended. A guard
 * that is suspended stays so. ERR_PRECONDITION: there is none that could be. */
int guard_suspend(struct dm *dm, const char *tag, struct err *err);
/* It goes on over what it stands on. One that is not there, or not suspended, is success. */
int guard_resume(struct dm *dm, const char *tag, struct err *err);
/* One that is suspended goes on over another device, which has all that the one below had. Its
 * number and size stay, so that nobody who has it open notices. One that stands there already only
 * goes on. ERR_PRECONDITION: there is none that could be, or that device is smaller or in use. */
int guard_swap(struct dm *dm, const struct guard_spec *spec, struct guard *ret, struct err *err);
/* Takes the guard of this tag away, if it stands over this device or over none; else it is not ours
 * and left alone (0). Afterwards the device below is free, even if a process still has the guard
 * open: its requests fail, and what it had written is on the device below. *ret_waits: there is
 * such a process, and the guard goes when it lets go; else the kernel takes it away in a moment. */
int guard_remove(struct dm *dm, const char *tag, uint32_t below_major, uint32_t below_minor,
	bool *ret_waits, struct err *err);
/* Every device with a guard's name and uuid. */
int guard_each(struct dm *dm, void (*each)(void *arg, const struct guard *guard), void *arg);

/*
 * Makes what is missing of the keeper: one small device-mapper device of ours that stays on the
 * node. All devices of the device mapper share caches of the kernel's, which come with the first
 * device and go with the last. The first creation and the last removal wait for grace periods, 15
 * to 50 ms (Linux 6.12, by a clock that counts instructions; scripts/vm/bench.sh dm). With a keeper
 * no guard is the first or the last. It serves no sector: its table is one `error` target. Several
 * drivers of a node may make it, and each failure leaves what the next attempt goes on with.
 * `dmsetup remove ringvol-keeper` takes it away.
 *
 * 0 or -errno; -EBUSY: its name is another's. Without a keeper everything works, more slowly.
 */
int guard_make_keeper(struct dm *dm);

#endif
