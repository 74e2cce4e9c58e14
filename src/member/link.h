/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The link to one controller: a call of Cluster.Join that is kept open.
 *
 *   AWAY     nothing; a timer dials anew
 *   JOINING  Hello is on its way; the controller's first message is waited for
 *   TELLING  all that the node has is told, in order
 *   JOINED   what changes is told
 *   LEAVING  given up; the call is cancelled in the next turn
 */
#ifndef RINGVOL_MEMBER_LINK_H
#define RINGVOL_MEMBER_LINK_H

#include "cluster.pb-c.h"
#include "member/changes.h"
#include "member/classes.h"
#include "reactor/ring_chore.h"
#include "rpc/channel.h"

enum link_state { LINK_AWAY, LINK_JOINING, LINK_TELLING, LINK_JOINED, LINK_LEAVING, LINK_STATES };

struct member_link;

struct link_hooks {
	/* Appends the Hello that begins a call. 0 or -ENOMEM. */
	int (*hello)(void *arg, struct buf *b);
	/* Appends the names that are being made and are not in the log from l->next on. Likewise.
	 */
	int (*claims)(const struct member_link *l, struct buf *b);
	/* A message came; it is only valid meanwhile. False: nothing can be made of it. */
	bool (*on_report)(struct member_link *l, const Ringvol__V1__ControllerReport *report);
	/* It has begun to tell, or is away. */
	void (*on_change)(struct member_link *l);
	/* Whether another link is told all up to where this one is: link_is_behind(). */
	bool (*is_behind)(const struct member_link *l);
};

struct member_link {
	enum link_state state;
	unsigned index;
	const char *address;
	struct csi *csi;
	struct ring *ring;
	struct changes *changes;
	const struct link_hooks *hooks;
	void *arg;
	struct lane *lane; /* of looking names up */
	struct grpc_registry *registry;
	struct channel *channel;
	struct channel_call call;
	struct ring_timer timer; /* AWAY: dials; LEAVING: cancels; else heartbeat and silence */
	struct ring_timer pump;  /* something is to be sent */
	struct ring_chore later; /* likewise, and nobody waits for it */
	struct member_classes classes;
	unsigned redial_ms;
	uint64_t random; /* of the pauses between dials */
	uint64_t heard_ns, sent_ns, joined_ns;
	bool blocked;       /* the channel takes no more until on_writable */
	bool synced;        /* this call has told everything once */
	unsigned pools_due; /* bits, by pools_at() */
	uint64_t next;      /* the number of the next change to tell */
	/* TELLING: how far */
	enum record_kind kind;
	struct pool_walk at;
	/* for people */
	char version[64]; /* the controller's */
	char why[256];    /* why it is away; "" while it is not */
	char logged[256]; /* what the log was told last */
	uint64_t joins;
};

/* index, address, csi, changes, hooks, arg, lane and registry are set, all else is zero. Dials in
 * the next turn. tls NULL: the address is a unix socket. 0 or -errno with err. */
int link_open(struct member_link *l, struct member_asker *asker, struct tls *tls, uint64_t random,
	struct err *err);
/* Dials, in the next turn. */
void link_start(struct member_link *l);
/* Ends the call, at once, and dials no more. Not from a callback of the channel. */
void link_close(struct member_link *l);

/* There may be something to tell. */
void link_kick(struct member_link *l);
/* Likewise, and nobody waits for it: the RPC whose doing it is goes first. */
void link_kick_later(struct member_link *l);
/* Gives the call up, and dials anew after a pause. */
void link_leave(struct member_link *l, const char *why);
/* Tells all objects once more, on the same call. */
void link_tell_again(struct member_link *l);
/* The other one has been told of the object that this one is told of now, if it was there then. */
bool link_is_behind(const struct member_link *l, const struct member_link *other);
/* TELLING or JOINED: it hears of what changes. */
static inline bool link_tells(const struct member_link *l)
{
	return l->state == LINK_TELLING || l->state == LINK_JOINED;
}

#endif
