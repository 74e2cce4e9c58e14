/* SPDX-License-Identifier: Apache-2.0 */
/* Goes through /proc. A process that has gone, or that may not be looked at, is passed over. */
#include "mount/mnt_elsewhere.h"

#include "base/fd.h"
#include "mount/mnt_scan.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct look {
	uint32_t major, minor;
	const char *except;
	size_t except_len;
	bool found;
};

static bool on_line(void *arg, const struct mnt_line *line)
{
	struct look *look = arg;
	uint32_t major, minor;
	bool bound_node;
	mnt_line_device(line, &major, &minor, &bound_node);
	if (major != look->major || minor != look->minor)
		return true;
	look->found = strncmp(line->path, look->except, look->except_len) != 0 ||
		      line->path[look->except_len] != '/';
	return !look->found;
}

/* The last namespace seen, by the text of its link: processes of one namespace mostly stand one
 * behind the other. False: this process's was looked at just before. */
static bool is_new(const char *pid, char last[64])
{
	char link[64], text[64];
	snprintf(link, sizeof(link), "/proc/%.32s/ns/mnt", pid);
	ssize_t len = readlink(link, text, sizeof(text) - 1);
	if (len < 0)
		return true;
	text[len] = '\0';
	if (strcmp(text, last) == 0)
		return false;
	strcpy(last, text);
	return true;
}

int mnt_elsewhere(uint32_t major, uint32_t minor, const char *except)
{
	struct look look = {
		.major = major, .minor = minor, .except = except, .except_len = strlen(except)};
	char last[64] = "";
	_cleanup_dir_ DIR *dir = opendir("/proc");
	if (dir == NULL)
		return -errno;
	int r;
	const struct dirent *entry;
	while (!look.found && (entry = fd_next_entry(dir, &r)) != NULL) {
		char file[64];
		if (entry->d_name[0] < '0' || entry->d_name[0] > '9' ||
			!is_new(entry->d_name, last))
			continue;
		snprintf(file, sizeof(file), "/proc/%.32s/mountinfo", entry->d_name);
		(void)mnt_each_line_of(file, on_line, &look);
	}
	if (look.found)
		return 1;
	return r < 0 ? r : 0;
}
