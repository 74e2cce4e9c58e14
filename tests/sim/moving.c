/* SPDX-License-Identifier: Apache-2.0 */
#include "moving.h"

#include "cluster.pb-c.h"
#include "csi/messages.h"
#include "csi/services.h"
#include "pool/departure.h"
#include "pool/departure_drop.h"
#include "pool/index.h"
#include "pool/part.h"
#include "pool/pools.h"
#include "transfer/grant.h"
#include "transfer/still.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- what the volume has ---- */

uint8_t move_expected[SIZE];

int move_open_source(void)
{
	char path[128];
	snprintf(path, sizeof(path), "%s/volumes/source", far.path);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	cr_assert_geq(fd, 0);
	return fd;
}

/* After the grant: bytes, a piece that was a hole, and a hole where there was data. */
void move_change(void)
{
	uint8_t piece[PIECE];
	int fd = move_open_source();
	memset(piece, 0xa5, sizeof(piece));
	cr_assert_eq(pwrite(fd, piece, 100, PIECE - 50), 100);
	cr_assert_eq(pwrite(fd, piece, PIECE, 3 * MIB + PIECE), PIECE);
	cr_assert_eq(pwrite(fd, piece, PIECE, SIZE - PIECE), PIECE);
	cr_assert_eq(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 2 * MIB, MIB), 0);
	close(fd);
}

void move_expect(void)
{
	int fd = move_open_source();
	cr_assert_eq(pread(fd, move_expected, SIZE, 0), SIZE);
	close(fd);
}

/* ---- the calls ---- */

static void drop_departure_of(struct pools *pools, const char *id)
{
	struct pool_departure_drop drop;
	struct pool_departure *left = pools_departure(pools, id);
	cr_assert_not_null(left);
	cr_assert_null(pool_departure_leftover(left));
	pool_departure_drop_init(&drop, &w->reactor, left);
	run_op(&drop.op);
	cr_assert(!op_failed(&drop.op), "%s", drop.op.err.message);
}

/* What the controller does before each TakeVolume. */
enum err_code move_give(void)
{
	struct grant_make m;
	grant_make_init(&m, far.transfer, far.id, "node-1", "source");
	m.move = true;
	run_op(&m.op);
	enum err_code code = m.op.err.code;
	memcpy(grant, m.grant, sizeof(grant));
	grant_make_free(&m);
	if (code == ERR_OK)
		offer(far.id, "source");
	return code;
}

char move_message[512];

enum grpc_status move_take_only(const char *id, const char *pool)
{
	Ringvol__V1__TakeVolumeRequest req = RINGVOL__V1__TAKE_VOLUME_REQUEST__INIT;
	struct world_answer answer;
	req.volume_id = csi_bytes(id);
	req.volume_name = csi_bytes("source");
	req.pool = csi_bytes(pool);
	enum grpc_status status = call("/ringvol.v1.Member/TakeVolume", &req.base, &answer);
	strcpy(move_message, answer.message);
	if (status == GRPC_OK) {
		Ringvol__V1__TakeVolumeResponse *response =
			ringvol__v1__take_volume_response__unpack(NULL, answer.len, answer.data);
		cr_assert_eq(response->moves, 1);
		cr_assert_gt(response->entry.len, 0);
		ringvol__v1__take_volume_response__free_unpacked(response, NULL);
	}
	world_answer_free(&answer);
	return status;
}

enum grpc_status move_take(void)
{
	cr_assert_eq(move_give(), ERR_OK);
	return move_take_only(far.id, "default");
}

/* ---- what must be so ---- */

bool move_is_in(struct pools *pools)
{
	struct pool_object *o;
	struct err err = {0};
	return pools_find_id(pools, RECORD_VOLUME, far.id, &o, &err) == 0;
}

/* At one node, and where it has left but is not here, the part is durable and finished. */
void move_at_one(const char *after)
{
	bool there = move_is_in(far.pools), here = move_is_in(w->pools);
	bool part = pool_part_is_finished(pool_holds_fd(pools_at(w->pools, 0)), "source");
	cr_assert_eq(there, pools_departure(far.pools, far.id) == NULL, "after %s", after);
	cr_assert_not(there && here, "twice after %s", after);
	cr_assert(there || here || part, "nowhere after %s", after);
}

void move_taken(const char *after)
{
	char path[128];
	static uint8_t got[SIZE];
	move_at_one(after);
	cr_assert(move_is_in(w->pools), "after %s", after);
	const struct record *rec = pools_find_name(w->pools, RECORD_VOLUME, "source")->rec;
	cr_assert_eq(rec->moves, 1);
	cr_assert_str_eq(rec->born, pool_uuid8(pools_at(far.pools, 0)));
	snprintf(path, sizeof(path), "%s/volumes/source", w->pool_path);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	cr_assert_geq(fd, 0);
	cr_assert_eq(pread(fd, got, SIZE, 0), SIZE);
	cr_assert_eq(lseek(fd, 0, SEEK_END), SIZE);
	for (unsigned at = 0; at < SIZE; at += PIECE)
		cr_assert_eq(memcmp(got + at, move_expected + at, PIECE), 0, "at %u after %s", at,
			after);
	close(fd);
	ring_sim_settle(w->reactor.ring, 2 * TRANSFER_LOOK_MS);
	assert_nothing_left();
	cr_assert(list_empty(&far.transfer->stills));
	cr_assert_eq(files_in(far.path, "volumes"), 0, "after %s", after);
}

/* Deleted, so that both nodes are as they were before. */
void move_undo(void)
{
	cr_assert_eq(delete (far.id), GRPC_OK);
	cr_assert_eq(files_in(w->pool_path, "volumes"), 0);
	drop_departure_of(far.pools, far.id);
	world_settle(w);
}

void open_move(enum world_fs fs, uint64_t seed)
{
	open_both(fs, seed);
	far_make_volume(SIZE, SIZE / 2);
}

void close_move(void)
{
	move_undo();
	close_both();
}
