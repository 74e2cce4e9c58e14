/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Grants: who may read what, once, until when. A grant is a hold of the pool (pool/hold.h), so it
 * survives a restart. It goes when nobody opens it for TRANSFER_GRANT_MS
 * (TRANSFER_GRANT_COPIED_MS), when it is not read for TRANSFER_IDLE_MS, or when its reader says
 * that it has it. The times are this process's own.
 */
#ifndef RINGVOL_TRANSFER_GRANT_H
#define RINGVOL_TRANSFER_GRANT_H

#include "node/source.h"
#include "pool/hold_make.h"
#include "transfer/transfer.h"

/* The kind of what the id names; a volume where there is neither. An id carries no kind, and its
 * random part tells a volume from a snapshot of the same name. */
enum record_kind grant_kind_of(const struct pools *pools, const char *id);

/*
 * Is there a grant of this source for the same node and name (then it is that one, once the source
 * is not left frozen; a volume that was sent whole may have been made, deleted, and be made again
 * of what was written since: that takes another one) -> find the source -> measure, hold a volume
 * still -> make the hold -> let go of the volume. The caller has locked the source
 * (node_source_lock_mode()) and the name, so that no two make one.
 */
struct grant_make {
	struct op op;
	struct transfer *transfer;
	const char *source_id, *node_id, *volume_name; /* the caller's */
	/* Set before it runs: the volume is to leave; a grant of that for any node is as good. */
	bool move, any_node;
	bool unlocked; /* likewise: the source is not locked, so that none can be made */
	/* Likewise, with move: beside this one, which has a reader, another that nobody has read
	 * from; its image shares the volume's blocks. */
	const struct pool_hold *renews;
	char grant[POOL_GRANT_BYTES];        /* out */
	char granted_to[POOL_HOLD_NODE_MAX]; /* out: a node's id */
	/* private */
	struct node_source source;
	struct node_lock lock; /* of one that is unlocked, while it is thawed */
	bool locked;
	struct pool_measure measure;
	struct pool_hold_make make;
	bool making, found, left, stopped;
};
void grant_make_init(struct grant_make *m, struct transfer *transfer, const char *source_id,
	const char *node_id, const char *volume_name);
/* Stops a copy, also one that has not begun. make: a struct grant_make. */
void grant_make_stop(void *make);
void grant_make_free(struct grant_make *m); /* what is left after the end */

/* The grant, if the caller may use it. NULL: there is none, or it is another's: nobody is told
 * which. Takes the same time whatever the grant is. */
struct pool_hold *grant_find(
	const struct transfer *transfer, const char *grant, const struct grpc_peer *peer);
/* The one that a request of the transfer's service names, or NULL with the call ended. */
struct pool_hold *grant_of_call(struct grpc_call *call, ProtobufCBinaryData grant);
/* Whether two grants are the same. Takes the same time whatever they are. */
bool grant_is(const char a[POOL_GRANT_BYTES], const char b[POOL_GRANT_BYTES]);
/* Whether the caller is the node of that id. */
bool grant_peer_is(const struct grpc_peer *peer, const char *node_id);
/* Whether GrantCopy, with `move`, is answered from memory: there is a grant of that node (NULL: of
 * any), or the volume has left by one. Then it needs no lock. */
bool grant_moves(const struct transfer *transfer, const char *source_id, const char *node_id,
	const char *volume_name);
/* Somebody reads it, or works with it: until grant_let_go() it is not dropped. */
void grant_keep(const struct transfer *transfer, struct pool_hold *hold);
/* Drops it, if that was to be and this was the last; in a drain the next run does, in time. */
void grant_let_go(const struct transfer *transfer, struct pool_hold *hold);
/* Nobody reads it any more, and nobody will. */
void grant_drop(struct pool_hold *hold);
/* Drops those whose time is over. */
void grants_sweep(struct transfer *transfer);

#endif
