/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between nodes: drains, sizes, modes, limits, and disks that fail. */
#include "far.h"

#include "base/crc32c.h"
#include "cluster.pb-c.h"
#include "csi/messages.h"
#include "csi/request.h"
#include "pool/index.h"
#include "pool/pools.h"
#include "pool/remove.h"
#include "reactor/ring_chore.h"
#include "rpc/registry.h"
#include "transfer/chunk.h"
#include "transfer/grant.h"
#include "transfer/offer.h"
#include "transfer/pull.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- shutting down, sizes, modes, faults of the disks ---- */

static unsigned stop_at;

static enum channel_fate drain_then(const char *path, uint8_t *data, size_t len)
{
	(void)path;
	(void)data;
	(void)len;
	if (stop_at-- == 1)
		csi_drain(w->csi, NULL, NULL);
	return FATE_DELIVER;
}

/* A drain of the target ends the call with UNAVAILABLE, soon, and what was pulled is kept. */
Test(transfer, drain_keeps_the_part, .timeout = 120)
{
	open_both(WORLD_EXT4, 13);
	far_make_both(32 * MIB, 32 * MIB);
	channel_local.on_message = drain_then;
	stop_at = 50; /* of 64 */
	cr_assert_eq(copy(), GRPC_UNAVAILABLE);
	channel_local.on_message = NULL;
	cr_assert_eq(files_in(w->pool_path, "copies"), 1);
	cr_assert_eq(w->csi->task_count, 0);
	far_down();
	world_restart(w);
	far_up();
	cr_assert_eq(copy(), GRPC_OK);
	cr_assert_leq(far.transfer->stats.sent_bytes, 12 * MIB);
	assert_same_bytes();
	assert_nothing_left();
	cr_assert_eq(uncopy(), GRPC_OK);
	close_both();
}

static enum channel_fate drain_source(const char *path, uint8_t *data, size_t len)
{
	(void)path;
	(void)data;
	(void)len;
	if (stop_at-- == 1)
		transfer_drain(far.transfer);
	return FATE_DELIVER;
}

/* One of the source's ends the stream; without another source the copy is given up for now. */
Test(transfer, drain_of_the_source_ends_the_stream, .timeout = 120)
{
	open_both(WORLD_EXT4, 14);
	far_make_both(32 * MIB, 32 * MIB);
	channel_local.on_message = drain_source;
	stop_at = 20;
	cr_assert_eq(copy(), GRPC_UNAVAILABLE);
	cr_assert_eq(far.transfer->stats.sends, 0);
	channel_local.on_message = NULL;
	far_down();
	far_up();
	cr_assert_eq(copy(), GRPC_OK);
	assert_same_bytes();
	assert_nothing_left();
	close_both();
}

Test(transfer, larger_than_its_source, .timeout = 60)
{
	open_both(WORLD_XFS, 15);
	far_make_both(16 * MIB, 4 * MIB);
	create_bytes = 40 * MIB;
	cr_assert_eq(copy(), GRPC_OK);
	char path[128];
	struct stat st;
	snprintf(path, sizeof(path), "%s/volumes/copied", w->pool_path);
	cr_assert_eq(stat(path, &st), 0);
	cr_assert_eq(st.st_size, 40 * MIB);
	assert_same_bytes();
	cr_assert_eq(uncopy(), GRPC_OK);
	create_bytes = 15 * MIB; /* no smaller one: it gets its source's size */
	cr_assert_eq(copy(), GRPC_OK);
	cr_assert_eq(stat(path, &st), 0);
	cr_assert_eq(st.st_size, 16 * MIB);
	assert_nothing_left();
	close_both();
}

/* A block volume's bytes are mounted only if the class says so, and if they hold a file system. */
Test(transfer, change_of_mode, .timeout = 60)
{
	char command[192];
	open_both(WORLD_EXT4, 16);
	far_make_both(16 * MIB, MIB);
	block = false;
	cr_assert_eq(copy(), GRPC_INVALID_ARGUMENT, "the class does not say so");
	mode_change = true;
	cr_assert_eq(copy(), GRPC_INVALID_ARGUMENT, "it holds none");
	assert_nothing_left();
	snprintf(command, sizeof(command), "mkfs.ext4 -q -b 4096 -F %s/snapshots/source-snap",
		far.path);
	cr_assert_eq(system(command), 0);
	fs_type = "xfs";
	cr_assert_eq(copy(), GRPC_INVALID_ARGUMENT, "it holds another");
	fs_type = "ext4";
	cr_assert_eq(copy(), GRPC_OK);
	snprintf(volume_id, sizeof(volume_id), "%s", other_id);
	cr_assert_eq(do_stage(), GRPC_OK, "it mounts");
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_eq(delete_patiently(other_id), GRPC_OK);
	assert_nothing_left();
	close_both();
}

static long faults_left;
static bool fault_came;

static int request_fault(void *arg, uint64_t nth, const struct io_uring_sqe *sqe)
{
	(void)arg;
	(void)nth;
	if (faults_left < 0 || (sqe->opcode != IORING_OP_READ && sqe->opcode != IORING_OP_WRITE &&
				       sqe->opcode != IORING_OP_FSYNC))
		return 0;
	if (faults_left-- > 0)
		return 0;
	fault_came = true;
	return -EIO;
}

/* Each read of the source, write and sync of the target fails once. */
Test(transfer, disks_fail, .timeout = 120)
{
	open_both(WORLD_XFS, 17);
	far_make_both(16 * MIB, 2 * MIB);
	cr_assert_eq(far_grant(source_id(), "node-1", "copied"), ERR_OK);
	w->sim.fault = request_fault;
	faults_left = -1;
	unsigned failed = 0;
	for (long n = 0;; n++) {
		snprintf(snapshot_id, sizeof(snapshot_id), "%s", source_id());
		cr_assert_eq(far_grant(source_id(), "node-1", "copied"), ERR_OK);
		offer(source_id(), "copied");
		fault_came = false;
		faults_left = n;
		enum grpc_status status = create("copied", FROM_SNAPSHOT, other_id);
		faults_left = -1;
		if (!fault_came)
			break;
		/* The source's disk: it is away, for us. Ours: INTERNAL. */
		cr_assert(
			status == GRPC_INTERNAL || status == GRPC_UNAVAILABLE || status == GRPC_OK,
			"%d", status);
		failed += status != GRPC_OK;
		cr_assert_eq(copy(), GRPC_OK);
		assert_same_bytes();
		cr_assert_eq(uncopy(), GRPC_OK);
		cr_assert_lt(n, 400);
	}
	cr_assert_gt(failed, 30);
	ring_sim_settle(w->reactor.ring, 2 * TRANSFER_IDLE_MS);
	assert_nothing_left();
	close_both();
}

/* The rate holds for both ends, by the ring's clock. */
Test(transfer, rate, .timeout = 60)
{
	open_both(WORLD_EXT4, 18);
	far_make_both(16 * MIB, 16 * MIB);
	for (unsigned end = 0; end < 2; end++) {
		struct transfer *limited = end == 0 ? w->transfer : far.transfer;
		limited->rate.bytes_per_s = 4 * MIB;
		uint64_t begin_ns = ring_now_ns(w->reactor.ring);
		cr_assert_eq(copy(), GRPC_OK);
		uint64_t ms = (ring_now_ns(w->reactor.ring) - begin_ns) / 1000000;
		cr_assert_gt(ms, 3700);
		cr_assert_lt(ms, 6000);
		limited->rate.bytes_per_s = 0;
		cr_assert_eq(uncopy(), GRPC_OK);
	}
	close_both();
}

static unsigned urgent_at, paused;
static uint64_t last_ns;

/* At one message a call begins that lasts. */
static enum channel_fate urgent_then(const char *path, uint8_t *data, size_t len)
{
	uint64_t now = ring_now_ns(w->reactor.ring);
	(void)path;
	(void)data;
	(void)len;
	paused += last_ns != 0 && now - last_ns >= RING_CHORES_WAIT_MS * 1000000ull;
	last_ns = now;
	if (urgent_at-- == 1)
		ring_urgent_begin(w->reactor.ring);
	return FATE_DELIVER;
}

/* It stands still for a call, and goes on behind one that is long. */
Test(transfer, calls_go_first, .timeout = 60)
{
	open_both(WORLD_EXT4, 19);
	far_make_both(16 * MIB, 16 * MIB);
	channel_local.on_message = urgent_then;
	cr_assert_eq(copy(), GRPC_OK);
	cr_assert_eq(paused, 0);
	cr_assert_eq(uncopy(), GRPC_OK);
	urgent_at = 12; /* of 32 */
	last_ns = 0;
	cr_assert_eq(copy(), GRPC_OK);
	channel_local.on_message = NULL;
	cr_assert_geq(paused, 1);
	cr_assert_leq(paused, 2); /* at either end */
	assert_same_bytes();
	ring_urgent_end(w->reactor.ring);
	cr_assert_eq(uncopy(), GRPC_OK);
	assert_nothing_left();
	close_both();
}

/* One more stream than a node sends is refused, and tried again. */
Test(transfer, so_many_at_once, .timeout = 60)
{
	open_both(WORLD_EXT4, 19);
	far_make_both(16 * MIB, MIB);
	far.transfer->stats.sends = TRANSFER_SENDS_MAX;
	cr_assert_eq(copy(), GRPC_UNAVAILABLE);
	far.transfer->stats.sends = 0;
	w->transfer->stats.pulls = TRANSFER_PULLS_MAX;
	cr_assert_eq(copy(), GRPC_UNAVAILABLE);
	w->transfer->stats.pulls = 0;
	cr_assert_eq(copy(), GRPC_OK);
	assert_same_bytes();
	assert_nothing_left();
	close_both();
}

static struct offer told(void)
{
	struct offer told = {.node_id = "node-2", .address = "far:1"};
	strcpy(told.source_id, source_id());
	strcpy(told.grant, grant);
	return told;
}

/* It counts before it reads a byte, and until it is let go; what only closes does not count. */
Test(transfer, so_many_pulls, .timeout = 60)
{
	static struct pull pulls[TRANSFER_PULLS_MAX], more;
	struct err err = {0};
	open_both(WORLD_EXT4, 25);
	far_make_both(16 * MIB, MIB);
	cr_assert_eq(far_grant(source_id(), "node-1", "copied"), ERR_OK);
	const struct offer offered = told();
	for (unsigned i = 0; i < TRANSFER_PULLS_MAX; i++)
		cr_assert_eq(pull_init(&pulls[i], w->transfer, &offered, true, &err), 0);
	cr_assert_lt(pull_init(&more, w->transfer, &offered, true, &err), 0);
	cr_assert_eq(err.code, ERR_UNAVAILABLE);
	cr_assert_eq(copy(), GRPC_UNAVAILABLE);
	cr_assert_eq(pull_init(&more, w->transfer, &offered, false, &err), 0);
	pull_free(&more);
	cr_assert_eq(w->transfer->stats.pulls, TRANSFER_PULLS_MAX);
	for (unsigned i = 0; i < TRANSFER_PULLS_MAX; i++)
		pull_free(&pulls[i]);
	cr_assert_eq(copy(), GRPC_OK);
	assert_nothing_left();
	close_both();
}

/* Offers are looked over, the oldest gives way, and none is kept for long. */
Test(transfer, offers, .timeout = 60)
{
	static char name[RECORD_NAME_MAX + 2];
	const char *id = "01234567.snap.89abcdef", *hex = "0123456789abcdef0123456789abcdef";
	struct offer found;
	struct err err = {0};
	open_both(WORLD_EXT4, 20);
	const struct {
		const char *id, *name, *grant, *node, *address;
	} wrong[] = {
		{"no-id", "a", hex, "n", "h:1"},
		{id, "", hex, "n", "h:1"},
		{id, "a", "0123", "n", "h:1"},
		{id, "a", "0123456789abcdef0123456789abcdeF", "n", "h:1"},
		{id, "a", hex, "", "h:1"},
		{id, "a", hex, "n", ""},
		{id, name, hex, "n", "h:1"},
	};
	memset(name, 'x', sizeof(name) - 1);
	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		err_clear(&err);
		cr_assert_lt(offer_put(w->transfer, wrong[i].id, wrong[i].name, wrong[i].grant,
				     wrong[i].node, wrong[i].address, &err),
			0);
		cr_assert_eq(err.code, ERR_INVALID);
	}
	for (unsigned i = 0; i <= TRANSFER_OFFERS_MAX; i++) {
		snprintf(name, sizeof(name), "v-%u", i);
		cr_assert_eq(offer_put(w->transfer, id, name, hex, "n", "h:1", &err), 0);
	}
	cr_assert_eq(w->transfer->n_offers, TRANSFER_OFFERS_MAX);
	cr_assert(!offer_find(w->transfer, id, "v-0", &found));
	cr_assert(offer_find(w->transfer, id, "v-1", &found));
	cr_assert_eq(offer_put(w->transfer, id, "v-1", hex, "n", "h:2", &err), 0);
	cr_assert(offer_find(w->transfer, id, "v-1", &found));
	cr_assert_str_eq(found.address, "h:2", "the last one counts");
	cr_assert_eq(w->transfer->n_offers, TRANSFER_OFFERS_MAX);
	ring_sim_settle(w->reactor.ring, TRANSFER_OFFER_MS + 2 * TRANSFER_LOOK_MS);
	cr_assert_eq(w->transfer->n_offers, 0);
	close_both();
}

/* ---- an image that is locked ---- */

static int leased = -1;
static struct ring_timer unlock;

static void on_unlock(struct ring_timer *timer)
{
	(void)timer;
	cr_assert_neq(fcntl(leased, F_GETLEASE), F_WRLCK, "nobody came");
	close(leased);
	leased = -1;
}

/* As by the deletion of its snapshot, which has the same image. */
static enum channel_fate lock_image(const char *path, uint8_t *data, size_t len)
{
	char image[256];
	(void)data;
	(void)len;
	if (strcmp(path, "/ringvol.v1.Transfer/OpenCopy") != 0 || unlock.fn != NULL)
		return FATE_DELIVER;
	snprintf(image, sizeof(image), "%s/copies/%s", far.path,
		pool_hold_next(pools_at(far.pools, 0), NULL)->name);
	leased = open(image, O_RDWR | O_CLOEXEC);
	cr_assert_eq(fcntl(leased, F_SETLEASE, F_WRLCK), 0);
	unlock.fn = on_unlock;
	ring_timer_arm(w->reactor.ring, &unlock, PULL_RETRY_MS / 2);
	return FATE_DELIVER;
}

/* It is tried again, and not given up. */
Test(transfer, image_that_is_locked_for_a_moment, .timeout = 60)
{
	signal(SIGIO, SIG_IGN);
	open_both(WORLD_XFS, 16);
	far_make_both(16 * MIB, 4 * MIB);
	channel_local.on_message = lock_image;
	cr_assert_eq(copy(), GRPC_OK);
	cr_assert(unlock.fn != NULL && leased < 0);
	assert_same_bytes();
	assert_nothing_left();
	close_both();
}
