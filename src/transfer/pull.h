/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pulling a copy: from the node that has the source into an image of this node. Its operations
 * share one struct, and one runs at a time: what it is (open), its bytes (read), thanks (close). Of
 * a volume that moves here also: another grant of it as it is by now, and what lies between the two
 * (renew); it is to be still, what has changed since (changed), it is to leave.
 *
 * A lost connection is made again, and the copy goes on where it was. What the source sends is
 * checked before it is written. Progress is made durable, and noted, every PULL_NOTE_BYTES.
 */
#ifndef RINGVOL_TRANSFER_PULL_H
#define RINGVOL_TRANSFER_PULL_H

#include "pool/build.h"
#include "rpc/channel.h"
#include "transfer/offer.h"
#include "transfer/pull_buf.h"
#include "transfer/pull_part.h"

enum {
	PULL_BUFFERS = 8,
	PULL_NOTE_BYTES = 64 << 20,
	PULL_OPEN_MS = 20 * 1000,         /* for the source's node to answer at all */
	PULL_PATIENCE_MS = 3 * 60 * 1000, /* without a byte, then it is given up for now */
	PULL_RETRY_MS = 200,              /* doubled up to the next */
	PULL_RETRY_MAX_MS = 5000,
	PULL_CLOSE_MS = 3 * 1000,
	PULL_CALL_MS = 10 * 1000, /* for a short call */
	PULL_WRONG_MAX = 3,       /* chunks that are wrong, without progress between them */
};

enum pull_state {
	PULL_IDLE,    /* no operation runs */
	PULL_CALLING, /* a call is under way */
	PULL_PAUSING, /* before the next attempt, also while the part is cut for it */
	PULL_ENDING,  /* what was taken is written and noted; then the operation ends */
};

/* How a volume that moves here is attached to this node. */
struct pull_attached {
	unsigned mode; /* enum attachment_mode; 0: it is not */
	bool block, read_only;
};

struct pull {
	struct op op;
	struct transfer *transfer;
	struct offer offer;
	/* After pull_renew: the grant whose image the part has, and offer.grant is a later one. "":
	 * there is no later one. */
	char base[POOL_GRANT_BYTES];
	uint64_t received_bytes; /* by the last operation that reads */
	/* Of the source, when open has ended well; the pull's. Checked. */
	struct record *rec;
	uint64_t size_bytes, allocated_bytes;
	/* Bytes looked at; for progress. */
	uint64_t next_bytes;
	/* Of a volume that moves here, after pull_still and pull_leave ended well. */
	bool still, left;
	char used_by[320];                 /* why it is not still */
	uint64_t since;                    /* LeaveVolume asks for it */
	char from[RECORD_POOL_DIGITS + 1]; /* the uuid of the pool that it is in */
	struct record *still_rec;          /* as it is by now; the pull's */
	/* Set before pull_still_init(): this node uses it, and has suspended that. */
	bool suspended;
	struct pull_attached attached; /* then, of one that is still */
	/* private */
	struct channel *channel;
	struct channel_call call;
	enum pull_state state;
	struct ring_timer timer;  /* of a pause; while calling: is there progress? */
	struct ring_timer rate;   /* until more may be taken */
	uint64_t heard_ns;        /* when it last went on */
	unsigned attempts, wrong; /* without progress */
	bool counted, stopped, reading, answered;
	bool changed;                    /* reading what has changed, or lies between two grants */
	const char *closing;             /* the grant */
	void (*attempt)(struct pull *p); /* the call, but for reading */
	char to[RECORD_POOL_DIGITS + 1]; /* the pool that it leaves for */
	/* reading */
	struct pool_build *build;
	bool direct, held, ended;
	struct pull_buf bufs[PULL_BUFFERS];
	unsigned writing;
	struct pull_part part;
	bool stray;     /* it may have bytes behind what is noted; they go before it is read on */
	struct err err; /* how it ends */
	int res;
};

/* Copies the offer. reads: it counts, until pull_free(), as one of TRANSFER_PULLS_MAX; else it is
 * for pull_close_init() only. 0 or -errno with err. */
int pull_init(struct pull *pull, struct transfer *transfer, const struct offer *offer, bool reads,
	struct err *err);
/* No operation runs. A pull that is zero is legal. */
void pull_free(struct pull *pull);

/* Each prepares pull->op, for op_child(). ERR_UNAVAILABLE: the source cannot be reached, does not
 * answer, or has forgotten the grant. ERR_DATA_LOSS: what it sends contradicts itself. */
void pull_open_init(struct pull *pull);
/* Into build's part, on fd. Sets part->keep where the failure is not this node's. */
void pull_read_init(struct pull *pull, struct pool_build *build, int fd);
/* Likewise, into a part that is whole. With a base: in what the grant's image differs from base's.
 * Without: in what the volume, which is still, differs from the grant's image. Not durable when it
 * ends. */
void pull_changed_init(struct pull *pull, struct pool_build *build, int fd);
/* Tells the source that the grant, which stays the caller's, is not needed any more. Never fails:
 * what is not told expires. */
void pull_close_init(struct pull *pull, const char *grant);
/* Asks for another grant of a volume that moves, which this node uses. Its node may have none to
 * give: then base is "". */
void pull_renew_init(struct pull *pull);
/* Asks for the volume to be held still: still says whether it is. */
void pull_still_init(struct pull *pull);
/* Has it leave for a pool of this node: left says whether it has. An error: nobody knows. */
void pull_leave_init(struct pull *pull, const char *pool_uuid8);

/* pull: a struct pull. The operation under way ends soon, with ERR_UNAVAILABLE. */
void pull_stop(void *pull);
bool pull_progress(const void *pull, uint64_t *ret_done, uint64_t *ret_total);

#endif
