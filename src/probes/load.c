/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loading the probes with libbpf: open the embedded object, load, attach; what is left of it are
 * descriptors. That takes 14 MB for a moment and the pages of three libraries for good, so the
 * driver has it done by a process of its own, which sends the descriptors and ends.
 *
 * How it can fail: libbpf or the kernel refuses, which becomes a sentence with its remedy; or the
 * process cannot be started, dies, is stopped, or takes longer than LOAD_TIMEOUT_MS. Nothing is
 * left in the kernel then, as nobody has a descriptor.
 */
#include "probes/load.h"

#include "base/fd.h"
#include "bpf/probe_slot.h"
#include "reactor/spawn.h"

#include <assert.h>
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
	LOAD_TIMEOUT_MS = 60000, /* some 60 ms is what it takes; an emulated machine is slower */
	LOAD_END_MS = 2000,      /* for the process to be gone; else it is init's at our own end */
	LOAD_NICE = 10, /* a start has volumes to attach, and sysfs counts them until then */
};

probe_spoil_fn *probe_spoil;

/* ---- why not ---- */

/* libbpf writes what it and the kernel's verifier have to say to a callback of the whole process.
 * The verifier's verdict, the last line of its log, is kept from there. */
static char verdict[160];
static bool refused; /* by the verifier */
static libbpf_print_fn_t print_before;

/* Statistics that follow the verdict. */
static bool is_verdict(const char *line)
{
	static const char *const others[] = {
		"processed ", "verification time", "stack depth", "mark_precise", "--", "libbpf:"};
	if (*line == '\0')
		return false;
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		if (strncmp(line, others[i], strlen(others[i])) == 0)
			return false;
	return true;
}

static void keep_verdict(char *log)
{
	refused = true;
	for (char *save, *line = strtok_r(log, "\n", &save); line != NULL;
		line = strtok_r(NULL, "\n", &save))
		if (is_verdict(line))
			snprintf(verdict, sizeof(verdict), "%s", line);
}

__attribute__((format(printf, 2, 0))) static int look_at(
	enum libbpf_print_level level, const char *format, va_list args)
{
	char *message;
	if (level != LIBBPF_WARN || vasprintf(&message, format, args) < 0)
		return 0;
	char *log = strstr(message, "BEGIN PROG LOAD LOG --");
	if (log != NULL)
		keep_verdict(strchr(log, '\n') != NULL ? strchr(log, '\n') : log);
	free(message);
	return 0;
}

void probe_why_begin(void)
{
	verdict[0] = '\0';
	refused = false;
	print_before = libbpf_set_print(look_at);
}

void probe_why_end(int error, char ret_why[PROBES_WHY_MAX])
{
	libbpf_set_print(print_before);
	if (error == 0)
		return;
	if (error == -EPERM)
		snprintf(ret_why, PROBES_WHY_MAX,
			"BPF is not allowed here: give the driver CAP_BPF and CAP_PERFMON (or CAP_SYS_ADMIN) "
			"and a seccomp profile with bpf()");
	else if (access("/sys/kernel/btf/vmlinux", R_OK) < 0)
		snprintf(ret_why, PROBES_WHY_MAX,
			"this kernel does not describe its types (no /sys/kernel/btf/vmlinux): "
			"run one built with CONFIG_DEBUG_INFO_BTF");
	else if (error == -ENOSYS)
		snprintf(ret_why, PROBES_WHY_MAX,
			"this kernel has no BPF: run one built with CONFIG_BPF_SYSCALL");
	else if (refused)
		snprintf(ret_why, PROBES_WHY_MAX,
			"the kernel's verifier refused the probes (\"%s\"): please report it with the "
			"output of uname -r",
			verdict);
	else if (error == -ESRCH || error == -ENOENT)
		snprintf(ret_why, PROBES_WHY_MAX,
			"this kernel lacks the block layer's tracepoints: run one built with "
			"CONFIG_BLOCK and CONFIG_TRACEPOINTS");
	else
		snprintf(ret_why, PROBES_WHY_MAX,
			"the probes could not be loaded (%s): please report it with the output of uname -r",
			strerrordesc_np(-error));
}

/* ---- in this process ---- */

/* A copy that stays when libbpf closes its own. */
static int keep(struct probe_loaded *loaded, int fd)
{
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (copy < 0)
		return -errno;
	loaded->fd[loaded->count++] = copy;
	return 0;
}

static void drop(struct probe_loaded *loaded)
{
	while (loaded->count > 0)
		close(loaded->fd[--loaded->count]);
}

static int attach(struct bpf_object *object, struct probe_loaded *ret)
{
	struct bpf_program *program;
	bpf_object__for_each_program(program, object)
	{
		if (!bpf_program__autoload(program))
			continue;
		struct bpf_link *link = bpf_program__attach(program);
		if (link == NULL)
			return -errno;
		int r = keep(ret, bpf_link__fd(link));
		bpf_link__destroy(link);
		if (r < 0)
			return r;
	}
	return 0;
}

static bool is_for_bios(const struct bpf_program *program)
{
	return strncmp(bpf_program__name(program), "bio_", 4) == 0;
}

static int leave_out_bios(struct bpf_object *object)
{
	struct bpf_program *program;
	int r = bpf_map__set_autocreate(bpf_object__find_map_by_name(object, "bios"), false);
	if (r == 0)
		r = bpf_map__set_autocreate(
			bpf_object__find_map_by_name(object, "bio_sets"), false);
	bpf_object__for_each_program(program, object)
	{
		if (r == 0 && is_for_bios(program))
			r = bpf_program__set_autoload(program, false);
	}
	return r;
}

static int load_object(struct bpf_object *object, struct probe_loaded *ret)
{
	if (probe_spoil != NULL)
		probe_spoil(object);
	int r = bpf_object__load(object);
	if (r < 0)
		return r;
	struct bpf_map *table = bpf_object__find_map_by_name(object, "chunks");
	struct bpf_map *variables = bpf_object__find_map_by_name(object, ".bss");
	assert(table != NULL && bpf_map__value_size(variables) == sizeof(struct probe_tracked));
	r = keep(ret, bpf_map__fd(table));
	if (r == 0)
		r = keep(ret, bpf_map__fd(variables));
	return r == 0 ? attach(object, ret) : r;
}

static int load_programs(bool bios, struct probe_loaded *ret, char ret_why[PROBES_WHY_MAX])
{
	LIBBPF_OPTS(bpf_object_open_opts, options, .object_name = "ringvol");
	ret->count = 0;
	probe_why_begin();
	struct bpf_object *object =
		bpf_object__open_mem(probes_bpf_object, probes_bpf_object_len, &options);
	int r = object == NULL ? -errno : 0;
	if (r == 0 && !bios)
		r = leave_out_bios(object);
	if (r == 0)
		r = load_object(object, ret);
	bpf_object__close(object);
	probe_why_end(r, ret_why);
	if (r < 0)
		drop(ret);
	assert(r < 0 || ret->count == (bios ? PROBE_FDS : PROBE_FDS_RQ));
	return r;
}

int probe_load_here(struct probe_loaded *ret, char ret_why[PROBES_WHY_MAX])
{
	char why[PROBES_WHY_MAX];
	ret_why[0] = '\0';
	int r = load_programs(true, ret, ret_why);
	if (r < 0 && (r = load_programs(false, ret, why)) < 0)
		memcpy(ret_why, why, sizeof(why));
	malloc_trim(0);
	return r;
}

/* ---- in a process of its own: one message, and the descriptors with it ---- */

union loader_control {
	char space[CMSG_SPACE(PROBE_FDS * sizeof(int))];
	struct cmsghdr align;
};

int probes_loader_main(int fd)
{
	struct probe_message message = {0};
	struct probe_loaded loaded;
	union loader_control control = {0};
	(void)setpriority(PRIO_PROCESS, 0, LOAD_NICE);
	message.res = probe_load_here(&loaded, message.why);
	struct iovec iov = {&message, sizeof(message)};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	if (message.res == 0) {
		msg.msg_control = control.space;
		msg.msg_controllen = sizeof(control.space);
		struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(loaded.count * sizeof(int));
		memcpy(CMSG_DATA(c), loaded.fd, loaded.count * sizeof(int));
		msg.msg_controllen = CMSG_SPACE(loaded.count * sizeof(int));
	}
	return sendmsg(fd, &msg, MSG_NOSIGNAL) == (ssize_t)sizeof(message) ? 0 : 1;
}

/* Returns how many came. What is more than an answer has is closed: the space for control messages
 * is rounded up, and one more fits. */
static size_t take_descriptors(struct msghdr *msg, struct probe_loaded *ret)
{
	size_t came = 0;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c != NULL; c = CMSG_NXTHDR(msg, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < count; i++, came++) {
			int fd;
			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
			if (ret->count < PROBE_FDS)
				ret->fd[ret->count++] = fd;
			else
				close(fd);
		}
	}
	return came;
}

/* The process under way, for probe_load_stop(). */
static struct {
	pthread_mutex_t lock;
	int pidfd; /* -1: none */
	bool stopped;
} loader = {.lock = PTHREAD_MUTEX_INITIALIZER, .pidfd = -1};

static void loader_is(int pidfd)
{
	pthread_mutex_lock(&loader.lock);
	loader.pidfd = pidfd;
	if (pidfd >= 0 && loader.stopped)
		syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, NULL, 0);
	pthread_mutex_unlock(&loader.lock);
}

void probe_load_stop(void)
{
	pthread_mutex_lock(&loader.lock);
	loader.stopped = true;
	if (loader.pidfd >= 0)
		syscall(SYS_pidfd_send_signal, loader.pidfd, SIGKILL, NULL, 0);
	pthread_mutex_unlock(&loader.lock);
}

static void reap(pid_t pid, int pidfd)
{
	struct pollfd ended = {.fd = pidfd, .events = POLLIN};
	(void)poll(&ended, 1, LOAD_END_MS);
	(void)waitpid(pid, NULL, WNOHANG);
}

static bool is_whole(const struct probe_message *message, size_t came)
{
	return message->res < 0 ? came == 0 : came == PROBE_FDS || came == PROBE_FDS_RQ;
}

/* The message and its descriptors, which are the caller's also when this fails. -EPIPE: the process
 * ended without a word; -EPROTO: not all of an answer, or more than one. */
static int receive(int fd, struct probe_message *message, struct probe_loaded *ret)
{
	union loader_control control;
	struct iovec iov = {message, sizeof(*message)};
	struct msghdr msg = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.space,
		.msg_controllen = sizeof(control.space)};
	struct pollfd ready = {.fd = fd, .events = POLLIN};
	int n = poll(&ready, 1, LOAD_TIMEOUT_MS);
	if (n <= 0)
		return n == 0 ? -ETIMEDOUT : -errno;
	ssize_t len = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC);
	if (len <= 0)
		return len == 0 ? -EPIPE : -errno;
	size_t came = take_descriptors(&msg, ret);
	if (len != (ssize_t)sizeof(*message) || (msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0 ||
		message->res > 0 || !is_whole(message, came))
		return -EPROTO;
	message->why[PROBES_WHY_MAX - 1] = '\0';
	return 0;
}

static const char *receive_why(int r)
{
	switch (r) {
	case -ETIMEDOUT:
		return "took too long";
	case -EPROTO:
		return "gave an answer that is none";
	default:
		return "ended without an answer";
	}
}

int probe_load_apart(struct probe_loaded *ret, char ret_why[PROBES_WHY_MAX])
{
	struct probe_message message;
	_cleanup_fd_ int pidfd = -1, fd = -1;
	pid_t pid;
	ret->count = 0;
	int r = spawn_self("probes", &pid, &pidfd, &fd);
	if (r < 0) {
		snprintf(ret_why, PROBES_WHY_MAX,
			"the process that loads the probes cannot be started: %s",
			strerrordesc_np(-r));
		return r;
	}
	loader_is(pidfd);
	r = receive(fd, &message, ret);
	loader_is(-1);
	if (r < 0)
		kill(pid, SIGKILL);
	reap(pid, pidfd);
	if (r < 0) {
		drop(ret);
		snprintf(ret_why, PROBES_WHY_MAX,
			"the process that loads the probes %s: restart the driver", receive_why(r));
		return r;
	}
	memcpy(ret_why, message.why, PROBES_WHY_MAX);
	return message.res;
}
