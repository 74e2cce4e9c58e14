/* SPDX-License-Identifier: Apache-2.0 */
/* The data process without ublk, against a made-up kernel: what is left of a device whose making
 * fails at each step. */
#include "backends/ublk/ublk_devs.h"
#include "base/fd.h"
#include "blockio/image.h"
#include "ublk_dir.h"
#include "ublk_kernel.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

static struct world {
	struct kernel kernel;
	struct reactor reactor;
	struct op_observer observer;
	struct ublk_ctl *ctl;
	struct ublk_io *io;
	struct ublk_devs *devs;
	char path[32], image[64], sys[64];
	int dir, open_flags; /* of the image, beside O_RDWR */
	const char *fault;   /* the step that fails */
	unsigned faults, events;
	/* the answer */
	struct ublk_wait wait;
	bool ended;
	int res;
} w;

static int fault_step(void *arg, const char *op_name, const char *step_name)
{
	(void)arg;
	if (w.fault == NULL || strcmp(op_name, "ublk attach") != 0 ||
		strcmp(step_name, w.fault) != 0)
		return 0;
	w.faults++;
	return -EIO;
}

static void on_event(void *arg, const struct ublk_dev *dev, const char *what, const struct err *err)
{
	(void)arg;
	(void)dev;
	(void)what;
	(void)err;
	w.events++;
}

static void setup(void)
{
	signal(SIGIO, SIG_IGN);
	w = (struct world){.kernel = kernel_good()};
	w.dir = temp_dir(w.path);
	snprintf(w.image, sizeof(w.image), "%s/image", w.path);
	snprintf(w.sys, sizeof(w.sys), "%s/sys", w.path);
	int fd = open(w.image, O_RDWR | O_CREAT, 0600);
	cr_assert(fd >= 0 && ftruncate(fd, 1 << 20) == 0);
	close(fd);
	w.reactor.ring = open_ring();
	w.observer.before = fault_step;
	w.reactor.observer = &w.observer;
	cr_assert_eq(work_open(&w.reactor.work, w.reactor.ring, 1), 0);
	cr_assert_eq(ublk_io_open(&w.io, w.reactor.ring, 2), 0);
	w.ctl = open_ctl(w.reactor.ring, &w.kernel, 20);
	const struct ublk_devs_config config = {
		.reactor = &w.reactor,
		.ctl = w.ctl,
		.io = w.io,
		.state_dirfd = w.dir,
		.devices_max = 2,
		.first_id = 1000000, /* no node in /dev has that number */
		.sys_block = w.sys,
		.on_event = on_event,
	};
	cr_assert_eq(ublk_devs_open(&w.devs, &config), 0);
}

static void teardown(void)
{
	ublk_devs_close(w.devs);
	ublk_io_close(w.io);
	ublk_ctl_close(w.ctl);
	work_close(w.reactor.work);
	ring_close(w.reactor.ring);
	close(w.dir);
	remove_dir(w.path);
}

TestSuite(ublk, .init = setup, .fini = teardown);

/* For the next case. */
static void again(void)
{
	teardown();
	setup();
}

static void on_attached(struct ublk_wait *wait, const struct ublk_dev *dev, int res)
{
	(void)wait;
	(void)dev;
	w.ended = true;
	w.res = res;
}

static void attach(struct ublkd_request *request)
{
	struct stat st;
	int fd = open(w.image, O_RDWR | O_CLOEXEC | w.open_flags);
	cr_assert(fd >= 0 && fstat(fd, &st) == 0);
	request->image_dev = st.st_dev;
	request->image_ino = st.st_ino;
	w.ended = false;
	w.wait = (struct ublk_wait){.on_end = on_attached};
	ublk_devs_attach(w.devs, request, fd, &w.wait);
	while (!w.ended)
		cr_assert_eq(ring_turn(w.reactor.ring, true), 0);
}

/* No device, no file, no lock, and the kernel was told to forget what it made. */
static void expect_nothing_left(void)
{
	struct seen seen = {0};
	cr_expect_eq(ublk_devs_count(w.devs), 0);
	cr_expect_eq(ublk_state_each(w.dir, on_seen, &seen), 0);
	cr_expect_eq(seen.good + seen.damaged, 0);
	int fd = open(w.image, O_RDWR | O_CLOEXEC);
	cr_expect_eq(image_lock(fd), 0, "the image is still open or locked");
	close(fd);
	cr_expect_eq(w.kernel.made, w.kernel.deleted);
}

static struct ublkd_request good_request(void)
{
	return (struct ublkd_request){.tag = "ringvol:0:1", .block_size = 512, .path = "/image"};
}

/* The last step that can succeed here is "params": the made-up device has no node in /dev. */
Test(ublk, an_attach_that_fails_leaves_nothing)
{
	static const char *const steps[] = {"features", "image", "add", "record", "params", NULL};
	for (unsigned i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		again();
		w.fault = steps[i];
		struct ublkd_request request = good_request();
		attach(&request);
		cr_expect_lt(w.res, 0);
		cr_expect_eq(w.faults, steps[i] != NULL);
		if (steps[i] == NULL)
			cr_expect_not_null(strstr(w.wait.err.message, "/dev/ublkc1000000"));
		expect_nothing_left();
	}
}

/* Where the kernel looks: struct ublk_param_dma_align is at byte 108 of struct ublk_params, behind
 * a struct ublk_param_zoned of 32 bytes that is aligned to 4. */
Test(ublk, zero_copy_wants_memory_as_aligned_as_its_blocks)
{
	for (uint32_t block_size = 512; block_size <= 4096; block_size *= 8) {
		again();
		int fd = open(w.image, O_RDONLY | O_DIRECT | O_CLOEXEC);
		uint32_t align = fd >= 0 ? image_dio_align(fd) : UINT32_MAX;
		fd_close(&fd);
		if (align > block_size)
			cr_skip("/tmp has no direct I/O by %u bytes", block_size);
		w.kernel.features |= UBLK_ABI_F_ZERO_COPY | UBLK_ABI_F_AUTO_BUF;
		w.open_flags = O_DIRECT;
		struct ublkd_request request = good_request();
		request.block_size = block_size;
		attach(&request);
		uint32_t types, mask;
		memcpy(&types, w.kernel.params + 4, sizeof(types));
		memcpy(&mask, w.kernel.params + 108, sizeof(mask));
		cr_expect(types & UBLK_ABI_PARAM_DMA_ALIGN);
		cr_expect_eq(mask, block_size - 1);
		expect_nothing_left();
	}
}

static unsigned calls_of(const struct kernel *k, uint32_t command)
{
	unsigned count = 0;
	for (unsigned i = 0; i < k->calls; i++)
		count += k->call[i].command == command;
	return count;
}

static unsigned last_call_of(const struct kernel *k, uint32_t command)
{
	unsigned i = k->calls;
	while (k->call[--i].command != command)
		;
	return i;
}

static void other_image(void)
{
	strcat(w.image, "2");
	int fd = open(w.image, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	cr_assert(fd >= 0 && ftruncate(fd, 1 << 20) == 0);
	close(fd);
}

/* Its end is tried again and again, but the kernel is asked once: each command that hangs keeps one
 * of its threads. Another device is made (as far as one is here) and removed meanwhile. */
Test(ublk, a_device_that_hangs_is_stopped_once)
{
	w.kernel.hang = UBLK_ABI_STOP_DEV;
	struct ublkd_request request = good_request();
	attach(&request);
	while (w.events < 4)
		cr_assert_eq(ring_turn(w.reactor.ring, true), 0);
	cr_expect_eq(calls_of(&w.kernel, UBLK_ABI_STOP_DEV), 1);
	cr_expect_eq(ublk_ctl_hanging(w.ctl), 1);

	unsigned hangs = last_call_of(&w.kernel, UBLK_ABI_STOP_DEV);
	w.kernel.hang = 0;
	struct ublkd_request other = good_request();
	strcpy(other.tag, "ringvol:0:2");
	other_image();
	attach(&other);
	cr_expect_not_null(strstr(w.wait.err.message, "/dev/ublkc1000001"));
	cr_expect_eq(ublk_devs_count(w.devs), 1);
	cr_expect_eq(w.kernel.deleted, 1);

	kernel_answer(&w.kernel, hangs);
	while (ublk_devs_count(w.devs) != 0)
		cr_assert_eq(ring_turn(w.reactor.ring, true), 0);
	expect_nothing_left();
}

/* Until a device is forgotten, for the file is named by it, and so are commands. When the kernel
 * answers late, it is asked whether the device of that number is still this one. */
Test(ublk, a_number_is_given_to_one_device_at_a_time)
{
	for (int still_ours = 0; still_ours < 2; still_ours++) {
		again();
		w.kernel.hang = UBLK_ABI_DEL_ASYNC;
		struct ublkd_request request = good_request();
		attach(&request);
		cr_expect_not_null(strstr(w.wait.err.message, "/dev/ublkc1000000"));
		while (w.events == 0)
			cr_assert_eq(ring_turn(w.reactor.ring, true), 0);
		unsigned hangs = last_call_of(&w.kernel, UBLK_ABI_DEL_ASYNC);

		w.kernel.hang = 0;
		w.kernel.ours = still_ours;
		struct ublkd_request other = good_request();
		strcpy(other.tag, "ringvol:0:2");
		other_image();
		attach(&other);
		cr_expect_not_null(strstr(w.wait.err.message, "/dev/ublkc1000001"));

		unsigned stops = calls_of(&w.kernel, UBLK_ABI_STOP_DEV);
		kernel_answer(&w.kernel, hangs);
		while (ublk_devs_count(w.devs) != 0)
			cr_assert_eq(ring_turn(w.reactor.ring, true), 0);
		cr_expect_eq(calls_of(&w.kernel, UBLK_ABI_GET_INFO), 1);
		cr_expect_eq(calls_of(&w.kernel, UBLK_ABI_STOP_DEV), stops + still_ours);
		/* It was told twice to delete it where it says that it is still there. */
		w.kernel.deleted -= still_ours;
		expect_nothing_left();
	}
}

static sem_t gate;
static atomic_uint at_gate;

/* The jobs of the devices attached first. */
static int hang_job(void *arg, const char *op_name, const char *step_name)
{
	(void)op_name;
	(void)step_name;
	bool hangs = atomic_fetch_add(&at_gate, 1) < *(const unsigned *)arg;
	if (hangs)
		sem_wait(&gate);
	return hangs ? -EIO : 0;
}

static void on_hung_attached(struct ublk_wait *wait, const struct ublk_dev *dev, int res)
{
	cr_expect_null(dev);
	cr_expect_eq(res, -EIO);
	wait->ends = true;
}

/* All threads that one file system's images may have are in calls that hang. */
Test(ublk, an_image_that_hangs_holds_up_no_other_file_system)
{
	unsigned hanging = 1; /* the threads of setup() */
	sem_init(&gate, 0, 0);
	w.observer.before_call = hang_job;
	w.observer.arg = &hanging;
	struct ublkd_request request = good_request();
	request.image_dev = 1; /* of no file system */
	struct ublk_wait hung = {.on_end = on_hung_attached};
	int fd = open(w.image, O_RDWR | O_CLOEXEC);
	ublk_devs_attach(w.devs, &request, fd, &hung);
	while (atomic_load(&at_gate) < hanging)
		cr_assert_eq(ring_turn(w.reactor.ring, false), 0);

	struct ublkd_request other = good_request();
	strcpy(other.tag, "ringvol:0:2");
	other_image();
	attach(&other);
	cr_expect_not_null(
		strstr(w.wait.err.message, "/dev/ublkc1000000"), "%s", w.wait.err.message);
	cr_expect_eq(ublk_devs_count(w.devs), 1);
	sem_post(&gate);
	while (!hung.ends || ublk_devs_count(w.devs) != 0)
		cr_assert_eq(ring_turn(w.reactor.ring, true), 0);
	expect_nothing_left();
	sem_destroy(&gate);
}

Test(ublk, others_numbers_are_passed_over)
{
	w.kernel.taken = 1000003;
	struct ublkd_request request = good_request();
	attach(&request);
	cr_expect_not_null(strstr(w.wait.err.message, "/dev/ublkc1000003"));
	cr_expect_eq(calls_of(&w.kernel, UBLK_ABI_ADD_DEV), 4);
	expect_nothing_left();
}

Test(ublk, what_the_kernel_refuses_is_told)
{
	static const struct {
		uint32_t command;
		int res;
		enum err_code code;
		const char *word;
	} cases[] = {
		{UBLK_ABI_GET_FEATURES, -EOPNOTSUPP, ERR_PRECONDITION, "too old"},
		{UBLK_ABI_ADD_DEV, -EACCES, ERR_NO_ROOM, "ublks_max"},
		{UBLK_ABI_ADD_DEV, -ENOSPC, ERR_NO_ROOM, "detach"},
		{UBLK_ABI_ADD_DEV, -ENOMEM, ERR_NO_ROOM, "ADD_DEV"},
		{UBLK_ABI_SET_PARAMS, -EINVAL, ERR_INTERNAL, "SET_PARAMS"},
	};
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		again();
		w.kernel.fail = cases[i].command;
		w.kernel.fail_res = cases[i].res;
		struct ublkd_request request = good_request();
		attach(&request);
		cr_expect_eq(w.wait.err.code, cases[i].code, "case %u: %s", i, w.wait.err.message);
		cr_expect_not_null(strstr(w.wait.err.message, cases[i].word), "case %u: %s", i,
			w.wait.err.message);
		expect_nothing_left();
	}
}

/* ADD_DEV that never returns: an answer in time, and the next volume is served as before. */
Test(ublk, an_add_that_hangs_is_answered)
{
	w.kernel.hang = UBLK_ABI_ADD_DEV;
	struct ublkd_request request = good_request();
	attach(&request);
	cr_expect_eq(w.wait.err.code, ERR_TIMEOUT);
	cr_expect_not_null(strstr(w.wait.err.message, "ADD_DEV"));
	expect_nothing_left();
	w.kernel.hang = 0;
	attach(&request);
	cr_expect_eq(w.wait.err.code, ERR_PRECONDITION); /* no node: it went past ADD_DEV */
	expect_nothing_left();
	/* The first one comes back. */
	kernel_answer(&w.kernel, 1);
	cr_expect_eq(w.kernel.made, 2);
	expect_nothing_left();
}

Test(ublk, what_is_no_request_for_a_device_is_refused)
{
	static const struct {
		const char *tag, *path;
		uint32_t block_size;
		uint16_t queues;
		enum err_code code;
	} cases[] = {
		{"other:0:1", "/image", 512, 1, ERR_INVALID},
		{"ringvol:0:1", "image", 512, 1, ERR_INVALID},
		{"ringvol:0:1", "/image", 1024, 1, ERR_INVALID},
		{"ringvol:0:1", "/image", 512, UBLKD_QUEUES_MAX + 1, ERR_RANGE},
	};
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		again();
		struct ublkd_request request = good_request();
		strcpy(request.tag, cases[i].tag);
		strcpy(request.path, cases[i].path);
		request.block_size = cases[i].block_size;
		request.queues = cases[i].queues;
		attach(&request);
		cr_expect_eq(w.wait.err.code, cases[i].code, "case %u: %s", i, w.wait.err.message);
		cr_expect_eq(w.kernel.calls, 0);
		expect_nothing_left();
	}
}

Test(ublk, an_image_in_use_is_refused)
{
	int fd = open(w.image, O_RDWR | O_CLOEXEC);
	cr_assert_eq(flock(fd, LOCK_EX), 0);
	struct ublkd_request request = good_request();
	attach(&request);
	cr_expect_eq(w.wait.err.code, ERR_PRECONDITION);
	cr_expect_not_null(strstr(w.wait.err.message, "locked"));
	close(fd);
	expect_nothing_left();
}

/* Files of devices that the kernel does not have, as after a reboot: only the files go. */
Test(ublk, files_without_devices_are_removed)
{
	w.kernel.fail = UBLK_ABI_GET_INFO;
	w.kernel.fail_res = -ENODEV;
	for (unsigned phase = UBLK_PHASE_MAKING; phase <= UBLK_PHASE_ENDING; phase++) {
		struct ublk_record record = good_record(2000000 + phase, phase);
		cr_assert_eq(ublk_state_write(w.dir, &record), 0);
	}
	struct err err = {0};
	cr_assert_eq(ublk_devs_adopt(w.devs, &err), 0);
	while (ublk_devs_count(w.devs) != 0)
		cr_assert_eq(ring_turn(w.reactor.ring, true), 0);
	expect_nothing_left();
}

/* A device of that number that carries another's mark: never touched, though a file names it. */
Test(ublk, anothers_device_is_left_alone)
{
	struct ublk_record record = good_record(2000000, UBLK_PHASE_LIVE);
	cr_assert_eq(ublk_state_write(w.dir, &record), 0);
	struct err err = {0};
	cr_assert_eq(ublk_devs_adopt(w.devs, &err), 0);
	while (ublk_devs_count(w.devs) != 0)
		cr_assert_eq(ring_turn(w.reactor.ring, true), 0);
	cr_assert_eq(w.kernel.calls, 2);
	cr_expect_eq(w.kernel.call[0].command, UBLK_ABI_GET_FEATURES);
	cr_expect_eq(w.kernel.call[1].command, UBLK_ABI_GET_INFO);
	expect_nothing_left();
}

static void put_text(const char *dir, const char *name, const char *text)
{
	char path[128];
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	_cleanup_fd_ int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	cr_assert(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
}

/* A driver asks before the recovery is through: it is told the number its mounts have. */
Test(ublk, a_device_to_be_recovered_has_its_number)
{
	w.kernel.fail = UBLK_ABI_GET_INFO;
	w.kernel.fail_res = -ENODEV;
	char disk[96];
	snprintf(disk, sizeof(disk), "%s/ublkb2000000", w.sys);
	cr_assert(mkdir(w.sys, 0700) == 0 && mkdir(disk, 0700) == 0);
	put_text(disk, "dev", "259:7\n");
	put_text(disk, "size", "2048\n");
	struct ublk_record record = good_record(2000000, UBLK_PHASE_LIVE);
	cr_assert_eq(ublk_state_write(w.dir, &record), 0);
	struct err err = {0};
	cr_assert_eq(ublk_devs_adopt(w.devs, &err), 0);
	struct ublkd_device told;
	cr_assert_not_null(ublk_devs_next(w.devs, 0));
	ublk_devs_describe(ublk_devs_next(w.devs, 0), &told);
	cr_expect_eq(told.state, UBLKD_DEV_RECOVERING);
	cr_expect_eq(told.major, 259);
	cr_expect_eq(told.minor, 7);
	cr_expect_eq(told.size_bytes, 1 << 20);
	while (ublk_devs_count(w.devs) != 0)
		cr_assert_eq(ring_turn(w.reactor.ring, true), 0);
	expect_nothing_left();
}
