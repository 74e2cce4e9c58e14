/* SPDX-License-Identifier: Apache-2.0 */
/* Limits and signals of a process; nothing here is tried twice. */
#include "base/process.h"

#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>

void process_claim_resources(void)
{
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
