/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The threads of the data path: owns them, their rings, and what their tables of files and buffers
 * hold.
 *
 * The happy path of a queue: the loop finds the thread with the fewest queues and a place in its
 * tables, and leaves the queue in the thread's inbox; the thread, woken by an eventfd, registers
 * the files, fetches, and tells the loop. From then on it serves (ublk_serve.c): enter the kernel,
 * go through what completed, enter again. When the device is stopped the kernel gives every tag
 * back; with the last one the files leave the table and the loop is told that the queue has ended.
 *
 * It fails when a table is full (-ENOSPC before anything has happened), or when the kernel refuses
 * a registration, which the loop hears as the result of on_served.
 */
#include "backends/ublk/ublk_serve.h"
#include "base/fd.h"

#include <errno.h>
#include <linux/capability.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>

enum {
	EVENT_DATA = 2, /* user_data of the eventfd's read: no tag has this address */
};

enum { NEWS_SERVED = 1, NEWS_ENDED = 2 };

struct ublk_io {
	struct ring *ring;
	unsigned files_max; /* of each thread's table */
	pthread_mutex_t mutex;
	struct list news; /* ublk_queue.link */
	int event_fd;
	uint64_t event_count;
	struct ring_req wake;
	unsigned threads;
	struct ublk_io_thread thread[];
};

/* ---- telling the loop ---- */

static void tell(struct ublk_queue *q, unsigned news)
{
	struct ublk_io *io = q->thread->io;
	pthread_mutex_lock(&io->mutex);
	if (q->news == 0)
		list_push(&io->news, &q->link);
	q->news |= news;
	pthread_mutex_unlock(&io->mutex);
	(void)eventfd_write(io->event_fd, 1);
}

static void queue_release(struct ublk_queue *q);

static void deliver(struct ublk_queue *q, unsigned news)
{
	int served = q->served;
	if (news & NEWS_ENDED)
		queue_release(q);
	if (news & NEWS_SERVED)
		q->spec.on_served(q, served);
	/* A queue that was never served has no other end. */
	if (news & NEWS_ENDED && served == 0)
		q->spec.on_end(q, q->broken);
}

static void news_listen(struct ublk_io *io);

static void on_wake(struct ring_req *req, int res, uint32_t flags)
{
	struct ublk_io *io = container_of(req, struct ublk_io, wake);
	(void)flags;
	if (res < 0)
		return; /* closing */
	struct list *node;
	do {
		unsigned news = 0;
		pthread_mutex_lock(&io->mutex);
		node = list_pop(&io->news);
		struct ublk_queue *q = container_of(node, struct ublk_queue, link);
		if (node != NULL) {
			news = q->news;
			q->news = 0;
		}
		pthread_mutex_unlock(&io->mutex);
		if (node != NULL)
			deliver(q, news);
	} while (node != NULL);
	news_listen(io);
}

static void news_listen(struct ublk_io *io)
{
	io->wake.fn = on_wake;
	io_uring_prep_read(
		&io->wake.sqe, io->event_fd, &io->event_count, sizeof(io->event_count), 0);
	ring_submit(io->ring, &io->wake);
}

/* ---- the thread ---- */

/* See ublk_io.h. The caller has it only if it is root; without it there is nothing to drop. */
static void drop_sys_admin(void)
{
	struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2];
	if (syscall(SYS_capget, &head, data) < 0)
		return;
	data[CAP_TO_INDEX(CAP_SYS_ADMIN)].effective &= ~CAP_TO_MASK(CAP_SYS_ADMIN);
	(void)syscall(SYS_capset, &head, data);
}

static int thread_setup(struct ublk_io_thread *t)
{
	int r = ublk_sq_open(&t->sq);
	if (r < 0)
		return r;
	r = io_uring_register_files_sparse(&t->sq.uring, t->io->files_max);
	if (r < 0)
		ublk_sq_close(&t->sq);
	return r;
}

static int queue_register(struct ublk_queue *q)
{
	struct ublk_io_thread *t = q->thread;
	if (q->spec.zero_copy && !t->bufs_registered) {
		int r = io_uring_register_buffers_sparse(&t->sq.uring, UBLK_IO_BUFS_MAX);
		if (r < 0)
			return r;
		t->bufs_registered = true;
	}
	int r = io_uring_register_files_update(&t->sq.uring, q->image_slot, &q->spec.image_fd, 1);
	return r < 0 ? r : r == 1 ? 0 : -EMFILE;
}

static void queue_ended(struct ublk_queue *q)
{
	const int none = -1;
	(void)io_uring_register_files_update(&q->thread->sq.uring, q->image_slot, &none, 1);
	tell(q, NEWS_ENDED);
}

static void queue_begin(struct ublk_queue *q)
{
	q->served = queue_register(q);
	if (q->served < 0) {
		tell(q, NEWS_SERVED | NEWS_ENDED);
		return;
	}
	ublk_serve_fetch(q);
	/* In the kernel's hands before the loop starts the device. */
	ublk_sq_enter(&q->thread->sq, 0);
	tell(q, NEWS_SERVED);
}

static void await_inbox(struct ublk_io_thread *t)
{
	ublk_sq_room(&t->sq, 1);
	struct io_uring_sqe *sqe = ublk_sq_next(&t->sq);
	io_uring_prep_read(sqe, t->event_fd, &t->event_count, sizeof(t->event_count), 0);
	sqe->user_data = EVENT_DATA;
}

/* False when the thread is to end. */
static bool read_inbox(struct ublk_io_thread *t)
{
	struct list taken, *node;
	list_init(&taken);
	pthread_mutex_lock(&t->mutex);
	list_splice(&taken, &t->inbox);
	bool stop = t->stop;
	pthread_mutex_unlock(&t->mutex);
	while ((node = list_pop(&taken)) != NULL)
		queue_begin(container_of(node, struct ublk_queue, link));
	await_inbox(t);
	return !stop;
}

static void serve_all(struct ublk_io_thread *t)
{
	for (;;) {
		uint64_t wait_ns = ublk_serve_due(t);
		if (wait_ns == UINT64_MAX)
			ublk_sq_enter(&t->sq, 1);
		else
			ublk_sq_enter_until(&t->sq, 1, wait_ns);
		struct io_uring_cqe *cqe;
		unsigned head, count = 0;
		bool inbox = false;
		io_uring_for_each_cqe(&t->sq.uring, head, cqe)
		{
			count++;
			if (cqe->user_data == EVENT_DATA)
				inbox = true;
			else
				ublk_serve_cqe(cqe->user_data, cqe->res);
		}
		io_uring_cq_advance(&t->sq.uring, count);
		if (inbox && !read_inbox(t))
			return;
	}
}

static void *thread_main(void *arg)
{
	struct ublk_io_thread *t = arg;
	drop_sys_admin();
	t->opened = thread_setup(t);
	(void)eventfd_write(t->io->event_fd, 1); /* ublk_io_open() waits for it */
	if (t->opened < 0)
		return NULL;
	await_inbox(t);
	serve_all(t);
	ublk_sq_close(&t->sq);
	return NULL;
}

/* ---- places in a thread's tables; the loop's ---- */

static unsigned runs_of(unsigned depth)
{
	return (depth + UBLK_IO_UNIT - 1) / UBLK_IO_UNIT;
}

static bool find_file(const struct ublk_io_thread *t, unsigned *ret)
{
	for (unsigned i = 0; i < t->io->files_max; i++)
		if (!(t->files_used[i / 64] >> (i % 64) & 1)) {
			*ret = i;
			return true;
		}
	return false;
}

/* The first of `runs` free runs in a row. */
static bool find_runs(const uint8_t *used, unsigned count, unsigned runs, unsigned *ret)
{
	unsigned free_runs = 0;
	for (unsigned i = 0; i < count; i++) {
		free_runs = used[i] ? 0 : free_runs + 1;
		if (free_runs == runs) {
			*ret = i + 1 - runs;
			return true;
		}
	}
	return false;
}

/* Where a queue goes. */
struct place {
	struct ublk_io_thread *thread;
	unsigned file, buf_run, sqe_run;
	bool sqes;
};

/* The least loaded thread with room. Without entries to lend it serves all the same, with one more
 * system call a request. */
static bool find_place(struct ublk_io *io, unsigned depth, bool zero_copy, struct place *ret)
{
	unsigned runs = runs_of(depth);
	*ret = (struct place){0};
	for (unsigned i = 0; i < io->threads; i++) {
		struct ublk_io_thread *t = &io->thread[i];
		struct place at = {.thread = t};
		if ((ret->thread != NULL && t->queues >= ret->thread->queues) ||
			!find_file(t, &at.file) ||
			(zero_copy && !find_runs(t->bufs_used, UBLK_IO_BUFS_MAX / UBLK_IO_UNIT,
					      runs, &at.buf_run)))
			continue;
		at.sqes = find_runs(t->sqes_used, UBLK_SQ_LENT / UBLK_IO_UNIT, runs, &at.sqe_run);
		*ret = at;
	}
	return ret->thread != NULL;
}

static void queue_release(struct ublk_queue *q)
{
	struct ublk_io_thread *t = q->thread;
	unsigned runs = runs_of(q->spec.depth);
	t->files_used[q->image_slot / 64] &= ~(UINT64_C(1) << (q->image_slot % 64));
	if (q->spec.zero_copy)
		memset(&t->bufs_used[q->first_buf / UBLK_IO_UNIT], 0, runs);
	if (q->first_sqe != UINT32_MAX)
		memset(&t->sqes_used[q->first_sqe / UBLK_IO_UNIT], 0, runs);
	t->queues--;
}

/* ---- entry points of queues ---- */

bool ublk_io_has_room(struct ublk_io *io, unsigned depth, bool zero_copy)
{
	struct place at;
	return find_place(io, depth, zero_copy, &at);
}

static size_t descs_bytes(const struct ublk_queue *q)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	return (q->spec.depth * sizeof(struct ublk_abi_desc) + page - 1) / page * page;
}

int ublk_queue_new(struct ublk_queue **ret, const struct ublk_queue_spec *spec)
{
	struct ublk_queue *q = calloc(1, sizeof(*q) + spec->depth * sizeof(q->tags[0]));
	if (q == NULL)
		return -ENOMEM;
	q->spec = *spec;
	list_init(&q->held);
	for (unsigned i = 0; i < spec->depth; i++)
		q->tags[i] = (struct ublk_tag){.queue = q, .number = (uint16_t)i};
	off_t offset = (off_t)spec->id * UBLK_ABI_DEPTH_MAX * (off_t)sizeof(struct ublk_abi_desc);
	void *descs = mmap(
		NULL, descs_bytes(q), PROT_READ, MAP_SHARED | MAP_POPULATE, spec->char_fd, offset);
	if (descs == MAP_FAILED) {
		int r = -errno;
		free(q);
		return r;
	}
	q->descs = descs;
	if (!spec->zero_copy) {
		size_t bytes = (size_t)spec->depth * UBLK_IO_BYTES;
		void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (data == MAP_FAILED) {
			int r = -errno;
			ublk_queue_free(q);
			return r;
		}
		/* Memory follows use page by page; a huge page would come with the first byte. */
		(void)madvise(data, bytes, MADV_NOHUGEPAGE);
		q->data = data;
	}
	*ret = q;
	return 0;
}

int ublk_queue_start(struct ublk_io *io, struct ublk_queue *q)
{
	struct place at;
	unsigned runs = runs_of(q->spec.depth);
	if (!find_place(io, q->spec.depth, q->spec.zero_copy, &at))
		return -ENOSPC;
	struct ublk_io_thread *t = at.thread;
	t->files_used[at.file / 64] |= UINT64_C(1) << (at.file % 64);
	if (q->spec.zero_copy)
		memset(&t->bufs_used[at.buf_run], 1, runs);
	if (at.sqes)
		memset(&t->sqes_used[at.sqe_run], 1, runs);
	t->queues++;
	q->thread = t;
	q->image_slot = at.file;
	q->first_buf = at.buf_run * UBLK_IO_UNIT;
	q->first_sqe = at.sqes ? at.sqe_run * UBLK_IO_UNIT : UINT32_MAX;
	pthread_mutex_lock(&t->mutex);
	list_push(&t->inbox, &q->link);
	pthread_mutex_unlock(&t->mutex);
	(void)eventfd_write(t->event_fd, 1);
	return 0;
}

void ublk_queue_free(struct ublk_queue *q)
{
	if (q == NULL)
		return;
	munmap((void *)(uintptr_t)q->descs, descs_bytes(q));
	if (q->data != NULL)
		munmap(q->data, (size_t)q->spec.depth * UBLK_IO_BYTES);
	free(q);
}

void *ublk_queue_owner(const struct ublk_queue *q)
{
	return q->spec.owner;
}

void ublk_queue_count(const struct ublk_queue *q, struct ublk_counters *sum)
{
	const struct ublk_counters *c = &q->counters;
	sum->reads += __atomic_load_n(&c->reads, __ATOMIC_RELAXED);
	sum->writes += __atomic_load_n(&c->writes, __ATOMIC_RELAXED);
	sum->flushes += __atomic_load_n(&c->flushes, __ATOMIC_RELAXED);
	sum->discards += __atomic_load_n(&c->discards, __ATOMIC_RELAXED);
	sum->read_bytes += __atomic_load_n(&c->read_bytes, __ATOMIC_RELAXED);
	sum->written_bytes += __atomic_load_n(&c->written_bytes, __ATOMIC_RELAXED);
	sum->errors += __atomic_load_n(&c->errors, __ATOMIC_RELAXED);
	uint64_t error_ns = __atomic_load_n(&c->last_error_ns, __ATOMIC_RELAXED);
	if (error_ns > sum->last_error_ns) {
		sum->last_error_ns = error_ns;
		sum->last_errno = __atomic_load_n(&c->last_errno, __ATOMIC_RELAXED);
	}
}

void ublk_queue_count_throttled(const struct ublk_queue *q, struct ublk_throttled *sum)
{
	for (unsigned write = 0; write < 2; write++) {
		sum->requests[write] +=
			__atomic_load_n(&q->throttled.requests[write], __ATOMIC_RELAXED);
		sum->wait_ns[write] +=
			__atomic_load_n(&q->throttled.wait_ns[write], __ATOMIC_RELAXED);
	}
}

/* A thread that wakes looks at what waits in it. */
void ublk_io_throttles_changed(struct ublk_io *io)
{
	for (unsigned i = 0; i < io->threads; i++)
		(void)eventfd_write(io->thread[i].event_fd, 1);
}

/* ---- opening and closing ---- */

static int thread_start(struct ublk_io *io, struct ublk_io_thread *t, unsigned number)
{
	char name[16];
	*t = (struct ublk_io_thread){.io = io, .on_ended = queue_ended};
	pthread_mutex_init(&t->mutex, NULL);
	list_init(&t->inbox);
	list_init(&t->held);
	t->event_fd = eventfd(0, EFD_CLOEXEC);
	if (t->event_fd < 0)
		return -errno;
	int r = -pthread_create(&t->thread, NULL, thread_main, t);
	uint64_t ready;
	if (r == 0) {
		while (eventfd_read(io->event_fd, &ready) < 0 && errno == EINTR)
			;
		snprintf(name, sizeof(name), "ublk-%u", number);
		(void)pthread_setname_np(t->thread, name);
		if ((r = t->opened) < 0)
			pthread_join(t->thread, NULL);
	}
	if (r < 0)
		fd_close(&t->event_fd);
	return r;
}

static void threads_stop(struct ublk_io *io)
{
	for (unsigned i = 0; i < io->threads; i++) {
		struct ublk_io_thread *t = &io->thread[i];
		pthread_mutex_lock(&t->mutex);
		t->stop = true;
		pthread_mutex_unlock(&t->mutex);
		(void)eventfd_write(t->event_fd, 1);
		pthread_join(t->thread, NULL);
		pthread_mutex_destroy(&t->mutex);
		fd_close(&t->event_fd);
	}
}

int ublk_io_open(struct ublk_io **ret, struct ring *ring, unsigned threads)
{
	struct ublk_io *io = calloc(1, sizeof(*io) + threads * sizeof(io->thread[0]));
	if (io == NULL)
		return -ENOMEM;
	/* A table of files may not be longer than the limit on open ones. */
	struct rlimit files = {.rlim_cur = 1024};
	(void)getrlimit(RLIMIT_NOFILE, &files);
	io->ring = ring;
	io->files_max =
		(unsigned)(files.rlim_cur < UBLK_IO_FILES_MAX ? files.rlim_cur : UBLK_IO_FILES_MAX);
	pthread_mutex_init(&io->mutex, NULL);
	list_init(&io->news);
	io->event_fd = eventfd(0, EFD_CLOEXEC);
	int r = io->event_fd < 0 ? -errno : 0;
	while (r == 0 && io->threads < threads) {
		r = thread_start(io, &io->thread[io->threads], io->threads);
		io->threads += r == 0;
	}
	if (r < 0) {
		threads_stop(io);
		fd_close(&io->event_fd);
		free(io);
		return r;
	}
	news_listen(io);
	*ret = io;
	return 0;
}

void ublk_io_close(struct ublk_io *io)
{
	if (io == NULL)
		return;
	threads_stop(io);
	ring_cancel(io->ring, &io->wake);
	while (io->wake.armed)
		if (ring_turn(io->ring, true) < 0)
			return;
	fd_close(&io->event_fd);
	pthread_mutex_destroy(&io->mutex);
	free(io);
}
