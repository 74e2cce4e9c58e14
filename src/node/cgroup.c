/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where pods' cgroups are, and their file io.max.
 *
 * kubelet names a pod's cgroup by the pod's uid, in one of two layouts, below one of three classes
 * of service; under kind all of it is below "kubelet". Each place is tried by one call that follows
 * no link and stays below the root. A line of io.max is one device's, and replaces the one before.
 */
#include "node/cgroup.h"

#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>

enum {
	UUID_LEN = 36,
	STATIC_LEN = 32,
	PLACE_BYTES = 192,
	IO_MAX_BYTES = 16384, /* a line has some 60 bytes for each limited device */
};

/* ---- which pod ---- */

/* The length of the uid that the text begins with, up to a slash or the end; 0: it is none. */
static size_t uid_len(const char *text)
{
	size_t len = strspn(text, "0123456789abcdef-");
	if ((len != UUID_LEN && len != STATIC_LEN) || (text[len] != '\0' && text[len] != '/'))
		return 0;
	for (size_t i = 0; i < len; i++) {
		bool dash = len == UUID_LEN && (i == 8 || i == 13 || i == 18 || i == 23);
		if ((text[i] == '-') != dash)
			return 0;
	}
	return len;
}

static bool take_uid(const char *text, char ret_uid[CGROUP_POD_BYTES])
{
	size_t len = uid_len(text);
	if (len == 0)
		return false;
	memcpy(ret_uid, text, len);
	ret_uid[len] = '\0';
	return true;
}

bool cgroup_pod_of(const char *path, char ret_uid[CGROUP_POD_BYTES])
{
	static const char pods[] = "/pods/", devices[] = "/volumeDevices/";
	for (const char *at = path; (at = strstr(at, pods)) != NULL; at++)
		if (take_uid(at + strlen(pods), ret_uid))
			return true;
	const char *last = strrchr(path, '/');
	return strstr(path, devices) != NULL && take_uid(last + 1, ret_uid) &&
	       strchr(last + 1, '\0')[-1] != '/';
}

/* ---- where it is ---- */

static int open_beneath(int dirfd, const char *path, uint64_t flags)
{
	const struct open_how how = {
		.flags = flags | O_CLOEXEC,
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
	};
	long fd = syscall(SYS_openat2, dirfd, path, &how, sizeof(how));
	return fd < 0 ? -errno : (int)fd;
}

static bool has_word(const char *list, const char *word)
{
	size_t len = strlen(word);
	for (const char *at = list; (at = strstr(at, word)) != NULL; at += len)
		if ((at == list || at[-1] == ' ') &&
			(at[len] == ' ' || at[len] == '\n' || at[len] == '\0'))
			return true;
	return false;
}

int cgroup_open_root(const char *path, struct err *err)
{
	char controllers[512];
	_cleanup_fd_ int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return err_set(err, ERR_PRECONDITION,
			"%s cannot be opened (%s): mount the node's cgroup v2 there, or name its place by --cgroup-root",
			path, strerrordesc_np(errno));
	if (fd_read_file(fd, "cgroup.controllers", controllers, sizeof(controllers)) < 0)
		return err_set(err, ERR_PRECONDITION,
			"%s is not the top of cgroup v2: the node's limits need it (cgroup v1 has none that hold for buffered writes); boot the node with cgroup v2, or name its place by --cgroup-root",
			path);
	if (!has_word(controllers, "io"))
		return err_set(err, ERR_PRECONDITION,
			"the cgroups of %s have no io controller: it is in use by cgroup v1, or the kernel has none (CONFIG_BLK_CGROUP)",
			path);
	int opened = fd;
	fd = -1;
	return opened;
}

int cgroup_open_pod(int root_fd, const char *uid)
{
	static const char *const classes[] = {"", "burstable", "besteffort"};
	static const char *const tops[] = {"", "kubelet"};
	char place[PLACE_BYTES], slice_uid[CGROUP_POD_BYTES];
	for (size_t i = 0; i <= strlen(uid); i++)
		slice_uid[i] = uid[i] == '-' ? '_' : uid[i];
	for (unsigned i = 0; i < 2 * 2 * 3; i++) {
		const char *class = classes[i % 3], *top = tops[i / 6];
		const char *dash = class[0] != '\0' ? "-" : "",
			   *slash = class[0] != '\0' ? "/" : "";
		char within[64] = "", prefix[32] = "";
		if (i / 3 % 2 == 1) {
			snprintf(place, sizeof(place), "%s%skubepods/%s%spod%s", top,
				top[0] != '\0' ? "/" : "", class, slash, uid);
		} else {
			if (top[0] != '\0')
				snprintf(prefix, sizeof(prefix), "%s-", top);
			if (class[0] != '\0')
				snprintf(within, sizeof(within), "%skubepods-%s.slice/", prefix,
					class);
			snprintf(place, sizeof(place),
				"%s%s%skubepods.slice/%s%skubepods%s%s-pod%s.slice", top,
				top[0] != '\0' ? ".slice/" : "", prefix, within, prefix, dash,
				class, slice_uid);
		}
		int fd = open_beneath(root_fd, place, O_RDONLY | O_DIRECTORY);
		if (fd != -ENOENT)
			return fd;
	}
	return -ENOENT;
}

/* ---- io.max ---- */

static size_t print_value(char *buf, size_t cap, const char *name, uint64_t limit)
{
	int n = limit == 0 ? snprintf(buf, cap, " %s=max", name)
			   : snprintf(buf, cap, " %s=%" PRIu64, name, limit);
	return (size_t)n;
}

/* As the kernel prints it. */
static void print_line(
	char *buf, size_t cap, uint32_t major, uint32_t minor, const struct io_limits *l)
{
	size_t len = (size_t)snprintf(buf, cap, "%u:%u", major, minor);
	len += print_value(buf + len, cap - len, "rbps", l->read_bandwidth);
	len += print_value(buf + len, cap - len, "wbps", l->write_bandwidth);
	len += print_value(buf + len, cap - len, "riops", l->read_iops);
	print_value(buf + len, cap - len, "wiops", l->write_iops);
}

/* The device's line among them; false: it has none. */
static bool find_line(char *text, uint32_t major, uint32_t minor, const char **ret_line)
{
	char device[32], *rest = text;
	int len = snprintf(device, sizeof(device), "%u:%u ", major, minor);
	for (char *line; (line = strsep(&rest, "\n")) != NULL;)
		if (strncmp(line, device, (size_t)len) == 0) {
			*ret_line = line;
			return true;
		}
	return false;
}

int cgroup_set_limits(int pod_fd, uint32_t major, uint32_t minor, const struct io_limits *limits)
{
	char want[192];
	const char *has;
	print_line(want, sizeof(want), major, minor, limits);
	_cleanup_free_ char *text = malloc(IO_MAX_BYTES);
	if (text == NULL)
		return -ENOMEM;
	ssize_t n = fd_read_file(pod_fd, "io.max", text, IO_MAX_BYTES);
	if (n == -ENOENT)
		return -EOPNOTSUPP;
	if (n >= 0) {
		bool there = find_line(text, major, minor, &has);
		if (there ? strcmp(has, want) == 0 : !io_limits_any(limits))
			return 0;
	}
	_cleanup_fd_ int fd = openat(pod_fd, "io.max", O_WRONLY | O_TRUNC | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	return write(fd, want, strlen(want)) < 0 ? -errno : 0;
}
