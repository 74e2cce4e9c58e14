/* SPDX-License-Identifier: Apache-2.0 */
/*
 * /proc/self/mountinfo, line by line. Used at start and where an entry cannot be asked itself; 9 ms
 * at 4,000 mounts. Lines that make no sense are passed over.
 */
#include "mount/mnt_scan.h"

#include "base/fd.h"
#include "blockio/blkdev.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum { LOOP_MAJOR_NUMBER = 7 };

#define DM_UUID_PREFIX "RINGVOL-" /* as backends/dm/guard.c makes them */

/* Undoes the kernel's octal escapes of blanks and backslashes, in place. */
static void unescape(char *s)
{
	char *out = s;
	for (; *s != '\0'; s++) {
		if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] >= '0' && s[2] <= '7' &&
			s[3] >= '0' && s[3] <= '7') {
			*out++ = (char)((s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0'));
			s += 3;
		} else {
			*out++ = *s;
		}
	}
	*out = '\0';
}

/* "36 35 7:4 / /mnt rw,noatime shared:1 - ext4 /dev/loop4 rw": the words of a line, which is cut
 * up. False if it has another form. */
static bool parse_line(char *text, struct mnt_line *ret)
{
	enum { ID, PARENT, DEV, ROOT, PATH, OPTIONS, HEAD_WORDS };
	char *head[HEAD_WORDS], *tail[3], *save = NULL, *word;
	for (int i = 0; i < HEAD_WORDS; i++)
		if ((head[i] = strtok_r(i == 0 ? text : NULL, " \n", &save)) == NULL)
			return false;
	while ((word = strtok_r(NULL, " \n", &save)) != NULL && strcmp(word, "-") != 0)
		continue;
	for (int i = 0; i < 3; i++)
		if ((tail[i] = strtok_r(NULL, " \n", &save)) == NULL)
			return false;
	struct mnt_line line = {
		.id = strtoull(head[ID], NULL, 10),
		.root = head[ROOT],
		.path = head[PATH],
		.options = head[OPTIONS],
		.fs_type = tail[0],
		.source = tail[1],
		.fs_options = tail[2],
	};
	if (sscanf(head[DEV], "%u:%u", &line.dev_major, &line.dev_minor) != 2)
		return false;
	unescape(head[ROOT]);
	unescape(head[PATH]);
	unescape(tail[1]);
	*ret = line;
	return true;
}

int mnt_each_line(bool (*each)(void *arg, const struct mnt_line *line), void *arg)
{
	return mnt_each_line_of("/proc/self/mountinfo", each, arg);
}

int mnt_each_line_of(
	const char *name, bool (*each)(void *arg, const struct mnt_line *line), void *arg)
{
	FILE *file = fopen(name, "re");
	if (file == NULL)
		return -errno;
	_cleanup_free_ char *text = NULL;
	size_t size = 0;
	struct mnt_line line;
	errno = 0;
	while (getline(&text, &size, file) >= 0)
		if (parse_line(text, &line) && !each(arg, &line))
			break;
	int r = ferror(file) ? -(errno > 0 ? errno : EIO) : 0;
	fclose(file);
	return r;
}

bool mnt_has_option(const char *options, const char *word)
{
	size_t len = strlen(word);
	for (const char *p = options; *p != '\0'; p += *p == ',') {
		size_t n = strcspn(p, ",");
		if (n == len && memcmp(p, word, n) == 0)
			return true;
		p += n;
	}
	return false;
}

void mnt_option_value(const char *options, const char *key, char *ret, size_t size)
{
	size_t key_len = strlen(key), at = 0;
	bool quoted = false, found = false;
	const char *p = options;
	while (*p != '\0' && !found) {
		found = strncmp(p, key, key_len) == 0;
		if (found)
			p += key_len;
		for (; *p != '\0' && (quoted || *p != ','); p++) {
			if (*p == '"')
				quoted = !quoted;
			else if (found && at + 1 < size)
				ret[at++] = *p;
		}
		p += *p == ',';
	}
	ret[at] = '\0';
}

/* ---- which device ---- */

/* A device-mapper device of ours says so in its uuid; other dm devices are somebody's disks. */
static bool is_our_dm(uint32_t dev_major, uint32_t dev_minor)
{
	char uuid[160];
	return blkdev_read(dev_major, dev_minor, "dm/uuid", uuid, sizeof uuid) > 0 &&
	       strncmp(uuid, DM_UUID_PREFIX, sizeof DM_UUID_PREFIX - 1) == 0;
}

/* loop has a major number of its own; ublk shares the extended one, and only its name tells. A
 * bound node may lead to a device that is gone, and to another's with its number later: it may have
 * been ours. */
static bool is_ours(uint32_t dev_major, uint32_t dev_minor, bool bound)
{
	if (dev_major == LOOP_MAJOR_NUMBER)
		return true;
	if (dev_major == 0)
		return false;
	char name[64];
	int r = blkdev_name(dev_major, dev_minor, name, sizeof name);
	if (r < 0)
		return bound && r == -ENOENT;
	if (strncmp(name, "dm-", 3) == 0)
		return is_our_dm(dev_major, dev_minor);
	return strncmp(name, "ublkb", 5) == 0;
}

static bool stat_block_node(const char *path, uint32_t *ret_major, uint32_t *ret_minor)
{
	struct stat st;
	if (lstat(path, &st) < 0 || !S_ISBLK(st.st_mode))
		return false;
	*ret_major = major(st.st_rdev);
	*ret_minor = minor(st.st_rdev);
	return true;
}

void mnt_line_device(
	const struct mnt_line *line, uint32_t *ret_major, uint32_t *ret_minor, bool *ret_bound_node)
{
	uint32_t dev_major = line->dev_major, dev_minor = line->dev_minor;
	bool bound = false;
	if (strcmp(line->fs_type, "btrfs") == 0) {
		/* Its device number is made up; the source names the real one. */
		if (!stat_block_node(line->source, &dev_major, &dev_minor))
			dev_major = dev_minor = 0;
	} else if (strcmp(line->fs_type, "devtmpfs") == 0 || strcmp(line->fs_type, "tmpfs") == 0) {
		/* One name of /dev bound to a file. These file systems do not hang. */
		bound = strcmp(line->root, "/") != 0 &&
			stat_block_node(line->path, &dev_major, &dev_minor);
		if (!bound)
			dev_major = dev_minor = 0;
	}
	if (!is_ours(dev_major, dev_minor, bound)) {
		dev_major = dev_minor = 0;
		bound = false;
	}
	*ret_major = dev_major;
	*ret_minor = dev_minor;
	*ret_bound_node = bound;
}

struct scan {
	void (*each)(void *arg, const struct mnt_entry *entry);
	void *arg;
};

static bool scan_on_line(void *arg, const struct mnt_line *line)
{
	const struct scan *scan = arg;
	struct mnt_entry entry = {
		.read_only = mnt_has_option(line->options, "ro"),
		.path = line->path,
	};
	mnt_line_device(line, &entry.dev_major, &entry.dev_minor, &entry.bound_node);
	if (entry.dev_major != 0)
		scan->each(scan->arg, &entry);
	return true;
}

int mnt_scan(void (*each)(void *arg, const struct mnt_entry *entry), void *arg)
{
	struct scan scan = {each, arg};
	return mnt_each_line(scan_on_line, &scan);
}

char *mnt_scan_name(const char *path)
{
	const char *name = strrchr(path, '/');
	_cleanup_free_ char *parent =
		name == NULL ? NULL : strndup(path, (size_t)(name - path) + 1);
	_cleanup_free_ char *real = parent == NULL ? NULL : realpath(parent, NULL);
	if (real == NULL)
		return strdup(path);
	char *listed;
	return asprintf(&listed, "%s%s", strcmp(real, "/") == 0 ? "" : real, name) < 0 ? NULL
										       : listed;
}
