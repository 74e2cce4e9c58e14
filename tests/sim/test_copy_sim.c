/* SPDX-License-Identifier: Apache-2.0 */
/* The copy in a simulated ring: seeded order, short transfers, and a failure at each request. */
#include "blockio/copy.h"

#include "simring/sim.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { KIB = 1 << 10, MIB = 1 << 20, SIZE = 6 * MIB + 777, COPIES = 6, LIMIT_MS = 1000000 };

static uint8_t model[SIZE], got[SIZE];

struct world {
	struct ring_sim sim;
	struct reactor reactor;
	unsigned running;
	uint64_t fail_at;
	int fail_with;
};

static struct world *world; /* for on_end */

static void on_end(struct op *op)
{
	(void)op;
	world->running--;
}

static int fault(void *arg, uint64_t nth, const struct io_uring_sqe *sqe)
{
	const struct world *w = arg;
	(void)sqe;
	return nth == w->fail_at ? w->fail_with : 0;
}

static void world_open(struct world *w, uint64_t seed)
{
	*w = (struct world){
		.sim = {.seed = seed, .short_every = 3, .eintr_every = 5},
		.fail_at = UINT64_MAX,
	};
	w->sim.fault = fault;
	w->sim.fault_arg = w;
	cr_assert(ring_sim_open(&w->reactor.ring, &w->sim) == 0);
	cr_assert(work_open(&w->reactor.work, w->reactor.ring, 1) == 0);
	world = w;
}

static void world_close(struct world *w)
{
	work_close(w->reactor.work);
	ring_close(w->reactor.ring);
}

static int memory_file(void)
{
	int fd = memfd_create("copy", MFD_CLOEXEC);
	cr_assert(fd >= 0 && ftruncate(fd, SIZE) == 0);
	return fd;
}

/* Its writes are the ring's, to be failed and cut short anywhere (a tmpfs asks for no alignment);
 * buffered ones are jobs. */
static int direct_file(void)
{
	int fd = open("/dev/shm", O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
	if (fd < 0)
		cr_skip("no tmpfs with direct I/O (Linux 6.6) at /dev/shm");
	cr_assert(ftruncate(fd, SIZE) == 0);
	return fd;
}

/* A source with holes, and what it reads as in `model`. */
static int source_in(int fd, uint64_t seed)
{
	uint64_t x = seed;
	memset(model, 0, sizeof model);
	srand((unsigned)seed);
	for (int i = 0; i < 25; i++) {
		size_t at = (size_t)rand() % SIZE, len = 1 + (size_t)rand() % (200 * KIB);
		if (at + len > SIZE)
			len = SIZE - at;
		for (size_t j = 0; j < len; j++)
			model[at + j] = (uint8_t)((x = x * 6364136223846793005u + 1) >> 56);
		cr_assert(pwrite(fd, model + at, len, (off_t)at) == (ssize_t)len);
	}
	return fd;
}

static int source(uint64_t seed)
{
	return source_in(memory_file(), seed);
}

/* Room for an image in pieces of two files, in no order. */
struct pieces {
	struct copy_places *places;
	int fds[2];
};

static struct pieces pieces_open(uint64_t seed)
{
	enum { PIECES = 5, BYTES = MIB + 512 * KIB };
	struct pieces p = {calloc(1, sizeof *p.places + PIECES * sizeof p.places->at[0]),
		{direct_file(), direct_file()}};
	cr_assert(p.places != NULL);
	for (unsigned i = 0; i < 2; i++)
		cr_assert(ftruncate(p.fds[i], (PIECES + 1) * BYTES) == 0);
	for (unsigned i = 0; i < PIECES; i++)
		p.places->at[i] = (struct copy_place){
			p.fds[(i + seed) % 2], (PIECES - i) * (uint64_t)BYTES, BYTES};
	p.places->count = PIECES;
	return p;
}

static void pieces_close(struct pieces *p)
{
	close(p->fds[0]);
	close(p->fds[1]);
	free(p->places);
}

static void pieces_move(const struct pieces *p, uint8_t *mem, bool write)
{
	for (uint64_t at = 0; at < SIZE;) {
		struct copy_place place = copy_places_at(p->places, at);
		uint64_t len = place.bytes < SIZE - at ? place.bytes : SIZE - at;
		cr_assert((write ? pwrite(place.fd, mem + at, len, (off_t)place.offset)
				 : pread(place.fd, mem + at, len, (off_t)place.offset)) ==
			  (ssize_t)len);
		at += len;
	}
}

static bool pieces_are_model(const struct pieces *p)
{
	memset(got, 0, sizeof got);
	pieces_move(p, got, false);
	return memcmp(model, got, SIZE) == 0;
}

/* src_fd < 0: overwrites dst with zeros. */
static void start(struct world *w, struct copy *copy, int src_fd, int dst_fd)
{
	memset(copy, 0, sizeof *copy);
	copy->kind = src_fd < 0 ? COPY_ZEROS : COPY_DATA;
	copy->src_fd = src_fd;
	copy->dst_fd = dst_fd;
	copy->size = SIZE;
	copy_init(copy, &w->reactor);
	copy->op.on_end = on_end;
	op_start(&copy->op);
	w->running++;
}

static void start_places(struct world *w, struct copy *copy, const struct pieces *src, int src_fd,
	const struct pieces *dst, int dst_fd)
{
	*copy = (struct copy){.src_fd = src_fd,
		.dst_fd = dst_fd,
		.src_places = src != NULL ? src->places : NULL,
		.dst_places = dst != NULL ? dst->places : NULL,
		.size = SIZE};
	copy_init(copy, &w->reactor);
	copy->op.on_end = on_end;
	op_start(&copy->op);
	w->running++;
}

static void settle(struct world *w, uint64_t seed)
{
	cr_assert(ring_sim_settle(w->reactor.ring, LIMIT_MS) == 0, "seed %llu",
		(unsigned long long)seed);
	cr_assert(w->running == 0, "seed %llu: something never ended", (unsigned long long)seed);
}

static bool is_model(int fd)
{
	cr_assert(pread(fd, got, SIZE, 0) == SIZE);
	return memcmp(model, got, SIZE) == 0;
}

Test(copy_sim, short_transfers_in_any_order)
{
	for (uint64_t seed = 1; seed <= 100; seed++) {
		struct world w;
		struct copy copy;
		world_open(&w, seed);
		int src = source(seed), dst = seed % 2 ? memory_file() : direct_file();
		start(&w, &copy, src, dst);
		settle(&w, seed);
		cr_assert(!op_failed(&copy.op), "seed %llu: %s", (unsigned long long)seed,
			copy.op.err.message);
		cr_assert(is_model(dst), "seed %llu", (unsigned long long)seed);
		cr_assert(copy.looked_bytes == SIZE && copy.state == NULL);
		close(src);
		close(dst);
		world_close(&w);
	}
}

Test(copy_sim, zeros_in_any_order)
{
	for (uint64_t seed = 1; seed <= 50; seed++) {
		struct world w;
		struct copy copy;
		world_open(&w, seed);
		int dst = source_in(seed % 2 ? memory_file() : direct_file(), seed);
		memset(model, 0, sizeof model);
		start(&w, &copy, -1, dst);
		settle(&w, seed);
		cr_assert(!op_failed(&copy.op), "seed %llu: %s", (unsigned long long)seed,
			copy.op.err.message);
		cr_assert(is_model(dst), "seed %llu", (unsigned long long)seed);
		close(dst);
		world_close(&w);
	}
}

/* Each request in turn fails once. Nothing is left in flight, and the error is the one injected. */
Test(copy_sim, a_failure_at_each_request)
{
	static const int errors[] = {-EIO, -ENOSPC};
	for (uint64_t nth = 0;; nth++) {
		struct world w;
		struct copy copy;
		world_open(&w, 42);
		w.fail_at = nth;
		w.fail_with = errors[nth % 2];
		int src = source(42), dst = direct_file();
		start(&w, &copy, src, dst);
		settle(&w, 42);
		bool reached = w.sim.served > nth;
		cr_assert(copy.state == NULL);
		cr_assert(op_failed(&copy.op) == reached, "request %llu", (unsigned long long)nth);
		if (reached)
			cr_assert(copy.op.err.errnum == -w.fail_with, "request %llu: %s",
				(unsigned long long)nth, copy.op.err.message);
		close(src);
		close(dst);
		world_close(&w);
		if (!reached) {
			cr_assert(nth > 10, "only %llu requests", (unsigned long long)nth);
			return;
		}
	}
}

/* At any time, up to where the copy says that it has come. */
Test(copy_sim, what_counts_as_done_is_copied)
{
	for (uint64_t seed = 1; seed <= 8; seed++) {
		struct world w;
		struct copy copy;
		uint64_t before = 0;
		world_open(&w, seed);
		int src = source(seed), dst = seed % 2 ? memory_file() : direct_file();
		start(&w, &copy, src, dst);
		while (w.running > 0) {
			cr_assert(ring_turn(w.reactor.ring, true) == 0);
			uint64_t looked = copy.looked_bytes, len = looked - before;
			cr_assert_geq(looked, before);
			cr_assert(pread(dst, got, len, (off_t)before) == (ssize_t)len);
			cr_assert(memcmp(got, model + before, len) == 0, "seed %llu at %llu",
				(unsigned long long)seed, (unsigned long long)before);
			before = looked;
		}
		cr_assert_eq(before, SIZE);
		close(src);
		close(dst);
		world_close(&w);
	}
}

static struct copy lane_copies[4];

/* By its descriptors, whose a request is. */
static int check_lane(void *arg, uint64_t nth, const struct io_uring_sqe *sqe)
{
	unsigned *checked = arg;
	const struct ring_req *req = container_of(sqe, const struct ring_req, sqe);
	(void)nth;
	for (unsigned i = 0; i < 4; i++) {
		if (sqe->fd != lane_copies[i].src_fd && sqe->fd != lane_copies[i].dst_fd)
			continue;
		cr_assert_eq(req->lane, lane_copies[i].op.lane);
		++*checked;
	}
	return 0;
}

/* Though their buffers go from one to the other. */
Test(copy_sim, each_request_is_in_its_copys_lane)
{
	struct world w;
	struct lane *lanes[2];
	unsigned checked = 0;
	world_open(&w, 3);
	for (unsigned i = 0; i < 2; i++)
		cr_assert_eq(ring_lane_open(&lanes[i], w.reactor.ring), 0);
	w.sim.fault = check_lane;
	w.sim.fault_arg = &checked;
	for (unsigned i = 0; i < 4; i++) {
		start(&w, &lane_copies[i], source(i), direct_file());
		lane_copies[i].op.lane = lanes[i % 2];
	}
	settle(&w, 3);
	cr_assert_gt(checked, 50);
	for (unsigned i = 0; i < 4; i++) {
		cr_assert(!op_failed(&lane_copies[i].op));
		close(lane_copies[i].src_fd);
		close(lane_copies[i].dst_fd);
	}
	world_close(&w);
}

/* From pieces to pieces, and at each end a file. */
Test(copy_sim, places_in_any_order)
{
	for (uint64_t seed = 1; seed <= 60; seed++) {
		struct world w;
		struct copy copy;
		world_open(&w, seed);
		int src = source(seed), dst = memory_file();
		struct pieces a = pieces_open(seed), b = pieces_open(seed + 1);
		start_places(&w, &copy, NULL, src, &a, -1);
		settle(&w, seed);
		cr_assert(!op_failed(&copy.op), "%s", copy.op.err.message);
		cr_assert(pieces_are_model(&a), "seed %llu", (unsigned long long)seed);
		start_places(&w, &copy, &a, -1, &b, -1);
		settle(&w, seed);
		cr_assert(!op_failed(&copy.op), "%s", copy.op.err.message);
		cr_assert(pieces_are_model(&b), "seed %llu", (unsigned long long)seed);
		cr_assert(copy.looked_bytes == SIZE && copy.done_bytes == SIZE);
		start_places(&w, &copy, &b, -1, NULL, dst);
		settle(&w, seed);
		cr_assert(!op_failed(&copy.op), "%s", copy.op.err.message);
		cr_assert(is_model(dst), "seed %llu", (unsigned long long)seed);
		pieces_close(&a);
		pieces_close(&b);
		close(src);
		close(dst);
		world_close(&w);
	}
}

Test(copy_sim, a_failure_at_each_request_between_places)
{
	for (uint64_t nth = 0;; nth++) {
		struct world w;
		struct copy copy;
		world_open(&w, 42);
		w.fail_at = nth;
		w.fail_with = nth % 2 ? -EIO : -ENOSPC;
		close(source(42));
		struct pieces a = pieces_open(0), b = pieces_open(1);
		pieces_move(&a, model, true);
		start_places(&w, &copy, &a, -1, &b, -1);
		settle(&w, 42);
		bool reached = w.sim.served > nth;
		cr_assert(copy.state == NULL);
		cr_assert(op_failed(&copy.op) == reached, "request %llu", (unsigned long long)nth);
		if (reached)
			cr_assert(copy.op.err.errnum == -w.fail_with, "request %llu: %s",
				(unsigned long long)nth, copy.op.err.message);
		pieces_close(&a);
		pieces_close(&b);
		world_close(&w);
		if (!reached) {
			cr_assert(nth > 10, "only %llu requests", (unsigned long long)nth);
			return;
		}
	}
}

/* Copies wait for each other's buffers; one of them fails, one is stopped, the others are whole. */
Test(copy_sim, many_with_one_failing_and_one_stopped)
{
	for (uint64_t seed = 1; seed <= 100; seed++) {
		struct world w;
		struct copy copies[COPIES];
		int dst[COPIES];
		world_open(&w, seed);
		int src = source(seed);
		for (int i = 0; i < COPIES; i++) {
			dst[i] = i % 2 ? memory_file() : direct_file();
			start(&w, &copies[i], src, dst[i]);
		}
		w.fail_at = 20 + seed % 60;
		w.fail_with = -EIO;
		for (uint64_t i = 0; i < seed % 30; i++)
			cr_assert(ring_turn(w.reactor.ring, false) == 0);
		copies[0].stop = true;
		settle(&w, seed);
		int failed = 0;
		for (int i = 0; i < COPIES; i++) {
			if (op_failed(&copies[i].op)) {
				int errnum = copies[i].op.err.errnum;
				cr_assert(errnum == EIO || (i == 0 && errnum == ECANCELED));
				failed += errnum == EIO;
			} else {
				cr_assert(is_model(dst[i]), "seed %llu copy %d",
					(unsigned long long)seed, i);
			}
			cr_assert(copies[i].state == NULL);
			close(dst[i]);
		}
		cr_assert(failed <= 1, "one request failed");
		close(src);
		world_close(&w);
	}
}

static int nothing(struct work_job *job)
{
	(void)job;
	return 0;
}

/* The queue stays full as long as the copy runs. */
static void ended_nothing(struct work_job *job, int res)
{
	(void)res;
	if (world->running > 0)
		cr_assert_eq(work_submit(world->reactor.work, job), 0);
}

static void fill_queue(void)
{
	static struct work_job jobs[WORK_QUEUE_MAX + 1];
	unsigned count = 0;
	for (; count <= WORK_QUEUE_MAX; count++) {
		jobs[count] = (struct work_job){.run = nothing, .on_end = ended_nothing};
		if (work_submit(world->reactor.work, &jobs[count]) == -EAGAIN)
			break;
	}
	cr_assert_leq(count, WORK_QUEUE_MAX);
}

static void check_refused(struct world *w, struct copy *copy, const char *what)
{
	settle(w, 7);
	cr_expect(op_failed(&copy->op));
	cr_expect_eq(copy->op.err.errnum, EAGAIN, "%s", copy->op.err.message);
	cr_expect_not_null(strstr(copy->op.err.message, what), "%s", copy->op.err.message);
	cr_expect_null(copy->state);
}

/* A write that is a job, and finds no room in its lane's queue. */
Test(copy_sim, a_write_that_is_refused_fails_the_copy)
{
	struct world w;
	struct copy copy;
	world_open(&w, 7);
	int src = source(7), dst = memory_file();
	start(&w, &copy, src, dst);
	while (w.sim.served == 0)
		cr_assert_eq(ring_turn(w.reactor.ring, true), 0);
	fill_queue();
	check_refused(&w, &copy, "");
	close(src);
	close(dst);
	world_close(&w);
}

/* As the first look for data, which leaves nothing in the next copy's way. */
Test(copy_sim, a_look_for_data_that_is_refused_fails_the_copy)
{
	struct world w;
	struct copy copy;
	world_open(&w, 7);
	int src = source(7), dst = memory_file();
	start(&w, &copy, src, dst);
	fill_queue();
	check_refused(&w, &copy, "looking for data");
	cr_assert_eq(w.sim.served, 0);
	while (work_queue_depth(w.reactor.work) > 0)
		cr_assert_eq(ring_turn(w.reactor.ring, true), 0);
	start(&w, &copy, src, dst);
	settle(&w, 7);
	cr_assert_not(op_failed(&copy.op), "%s", copy.op.err.message);
	cr_assert(is_model(dst));
	close(src);
	close(dst);
	world_close(&w);
}

/* ---- direct I/O ---- */

/* Less than a sector is nothing: without an end to that a copy would never be over. */
Test(copy_sim, a_direct_transfer_that_does_not_get_on)
{
	bool reads = false, writes = false, reached = true;
	for (uint64_t nth = 0; reached; nth++) {
		struct world w;
		struct copy copy;
		world_open(&w, 43);
		w.fail_at = nth;
		w.fail_with = 511;
		int src = source_in(direct_file(), 43), dst = direct_file();
		start(&w, &copy, src, dst);
		settle(&w, 43);
		reached = w.sim.served > nth;
		const char *why = copy.op.err.message;
		cr_assert_eq(op_failed(&copy.op), reached, "request %llu", (unsigned long long)nth);
		cr_assert_eq(copy.op.err.errnum, reached ? EIO : 0);
		cr_assert_null(copy.state);
		reads |= reached && strstr(why, "a direct read made no progress") != NULL;
		writes |= reached && strstr(why, "a direct write made no progress") != NULL;
		close(src);
		close(dst);
		world_close(&w);
	}
	cr_assert(reads && writes);
}

static struct {
	int fd;
	unsigned nth; /* of the flags that are set of it */
} flags_stay;

int __real_fcntl64(int fd, int cmd, ...);
int __wrap_fcntl64(int fd, int cmd, ...);
int __wrap_fcntl64(int fd, int cmd, ...)
{
	va_list ap;
	va_start(ap, cmd);
	long arg = va_arg(ap, long);
	va_end(ap);
	if (cmd == F_SETFL && fd == flags_stay.fd && flags_stay.nth-- == 0) {
		errno = EINVAL;
		return -1;
	}
	return __real_fcntl64(fd, cmd, arg);
}

/* Its end is written through the page cache: not if that cannot be asked for, and the file must be
 * again as it was. */
Test(copy_sim, a_file_that_keeps_its_flags)
{
	static const char *const says[] = {"leaving direct I/O", "going back to direct I/O", ""};
	for (unsigned nth = 0; nth < 3; nth++) {
		struct world w;
		struct copy copy;
		world_open(&w, 44);
		int src = source(44), dst = direct_file();
		cr_assert_eq(pwrite(src, "\x5a", 1, SIZE - 1), 1);
		model[SIZE - 1] = 0x5a;
		flags_stay.fd = dst;
		flags_stay.nth = nth;
		start(&w, &copy, src, dst);
		settle(&w, 44);
		flags_stay.fd = -1;
		cr_assert_eq(op_failed(&copy.op), nth < 2, "%u", nth);
		cr_assert_eq(copy.op.err.errnum, nth < 2 ? EINVAL : 0);
		cr_assert_not_null(
			strstr(copy.op.err.message, says[nth]), "%s", copy.op.err.message);
		cr_assert_null(copy.state);
		cr_assert_eq((fcntl(dst, F_GETFL) & O_DIRECT) != 0, nth != 1);
		cr_assert_eq(pread(dst, got, 1, SIZE - 1), 1);
		cr_assert_eq(got[0], nth == 0 ? 0 : 0x5a);
		cr_assert(nth < 2 || is_model(dst));
		close(src);
		close(dst);
		world_close(&w);
	}
}
