/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between nodes: what the target's disk has of one that is cut short, or begun again. */
#include "far.h"

#include "csi/task.h"
#include "transfer/chunk.h"
#include "transfer/pull.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { STEP = 5 << 19, BLOCK_BYTES = 64 << 10 }; /* of 160 MiB 4 are data: a block in each step */

static bool is_chunk(const char *path, size_t len)
{
	return strcmp(path, "/ringvol.v1.Transfer/ReadCopy") == 0 && len > CHUNK_ALIGN;
}

static struct pull *the_pull(void)
{
	list_for_each_safe (l, &w->csi->tasks) {
		struct csi_task *task = container_of(l, struct csi_task, link);
		if (task->copy.stop == pull_stop)
			return task->copy.arg;
	}
	cr_assert_fail("no copy runs");
	return NULL;
}

static int open_part(void)
{
	char path[128];
	snprintf(path, sizeof(path), "%s/copies/part-copied", w->pool_path);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	cr_assert_geq(fd, 0);
	return fd;
}

/* What an earlier stream may have left where the next one has a hole. */
static void leave_stray_bytes(uint64_t offset)
{
	static uint8_t bytes[BLOCK_BYTES];
	cr_assert_neq(offset % STEP, 0);
	memset(bytes, 0x5a, sizeof(bytes));
	int fd = open_part();
	cr_assert_eq(pwrite(fd, bytes, sizeof(bytes), (off_t)offset), BLOCK_BYTES);
	close(fd);
}

static unsigned count, at;

/* ---- a disk that hangs ---- */

static struct ring_timer hang;
static bool hung, spoilt;
static unsigned calls, hanging;

/* As if buffers were being written for four minutes, which no write of the simulation takes. */
static void on_hang(struct ring_timer *timer)
{
	struct pull *p = the_pull();
	cr_assert_eq(p->writing, hung ? hanging : 0);
	hung = !hung;
	p->writing = hung ? hanging : 0;
	for (unsigned i = 0; i < hanging; i++)
		p->bufs[i].busy = hung;
	if (hung)
		ring_timer_arm(w->reactor.ring, timer, 4 * 60 * 1000);
	else
		cr_assert_eq(channel_local.calls, calls, "nothing was asked for meanwhile");
	calls = channel_local.calls;
}

static enum channel_fate cut_and_hang(const char *path, uint8_t *data, size_t len)
{
	if (!is_chunk(path, len) || count++ != at)
		return FATE_DELIVER;
	hang.fn = on_hang;
	ring_timer_arm(w->reactor.ring, &hang, PULL_RETRY_MS / 2);
	data[len / 2] ^= spoilt;
	return spoilt ? FATE_DELIVER : FATE_CUT;
}

static void hang_before_the_next_stream(bool spoil, unsigned buffers)
{
	spoilt = spoil;
	hanging = buffers;
	open_both(WORLD_EXT4, 21);
	far_make_both(16 * MIB, 16 * MIB);
	channel_local.on_message = cut_and_hang;
	at = 10;
	cr_assert_eq(copy(), GRPC_OK);
	cr_assert_gt(calls, 0);
	cr_assert(!hung);
	assert_same_bytes();
	assert_nothing_left();
	close_both();
}

/* There is no buffer for what would come. */
Test(transfer, connection_is_cut_while_the_disk_hangs, .timeout = 60)
{
	hang_before_the_next_stream(false, PULL_BUFFERS);
}

/* What is written late must not come after the part is cut. */
Test(transfer, chunk_is_wrong_while_the_disk_hangs, .timeout = 60)
{
	hang_before_the_next_stream(true, 1);
}

/* ---- what is not durable goes ---- */

static bool was_wrong;
static unsigned marks;

static uint64_t noted(int fd)
{
	char text[512];
	ssize_t len = fgetxattr(fd, "trusted.ringvol.part", text, sizeof(text) - 1);
	cr_assert_gt(len, 0);
	text[len] = '\0';
	return strtoull(strstr(text, "from=") + 5, NULL, 10);
}

static enum channel_fate spoil_one(const char *path, uint8_t *data, size_t len)
{
	struct chunk chunk;
	if (!is_chunk(path, len))
		return FATE_DELIVER;
	if (was_wrong) {
		/* The first one of the next stream. */
		int fd = open_part();
		uint64_t from = noted(fd);
		cr_assert(chunk_parse(data, len, &chunk));
		cr_assert_geq(chunk.offset, from);
		cr_assert_lt(chunk.offset, from + STEP);
		cr_assert_eq(lseek(fd, (off_t)from, SEEK_DATA), -1, "behind %llu",
			(unsigned long long)from);
		cr_assert_eq(lseek(fd, 0, SEEK_END), (off_t)source_bytes);
		close(fd);
	}
	was_wrong = count++ == at;
	if (was_wrong) {
		data[len / 2] ^= 0x10;
		marks += the_pull()->part.marking;
		leave_stray_bytes(101 * MIB);
	}
	return FATE_DELIVER;
}

/* The mark of the first 64 MiB is before it, under way, or has ended. */
Test(transfer, wrong_chunk_around_a_mark, .timeout = 120)
{
	open_both(WORLD_EXT4, 22);
	far_make_both(160 * MIB, 4 * MIB);
	channel_local.on_message = spoil_one;
	for (at = 20; at < 40; at++) {
		count = 0;
		cr_assert_eq(copy(), GRPC_OK);
		cr_assert_gt(count, at);
		assert_same_bytes();
		cr_assert_eq(uncopy(), GRPC_OK);
	}
	cr_assert_eq(w->transfer->stats.wrong, 20);
	cr_assert_gt(marks, 0);
	assert_nothing_left();
	close_both();
}

static enum channel_fate cut_for_good(const char *path, uint8_t *data, size_t len)
{
	(void)data;
	if (!is_chunk(path, len) || count++ < at)
		return FATE_DELIVER;
	channel_local.registry = NULL;
	return FATE_CUT;
}

/* A part with 125 of 160 MiB. */
static void leave_part(void)
{
	far_make_both(160 * MIB, 4 * MIB);
	channel_local.on_message = cut_for_good;
	count = 0;
	at = 50;
	cr_assert_eq(copy(), GRPC_UNAVAILABLE);
	channel_local.on_message = NULL;
	channel_local.registry = far.registry;
	cr_assert_eq(files_in(w->pool_path, "copies"), 1);
}

Test(transfer, part_is_cut_before_it_goes_on, .timeout = 60)
{
	open_both(WORLD_EXT4, 23);
	leave_part();
	leave_stray_bytes(141 * MIB);
	cr_assert_eq(copy(), GRPC_OK);
	assert_same_bytes();
	assert_nothing_left();
	close_both();
}

/* Each step fails, up to the fill's first: what was pulled before stays, and from the part on so
 * does the grant. */
Test(transfer, part_outlives_what_fails_before_the_fill, .timeout = 60)
{
	unsigned granted = 0;
	bool kept = true;
	open_both(WORLD_EXT4, 24);
	leave_part();
	for (unsigned n = 0; kept; n++) {
		cr_assert_eq(far_grant(source_id(), "node-1", "copied"), ERR_OK);
		offer(source_id(), "copied");
		w->fault_hit = false;
		w->fault_after = (int)n;
		enum grpc_status status = create("copied", FROM_SNAPSHOT, other_id);
		w->fault_after = -1;
		cr_assert(w->fault_hit && status != GRPC_OK, "%u", n);
		kept = files_in(w->pool_path, "copies") == 1;
		cr_assert_eq(
			kept, strncmp(w->fault_at, "remote_fill/", 12) != 0, "%s", w->fault_at);
		bool opened = strcmp(w->fault_at, "pool_build/admit") == 0 ||
			      strcmp(w->fault_at, "pool_measure/measure") == 0 ||
			      strcmp(w->fault_at, "pool_build/open") == 0;
		granted += opened && transfer_grants(far.transfer) == 1;
	}
	cr_assert_eq(granted, 3);
	cr_assert_eq(transfer_grants(far.transfer), 0);
	close_both();
}
