/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this node does with a volume of another node, as helper calls: each may wait for the
 * network, so it runs in a helper process (reactor/helper.h). Their numbers follow those of the
 * mount calls; attach_calls_fill() makes the one table of all.
 *
 * A volume that is used here is a connection to its owner, the block device of its namespace, and
 * over that device a device-mapper device, its *cover*: a guard (backends/dm/guard.h) whose tag is
 * the volume's with "cover:" before it. The cover is what is mounted, published and counted. So a
 * number that the kernel gives to another namespace is in no pod's hands, and from the kernel alone
 * the next run of the driver knows whose it is.
 *
 * The device of an encrypted volume holds ciphertext, and so does its cover. Over that is one more
 * device, of dm-crypt (backends/crypt/crypt_dev.h), which `ringvol luks` makes with the key of the
 * stage; no call here has it. That device is then what is mounted, published and counted: where
 * attach_info says `opened`, it is the one that is told.
 *
 * A volume that moves to this node keeps its cover, with all who have it open: it is suspended, and
 * goes on over the volume's own device here. Then the cover is *local*, and there is no connection.
 *
 * Every call looks at what is there first and can be repeated. Each answers a whole struct
 * attach_info, with err set where it fails.
 */
#ifndef RINGVOL_ATTACH_CALLS_H
#define RINGVOL_ATTACH_CALLS_H

#include "attach/fabrics.h"
#include "attach/terms.h"
#include "blockio/fsimg.h"
#include "mount/mnt.h"

#include <stdbool.h>
#include <stdint.h>

enum {
	ATTACH_TAG_BYTES = 64,
	ATTACH_LEFT_MAX = 24, /* leftovers in one answer */
	/* The kernel has given up on an owner that does not answer before that. */
	ATTACH_TAKE_TIMEOUT_MS = 90000,
	ATTACH_GIVE_TIMEOUT_MS = 60000,
	ATTACH_LOOK_TIMEOUT_MS = 5000,
	ATTACH_SUSPEND_TIMEOUT_MS = 10000, /* for the I/O that is under way */
};

enum attach_call {
	ATTACH_TAKE = MNT_CALLS, /* attach_take_req -> attach_info: connects, makes the cover */
	ATTACH_GIVE,             /* attach_volume_req -> attach_info: the opposite */
	ATTACH_LOOK,             /* attach_volume_req -> attach_info: how it is */
	ATTACH_OPENED,  /* attach_take_req -> attach_info: it was opened, and what it holds */
	ATTACH_GROW,    /* attach_volume_req -> attach_info: the cover to its device's size */
	ATTACH_SUSPEND, /* attach_volume_req -> attach_info: the cover lets nothing through */
	ATTACH_RESUME,  /* attach_volume_req -> attach_info: it goes on as before */
	ATTACH_SWAP,    /* attach_swap_req -> attach_info: it goes on, over another device */
	ATTACH_SWEEP,   /* attach_sweep_req -> attach_sweep_info: leftovers */
	ATTACH_CALLS,
};

/* All calls of helper processes, those of mount among them. */
void attach_calls_fill(helper_fn *table[ATTACH_CALLS]);

struct attach_take_req {
	char tag[ATTACH_TAG_BYTES]; /* the volume's: "ringvol:<pool uuid, 8>:<random, 8>" */
	struct attach_terms terms;
	struct fabrics_waits waits;
	bool read_only; /* nothing is to be written here, whatever the owner allows */
	/* Tell what the device holds, which has to be terms.fs; of an encrypted volume once it is
	 * opened. */
	bool probe;
};

struct attach_volume_req {
	char tag[ATTACH_TAG_BYTES];
	/* What is known of the connection, for where its device is gone; "": nothing. */
	char subsystem[ATTACH_NQN_BYTES];
	uint64_t want_bytes; /* ATTACH_GROW: waits for a moment until it is so large */
};

/* The connection is ended afterwards; where that fails the sweep does it. */
struct attach_swap_req {
	struct attach_volume_req volume;
	uint32_t major, minor; /* the volume's device on this node */
	uint64_t size_bytes;   /* its size */
};

/* What `ringvol luks` opens, or grows. */
struct attach_cover {
	char path[32];
	uint32_t major, minor;
	uint32_t below_major, below_minor;
	uint64_t size_bytes;
};

struct attach_info {
	struct err err; /* ERR_OK: it went well */
	bool there;     /* it has a cover, which is: */
	bool found;     /* ATTACH_TAKE: it was there before */
	bool alive;     /* the device below it is there */
	bool local;     /* and is no device of NVMe: the volume is in a pool of this node */
	bool suspended; /* nothing goes through it */
	bool opened;    /* what follows is the dm-crypt device over the cover, else the cover */
	bool read_only;
	char path[32]; /* /dev/dm-3 */
	uint32_t major, minor;
	uint64_t size_bytes;
	struct attach_cover cover;
	struct fabrics_ctrl ctrl; /* name "": there is no connection */
	struct fsimg_probe probe;
};

/* Connections without a cover that are there at two looks, some time apart, are what a crash has
 * left, and end. So do covers whose device is gone and that nobody has open, mounted or published.
 */
struct attach_sweep_req {
	uint32_t count; /* of connections that the look before has found */
	struct fabrics_ctrl left[ATTACH_LEFT_MAX];
};

struct attach_sweep_info {
	uint32_t count; /* found now; none of them was ended */
	struct fabrics_ctrl left[ATTACH_LEFT_MAX];
	uint32_t ended, ended_covers;
	struct err err; /* what of it failed */
};
_Static_assert(sizeof(struct attach_sweep_info) <= HELPER_MESSAGE_BYTES - 16, "one message");

#endif
