/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A NodeReport is put together piece by piece: fields of a message may follow each other in any
 * order, and a list's items are fields of one number. Nothing of it lies about unpacked. And how
 * what controllers say is taken apart.
 */
#ifndef RINGVOL_MEMBER_REPORT_H
#define RINGVOL_MEMBER_REPORT_H

#include "base/arena.h"
#include "base/buf.h"
#include "csi/csi.h"

#include <stdbool.h>
#include <stdint.h>

enum {
	MEMBER_BATCH_BYTES = 64 << 10, /* of a report: then another one begins */
	/* Fields of NodeReport, as in proto/cluster.proto. */
	REPORT_HELLO = 1,
	REPORT_POOLS = 2,
	REPORT_OBJECTS = 3,
	REPORT_GONE = 4,
	REPORT_SYNCED = 5,
	REPORT_CLAIMS = 6,
	REPORT_CAPACITIES = 7,
	REPORT_RELEASED = 8,
};

/* Each: 0 or -ENOMEM, nothing appended then. */
int report_bytes(struct buf *b, unsigned field, const void *data, size_t len);
int report_message(struct buf *b, unsigned field, const ProtobufCMessage *message);
int report_true(struct buf *b, unsigned field);

int report_pool(struct buf *b, const struct pool *pool);
/* ret_hash: of what was appended, never 0; may be NULL. */
int report_object(
	struct buf *b, const struct csi *csi, const struct pool_object *object, uint64_t *ret_hash);
/* A name that is claimed, or released: field says. */
int report_name(struct buf *b, unsigned field, enum record_kind kind, const char *key);

/* FNV-1a; hash: what came before, REPORT_HASH_START at first. */
#define REPORT_HASH_START UINT64_C(0xcbf29ce484222325)
uint64_t report_hash(uint64_t hash, const void *data, size_t len);

/* A message in the arena, whose limit bounds what it may become. NULL: it is none, or too large. */
void *report_unpack(struct arena *arena, const ProtobufCMessageDescriptor *descriptor,
	const uint8_t *data, size_t len);

#endif
