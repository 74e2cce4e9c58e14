/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of images whose bytes are in places, on the kernel's ring; and how a map becomes places.
 * Faults are in sim/. */
#include "blockio/copy.h"
#include "blockio/copy_walk.h"
#include "reactor/ring_uring.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MIB = 1 << 20, SIZE_MAX_BYTES = 24 * MIB, PIECES = 9, FOREIGN = 0xa5 };

static struct reactor reactor;
static bool running;
static uint8_t model[SIZE_MAX_BYTES], got[SIZE_MAX_BYTES];

/* Two "disks" with pieces of ours between other images' bytes. */
struct disks {
	int fds[2];
	uint64_t ends[2];
	struct copy_places *places;
};

static void open_all(void)
{
	cr_assert(ring_open(&reactor.ring, &(struct ring_config){0}) == 0);
	cr_assert(work_open(&reactor.work, reactor.ring, 2) == 0);
}

static void close_all(void)
{
	work_close(reactor.work);
	ring_close(reactor.ring);
}

TestSuite(copy_places, .init = open_all, .fini = close_all);

static int open_file(int flags)
{
	int fd = open("/var/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);
	cr_assert(fd >= 0);
	return fd;
}

static void set_direct(int fd, bool on)
{
	int flags = fcntl(fd, F_GETFL);
	cr_assert(fcntl(fd, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT) == 0);
}

static void foreign_put(struct disks *d, unsigned i)
{
	static uint8_t mem[MIB];
	memset(mem, FOREIGN, sizeof mem);
	cr_assert(pwrite(d->fds[i], mem, MIB, (off_t)d->ends[i]) == MIB);
	d->ends[i] += MIB;
}

/* Pieces for `size` bytes; the image's last ones come first on the disks. */
static struct disks disks_open(uint64_t size, int flags)
{
	struct disks d = {0};
	uint64_t left = copy_round_up(size), most = copy_round_up(left / (PIECES - 1));
	d.places = calloc(1, sizeof *d.places + PIECES * sizeof d.places->at[0]);
	cr_assert(d.places != NULL);
	for (; left > 0; d.places->count++) {
		uint64_t len = left < most ? left : most;
		d.places->at[d.places->count].bytes = len;
		left -= len;
	}
	for (unsigned i = 0; i < 2; i++) {
		d.fds[i] = open_file(0);
		foreign_put(&d, i);
	}
	for (unsigned i = d.places->count; i-- > 0;) {
		struct copy_place *place = &d.places->at[i];
		place->fd = d.fds[i % 2];
		place->offset = d.ends[i % 2];
		d.ends[i % 2] += place->bytes;
		foreign_put(&d, i % 2);
	}
	for (unsigned i = 0; i < 2; i++)
		set_direct(d.fds[i], flags & O_DIRECT);
	return d;
}

static void disks_close(struct disks *d)
{
	close(d->fds[0]);
	close(d->fds[1]);
	free(d->places);
}

static void buffered(struct disks *d)
{
	for (unsigned i = 0; i < 2; i++)
		set_direct(d->fds[i], false);
}

static void disks_write(struct disks *d, uint64_t size, bool direct)
{
	uint64_t at = 0;
	buffered(d);
	for (unsigned i = 0; i < d->places->count; i++) {
		const struct copy_place *place = &d->places->at[i];
		uint64_t len = place->bytes < size - at ? place->bytes : size - at;
		cr_assert(pwrite(place->fd, model + at, len, (off_t)place->offset) == (ssize_t)len);
		at += len;
	}
	for (unsigned i = 0; i < 2; i++)
		set_direct(d->fds[i], direct);
}

static bool all_are(const uint8_t *mem, size_t len, uint8_t byte)
{
	return len == 0 || (mem[0] == byte && memcmp(mem, mem + 1, len - 1) == 0);
}

/* The pieces hold the model, zeros behind its end, and what is between them is as it was. */
static void disks_check(struct disks *d, uint64_t size)
{
	uint64_t at = 0;
	buffered(d);
	for (unsigned i = 0; i < d->places->count; i++) {
		const struct copy_place *place = &d->places->at[i];
		memset(got, 0, place->bytes + MIB);
		cr_assert(pread(place->fd, got, place->bytes + MIB, (off_t)place->offset) > 0);
		uint64_t len = place->bytes < size - at ? place->bytes : size - at;
		cr_assert(memcmp(got, model + at, len) == 0, "piece %u", i);
		cr_assert(all_are(got + len, place->bytes - len, 0), "behind the end");
		cr_assert(all_are(got + place->bytes, MIB, FOREIGN), "behind piece %u", i);
		at += len;
	}
}

/* Random data with long zeros between. */
static void model_fill(uint64_t size, unsigned seed)
{
	srand(seed);
	memset(model, 0, sizeof model);
	for (unsigned i = 0; i < 30; i++) {
		uint64_t at = (uint64_t)rand() % size, len = 1 + (uint64_t)rand() % (512 << 10);
		for (uint64_t j = at; j < at + len && j < size; j++)
			model[j] = (uint8_t)(1 + (seed + i + j * 7) % 255);
	}
}

static void on_end(struct op *op)
{
	(void)op;
	running = false;
}

static void run(struct copy *copy)
{
	copy_init(copy, &reactor);
	copy->op.on_end = on_end;
	running = true;
	op_start(&copy->op);
	while (running)
		cr_assert(ring_turn(reactor.ring, true) == 0);
}

static void run_well(struct copy *copy, unsigned seed)
{
	run(copy);
	cr_assert(!op_failed(&copy->op), "seed %u: %s", seed, copy->op.err.message);
	cr_assert(copy->looked_bytes == copy->size && copy->state == NULL);
	cr_assert(copy->done_bytes <= copy->size);
}

/* File to disks, disks to disks, disks to file. */
static void check_copies(uint64_t size, unsigned seed, int flags)
{
	model_fill(size, seed);
	int src = open_file(0), dst = open_file(0);
	struct disks a = disks_open(size, flags), b = disks_open(size, flags);
	/* One byte more than is copied: it must not come along. */
	cr_assert(pwrite(src, model, size, 0) == (ssize_t)size);
	cr_assert(pwrite(src, "x", 1, (off_t)size) == 1);
	set_direct(src, flags & O_DIRECT);
	struct copy in = {.src_fd = src, .dst_fd = -1, .dst_places = a.places, .size = size};
	run_well(&in, seed);
	disks_check(&a, size);
	disks_write(&a, size, flags & O_DIRECT);
	struct copy across = {.src_fd = -1,
		.dst_fd = -1,
		.src_places = a.places,
		.dst_places = b.places,
		.size = size};
	run_well(&across, seed);
	cr_assert_eq(across.done_bytes, size, "all of it was looked at");
	disks_check(&b, size);
	disks_write(&b, size, flags & O_DIRECT);
	cr_assert(ftruncate(dst, (off_t)size) == 0);
	set_direct(dst, flags & O_DIRECT);
	struct copy out = {.src_fd = -1, .src_places = b.places, .dst_fd = dst, .size = size};
	run_well(&out, seed);
	set_direct(dst, false);
	cr_assert(pread(dst, got, size, 0) == (ssize_t)size);
	cr_assert(memcmp(got, model, size) == 0);
	close(src);
	close(dst);
	disks_close(&a);
	disks_close(&b);
}

Test(copy_places, whole_and_odd_sizes)
{
	static const uint64_t sizes[] = {
		1, 4096, 5000, MIB, 3 * MIB + 700, 9 * MIB + 4095, 20 * MIB, 23 * MIB + 4097};
	unsigned seed = (unsigned)time(NULL);
	printf("seed %u\n", seed);
	for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		check_copies(sizes[i], seed, 0);
		check_copies(sizes[i], seed, O_DIRECT);
	}
}

Test(copy_places, zeros_are_not_written)
{
	struct disks a = disks_open(8 * MIB, 0);
	memset(model, 0, sizeof model);
	int src = open_file(0);
	cr_assert(pwrite(src, model, 8 * MIB, 0) == 8 * MIB);
	/* Nothing is written, so nothing can fail. */
	int read_only = open("/dev/zero", O_RDONLY | O_CLOEXEC);
	for (unsigned i = 0; i < a.places->count; i++)
		a.places->at[i].fd = read_only;
	struct copy copy = {.src_fd = src, .dst_places = a.places, .size = 8 * MIB};
	run_well(&copy, 0);
	struct copy again = {.src_places = a.places, .dst_fd = read_only, .size = 8 * MIB};
	run_well(&again, 0);
	close(read_only);
	close(src);
	disks_close(&a);
}

/* Disks are opened so, and the direct I/O of some would end with EAGAIN for ever. */
Test(copy_places, the_ring_waits_for_the_disks)
{
	struct disks a = disks_open(8 * MIB, O_DIRECT);
	model_fill(8 * MIB, 1);
	int src = open_file(0);
	cr_assert(pwrite(src, model, 8 * MIB, 0) == 8 * MIB);
	for (unsigned i = 0; i < 2; i++)
		cr_assert(fcntl(a.fds[i], F_SETFL, fcntl(a.fds[i], F_GETFL) | O_NONBLOCK) == 0);
	struct copy copy = {.src_fd = src, .dst_places = a.places, .size = 8 * MIB};
	run_well(&copy, 0);
	for (unsigned i = 0; i < 2; i++)
		cr_expect((fcntl(a.fds[i], F_GETFL) & O_NONBLOCK) == 0, "disk %u", i);
	close(src);
	disks_close(&a);
}

Test(copy_places, failures_are_reported)
{
	struct disks a = disks_open(8 * MIB, 0);
	model_fill(8 * MIB, 1);
	int src = open_file(0);
	cr_assert(pwrite(src, model, 8 * MIB, 0) == 8 * MIB);
	struct copy small = {.src_fd = src, .dst_places = a.places, .size = 8 * MIB + 1};
	run(&small);
	cr_expect_eq(small.op.err.errnum, ERANGE);
	struct copy beyond = {.src_places = a.places, .dst_fd = src, .size = 8 * MIB + 1};
	run(&beyond);
	cr_expect_eq(beyond.op.err.errnum, ERANGE);
	/* It is places that count, and not what lies in memory behind them. */
	a.places->count--;
	struct copy without_last = {.src_fd = src, .dst_places = a.places, .size = 8 * MIB};
	run(&without_last);
	cr_expect_eq(without_last.op.err.errnum, ERANGE);
	a.places->count++;
	struct copy_places none = {0};
	struct copy empty = {.src_fd = src, .dst_places = &none, .size = 0};
	run(&empty);
	cr_expect(!op_failed(&empty.op));
	a.places->at[3].fd = -1;
	struct copy bad_src = {.src_places = a.places, .dst_fd = src, .size = 8 * MIB};
	run(&bad_src);
	cr_expect_eq(bad_src.op.err.errnum, EBADF);
	struct copy bad_dst = {.src_fd = src, .dst_places = a.places, .size = 8 * MIB};
	run(&bad_dst);
	cr_expect_eq(bad_dst.op.err.errnum, EBADF);
	close(src);
	disks_close(&a);
}
