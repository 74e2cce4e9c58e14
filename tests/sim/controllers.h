/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Controllers for tests of the member: they stand in for rpc/channel.c, take what a node sends over
 * Cluster.Join, keep what they were told as a controller would, and say what a test has them say.
 */
#ifndef RINGVOL_TESTS_CONTROLLERS_H
#define RINGVOL_TESTS_CONTROLLERS_H

#include "cluster.pb-c.h"
#include "pool/record.h"
#include "rpc/channel.h"

enum { CONTROLLERS_MAX = 4, TOLD_MAX = 32768 };

struct told {
	char id[RECORD_ID_MAX]; /* "": none */
	enum record_kind kind;
	uint64_t join; /* the one that told it last */
	size_t health_len, entry_len;
	uint8_t *entry;
	char source_id[RECORD_ID_MAX];
};

struct controller_sim {
	const char *address;
	const struct grpc_registry *registry; /* of the channel to it */
	bool away;                            /* nobody answers */
	bool deaf;                            /* it answers and reads nothing */
	bool mute;                            /* it says nothing by itself: no Welcome */
	bool no_verdict;                      /* claims are heard, and not answered */
	const char *holder; /* the node that has every name; NULL: they are granted */
	const char *ends;   /* it ends each call with this message */
	/* out */
	unsigned dials, hellos, reports, empty, claims, released, gone, objects, capacities;
	unsigned largest;           /* report, bytes */
	unsigned gap_ms;            /* the longest between two reports of a call */
	unsigned unordered;         /* objects of a first telling that came after a larger one */
	bool joined, synced, early; /* early: an object came before its pool */
	size_t queued;              /* deaf: bytes */
	uint64_t heard_ns;          /* ring time of the last report */
	int held;                   /* names that are claimed now */
	bool unheld;                /* one was released that was not claimed */
	char claimed[RECORD_KEY_MAX], released_key[RECORD_KEY_MAX];
	char gone_id[RECORD_ID_MAX];
	Ringvol__V1__NodeReport *hello; /* the last one */
	Ringvol__V1__NodePool pool;     /* the last one told; its strings are below */
	char pool_uuid[40], pool_why[600];
	uint32_t class;
	int64_t available; /* of the last answer to a class */
	struct told *told; /* TOLD_MAX, by hash */
	size_t count;
	char last[RECORD_ID_MAX];
	/* private */
	struct channel *channel;
};

extern struct controller_sim controllers[CONTROLLERS_MAX];

void controllers_reset(void);
const struct told *told_find(const struct controller_sim *c, const char *id);
/* Says it over the call that is open. */
void controller_say(struct controller_sim *c, const Ringvol__V1__ControllerReport *report);
void controller_say_bytes(struct controller_sim *c, const uint8_t *data, size_t len);
/* "Still here". */
void controller_beat(struct controller_sim *c);
/* Loses the call. */
void controller_cut(struct controller_sim *c, const char *message);
/* It reads on: all that waits is read. */
void controller_read(struct controller_sim *c);

#endif
