/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Another node, for the tests of copies: `far` has the source, with a pool of its own on the
 * world's ring; the world is the node that makes the volume. channel_local.h is what lies between
 * them.
 */
#ifndef RINGVOL_TESTS_FAR_H
#define RINGVOL_TESTS_FAR_H

#include "channel_local.h"
#include "csi_calls.h"
#include "world.h"

#include "pool/attachment.h"
#include "pool/hold.h"
#include "transfer/transfer.h"

extern struct far {
	char path[96];
	bool mounted;
	struct pools *pools;
	struct node *node;
	struct transfer *transfer;
	struct grpc_registry *registry;
	char id[RECORD_ID_MAX], snapshot_id[RECORD_ID_MAX]; /* of the sources */
} far;

/* The world as a raw block volume's, and the other node; both without reflink on WORLD_EXT4. */
void open_both(enum world_fs fs, uint64_t seed);
void close_both(void);
extern bool far_small_blocks; /* its file system's blocks have 1 KiB, and not 4 */
/* As after kill -9, and up again. */
void far_down(void), far_up(void);
/* To its end. */
void run_op(struct op *op);
/* The volume has these attachments from now on, which become its own. */
void attach_volume(struct pool_object *volume, struct attachments *to);
/* One, to a node that uses it alone, over the export LENT_EXPORT. */
struct attachments *lent_to(const char *node);
#define LENT_EXPORT "01234567-89ab-4cde-8f01-23456789abcd"

/* A volume and a snapshot with the same bytes; so much of them is data, evenly spread. */
extern uint64_t source_bytes, data_bytes;
/* Its records say that the bytes are an encrypted image's: a header, and 16 MiB less. */
extern bool source_encrypted;
void far_make_both(uint64_t size, uint64_t data);
void far_make_volume(uint64_t size, uint64_t data); /* the volume alone */
/* far.snapshot_id is a snapshot "root", as `ringvol import` makes it or as a sidecar has it made.
 */
void far_make_root(uint64_t size, uint64_t data, bool golden);
void far_remove(enum record_kind kind, const char *id);

/* What a controller does: the last grant; the volume is the source, and not the snapshot. */
extern char grant[POOL_GRANT_BYTES];
extern bool from_volume;
const char *source_id(void);
enum err_code far_grant(const char *source, const char *node_id, const char *name);
void offer(const char *source, const char *name);
/* CreateVolume "copied" (other_id) with a grant and an offer, as often as one likes; and its
 * opposite. */
enum grpc_status copy(void), uncopy(void);

/* The copy has the source's bytes, and its holes. */
void assert_same_bytes(void);
unsigned files_in(const char *pool, const char *dir);
/* Neither a part nor a hold, and nothing under way. */
void assert_nothing_left(void);

#endif
