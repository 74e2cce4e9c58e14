/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Helper processes, for calls that may hang for ever: statfs, mount, umount, syncfs, freeze on a
 * sick device. A helper is this binary started again (spawn.h), with nothing open but its end of a
 * SOCK_SEQPACKET pair. It holds no pool lock, so the driver can be killed and started again while a
 * helper is stuck in D state. A few are kept warm; a call costs a round trip on the pair.
 *
 * Calls for one key (a volume) run one after the other. A call that overstays its deadline ends
 * with -ETIMEDOUT, and its helper is killed. Until the kernel lets that helper die, the key is
 * *hung*: further calls for it answer -ETIMEDOUT at once. When all helpers are busy another one
 * starts, up to LANE_HELPERS_MAX for one lane and HELPER_MAX for all, hung ones included. So
 * healthy volumes do not wait behind sick ones, nor one pool's behind another's.
 */
#ifndef RINGVOL_REACTOR_HELPER_H
#define RINGVOL_REACTOR_HELPER_H

#include "base/list.h"
#include "reactor/helper_child.h"
#include "reactor/ring.h"

enum {
	HELPER_WARM = 4,         /* kept idle */
	HELPER_MAX = 288,        /* processes, busy and hung included */
	HELPER_QUEUE_MAX = 4096, /* calls waiting */
	HELPER_KEY_BYTES = 160,
};

struct helpers;

/* Embed it; lives until on_end. */
struct helper_call {
	unsigned fn;       /* index into the table */
	const char *key;   /* the volume; NULL: never counted as hung */
	struct lane *lane; /* NULL: the shared lane, which HELPER_MAX alone bounds */
	const void *req;   /* POD, at most HELPER_MESSAGE_BYTES - 16 */
	size_t req_len;
	void *resp; /* filled before on_end when res >= 0 or resp_len > 0 */
	size_t resp_cap, resp_len;
	uint64_t timeout_ms;
	/* res: the function's; -ETIMEDOUT: overstayed, or the key is hung; -EPIPE: the helper died
	 */
	void (*on_end)(struct helper_call *call, int res);
	/* private */
	struct list link;
	void *slot;
	struct ring_timer timer;
	struct ring_req posted;
};

/* In a ring that runs inline (ring_engine.h) the functions run on the loop's thread. 0 or -errno.
 */
int helpers_open(struct helpers **ret, struct ring *ring, helper_fn *const *table, unsigned count);
/* Kills all helpers; calls in flight get no on_end. NULL is legal. */
void helpers_close(struct helpers *helpers);
/* 0, or -EAGAIN at HELPER_QUEUE_MAX; on_end is not called then. The deadline counts from here. */
int helpers_submit(struct helpers *helpers, struct helper_call *call);
/* Since when (ring_now_ns) a call for this key has been hanging, 0 if none is. */
uint64_t helpers_hung_since(const struct helpers *helpers, const char *key);
unsigned helpers_hung_count(const struct helpers *helpers);

#endif
