/* SPDX-License-Identifier: Apache-2.0 */
#include "backends/loop/lodev.h"

#include "blockio_env.h"

#include "backends/loop/loop.h"
#include <criterion/criterion.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <pthread.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>

enum { MIB = 1 << 20 };

static void open_env(void)
{
	if (env_has_loop())
		env_open();
}

TestSuite(lodev, .init = open_env, .fini = env_close);

static uint64_t allocated(const char *name)
{
	struct stat st;
	cr_assert(fstatat(env.dirfd, name, &st, 0) == 0);
	return (uint64_t)st.st_blocks * 512;
}

static int open_device(const struct lodev *dev, int flags)
{
	char path[32];
	snprintf(path, sizeof path, "/dev/loop%u", dev->minor);
	int fd = open(path, flags | O_CLOEXEC);
	cr_assert(fd >= 0);
	return fd;
}

Test(lodev, attach_tells_what_it_made)
{
	ENV_NEEDS_LOOP();
	env_image("a", 4 * MIB);
	struct stat st;
	cr_assert(fstatat(env.dirfd, "a", &st, 0) == 0);
	struct lodev dev = env_attach("a");
	cr_assert(dev.image_dev == st.st_dev && dev.image_ino == st.st_ino);
	cr_assert(dev.size_bytes == 4 * MIB);
	cr_assert_str_eq(dev.tag, env.tag);
	cr_assert(dev.direct_io && !dev.read_only && !dev.going_away);

	struct lodev now;
	cr_assert(lodev_status(dev.minor, &now) == 0);
	cr_assert(now.image_ino == dev.image_ino);
	env_detach(&dev);
	cr_assert(lodev_status(dev.minor, &now) == -ENXIO);
	cr_assert(lodev_status(999999, &now) == -ENOENT);
}

Test(lodev, attach_twice_is_the_same_device)
{
	ENV_NEEDS_LOOP();
	env_image("a", 4 * MIB);
	struct lodev first = env_attach("a"), second = env_attach("a");
	cr_assert(first.minor == second.minor);
	env_detach(&first);
	env_detach(&first); /* again: gone is gone */
}

Test(lodev, a_detached_number_is_used_again)
{
	ENV_NEEDS_LOOP();
	env_image("a", 4 * MIB);
	struct lodev first = env_attach("a");
	env_detach(&first);
	struct lodev second = env_attach("a");
	cr_assert(first.minor == second.minor);
	env_detach(&second);
}

static void assert_refused(const struct lodev_spec *spec, enum err_code code, const char *word)
{
	struct lodev dev;
	struct err err = {0};
	cr_assert(lodev_attach(spec, &dev, &err) < 0);
	cr_assert(err.code == code, "%s: %s", err_code_name(err.code), err.message);
	cr_assert(strstr(err.message, word) != NULL, "%s", err.message);
}

Test(lodev, attach_refuses_what_is_no_image)
{
	ENV_NEEDS_LOOP();
	struct lodev_spec spec = env_spec("missing");
	assert_refused(&spec, ERR_NOT_FOUND, "missing");
	env_image("real", 4 * MIB);
	cr_assert(symlinkat("real", env.dirfd, "link") == 0);
	spec.image = "link";
	assert_refused(&spec, ERR_INTERNAL, "link");
	cr_assert(mkdirat(env.dirfd, "dir", 0700) == 0);
	spec.image = "dir";
	assert_refused(&spec, ERR_INTERNAL, "dir");
}

Test(lodev, a_foreign_lock_refuses)
{
	ENV_NEEDS_LOOP();
	int fd = env_file("a", 4 * MIB);
	cr_assert(flock(fd, LOCK_EX) == 0);
	struct lodev_spec spec = env_spec("a");
	assert_refused(&spec, ERR_PRECONDITION, "another process");
	close(fd);
	struct lodev dev = env_attach("a");
	env_detach(&dev);
}

Test(lodev, a_device_is_known_by_its_file)
{
	ENV_NEEDS_LOOP();
	env_image("a", 4 * MIB);
	struct lodev_spec spec = env_spec("a");
	struct lodev dev = env_attach("a");
	char name[32];
	snprintf(name, sizeof name, "/dev/loop%u", dev.minor);
	/* It is known by its file, whoever has rewritten its tag since. */
	snprintf(spec.tag, sizeof spec.tag, "ringvol:another:pool");
	struct lodev again, now;
	struct err none = {0};
	cr_assert(lodev_attach(&spec, &again, &none) == 0 && again.minor == dev.minor);
	cr_assert(lodev_status(dev.minor, &now) == 0 && strcmp(now.tag, spec.tag) == 0);

	/* But not if it shows another part of it. */
	struct loop_info64 info = {0};
	int loop_fd = open(name, O_RDWR | O_CLOEXEC);
	cr_assert(loop_fd >= 0 && ioctl(loop_fd, LOOP_GET_STATUS64, &info) == 0);
	info.lo_sizelimit = MIB;
	cr_assert(ioctl(loop_fd, LOOP_SET_STATUS64, &info) == 0);
	assert_refused(&spec, ERR_PRECONDITION, name);
	info.lo_sizelimit = 0;
	cr_assert(ioctl(loop_fd, LOOP_SET_STATUS64, &info) == 0);
	close(loop_fd);

	/* A late detach, by somebody who remembers another image. */
	struct lodev wrong = dev;
	struct err err = {0};
	bool still = true;
	wrong.image_ino++;
	cr_assert(lodev_detach(&wrong, &still, &err) == 0 && !still);
	uint64_t size;
	cr_assert(lodev_resize(&wrong, &size, &err) < 0 && err.code == ERR_PRECONDITION);
	cr_assert(lodev_status(dev.minor, &now) == 0 && now.image_ino == dev.image_ino);
	env_detach(&dev);
}

/* Its number may be somebody else's next. */
Test(lodev, a_device_that_was_read_only_leaves_no_flag)
{
	ENV_NEEDS_LOOP();
	env_image("a", 4 * MIB);
	struct lodev dev = env_attach("a");
	char path[64], text[8] = "";
	cr_assert(lodev_set_read_only(dev.minor, true) == 0);
	env_detach(&dev);
	snprintf(path, sizeof path, "/sys/block/loop%u/ro", dev.minor);
	FILE *file = fopen(path, "re");
	cr_assert(file != NULL && fgets(text, sizeof text, file) != NULL);
	fclose(file);
	cr_expect_str_eq(text, "0\n");
}

Test(lodev, an_open_device_stays_bound_until_it_is_closed)
{
	ENV_NEEDS_LOOP();
	env_image("a", 4 * MIB);
	struct lodev dev = env_attach("a"), now;
	struct lodev_spec spec = env_spec("a");
	struct err err = {0};
	bool still = false;
	int fd = open_device(&dev, O_RDONLY);
	cr_assert(lodev_detach(&dev, &still, &err) == 0 && still);
	cr_assert(lodev_status(dev.minor, &now) == 0 && now.going_away);
	assert_refused(&spec, ERR_PRECONDITION, "still on");

	/* The number that is not free yet is passed over. */
	env_image("b", 4 * MIB);
	struct lodev other = env_attach("b");
	cr_assert(other.minor != dev.minor);
	close(fd);
	struct lodev again = env_attach("a");
	cr_assert(!again.going_away);
	env_detach(&again);
	env_detach(&other);
}

Test(lodev, a_mount_in_another_namespace_keeps_the_device)
{
	ENV_NEEDS_LOOP();
	struct mnt_result result;
	struct lodev dev = env_fresh("a", FSIMG_EXT4, 32 * MIB, "mnt0");
	int go[2], ready[2];
	char c;
	cr_assert(pipe2(go, O_CLOEXEC) == 0 && pipe2(ready, O_CLOEXEC) == 0);
	pid_t pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(go[1]);
		if (unshare(CLONE_NEWNS) == 0 && write(ready[1], "x", 1) == 1)
			(void)!read(go[0], &c, 1);
		_exit(0);
	}
	cr_assert(read(ready[0], &c, 1) == 1);
	/* Not removing the directory: that would unmount it in every namespace. */
	int r = env_unmount(env_path("mnt0"), &dev, false, &result);
	cr_assert(r == 0, "%d %s", r, result.why);
	struct err err = {0};
	bool still = false;
	r = lodev_detach(&dev, &still, &err);
	cr_assert(r == 0 && still, "%d %d %s", r, still, err.message);
	close(go[1]);
	waitpid(pid, NULL, 0);
	/* The namespace is taken down a moment after its last process. */
	struct lodev now;
	for (int i = 0; i < 200 && lodev_status(dev.minor, &now) == 0; i++)
		usleep(10000);
	cr_assert(lodev_status(dev.minor, &now) == -ENXIO);
}

Test(lodev, resize_follows_the_image)
{
	ENV_NEEDS_LOOP();
	int fd = env_file("a", 4 * MIB);
	struct lodev dev = env_attach("a");
	uint64_t size;
	struct err err = {0};
	cr_assert(ftruncate(fd, 9 * MIB) == 0);
	cr_assert(lodev_resize(&dev, &size, &err) == 0 && size == 9 * MIB);
	cr_assert(lodev_resize(&dev, &size, &err) == 0 && size == 9 * MIB);
	env_detach(&dev);
	cr_assert(lodev_resize(&dev, &size, &err) < 0 && err.code == ERR_PRECONDITION);
	close(fd);
}

Test(lodev, read_only_by_spec_and_by_flag)
{
	ENV_NEEDS_LOOP();
	env_image("a", 4 * MIB);
	struct lodev_spec spec = env_spec("a");
	struct lodev dev, now;
	struct err err = {0};
	spec.read_only = true;
	cr_assert(lodev_attach(&spec, &dev, &err) == 0 && dev.read_only);
	env_detach(&dev);

	dev = env_attach("a");
	cr_assert(!dev.read_only);
	cr_assert(lodev_set_read_only(dev.minor, true) == 0);
	cr_assert(lodev_status(dev.minor, &now) == 0 && now.read_only);
	cr_assert(lodev_set_read_only(dev.minor, false) == 0);
	cr_assert(lodev_status(dev.minor, &now) == 0 && !now.read_only);
	env_detach(&dev);
	cr_assert(lodev_set_read_only(dev.minor, true) == -ENXIO);
}

/* The kernel keeps the flag with the number. */
Test(lodev, the_next_volume_of_a_number_can_be_written)
{
	ENV_NEEDS_LOOP();
	env_image("a", 4 * MIB);
	struct lodev_spec spec = env_spec("a");
	struct err err = {0};
	struct lodev first = env_attach("a");
	cr_assert(lodev_set_read_only(first.minor, true) == 0);
	env_detach(&first);
	struct lodev next = env_attach("a");
	if (next.minor != first.minor) {
		env_detach(&next);
		cr_skip_test("somebody else has taken the number");
	}
	cr_expect(!next.read_only);
	env_detach(&next);
	spec.read_only = true;
	cr_assert(lodev_attach(&spec, &next, &err) == 0 && next.read_only);
	env_detach(&next);
}

Test(lodev, block_size_is_what_was_asked_for)
{
	ENV_NEEDS_LOOP();
	env_image("a", 4 * MIB);
	struct lodev_spec spec = env_spec("a");
	struct lodev dev;
	struct err err = {0};
	for (uint32_t size = 512; size <= 4096; size *= 8) {
		int logical = 0;
		spec.block_size = size;
		cr_assert(lodev_attach(&spec, &dev, &err) == 0, "%s", err.message);
		int fd = open_device(&dev, O_RDONLY);
		cr_assert(ioctl(fd, BLKSSZGET, &logical) == 0 && logical == (int)size);
		close(fd);
		env_detach(&dev);
	}
}

/* What was formatted for 512-byte sectors stays so even where the kernel then drops direct I/O: a
 * file system does not survive larger sectors than it was made for. */
Test(lodev, block_size_is_never_raised)
{
	ENV_NEEDS_LOOP();
	env_fresh("pool", FSIMG_BTRFS, 128 * MIB, "mnt0");
	env_image("mnt0/a", 4 * MIB);
	struct lodev dev = env_attach("mnt0/a");
	int logical = 0, fd = open_device(&dev, O_RDONLY);
	cr_assert(ioctl(fd, BLKSSZGET, &logical) == 0 && logical == 512);
	close(fd);
	env_detach(&dev);
}

/* No device to be had (an empty /dev hides them all, the control device too): said clearly, and the
 * image is free again at once. */
Test(lodev, no_device_to_be_had)
{
	ENV_NEEDS_LOOP();
	env_image("a", 4 * MIB);
	struct lodev_spec spec = env_spec("a");
	struct lodev dev;
	struct err err = {0};
	cr_assert(mount("none", "/dev", "tmpfs", 0, NULL) == 0);
	cr_assert(lodev_attach(&spec, &dev, &err) < 0);
	cr_assert(strstr(err.message, "/dev/loop") != NULL, "%s", err.message);
	cr_assert(umount2("/dev", MNT_DETACH) == 0);
	err_clear(&err);
	cr_assert(lodev_attach(&spec, &dev, &err) == 0, "%s", err.message);
	env_detach(&dev);
}

Test(lodev, without_discard_space_stays)
{
	ENV_NEEDS_LOOP();
	int image = env_file("a", 0);
	cr_assert(fallocate(image, 0, 0, 8 * MIB) == 0);
	struct lodev_spec spec = env_spec("a");
	struct lodev dev;
	struct err err = {0};
	spec.no_discard = true;
	cr_assert(lodev_attach(&spec, &dev, &err) == 0, "%s", err.message);
	int fd = open_device(&dev, O_RDWR);
	uint64_t range[2] = {0, 4 * MIB};
	cr_assert(ioctl(fd, BLKDISCARD, range) < 0 && errno == EOPNOTSUPP);
	cr_assert(allocated("a") >= 8 * MIB);
	cr_assert(ioctl(fd, BLKZEROOUT, range) == 0);
	cr_assert(allocated("a") >= 8 * MIB, "zeroing keeps the space");
	/* Zeroes that may be holes, as ext4 writes them too (sb_issue_zeroout): loop refuses what
	 * would be a hole where it has no discard, and the kernel writes zeroes instead for all but
	 * this call, which asks for none. */
	int r = fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4 * MIB);
	cr_assert(r < 0 && errno == EOPNOTSUPP, "%s", r < 0 ? strerror(errno) : "done");
	cr_assert(allocated("a") >= 8 * MIB);
	close(fd);
	env_detach(&dev);

	/* The same number without it: the limit is lifted again. */
	spec.no_discard = false;
	cr_assert(lodev_attach(&spec, &dev, &err) == 0, "%s", err.message);
	fd = open_device(&dev, O_RDWR);
	range[1] = 8 * MIB;
	cr_assert(ioctl(fd, BLKDISCARD, range) == 0, "%s", strerror(errno));
	cr_assert(allocated("a") < MIB);
	close(fd);
	env_detach(&dev);
	close(image);
}

/* A driver was killed between binding the image and forbidding discards. */
Test(lodev, discards_are_forbidden_on_a_device_found)
{
	ENV_NEEDS_LOOP();
	env_image("a", 8 * MIB);
	struct lodev first = env_attach("a"), dev;
	struct lodev_spec spec = env_spec("a");
	spec.no_discard = true;
	struct err err = {0};
	cr_assert(lodev_attach(&spec, &dev, &err) == 0, "%s", err.message);
	cr_assert(dev.minor == first.minor);
	int fd = open_device(&dev, O_RDWR);
	uint64_t range[2] = {0, 4 * MIB};
	cr_assert(ioctl(fd, BLKDISCARD, range) < 0 && errno == EOPNOTSUPP);
	close(fd);
	env_detach(&dev);
}

/* A /sys that nobody can write to: a thick volume does not get a device that discards, and one that
 * was there already stays. */
Test(lodev, discards_that_cannot_be_forbidden)
{
	ENV_NEEDS_LOOP();
	env_image("a", 8 * MIB);
	struct lodev dev = env_attach("a"), now; /* one that discards */
	struct lodev_spec spec = env_spec("a");
	struct err err = {0};
	spec.no_discard = true;
	cr_assert(mount("/sys", "/sys", NULL, MS_BIND | MS_REC, NULL) == 0);
	cr_assert(mount(NULL, "/sys", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL) == 0);
	assert_refused(&spec, ERR_INTERNAL, "forbidding discards");
	cr_assert(lodev_status(dev.minor, &now) == 0 && now.image_ino == dev.image_ino);
	env_detach(&dev);
	assert_refused(&spec, ERR_INTERNAL, "forbidding discards");
	cr_assert(lodev_status(dev.minor, &now) == -ENXIO);
	cr_assert(umount2("/sys", MNT_DETACH) == 0);
	cr_assert(lodev_attach(&spec, &dev, &err) == 0, "%s", err.message);
	env_detach(&dev);
}

struct found {
	uint64_t ino[2];
	unsigned count, others;
};

static void on_device(void *arg, const struct lodev *dev)
{
	struct found *f = arg;
	if (strcmp(dev->tag, "/somebody/else") == 0)
		f->others++;
	if (strcmp(dev->tag, env.tag) == 0 && f->count < 2)
		f->ino[f->count++] = dev->image_ino;
}

/* Whatever they are called: a tag is a hint. */
Test(lodev, scan_finds_all_of_them)
{
	ENV_NEEDS_LOOP();
	env_image("a", 4 * MIB);
	env_image("b", 4 * MIB);
	env_image("c", 4 * MIB);
	struct lodev a = env_attach("a"), b = env_attach("b");
	struct lodev_spec spec = env_spec("c");
	struct lodev c;
	struct err err = {0};
	snprintf(spec.tag, sizeof spec.tag, "/somebody/else");
	cr_assert(lodev_attach(&spec, &c, &err) == 0);
	struct found found = {.count = 0};
	int r = lodev_scan(on_device, &found);
	env_detach(&c);
	cr_assert(r == 0 && found.others >= 1 && found.count == 2);
	cr_assert(found.ino[0] + found.ino[1] == a.image_ino + b.image_ino);
	env_detach(&a);
	env_detach(&b);
}

enum { THREADS = 4, ROUNDS = 5 };

/* As work threads do: each takes its own image through attach and detach, thin and thick in turn.
 */
static void *attach_rounds(void *arg)
{
	struct lodev_spec spec = env_spec(arg);
	for (int i = 0; i < ROUNDS; i++) {
		struct lodev dev;
		struct err err = {0};
		bool still = true;
		spec.no_discard = i % 2;
		if (lodev_attach(&spec, &dev, &err) < 0 || lodev_detach(&dev, &still, &err) < 0)
			return strdup(err.message);
		if (still)
			return strdup("still bound");
	}
	return NULL;
}

Test(lodev, threads_share_the_numbers)
{
	ENV_NEEDS_LOOP();
	static char names[THREADS][4] = {"t0", "t1", "t2", "t3"};
	pthread_t threads[THREADS];
	for (int i = 0; i < THREADS; i++) {
		env_image(names[i], 4 * MIB);
		cr_assert(pthread_create(&threads[i], NULL, attach_rounds, names[i]) == 0);
	}
	for (int i = 0; i < THREADS; i++) {
		void *failure;
		cr_assert(pthread_join(threads[i], &failure) == 0);
		cr_assert(failure == NULL, "%s", (char *)failure);
	}
}

/* ---- the backend over it ---- */

static const struct backend_loop_config none = {.dm_control_path = "/nonexistent/control"};

Test(backend_loop, without_device_mapper_raw_volumes_are_refused)
{
	struct err err = {0};
	backend_loop_configure(&none);
	cr_assert_lt(backend_check(BACKEND_LOOP, true, &err), 0);
	cr_expect_eq(err.code, ERR_PRECONDITION);
	cr_expect_not_null(strstr(err.message, "modprobe dm_mod"), "%s", err.message);
	cr_expect_not_null(strstr(err.message, "--block-on-loop"), "%s", err.message);
	cr_expect_eq(backend_check(BACKEND_LOOP, false, &err), 0, "mounted ones need none");
}

Test(backend_loop, unless_the_operator_accepts_loop_nodes)
{
	struct backend_loop_config accepting = none;
	struct err err = {0};
	accepting.block_on_loop = true;
	backend_loop_configure(&accepting);
	cr_expect_eq(backend_check(BACKEND_LOOP, true, &err), 0, "%s", err.message);
}

Test(backend_loop, what_is_below_is_what_counts)
{
	uint32_t dev_major, dev_minor;
	struct backend_dev dev = {.major = 7, .minor = 5};
	backend_dev_below(&dev, &dev_major, &dev_minor);
	cr_expect(dev_major == 7 && dev_minor == 5);
	dev = (struct backend_dev){.major = 253, .minor = 1, .below_major = 7, .below_minor = 5};
	backend_dev_below(&dev, &dev_major, &dev_minor);
	cr_expect(dev_major == 7 && dev_minor == 5);
}
