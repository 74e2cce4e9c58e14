/* SPDX-License-Identifier: Apache-2.0 */
/* Limits and signals of a process; nothing here is tried twice. */
#include "base/process.h"

#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <malloc.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

/* From linux/sched/types.h, as far as every kernel has it: with <sched.h> it cannot be included. */
struct sched_attr_first {
	uint32_t size, policy;
	uint64_t flags;
	int32_t nice;
	uint32_t priority;
	uint64_t runtime, deadline, period;
};

/* Also called in a child that has our memory yet (spawn.c). */
__attribute__((no_sanitize("address"))) void process_be_prompt(bool prompt)
{
	struct sched_attr_first attr = {0};
	if (syscall(SYS_sched_getattr, 0, &attr, sizeof(attr), 0) < 0 || attr.policy != SCHED_OTHER)
		return;
	attr.runtime = prompt ? PROCESS_SLICE_NS : 0;
	(void)syscall(SYS_sched_setattr, 0, &attr, 0);
}

void process_claim_resources(void)
{
	process_be_prompt(true);
	struct rlimit files;
	if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < files.rlim_max) {
		files.rlim_cur = files.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &files);
	}
	/* Where nobody has decided yet (systemd and kubelet do): everything on the node waits for
	 * its volumes, so let the kernel kill others first. Needs CAP_SYS_RESOURCE. */
	char score[16];
	if (fd_read_file(AT_FDCWD, "/proc/self/oom_score_adj", score, sizeof(score)) > 0 &&
		strcmp(score, "0\n") == 0)
		(void)fd_write_file(AT_FDCWD, "/proc/self/oom_score_adj", "-900");
}

void process_hide_memory(void)
{
#ifndef RINGVOL_DEBUG
	const struct rlimit no_core = {0, 0};
	(void)setrlimit(RLIMIT_CORE, &no_core);
	(void)prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
#endif
}

void process_keep_memory(bool bulk)
{
	/* The C library's own for the second; it would change both as it sees fit. */
	mallopt(M_TRIM_THRESHOLD, bulk ? 8 << 20 : 64 << 10);
	mallopt(M_MMAP_THRESHOLD, bulk ? 4 << 20 : 128 << 10);
	if (!bulk)
		malloc_trim(0);
}

int process_take_signals(int *ret_fd)
{
	sigset_t set;
	signal(SIGPIPE, SIG_IGN);
	signal(SIGIO, SIG_IGN); /* image_lock() */
	signal(SIGHUP, SIG_IGN);
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
		return -errno;
	int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (fd < 0)
		return -errno;
	*ret_fd = fd;
	return 0;
}

int process_notify(const char *state)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	if (path == NULL || *path == '\0')
		return 0;
	size_t len = strlen(path);
	if ((path[0] != '/' && path[0] != '@') || len >= sizeof(addr.sun_path))
		return -EINVAL;
	memcpy(addr.sun_path, path, len);
	if (path[0] == '@')
		addr.sun_path[0] = '\0';
	_cleanup_fd_ int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	socklen_t addr_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
	if (sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&addr, addr_len) < 0)
		return -errno;
	return 0;
}

/* Only what cannot have been written to: neither data nor relocations, which have no file to come
 * back from. */
static int drop_segments(struct dl_phdr_info *info, size_t size, void *arg)
{
	const char *library = arg;
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	(void)size;
	if (strstr(info->dlpi_name, library) == NULL)
		return 0;
	for (unsigned i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
		if (segment->p_type != PT_LOAD || segment->p_flags & PF_W)
			continue;
		uintptr_t from = info->dlpi_addr + segment->p_vaddr;
		uintptr_t to = from + segment->p_memsz;
		from = (from + page - 1) / page * page;
		to = to / page * page;
		if (from < to)
			(void)madvise((void *)from, to - from, MADV_DONTNEED);
	}
	return 0;
}

void process_drop_text(const char *library)
{
	(void)dl_iterate_phdr(drop_segments, (void *)(uintptr_t)library);
}
