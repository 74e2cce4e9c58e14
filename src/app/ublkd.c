/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data process's life: owns the loop for requests, the threads for data, and the state
 * directory's lock.
 *
 * The happy path: options, signals, limits; the lock (it waits for a predecessor that is ending);
 * the ring, threads, control; state files and the kernel's devices are looked through, and their
 * recovery goes on while the socket already serves.
 *
 * With --detach the process that was started ends when the socket serves, or, when it does not
 * start, with that status and message. The child that stays leads a session, and logs to a file.
 *
 * SIGTERM ends the process, not the devices: operations under way are waited for, DRAIN_MS at most,
 * and the process exits without stopping anything, as a kill would. The kernel keeps the devices
 * and what is written to them until the next process recovers them, which is how the binary is
 * replaced while volumes are in use.
 */
#include "app/ublkd.h"

#include "backends/ublk/ublkd_server.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/options.h"
#include "base/process.h"
#include "reactor/ring_uring.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum {
	DRAIN_MS = 5000,
	DRAIN_TICK_MS = 10,
	LOCK_WAIT_MS = 10000, /* for a predecessor to end */
	LOCK_TICK_MS = 20,
	LOG_KEEP_BYTES = 1 << 20, /* of a detached process's log, when the next one starts */
	WORK_THREADS_UBLKD = 2,
	THREADS_DEFAULT_MAX = 4,
};

struct ublkd_options {
	const char *socket, *state_dir;
	unsigned threads, devices_max;
	bool detach;
	enum log_level log_level;
	enum log_format log_format;
};

struct ublkd {
	struct ublkd_options options;
	struct reactor reactor;
	struct ublk_ctl *ctl;
	struct ublk_io *io;
	struct ublk_devs *devs;
	struct ublkd_server *server;
	int state_dirfd, lock_fd, signal_fd;
	int ready_fd; /* to the parent that waits for a detached process; -1: nobody waits */
	struct ring_req signal_req;
	struct ring_timer drain;
	uint64_t drain_end_ns;
	bool draining;
};

/* ---- options ---- */

static const struct option_row rows[] = {
	{"--socket", "PATH", {"RINGVOL_UBLKD_SOCKET"}, .fallback = UBLKD_SOCKET,
		.help = "where the driver finds this process", .kind = OPTION_SOCKET,
		OPTION_IN(struct ublkd_options, socket)},
	{"--state-dir", "DIR", {"RINGVOL_UBLKD_STATE_DIR"}, .fallback = UBLKD_STATE_DIR,
		.help = "one small file a device, for the next process; on a tmpfs",
		.kind = OPTION_PATH, OPTION_IN(struct ublkd_options, state_dir)},
	{"--threads", "N", {"RINGVOL_UBLKD_THREADS"}, .fallback_help = "one a CPU, 4 at most",
		.help = "threads that serve I/O; a queue of a device stays with one of them",
		.kind = OPTION_NUMBER, OPTION_IN(struct ublkd_options, threads), .min = 1,
		.max = UBLK_IO_THREADS_MAX},
	{"--max-devices", "N", {"RINGVOL_UBLKD_MAX_DEVICES"}, .fallback = "1024",
		.help = "more are refused", .kind = OPTION_NUMBER,
		OPTION_IN(struct ublkd_options, devices_max), .min = 1, .max = UBLKD_DEVICES_MAX},
	{"--detach",
		.help = "return when it serves, and go on in the background; the log is the file\n"
			"ublkd.log in the state directory",
		.kind = OPTION_FLAG, OPTION_IN(struct ublkd_options, detach)},
	{"--log-level", "LEVEL", {"RINGVOL_LOG_LEVEL"}, .fallback = "info",
		.help = "error, warn, info or debug", .kind = OPTION_CHOICE,
		OPTION_IN(struct ublkd_options, log_level), .choices = "error|warn|info|debug"},
	{"--log-format", "FORMAT", {"RINGVOL_LOG_FORMAT"}, .fallback = "logfmt",
		.help = "logfmt or json", .kind = OPTION_CHOICE,
		OPTION_IN(struct ublkd_options, log_format), .choices = "logfmt|json"},
	{NULL},
};

static const struct command ublkd_command = {
	.name = "ublkd",
	.summary =
		"The data process: serves the I/O of volumes with 'device: ublk'. The driver starts it,\n"
		"or it runs as a unit of its own. It may be ended and started again, also with another\n"
		"binary, while volumes are in use: their I/O waits and then goes on.",
	.options = rows,
};

/* ---- the process ---- */

static void harden(void)
{
	process_claim_resources();
	process_hide_memory();
	/* Memory that is needed to write memory back must not wait for that. */
	(void)prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0);
}

static void on_drain_tick(struct ring_timer *timer)
{
	struct ublkd *u = container_of(timer, struct ublkd, drain);
	if (ublk_devs_idle(u->devs) || ring_now_ns(u->reactor.ring) >= u->drain_end_ns)
		ring_stop(u->reactor.ring);
	else
		ring_timer_arm(u->reactor.ring, timer, DRAIN_TICK_MS);
}

static void watch_signals(struct ublkd *u);

static void on_signal(struct ring_req *req, int res, uint32_t flags)
{
	struct ublkd *u = container_of(req, struct ublkd, signal_req);
	struct signalfd_siginfo info;
	(void)res;
	(void)flags;
	while (read(u->signal_fd, &info, sizeof(info)) == sizeof(info)) {
		if (u->draining)
			u->drain_end_ns = 0; /* a second one ends the patience */
		if (u->draining || u->devs == NULL)
			continue;
		u->draining = true;
		(void)process_notify("STOPPING=1");
		u->drain_end_ns = ring_now_ns(u->reactor.ring) + DRAIN_MS * UINT64_C(1000000);
		u->drain.fn = on_drain_tick;
		ring_timer_arm(u->reactor.ring, &u->drain, 0);
	}
	watch_signals(u);
}

static void watch_signals(struct ublkd *u)
{
	u->signal_req.fn = on_signal;
	io_uring_prep_poll_add(&u->signal_req.sqe, u->signal_fd, POLLIN);
	ring_submit(u->reactor.ring, &u->signal_req);
}

static void on_event(void *arg, const struct ublk_dev *dev, const char *what, const struct err *err)
{
	struct ublkd_device d;
	char id[16];
	(void)arg;
	ublk_devs_describe(dev, &d);
	snprintf(id, sizeof(id), "%u", d.dev_id);
	log_event(err != NULL ? LOG_LEVEL_WARN : LOG_LEVEL_INFO, what,
		log_fields({"device", id}, {"tag", d.tag},
			{"error", err != NULL ? err->message : NULL},
			{"step", err != NULL ? err->step : NULL}));
}

/* ---- start ---- */

static int take_lock(struct ublkd *u, struct err *err)
{
	const char *dir = u->options.state_dir;
	u->state_dirfd = ublk_state_open_dir(dir, true);
	if (u->state_dirfd < 0)
		return err_sys(err, u->state_dirfd, "making the state directory %s", dir);
	int r = ublk_state_lock(u->state_dirfd, &u->lock_fd);
	for (int ms = 0; r == -EWOULDBLOCK && ms < LOCK_WAIT_MS; ms += LOCK_TICK_MS) {
		clock_sleep_ms(LOCK_TICK_MS);
		r = ublk_state_lock(u->state_dirfd, &u->lock_fd);
	}
	if (r == -EWOULDBLOCK)
		return err_set(err, ERR_EXISTS,
			"another data process has the state directory %s: wait for it if it is "
			"starting or ending, else end it, or give --state-dir",
			dir);
	return r < 0 ? err_sys(err, r, "locking the state directory %s", dir) : 0;
}

static unsigned threads_default(void)
{
	long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	return cpus < 1 ? 1 : cpus < THREADS_DEFAULT_MAX ? (unsigned)cpus : THREADS_DEFAULT_MAX;
}

static int open_loop(struct ublkd *u, struct err *err)
{
	int r = ring_open(&u->reactor.ring, &(struct ring_config){0});
	if (r < 0)
		return err_sys(err, r, "io_uring cannot be set up ('ringvol doctor' says more)");
	r = work_open(&u->reactor.work, u->reactor.ring, WORK_THREADS_UBLKD);
	if (r < 0)
		return err_sys(err, r, "work threads cannot be started");
	unsigned threads = u->options.threads != 0 ? u->options.threads : threads_default();
	r = ublk_io_open(&u->io, u->reactor.ring, threads);
	if (r < 0)
		return err_sys(err, r, "the threads for I/O cannot be started");
	r = ublk_ctl_open(&u->ctl, &(struct ublk_ctl_config){.ring = u->reactor.ring});
	return r < 0 ? err_sys(err, r, "ublk's control cannot be opened") : 0;
}

/* ---- in the background ---- */

/* Goes on in a child; the parent waits for its word and ends with it. */
static int detach(struct ublkd *u)
{
	int fds[2];
	if (pipe2(fds, O_CLOEXEC) < 0)
		return -errno;
	pid_t pid = fork();
	if (pid < 0) {
		int r = -errno;
		fd_close(&fds[0]);
		fd_close(&fds[1]);
		return r;
	}
	if (pid == 0) {
		fd_close(&fds[0]);
		u->ready_fd = fds[1];
		return setsid() < 0 ? -errno : 0;
	}
	char ready;
	int status;
	fd_close(&fds[1]);
	if (read(fds[0], &ready, 1) == 1)
		_exit(0);
	/* It ended, and has said why. */
	_exit(waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

/* Lets go of what it has of its parent: terminal or pipe, and directory. */
static int leave(struct ublkd *u)
{
	struct stat st;
	_cleanup_fd_ int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
	_cleanup_fd_ int log = openat(u->state_dirfd, "ublkd.log",
		O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (null < 0 || log < 0 || fstat(log, &st) < 0)
		return -errno;
	if (st.st_size > LOG_KEEP_BYTES && ftruncate(log, 0) < 0)
		return -errno;
	if (chdir("/") < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(log, STDOUT_FILENO) < 0 ||
		dup2(log, STDERR_FILENO) < 0)
		return -errno;
	ssize_t n = write(u->ready_fd, "", 1);
	(void)n; /* a parent that has gone need not know */
	fd_close(&u->ready_fd);
	return 0;
}

static int start(struct ublkd *u, struct err *err)
{
	harden();
	int r = process_take_signals(&u->signal_fd);
	if (r < 0)
		return err_sys(err, r, "signals cannot be taken");
	r = take_lock(u, err);
	if (r == 0)
		r = open_loop(u, err);
	if (r < 0)
		return r;
	const struct ublk_devs_config config = {
		.reactor = &u->reactor,
		.ctl = u->ctl,
		.io = u->io,
		.state_dirfd = u->state_dirfd,
		.devices_max = u->options.devices_max,
		.on_event = on_event,
	};
	r = ublk_devs_open(&u->devs, &config);
	if (r < 0)
		return err_sys(
			err, r, "the state directory %s cannot be used", u->options.state_dir);
	watch_signals(u);
	/* Recovery first: its I/O is waiting. */
	r = ublk_devs_adopt(u->devs, err);
	if (r == 0)
		r = ublkd_server_open(&u->server, u->reactor.ring, u->devs, u->options.socket, err);
	if (r < 0)
		return r;
	ublkd_server_start(u->server);
	r = u->ready_fd < 0 ? 0 : leave(u);
	if (r < 0)
		return err_sys(err, r, "the log in the state directory %s", u->options.state_dir);
	char devices[16];
	snprintf(devices, sizeof(devices), "%u", ublk_devs_count(u->devs));
	log_event(LOG_LEVEL_INFO, "serving",
		log_fields({"version", RINGVOL_VERSION}, {"socket", u->options.socket},
			{"state_dir", u->options.state_dir}, {"devices", devices}));
	(void)process_notify("READY=1");
	return 0;
}

static void stop(struct ublkd *u)
{
	ublkd_server_close(u->server);
	ublk_devs_close(u->devs);
	ublk_io_close(u->io);
	ublk_ctl_close(u->ctl);
	work_close(u->reactor.work);
	ring_close(u->reactor.ring);
	fd_close(&u->lock_fd);
	fd_close(&u->state_dirfd);
	fd_close(&u->signal_fd);
}

int ublkd_main(int argc, char *const *argv)
{
	struct ublkd u = {.state_dirfd = -1, .lock_fd = -1, .signal_fd = -1, .ready_fd = -1};
	struct options_result result = {0};
	struct err err = {0};
	if (options_parse(&ublkd_command, argc, argv, &u.options, &result, &err) < 0) {
		fprintf(stderr, "ringvol ublkd: %s\n", err.message);
		return 2;
	}
	if (result.help) {
		options_print_help(&ublkd_command, stdout);
		return 0;
	}
	log_open(u.options.log_level, u.options.log_format);
	int r = u.options.detach ? detach(&u) : 0;
	r = r < 0 ? err_sys(&err, r, "going to the background") : start(&u, &err);
	if (r >= 0) {
		r = ring_run(u.reactor.ring);
		if (r < 0)
			err_sys(&err, r, "the ring is broken");
	}
	if (r < 0)
		log_event(LOG_LEVEL_ERROR, "cannot serve", log_fields({"error", err.message}));
	if (r >= 0)
		log_event(LOG_LEVEL_INFO, "stopped", NULL);
	/* Devices stay, and with them what the kernel has of this process. */
	if (u.devs != NULL && ublk_devs_count(u.devs) != 0)
		_exit(r < 0 ? 1 : 0);
	stop(&u);
	return r < 0 ? 1 : 0;
}
