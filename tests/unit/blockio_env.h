/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the block tests share: a directory, a mount namespace of the test's own, loop devices, and a
 * process that clears them away when the test ends, however it ends. Each criterion test runs in a
 * process of its own, so one environment is enough.
 */
#ifndef RINGVOL_TESTS_BLOCKIO_ENV_H
#define RINGVOL_TESTS_BLOCKIO_ENV_H

#include "backends/loop/lodev.h"
#include "blockio/fsimg.h"
#include "mount/mnt.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static struct env {
	char dir[64]; /* below /tmp */
	int dirfd;
	char tag[LODEV_TAG_BYTES];
	pid_t reaper;
	int reaper_fd;
} env = {.dirfd = -1, .reaper_fd = -1};

static inline int env_run(const char *const argv[])
{
	pid_t pid;
	int status;
	posix_spawn_file_actions_t actions;
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
	posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
	int r = posix_spawnp(&pid, argv[0], &actions, NULL, (char *const *)argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	if (r != 0 || waitpid(pid, &status, 0) != pid)
		return -1;
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

#define env_runs(...) env_run((const char *const[]){__VA_ARGS__, NULL})

static inline void env_clear_device(void *arg, const struct lodev *dev)
{
	char path[32];
	snprintf(path, sizeof path, "/dev/loop%u", dev->minor);
	if (strcmp(dev->tag, arg) != 0)
		return;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0 && ioctl(fd, LOOP_CLR_FD) < 0)
		fprintf(stderr, "could not clear %s\n", path);
	if (fd >= 0)
		close(fd);
}

/* Waits for the test's end in a process of its own. The mounts vanish with their namespace. */
static inline void env_reap(int fd)
{
	char c;
	signal(SIGINT, SIG_IGN);
	while (read(fd, &c, 1) < 0 && errno == EINTR)
		continue;
	for (int i = 0; i < 10; i++) {
		lodev_scan(env_clear_device, env.tag);
		usleep(2000);
	}
	env_runs("rm", "-rf", "--one-file-system", env.dir);
	_exit(0);
}

/* False (and a reason printed) where loop devices cannot be used. */
static inline bool env_has_loop(void)
{
	if (geteuid() == 0 && access("/dev/loop-control", R_OK | W_OK) == 0)
		return true;
	return false;
}

static inline void env_open(void)
{
	int pipe_fds[2];
	snprintf(env.dir, sizeof env.dir, "/tmp/ringvol-test-XXXXXX");
	cr_assert(mkdtemp(env.dir) != NULL);
	snprintf(env.tag, sizeof env.tag, "ringvol:test:%s", env.dir + strlen(env.dir) - 6);
	cr_assert(pipe2(pipe_fds, O_CLOEXEC) == 0);
	fflush(NULL);
	env.reaper = fork();
	cr_assert(env.reaper >= 0);
	if (env.reaper == 0) {
		close(pipe_fds[1]);
		env_reap(pipe_fds[0]);
	}
	close(pipe_fds[0]);
	env.reaper_fd = pipe_fds[1];
	if (geteuid() == 0) {
		cr_assert(unshare(CLONE_NEWNS) == 0);
		cr_assert(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
	}
	/* Afterwards, or it would lead into the namespace the test came from. */
	env.dirfd = open(env.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cr_assert(env.dirfd >= 0);
}

static inline void env_close(void)
{
	if (env.dirfd >= 0)
		close(env.dirfd);
	/* Lazily: what a failed test left, and what hides in the directory. */
	if (geteuid() == 0 && env.dir[0] != '\0') {
		char path[160], name[] = "mnt0";
		for (; name[3] <= '9'; name[3]++) {
			snprintf(path, sizeof path, "%s/%s", env.dir, name);
			while (umount2(path, MNT_DETACH) == 0)
				continue;
		}
	}
	if (env.reaper_fd >= 0) {
		close(env.reaper_fd);
		waitpid(env.reaper, NULL, 0);
	}
}

static inline const char *env_path(const char *name)
{
	static char paths[64][256]; /* a test may keep that many at once */
	static unsigned at;
	char *path = paths[at++ % 64];
	snprintf(path, sizeof paths[0], "%s/%s", env.dir, name);
	return path;
}

static inline int env_file(const char *name, uint64_t size)
{
	int fd = openat(env.dirfd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	cr_assert(fd >= 0);
	cr_assert(ftruncate(fd, (off_t)size) == 0);
	return fd;
}

static inline void env_image(const char *name, uint64_t size)
{
	close(env_file(name, size));
}

static inline struct lodev_spec env_spec(const char *image)
{
	struct lodev_spec spec = {
		.dirfd = env.dirfd,
		.image = image,
		.block_size = 512,
		.direct_io = true,
	};
	snprintf(spec.tag, sizeof spec.tag, "%s", env.tag);
	return spec;
}

static inline struct lodev env_attach(const char *image)
{
	struct lodev_spec spec = env_spec(image);
	struct lodev dev;
	struct err err = {0};
	int r = lodev_attach(&spec, &dev, &err);
	cr_assert(r == 0, "%d %s", r, err.message);
	return dev;
}

static inline void env_detach(const struct lodev *dev)
{
	struct err err = {0};
	bool still = true;
	/* Somebody who looks at all disks of the machine keeps it for a moment. */
	for (unsigned i = 0; i < 200 && still; i++) {
		if (i > 0)
			usleep(10000);
		cr_assert(lodev_detach(dev, &still, &err) == 0, "%s", err.message);
	}
	cr_assert(!still);
}

/* Of this run alone: mkfs.btrfs refuses a UUID that another test has mounted. */
static inline void env_uuid(const char *image, uint8_t uuid[16])
{
	char id[128];
	snprintf(id, sizeof id, "%s.%s", env.tag, image);
	fsimg_uuid_of(id, uuid);
}

/* Makes a file system on an image, the way the driver does. */
static inline void env_mkfs(
	const char *image, enum fsimg_type type, uint64_t size, const char *options)
{
	static struct proc proc;
	char mem[1024];
	uint8_t uuid[16];
	struct err err = {0};
	struct fsimg_spec spec = {type, size, 512, options};
	memset(&proc, 0, sizeof proc);
	env_uuid(image, uuid);
	cr_assert(fsimg_check_mkfs_options(type, options, &err) == 0, "%s", err.message);
	cr_assert(fsimg_mkfs_argv(&spec, env_path(image), uuid, &proc, mem, sizeof mem) == 0);
	int r = env_run(proc.argv);
	cr_assert(r == 0, "mkfs of %s with \"%s\": %d", fsimg_name(type), options, r);
}

/* One call, as a helper would make it. */
static inline int env_call(
	enum mnt_call call, const void *req, size_t req_len, void *resp, size_t resp_cap)
{
	size_t resp_len = resp_cap;
	int r = mnt_calls[call](req, req_len, resp, &resp_len);
	cr_assert(resp_len == resp_cap);
	return r;
}

static inline int env_mount(const struct lodev *dev, const char *target, enum fsimg_type type,
	const char *options, struct mnt_result *result)
{
	static struct mnt_mount_req req;
	memset(&req, 0, sizeof req);
	snprintf(req.device, sizeof req.device, "/dev/loop%u", dev->minor);
	snprintf(req.target, sizeof req.target, "%s", target);
	snprintf(req.options, sizeof req.options, "%s", options);
	req.type = type;
	return env_call(MNT_MOUNT, &req, sizeof req, result, sizeof *result);
}

static inline int env_unmount(
	const char *target, const struct lodev *dev, bool remove_it, struct mnt_result *result)
{
	static struct mnt_unmount_req req;
	memset(&req, 0, sizeof req);
	snprintf(req.target, sizeof req.target, "%s", target);
	req.dev_major = dev != NULL ? LODEV_MAJOR : 0;
	req.dev_minor = dev != NULL ? dev->minor : 0;
	req.remove = remove_it;
	return env_call(MNT_UNMOUNT, &req, sizeof req, result, sizeof *result);
}

static inline int env_path_call(enum mnt_call call, const char *path, void *resp, size_t resp_cap)
{
	static struct mnt_path_req req;
	memset(&req, 0, sizeof req);
	snprintf(req.path, sizeof req.path, "%s", path);
	return env_call(call, &req, sizeof req, resp, resp_cap);
}

/* A fresh file system, mounted on the directory `target` in the environment (mnt0 to mnt9). */
static inline struct lodev env_fresh(
	const char *image, enum fsimg_type type, uint64_t size, const char *target)
{
	struct mnt_result result;
	env_image(image, size);
	env_mkfs(image, type, size, "");
	struct lodev dev = env_attach(image);
	cr_assert(mkdirat(env.dirfd, target, 0755) == 0);
	int r = env_mount(&dev, env_path(target), type, "", &result);
	cr_assert(r == 0, "%d %s", r, result.why);
	return dev;
}

#define ENV_NEEDS_LOOP()                                                                           \
	do {                                                                                       \
		if (!env_has_loop())                                                               \
			cr_skip("needs root and /dev/loop-control");                               \
	} while (0)

#endif
