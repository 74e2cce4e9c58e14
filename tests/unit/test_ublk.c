/* SPDX-License-Identifier: Apache-2.0 */
/* The data process without ublk: control commands against a made-up kernel, and what is left of a
 * device whose making fails at each step. */
#include "base/fd.h"
#include "blockio/bytes.h"
#include "blockio/ublk_dev.h"
#include "ublk_dir.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

/* ---- a made-up kernel ---- */

enum { KERNEL_CALLS = 64 };

struct kernel {
	struct ublk_ctl_fake fake;
	struct {
		struct ublk_ctl_slot *slot;
		uint32_t command, dev_id;
		void *buffer;
	} call[KERNEL_CALLS];
	unsigned calls;
	/* how each command is answered at once; a command named in `hang` is not */
	uint32_t fail, hang;
	int fail_res;
	uint64_t features;
	unsigned made, deleted;
};

static void kernel_answer(struct kernel *k, unsigned i)
{
	int res = 0;
	if (k->call[i].command == k->fail)
		res = k->fail_res;
	else if (k->call[i].command == UBLK_ABI_GET_FEATURES)
		memcpy(k->call[i].buffer, &k->features, sizeof(k->features));
	else if (k->call[i].command == UBLK_ABI_ADD_DEV)
		((struct ublk_abi_info *)k->call[i].buffer)->dev_id = 1000000 + k->made++;
	else if (k->call[i].command == UBLK_ABI_DEL_DEV)
		k->deleted++;
	ublk_ctl_answer(k->call[i].slot, res);
}

static void kernel_submit(struct ublk_ctl_fake *fake, struct ublk_ctl_slot *slot, uint32_t command,
	uint32_t dev_id, void *buffer)
{
	struct kernel *k = container_of(fake, struct kernel, fake);
	cr_assert_lt(k->calls, KERNEL_CALLS);
	k->call[k->calls].slot = slot;
	k->call[k->calls].command = command;
	k->call[k->calls].dev_id = dev_id;
	k->call[k->calls].buffer = buffer;
	k->calls++;
	if (command != k->hang)
		kernel_answer(k, k->calls - 1);
}

static struct kernel kernel_good(void)
{
	return (struct kernel){
		.fake.submit = kernel_submit,
		.features = UBLK_ABI_F_RECOVERY | UBLK_ABI_F_RECOVERY_REISSUE,
	};
}

/* ---- control commands ---- */

struct ended {
	struct ublk_ctl_call call;
	unsigned times;
	int res;
};

static void on_end(struct ublk_ctl_call *call, int res)
{
	struct ended *e = container_of(call, struct ended, call);
	e->times++;
	e->res = res;
}

static struct ring *open_ring(void)
{
	struct ring *ring;
	cr_assert_eq(ring_open(&ring, &(struct ring_config){0}), 0);
	return ring;
}

static void wait_end(struct ring *ring, const struct ended *e)
{
	while (e->times == 0)
		cr_assert_eq(ring_turn(ring, true), 0);
}

static struct ublk_ctl *open_ctl(struct ring *ring, struct kernel *k, uint64_t bound_ms)
{
	struct ublk_ctl *ctl;
	const struct ublk_ctl_config config = {
		.ring = ring, .bound_ms = bound_ms, .fake = &k->fake};
	cr_assert_eq(ublk_ctl_open(&ctl, &config), 0);
	return ctl;
}

Test(ublk, a_command_is_answered)
{
	struct kernel k = kernel_good();
	struct ring *ring = open_ring();
	struct ublk_ctl *ctl = open_ctl(ring, &k, 1000);
	struct ended e = {.call = {.command = UBLK_ABI_GET_FEATURES, .on_end = on_end}};
	ublk_ctl_submit(ctl, &e.call);
	wait_end(ring, &e);
	cr_expect_eq(e.res, 0);
	cr_expect_eq(e.call.features, k.features);
	cr_expect_eq(ublk_ctl_hanging(ctl), 0);
	ublk_ctl_close(ctl);
	ring_close(ring);
}

Test(ublk, a_command_that_hangs_ends_and_hinders_nobody)
{
	struct kernel k = kernel_good();
	k.hang = UBLK_ABI_ADD_DEV;
	struct ring *ring = open_ring();
	struct ublk_ctl *ctl = open_ctl(ring, &k, 10);
	struct ended add = {.call = {.command = UBLK_ABI_ADD_DEV, .on_end = on_end}};
	struct ended other = {.call = {.command = UBLK_ABI_STOP_DEV, .on_end = on_end}};
	ublk_ctl_submit(ctl, &add.call);
	ublk_ctl_submit(ctl, &other.call);
	wait_end(ring, &other);
	cr_expect_eq(other.res, 0);
	wait_end(ring, &add);
	cr_expect_eq(add.res, -ETIMEDOUT);
	cr_expect_eq(ublk_ctl_hanging(ctl), 1);

	/* It comes back after all: nobody knows of its device, so it is deleted. */
	kernel_answer(&k, 0);
	cr_expect_eq(add.times, 1);
	cr_expect_eq(k.calls, 3);
	cr_expect_eq(k.call[2].command, UBLK_ABI_DEL_DEV);
	cr_expect_eq(k.call[2].dev_id, 1000000);
	cr_expect_eq(ublk_ctl_hanging(ctl), 0);
	ublk_ctl_close(ctl);
	ring_close(ring);
}

Test(ublk, commands_that_hang_use_slots_up)
{
	struct kernel k = kernel_good();
	k.hang = UBLK_ABI_STOP_DEV;
	struct ring *ring = open_ring();
	struct ublk_ctl *ctl = open_ctl(ring, &k, 1);
	for (unsigned i = 0; i < UBLK_CTL_SLOTS; i++) {
		struct ended e = {.call = {.command = UBLK_ABI_STOP_DEV, .on_end = on_end}};
		k.calls = 0;
		ublk_ctl_submit(ctl, &e.call);
		wait_end(ring, &e);
		cr_assert_eq(e.res, -ETIMEDOUT);
	}
	struct ended last = {.call = {.command = UBLK_ABI_STOP_DEV, .on_end = on_end}};
	ublk_ctl_submit(ctl, &last.call);
	wait_end(ring, &last);
	cr_expect_eq(last.res, -EBUSY);
	ublk_ctl_close(ctl);
	ring_close(ring);
}

Test(ublk, no_module_is_named)
{
	struct kernel k = kernel_good();
	k.fake.missing = -ENOENT;
	struct ring *ring = open_ring();
	struct ublk_ctl *ctl = open_ctl(ring, &k, 1000);
	struct err err = {0};
	cr_expect_lt(ublk_ctl_ready(ctl, &err), 0);
	cr_expect_eq(err.code, ERR_PRECONDITION);
	cr_expect_not_null(strstr(err.message, "ublk_drv"));
	ublk_ctl_close(ctl);
	ring_close(ring);
}

/* ---- making a device ---- */

struct world {
	struct kernel kernel;
	struct reactor reactor;
	struct ublk_ctl *ctl;
	struct ublk_io *io;
	struct ublk_devs *devs;
	char path[32], image[64], sys[64];
	int dir;
	const char *fault; /* the step that fails */
	unsigned faults;
	/* the answer */
	struct ublk_wait wait;
	bool ended;
	int res;
};

static int fault_step(void *arg, const char *op_name, const char *step_name)
{
	struct world *w = arg;
	if (w->fault == NULL || strcmp(op_name, "ublk attach") != 0 ||
		strcmp(step_name, w->fault) != 0)
		return 0;
	w->faults++;
	return -EIO;
}

static void world_open(struct world *w)
{
	signal(SIGIO, SIG_IGN);
	*w = (struct world){.kernel = kernel_good()};
	w->dir = temp_dir(w->path);
	snprintf(w->image, sizeof(w->image), "%s/image", w->path);
	snprintf(w->sys, sizeof(w->sys), "%s/sys", w->path);
	int fd = open(w->image, O_RDWR | O_CREAT, 0600);
	cr_assert(fd >= 0 && ftruncate(fd, 1 << 20) == 0);
	close(fd);
	w->reactor.ring = open_ring();
	w->reactor.op_fault = fault_step;
	w->reactor.op_fault_arg = w;
	cr_assert_eq(work_open(&w->reactor.work, w->reactor.ring, 1), 0);
	cr_assert_eq(ublk_io_open(&w->io, w->reactor.ring, 2), 0);
	w->ctl = open_ctl(w->reactor.ring, &w->kernel, 20);
	const struct ublk_devs_config config = {
		.reactor = &w->reactor,
		.ctl = w->ctl,
		.io = w->io,
		.state_dirfd = w->dir,
		.devices_max = 1,
		.sys_block = w->sys,
	};
	cr_assert_eq(ublk_devs_open(&w->devs, &config), 0);
}

static void world_close(struct world *w)
{
	ublk_devs_close(w->devs);
	ublk_io_close(w->io);
	ublk_ctl_close(w->ctl);
	work_close(w->reactor.work);
	ring_close(w->reactor.ring);
	close(w->dir);
	remove_dir(w->path);
}

static void on_attached(struct ublk_wait *wait, const struct ublk_dev *dev, int res)
{
	struct world *w = container_of(wait, struct world, wait);
	(void)dev;
	w->ended = true;
	w->res = res;
}

static void attach(struct world *w, struct ublkd_request *request)
{
	struct stat st;
	int fd = open(w->image, O_RDWR | O_CLOEXEC);
	cr_assert(fd >= 0 && fstat(fd, &st) == 0);
	request->image_dev = st.st_dev;
	request->image_ino = st.st_ino;
	w->ended = false;
	w->wait = (struct ublk_wait){.on_end = on_attached};
	ublk_devs_attach(w->devs, request, fd, &w->wait);
	while (!w->ended)
		cr_assert_eq(ring_turn(w->reactor.ring, true), 0);
}

/* No device, no file, no lock, and the kernel was told to forget what it made. */
static void expect_nothing_left(struct world *w)
{
	struct seen seen = {0};
	cr_expect_eq(ublk_devs_count(w->devs), 0);
	cr_expect_eq(ublk_state_each(w->dir, on_seen, &seen), 0);
	cr_expect_eq(seen.good + seen.damaged, 0);
	int fd = open(w->image, O_RDWR | O_CLOEXEC);
	cr_expect_eq(bytes_lock(fd), 0, "the image is still open or locked");
	close(fd);
	cr_expect_eq(w->kernel.made, w->kernel.deleted);
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
		struct world w;
		world_open(&w);
		w.fault = steps[i];
		struct ublkd_request request = good_request();
		attach(&w, &request);
		cr_expect_lt(w.res, 0);
		cr_expect_eq(w.faults, steps[i] != NULL);
		if (steps[i] == NULL)
			cr_expect_not_null(strstr(w.wait.err.message, "/dev/ublkc1000000"));
		expect_nothing_left(&w);
		world_close(&w);
	}
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
		struct world w;
		world_open(&w);
		w.kernel.fail = cases[i].command;
		w.kernel.fail_res = cases[i].res;
		struct ublkd_request request = good_request();
		attach(&w, &request);
		cr_expect_eq(w.wait.err.code, cases[i].code, "case %u: %s", i, w.wait.err.message);
		cr_expect_not_null(strstr(w.wait.err.message, cases[i].word), "case %u: %s", i,
			w.wait.err.message);
		expect_nothing_left(&w);
		world_close(&w);
	}
}

/* ADD_DEV that never returns: an answer in time, and the next volume is served as before. */
Test(ublk, an_add_that_hangs_is_answered)
{
	struct world w;
	world_open(&w);
	w.kernel.hang = UBLK_ABI_ADD_DEV;
	struct ublkd_request request = good_request();
	attach(&w, &request);
	cr_expect_eq(w.wait.err.code, ERR_TIMEOUT);
	cr_expect_not_null(strstr(w.wait.err.message, "ADD_DEV"));
	expect_nothing_left(&w);
	w.kernel.hang = 0;
	attach(&w, &request);
	cr_expect_eq(w.wait.err.code, ERR_PRECONDITION); /* no node: it went past ADD_DEV */
	expect_nothing_left(&w);
	/* The first one comes back. */
	kernel_answer(&w.kernel, 1);
	cr_expect_eq(w.kernel.made, 2);
	expect_nothing_left(&w);
	world_close(&w);
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
		struct world w;
		world_open(&w);
		struct ublkd_request request = good_request();
		strcpy(request.tag, cases[i].tag);
		strcpy(request.path, cases[i].path);
		request.block_size = cases[i].block_size;
		request.queues = cases[i].queues;
		attach(&w, &request);
		cr_expect_eq(w.wait.err.code, cases[i].code, "case %u: %s", i, w.wait.err.message);
		cr_expect_eq(w.kernel.calls, 0);
		expect_nothing_left(&w);
		world_close(&w);
	}
}

Test(ublk, an_image_in_use_is_refused)
{
	struct world w;
	world_open(&w);
	int fd = open(w.image, O_RDWR | O_CLOEXEC);
	cr_assert_eq(flock(fd, LOCK_EX), 0);
	struct ublkd_request request = good_request();
	attach(&w, &request);
	cr_expect_eq(w.wait.err.code, ERR_PRECONDITION);
	cr_expect_not_null(strstr(w.wait.err.message, "locked"));
	close(fd);
	expect_nothing_left(&w);
	world_close(&w);
}

/* Files of devices that the kernel does not have, as after a reboot: only the files go. */
Test(ublk, files_without_devices_are_removed)
{
	struct world w;
	world_open(&w);
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
	expect_nothing_left(&w);
	world_close(&w);
}

/* A device of that number that carries another's mark: never touched, though a file names it. */
Test(ublk, anothers_device_is_left_alone)
{
	struct world w;
	world_open(&w);
	struct ublk_record record = good_record(2000000, UBLK_PHASE_LIVE);
	cr_assert_eq(ublk_state_write(w.dir, &record), 0);
	struct err err = {0};
	cr_assert_eq(ublk_devs_adopt(w.devs, &err), 0);
	while (ublk_devs_count(w.devs) != 0)
		cr_assert_eq(ring_turn(w.reactor.ring, true), 0);
	cr_assert_eq(w.kernel.calls, 2);
	cr_expect_eq(w.kernel.call[0].command, UBLK_ABI_GET_FEATURES);
	cr_expect_eq(w.kernel.call[1].command, UBLK_ABI_GET_INFO);
	expect_nothing_left(&w);
	world_close(&w);
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
	struct world w;
	world_open(&w);
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
	ublk_dev_describe(ublk_devs_next(w.devs, 0), &told);
	cr_expect_eq(told.state, UBLKD_DEV_RECOVERING);
	cr_expect_eq(told.major, 259);
	cr_expect_eq(told.minor, 7);
	cr_expect_eq(told.size_bytes, 1 << 20);
	while (ublk_devs_count(w.devs) != 0)
		cr_assert_eq(ring_turn(w.reactor.ring, true), 0);
	expect_nothing_left(&w);
	world_close(&w);
}
