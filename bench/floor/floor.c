/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bare floor: the system calls a volume cannot do without, in a loop, timed by itself. Each
 * command prints the nanoseconds of every repetition, one a line; what is prepared or undone
 * between two of them is not timed. Whatever fails ends the program with status 1, after its
 * mounts and devices are gone.
 *
 *   create DIR N BYTES [TEMPLATE]     unnamed file, size, (extents of TEMPLATE), record, name,
 *                                     fsync of the file and of the directory
 *   stage DIR N TEMPLATE MOUNT SECTOR LOOP_CONFIGURE and mount of a formatted image
 *   uuid DIR N TEMPLATE MOUNT SECTOR  the same and a UUID of its own
 *   life DIR N TEMPLATE MOUNTS SECTOR create + a free device + stage + bind; one line: the sum
 *   snapshot IMAGE DIR N MOUNT KIB    KIB of new data in MOUNT (not timed), syncfs, FICLONE
 *   durable IMAGE DIR N MOUNT KIB     the same, with a record and a name, durable
 *   fork DIR N TEMPLATE MOUNTS SECTOR FICLONE + a free device + LOOP_CONFIGURE + mount, and all of
 *                                     them stay until the end
 *   extents FILE                      prints the number of extents instead
 *   fiemap FILE...                    all extents of the files, 256 at a time; one line
 *   group DIR (IMAGE MOUNT)...        syncfs of all (not timed), freeze, FICLONE, thaw; one line
 *   together DIR (IMAGE MOUNT)...     the same, with a thread for each freeze and each thaw
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <linux/loop.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

enum {
	RECORD_BYTES = 400, /* as long as a volume's record is */
	MINOR_BASE = 64,    /* below are the machine's own */
	MANY_MAX = 16384,
};

/* The kernel's struct fsuuid, which no header exports; the number is made with its head alone. */
struct uuid_head {
	uint32_t len, flags;
};
struct own_uuid {
	struct uuid_head head;
	uint8_t uuid[16];
};
#define SET_UUID _IOW('f', 44, struct uuid_head)

struct bound {
	char mount[256], bind[256];
	unsigned minor;
	bool attached, mounted, is_bound;
};

static struct bound bounds[MANY_MAX];
static unsigned bound_count;
static int control_fd = -1;

static void bound_undo(struct bound *b)
{
	char path[64];
	if (b->is_bound)
		umount2(b->bind, 0);
	if (b->mounted)
		umount2(b->mount, 0);
	if (b->attached) {
		snprintf(path, sizeof path, "/dev/loop%u", b->minor);
		int fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd >= 0) {
			ioctl(fd, LOOP_CLR_FD);
			close(fd);
		}
	}
	*b = (struct bound){0};
}

static void undo_all(void)
{
	while (bound_count > 0)
		bound_undo(&bounds[--bound_count]);
}

static void check(bool ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "floor: %s: %s\n", what, strerror(errno));
	exit(1);
}

static uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int open_dir(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	check(fd >= 0, path);
	return fd;
}

/* ---- an image ---- */

/* What is as durable as CreateVolume's answer; returns the descriptor. */
static int create(int dir, int source, uint64_t size, const char *name, bool durable)
{
	static const char record[RECORD_BYTES] = "ringvol-bench";
	int fd = openat(dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	check(fd >= 0, "O_TMPFILE");
	if (size > 0)
		check(ftruncate(fd, (off_t)size) == 0, "ftruncate");
	if (source >= 0)
		check(ioctl(fd, FICLONE, source) == 0, "FICLONE");
	if (!durable)
		return fd;
	check(fsetxattr(fd, "trusted.bench", record, sizeof record, XATTR_CREATE) == 0,
		"fsetxattr");
	check(linkat(fd, "", dir, name, AT_EMPTY_PATH) == 0, "linkat");
	check(fsync(fd) == 0 && fsync(dir) == 0, "fsync");
	return fd;
}

static const char *image_name(unsigned i)
{
	static char name[32];
	snprintf(name, sizeof name, "floor-%u", i);
	return name;
}

static void unlink_all(int dir, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		unlinkat(dir, image_name(i), 0);
	fsync(dir);
}

static void run_create(char **arg, int args)
{
	int dir = open_dir(arg[0]), source = -1;
	unsigned n = (unsigned)atoi(arg[1]);
	if (args > 3)
		check((source = open(arg[3], O_RDONLY | O_CLOEXEC)) >= 0, arg[3]);
	for (unsigned i = 0; i < n; i++) {
		uint64_t start = now_ns();
		close(create(dir, source, strtoull(arg[2], NULL, 10), image_name(i), true));
		printf("%llu\n", (unsigned long long)(now_ns() - start));
	}
	unlink_all(dir, n);
}

/* ---- a device and its mount ---- */

/* A device that is there and free, as a driver that runs for long has them; else a new one. They
 * stay: who called this program removes what it added. */
static unsigned take_device(void)
{
	static unsigned next = MINOR_BASE;
	for (;; next++) {
		char path[64];
		snprintf(path, sizeof path, "/sys/block/loop%u/loop/backing_file", next);
		if (access(path, F_OK) == 0)
			continue;
		snprintf(path, sizeof path, "/dev/loop%u", next);
		check(access(path, F_OK) == 0 ||
				ioctl(control_fd, LOOP_CTL_ADD, (unsigned long)next) >= 0 ||
				errno == EEXIST,
			"LOOP_CTL_ADD");
		return next++;
	}
}

static void attach(struct bound *b, int dir, const char *name, unsigned sector)
{
	char path[64];
	snprintf(path, sizeof path, "/dev/loop%u", b->minor);
	int image = openat(dir, name, O_RDWR | O_CLOEXEC);
	check(image >= 0, name);
	struct loop_config config = {.fd = (uint32_t)image, .block_size = sector};
	config.info.lo_flags = LO_FLAGS_DIRECT_IO;
	int loop = open(path, O_RDWR | O_CLOEXEC);
	while (loop < 0 || ioctl(loop, LOOP_CONFIGURE, &config) < 0) {
		check(errno == EBUSY || errno == ENXIO || errno == ENOENT, "LOOP_CONFIGURE");
		if (loop >= 0)
			close(loop);
		b->minor = take_device(); /* another process was quicker */
		snprintf(path, sizeof path, "/dev/loop%u", b->minor);
		loop = open(path, O_RDWR | O_CLOEXEC);
	}
	b->attached = true;
	close(loop);
	close(image);
}

static void mount_on(struct bound *b, const char *target)
{
	char path[64];
	snprintf(path, sizeof path, "/dev/loop%u", b->minor);
	snprintf(b->mount, sizeof b->mount, "%s", target);
	check(mount(path, target, "ext4", 0, NULL) == 0, "mount");
	b->mounted = true;
}

static void set_uuid(const char *path, unsigned i)
{
	struct own_uuid own = {
		.head.len = 16, .uuid = {1, 2, 3, (uint8_t)i, (uint8_t)(i >> 8), 6, 7}};
	int fd = open_dir(path);
	check(ioctl(fd, SET_UUID, &own) == 0, "EXT4_IOC_SETFSUUID");
	close(fd);
}

static int open_source(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	check(fd >= 0, path);
	return fd;
}

static void run_stage(char **arg, bool uuid)
{
	int dir = open_dir(arg[0]), source = open_source(arg[2]);
	unsigned n = (unsigned)atoi(arg[1]), sector = (unsigned)atoi(arg[4]);
	for (unsigned i = 0; i < n; i++)
		close(create(dir, source, 0, image_name(i), true));
	struct bound *b = &bounds[bound_count++];
	for (unsigned i = 0; i < n; i++) {
		if (b->minor == 0)
			b->minor = take_device();
		uint64_t start = now_ns();
		attach(b, dir, image_name(i), sector);
		mount_on(b, arg[3]);
		if (uuid)
			set_uuid(arg[3], i);
		printf("%llu\n", (unsigned long long)(now_ns() - start));
		unsigned minor = b->minor;
		bound_undo(b);
		b->minor = minor;
	}
	unlink_all(dir, n);
}

static void run_life(char **arg)
{
	int dir = open_dir(arg[0]), source = open_source(arg[2]);
	unsigned n = (unsigned)atoi(arg[1]), sector = (unsigned)atoi(arg[4]);
	check(n <= MANY_MAX, "too many");
	for (unsigned i = 0; i < n; i++) {
		char path[256];
		snprintf(path, sizeof path, "%s/s%u", arg[3], i);
		check(mkdir(path, 0755) == 0, path);
	}
	uint64_t start = now_ns();
	for (unsigned i = 0; i < n; i++) {
		char path[256];
		struct bound *b = &bounds[bound_count++];
		close(create(dir, source, 0, image_name(i), true));
		b->minor = take_device();
		attach(b, dir, image_name(i), sector);
		snprintf(path, sizeof path, "%s/s%u", arg[3], i);
		mount_on(b, path);
		snprintf(b->bind, sizeof b->bind, "%s/p%u", arg[3], i);
		check(mkdir(b->bind, 0755) == 0, b->bind);
		check(mount(path, b->bind, NULL, MS_BIND, NULL) == 0, "bind");
		b->is_bound = true;
	}
	printf("%llu\n", (unsigned long long)(now_ns() - start));
	undo_all();
	for (unsigned i = 0; i < n; i++) {
		char path[256];
		snprintf(path, sizeof path, "%s/s%u", arg[3], i);
		rmdir(path);
		snprintf(path, sizeof path, "%s/p%u", arg[3], i);
		rmdir(path);
	}
	unlink_all(dir, n);
}

/* ---- forks of an image ---- */

static void run_fork(char **arg)
{
	int dir = open_dir(arg[0]), source = open_source(arg[2]);
	unsigned n = (unsigned)atoi(arg[1]), sector = (unsigned)atoi(arg[4]);
	char path[256];
	check(n <= MANY_MAX, "too many");
	for (unsigned i = 0; i < n; i++) {
		snprintf(path, sizeof path, "%s/f%u", arg[3], i);
		check(mkdir(path, 0755) == 0, path);
	}
	for (unsigned i = 0; i < n; i++) {
		struct bound *b = &bounds[bound_count++];
		uint64_t start = now_ns();
		int fd = openat(dir, image_name(i), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
		check(fd >= 0, image_name(i));
		check(ioctl(fd, FICLONE, source) == 0, "FICLONE");
		close(fd);
		b->minor = take_device();
		attach(b, dir, image_name(i), sector);
		snprintf(path, sizeof path, "%s/f%u", arg[3], i);
		mount_on(b, path);
		printf("%llu\n", (unsigned long long)(now_ns() - start));
	}
	undo_all();
	for (unsigned i = 0; i < n; i++) {
		snprintf(path, sizeof path, "%s/f%u", arg[3], i);
		rmdir(path);
	}
	unlink_all(dir, n);
}

/* ---- a snapshot ---- */

static void dirty(int mount_fd, size_t kib, unsigned round)
{
	static char block[1 << 20];
	int fd = openat(mount_fd, "bench-dirty", O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	check(fd >= 0, "bench-dirty");
	memset(block, (int)round + 1, sizeof block);
	for (size_t done = 0; done < kib; done += 1024) {
		size_t len = kib - done < 1024 ? (kib - done) << 10 : sizeof block;
		check(pwrite(fd, block, len, (off_t)done << 10) == (ssize_t)len, "write");
	}
	close(fd);
}

static void run_snapshot(char **arg, bool durable)
{
	int source = open_source(arg[0]), dir = open_dir(arg[1]), mount_fd = open_dir(arg[3]);
	unsigned n = (unsigned)atoi(arg[2]);
	size_t kib = (size_t)atoi(arg[4]);
	for (unsigned i = 0; i < n; i++) {
		if (kib > 0)
			dirty(mount_fd, kib, i);
		uint64_t start = now_ns();
		check(syncfs(mount_fd) == 0, "syncfs");
		int fd = create(dir, source, 0, image_name(i), durable);
		printf("%llu\n", (unsigned long long)(now_ns() - start));
		close(fd);
	}
	unlink_all(dir, n);
}

static void run_extents(const char *path)
{
	struct fiemap map = {.fm_length = FIEMAP_MAX_OFFSET, .fm_flags = FIEMAP_FLAG_SYNC};
	check(ioctl(open_source(path), FS_IOC_FIEMAP, &map) == 0, "FS_IOC_FIEMAP");
	printf("%u\n", map.fm_mapped_extents);
}

static void run_fiemap(char **path)
{
	enum { EXTENTS = 256 };
	static union {
		struct fiemap map;
		char bytes[sizeof(struct fiemap) + EXTENTS * sizeof(struct fiemap_extent)];
	} buffer;
	struct fiemap *map = &buffer.map;
	uint64_t start = now_ns();
	for (; *path != NULL; path++) {
		int fd = open_source(*path);
		bool last = false;
		for (uint64_t at = 0; !last;) {
			*map = (struct fiemap){.fm_start = at,
				.fm_length = FIEMAP_MAX_OFFSET - at,
				.fm_extent_count = EXTENTS};
			check(ioctl(fd, FS_IOC_FIEMAP, map) == 0, "FS_IOC_FIEMAP");
			last = map->fm_mapped_extents == 0;
			if (!last) {
				const struct fiemap_extent *e =
					&map->fm_extents[map->fm_mapped_extents - 1];
				at = e->fe_logical + e->fe_length;
				last = (e->fe_flags & FIEMAP_EXTENT_LAST) != 0;
			}
		}
		close(fd);
	}
	printf("%llu\n", (unsigned long long)(now_ns() - start));
}

/* ---- a group ---- */

/* One at a time, or a thread each. */
struct member {
	pthread_t thread;
	int mount_fd, image, copy;
	bool frozen, failed;
};
static struct member members[MANY_MAX];
static unsigned member_count;

static void *freeze(void *arg)
{
	struct member *m = arg;
	m->frozen = ioctl(m->mount_fd, FIFREEZE, 0) == 0;
	m->failed = !m->frozen;
	return NULL;
}

static void *thaw(void *arg)
{
	struct member *m = arg;
	if (m->frozen)
		m->failed = ioctl(m->mount_fd, FITHAW, 0) != 0;
	m->frozen = false;
	return NULL;
}

static void each_member(void *(*call)(void *), bool together)
{
	for (unsigned i = 0; i < member_count; i++)
		if (!together)
			call(&members[i]);
		else
			check(pthread_create(&members[i].thread, NULL, call, &members[i]) == 0,
				"pthread_create");
	for (unsigned i = 0; together && i < member_count; i++)
		pthread_join(members[i].thread, NULL);
	for (unsigned i = 0; i < member_count; i++)
		check(!members[i].failed, "freeze or thaw");
}

static void thaw_all(void)
{
	for (unsigned i = 0; i < member_count; i++)
		thaw(&members[i]);
}

static void run_group(char **arg, int args, bool together)
{
	int dir = open_dir(arg[0]);
	member_count = (unsigned)(args - 1) / 2;
	check(member_count <= MANY_MAX, "too many");
	for (unsigned i = 0; i < member_count; i++)
		members[i] = (struct member){.image = open_source(arg[1 + 2 * i]),
			.mount_fd = open_dir(arg[2 + 2 * i]),
			.copy = create(dir, -1, 0, image_name(i), false)};
	for (unsigned i = 0; i < member_count; i++)
		check(syncfs(members[i].mount_fd) == 0, "syncfs");
	atexit(thaw_all);
	uint64_t start = now_ns();
	each_member(freeze, together);
	for (unsigned i = 0; i < member_count; i++)
		check(ioctl(members[i].copy, FICLONE, members[i].image) == 0, "FICLONE");
	each_member(thaw, together);
	printf("%llu\n", (unsigned long long)(now_ns() - start));
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		int args;
	} commands[] = {{"create", 3}, {"stage", 5}, {"uuid", 5}, {"life", 5}, {"snapshot", 5},
		{"durable", 5}, {"extents", 1}, {"fork", 5}, {"fiemap", 1}, {"group", 3},
		{"together", 3}};
	int which = -1;
	for (int i = 0; i < (int)(sizeof commands / sizeof *commands) && argc > 1; i++)
		if (strcmp(argv[1], commands[i].name) == 0 && argc - 2 >= commands[i].args)
			which = i;
	if (which < 0) {
		fprintf(stderr,
			"usage: floor create|stage|uuid|life|fork|snapshot|durable|extents|fiemap|group|together ...\n");
		return 2;
	}
	atexit(undo_all);
	control_fd = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
	check(control_fd >= 0, "/dev/loop-control");
	switch (which) {
	case 0:
		run_create(argv + 2, argc - 2);
		break;
	case 1:
	case 2:
		run_stage(argv + 2, which == 2);
		break;
	case 3:
		run_life(argv + 2);
		break;
	case 4:
	case 5:
		run_snapshot(argv + 2, which == 5);
		break;
	case 7:
		run_fork(argv + 2);
		break;
	case 6:
		run_extents(argv[2]);
		break;
	case 8:
		run_fiemap(argv + 2);
		break;
	default:
		run_group(argv + 2, argc - 2, which == 10);
	}
	return 0;
}
