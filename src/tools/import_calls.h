/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CSI calls that `ringvol import` makes, as an orchestrator makes them: each is repeated while
 * the driver says "later" or is away for a moment.
 *
 * How they can fail: with what the driver answers, after IMPORT_LATER_MS of "later", or after
 * IMPORT_AWAY_MS without an answer; at once if nobody has ever answered. Signals that would end the
 * process by a handler have to be blocked: a call that was sent is waited for.
 */
#ifndef RINGVOL_TOOLS_IMPORT_CALLS_H
#define RINGVOL_TOOLS_IMPORT_CALLS_H

#include "base/arena.h"
#include "base/err.h"
#include "pool/record.h"

#include <stdbool.h>
#include <stdint.h>

enum { IMPORT_LATER_MS = 10 * 60 * 1000, IMPORT_AWAY_MS = 60 * 1000 };

struct import_calls {
	const char *endpoint; /* as grpc_client_open() takes it */
	/* ---- private ---- */
	struct grpc_client *client;
	bool answered;
};

void import_calls_close(struct import_calls *calls);
/* Of a call that failed so: the driver may be doing yet what it was asked for. */
bool import_unanswered(const struct err *err);

struct import_volume {
	const char *name;
	const char *pool;         /* the driver's; NULL: the driver's choice */
	const char *fs;           /* NULL: a raw block volume */
	const char *provisioning; /* "thin", "thick"; NULL: as the pool has it */
	unsigned block_size;      /* logical, of the device; 0: the driver's choice */
	uint64_t bytes;           /* asked for; then what it has */
	const char *clone;        /* the id of a volume that it is a copy of; NULL: of none */
	bool changes_mode;        /* that one is raw, and this one is mounted */
	/* ---- of those that are there ---- */
	char id[RECORD_ID_MAX]; /* "": none */
};

int import_create(struct import_calls *calls, struct import_volume *v, struct err *err);
int import_delete(struct import_calls *calls, const char *id, struct err *err);
/* Stages it, and publishes it at target. Both paths are absolute. */
int import_up(struct import_calls *calls, const struct import_volume *v, const char *staging,
	const char *target, struct err *err);
int import_down(struct import_calls *calls, const char *id, const char *staging, const char *target,
	struct err *err);
int import_snapshot(struct import_calls *calls, const char *volume, const char *name,
	char ret_id[RECORD_ID_MAX], struct err *err);
/* The id of the snapshot, or volume, with the key; "": there is none. */
int import_find(struct import_calls *calls, bool snapshot, const char *key,
	char ret_id[RECORD_ID_MAX], struct err *err);

#endif
