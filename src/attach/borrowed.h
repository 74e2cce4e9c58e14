/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The volumes of other nodes that are used on this one. A *borrowed* volume is known by its tag,
 * which is in its id. What is kept here is a hint, and is made anew at each start from the covers
 * that the kernel has (calls.h); nothing of it is on a disk. What a crash has left is swept: looked
 * for after the start, and as long as there is any or a call has failed half way.
 */
#ifndef RINGVOL_ATTACH_BORROWED_H
#define RINGVOL_ATTACH_BORROWED_H

#include "attach/calls.h"
#include "probes/probes.h"
#include "reactor/op.h"

#include <stdbool.h>
#include <stdint.h>

enum {
	BORROWED_SWEEP_MS = 60000,
	/* The first look after a start, and the second, at which what is there still has no owner.
	 */
	BORROWED_FIRST_SWEEP_MS = 5000,
	BORROWED_LOSS_S = 600, /* the kernel's own */
	BORROWED_FAIL_S = 0,
	BORROWED_ID_BYTES = 128, /* of a volume's id, its NUL among them */
};

struct borrowed {
	struct list link;
	struct probe_owner probed;
	char tag[ATTACH_TAG_BYTES];
	char id[BORROWED_ID_BYTES];         /* its volume's, by the first call; until then "" */
	char node[ATTACH_TERMS_NODE_BYTES]; /* its owner; "": an earlier run knew */
	char subsystem[ATTACH_NQN_BYTES];   /* "": likewise, and its device is gone */
	char path[32];                      /* what it is used by: /dev/dm-3 */
	uint32_t major, minor;
	uint64_t size_bytes;
	bool block;     /* as far as this run of the driver knows */
	bool opened;    /* path is of the dm-crypt device over its cover; else its cover's */
	bool read_only; /* it takes no writes */
	bool local;     /* it is in a pool of this node by now, and its cover on that */
	bool suspended; /* its cover is, or may be: it moves to this node */
	bool ours;      /* then: this run of the driver has suspended it, */
	char key[64];   /* and has this of the volume (RECORD_KEY_MAX) */
	bool told;      /* that nobody goes on with it is in the log */
	char *staging, *writer; /* where it is staged; its only writer; NULL: nobody knows */
	uint64_t hanging_ns;    /* since when calls on it hang, ring_now_ns(); 0: none does */
};

struct borrows {
	struct list all;       /* by their tags */
	struct borrowed *last; /* that borrows_next() answered; NULL: none, or it is gone */
	struct reactor *reactor;
	struct lane *lane;     /* of all calls on them: the owner of one may hang */
	struct probes *probes; /* set before any is known; NULL: nothing is counted */
	struct fabrics_waits waits;
	bool blind;    /* what earlier runs have left is not known */
	unsigned busy; /* calls under way that connect or disconnect: nothing is swept meanwhile */
	bool unsure;   /* one of them has failed, or it is the start: something may be left */
	/* private: the sweep */
	bool draining;
	unsigned quiet; /* sweeps since `unsure` that have found nothing */
	void (*on_quiet)(void *arg);
	void *on_quiet_arg;
	struct ring_timer timer;
	struct op op;
	struct attach_sweep_req sweep;
	struct attach_sweep_info swept;
};

/* 0 or -errno. */
int borrows_open(struct borrows **ret, struct reactor *reactor);
/* Nothing of it may be under way. NULL is legal. */
void borrows_close(struct borrows *b);
/* Finds those of earlier runs. Blocking, before the loop turns, for as long as a look at the
 * device mapper and sysfs takes. 0 or -errno. */
int borrows_adopt(struct borrows *b);
/* From now on leftovers are looked for. */
void borrows_sweep(struct borrows *b);
/* No sweep begins any more; on_quiet runs if one ends that is under way. */
void borrows_drain(struct borrows *b, void (*on_quiet)(void *arg), void *arg);
bool borrows_quiet(const struct borrows *b);
/* Something may have been left. */
void borrows_doubt(struct borrows *b);

/* NULL: none has that tag. */
struct borrowed *borrows_find(const struct borrows *b, const char *tag);
/* The first whose tag is behind this one ("": of all), but for those that are in a pool of this
 * node by now; NULL: there is none. A walk over all costs what it tells of. */
struct borrowed *borrows_next(struct borrows *b, const char *tag);
/* The one that is used by the device of this number; NULL: none. */
struct borrowed *borrows_at(const struct borrows *b, uint32_t dev_major, uint32_t dev_minor);
/* It is there, as info says: made, or brought up to date. NULL: out of memory. */
struct borrowed *borrows_put(struct borrows *b, const char *tag, const struct attach_info *info);
/* It is there no more. NULL is legal. */
void borrows_drop(struct borrows *b, struct borrowed *one);
/* 0 or -ENOMEM. path NULL: nowhere. */
int borrowed_set_path(char **which, const char *path);

#endif
