/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is around the driver: the file systems' tools, limits of memory and files, kubelet's
 * directory, and whether a driver answers. A tool is run to ask its version; one that hangs is
 * killed and counts as missing.
 */
#include "tools/doctor.h"

#include "base/fd.h"
#include "reactor/proc.h"
#include "tools/child.h"
#include "tools/grpc_client.h"
#include "tools/text.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

enum {
	TOOL_TIMEOUT_MS = 5000,
	OUTPUT_BYTES = 2048,
	FILES_WANTED = 65536,
	/* mkfs and fsck of large volumes run within the driver's limit. */
	MEMORY_WANTED = 128 << 20,
	MEMORY_NEEDED = 32 << 20,
	TRY_MKFS_BYTES = 16 << 20,
};

/* ---- tools ---- */

/* "1.47.0": what looks like a version in a tool's first words. */
static const char *version_in(struct doctor *d, const char *output)
{
	for (const char *at = output; *at != '\0'; at++) {
		bool begins = at == output || !isalnum((unsigned char)at[-1]) || at[-1] == 'v';
		if (!isdigit((unsigned char)*at) || !begins)
			continue;
		size_t len = strspn(at, "0123456789.");
		if (memchr(at, '.', len) != NULL)
			return doctor_text(d, "%.*s", (int)(len < 24 ? len : 24), at);
		at += len - 1;
	}
	return "?";
}

/* What this version of mkfs.ext4 must understand, on a file that is not written to. */
static int try_mkfs_ext4(char *output, size_t cap)
{
	_cleanup_fd_ int image = memfd_create("ringvol-doctor", MFD_CLOEXEC);
	if (image < 0 || ftruncate(image, TRY_MKFS_BYTES) < 0)
		return -errno;
	char *argv[] = {"mkfs.ext4", "-n", "-q", "-F", "-O", "metadata_csum_seed", "-E",
		"nodiscard,assume_storage_prezeroed=1", PROC_FILE_PATH, NULL};
	return child_run(argv, image, TOOL_TIMEOUT_MS, output, cap);
}

struct tool_set {
	const char *check, *package;
	bool needed;
	struct {
		char *name, *option; /* option NULL: it tells its version when run alone */
	} tools[3];
};

static const struct tool_set tool_sets[] = {
	{"ext4 tools", "e2fsprogs", true,
		{{"mkfs.ext4", "-V"}, {"e2fsck", "-V"}, {"resize2fs", NULL}}},
	{"xfs tools", "xfsprogs", false, {{"mkfs.xfs", "-V"}, {"xfs_repair", "-V"}}},
	{"btrfs tools", "btrfs-progs", false, {{"mkfs.btrfs", "-V"}, {"btrfs", "--version"}}},
};

static void look_at_tools(struct doctor *d, const struct tool_set *set)
{
	char output[OUTPUT_BYTES];
	const char *there = "", *absent = "";
	bool mkfs = true;
	for (unsigned i = 0; i < 3 && set->tools[i].name != NULL; i++) {
		char *argv[] = {set->tools[i].name, set->tools[i].option, NULL};
		int r = child_run(argv, -1, TOOL_TIMEOUT_MS, output, sizeof(output));
		/* One that is run without an option ends with its usage. */
		if (r < 0 || (r != 0 && set->tools[i].option != NULL)) {
			absent = doctor_text(d, "%s%s%s", absent, absent[0] != '\0' ? ", " : "",
				set->tools[i].name);
			mkfs = mkfs && i != 0;
		} else {
			there = doctor_text(d, "%s%s%s %s", there, there[0] != '\0' ? ", " : "",
				set->tools[i].name, version_in(d, output));
		}
	}
	const char *remedy = doctor_text(d, "install the package %s", set->package);
	if (absent[0] != '\0')
		doctor_add(d, set->check, mkfs ? DOCTOR_LIMITED : DOCTOR_MISSING, set->needed,
			doctor_text(d, "no %s%s%s", absent, there[0] != '\0' ? "; " : "", there),
			remedy);
	else if (set->needed && try_mkfs_ext4(output, sizeof(output)) != 0)
		doctor_add(d, set->check, DOCTOR_MISSING, true,
			doctor_text(d, "%s, but mkfs.ext4 does not know the options it is given",
				there),
			"e2fsprogs 1.47 or newer");
	else
		doctor_add(d, set->check, DOCTOR_OK, set->needed, there, "");
}

void doctor_tools(struct doctor *d)
{
	for (unsigned i = 0; i < sizeof(tool_sets) / sizeof(tool_sets[0]); i++)
		look_at_tools(d, &tool_sets[i]);
}

/* ---- limits ---- */

/* The least limit of our cgroup and those above it; UINT64_MAX without one. */
static uint64_t limit_along(const char *root, const char *path, const char *file)
{
	uint64_t least = UINT64_MAX;
	char at[PATH_MAX], name[PATH_MAX + 64], text[64];
	snprintf(at, sizeof(at), "%s", path);
	for (;;) {
		snprintf(name, sizeof(name), "%s%s/%s", root, strcmp(at, "/") == 0 ? "" : at, file);
		if (fd_read_file(AT_FDCWD, name, text, sizeof(text)) > 0 &&
			isdigit((unsigned char)text[0])) {
			uint64_t limit = strtoull(text, NULL, 10);
			least = limit < least ? limit : least;
		}
		char *slash = strrchr(at, '/');
		if (slash == NULL || at[1] == '\0')
			return least;
		slash[slash == at ? 1 : 0] = '\0';
	}
}

static uint64_t memory_limit(void)
{
	char text[4096], *save = NULL;
	if (fd_read_file(AT_FDCWD, "/proc/self/cgroup", text, sizeof(text)) < 0)
		return UINT64_MAX;
	uint64_t least = UINT64_MAX;
	for (char *line = strtok_r(text, "\n", &save); line != NULL;
		line = strtok_r(NULL, "\n", &save)) {
		uint64_t limit = UINT64_MAX;
		char *v1 = strstr(line, ":memory:");
		if (strncmp(line, "0::", 3) == 0)
			limit = limit_along("/sys/fs/cgroup", line + 3, "memory.max");
		else if (v1 != NULL)
			limit = limit_along("/sys/fs/cgroup/memory", v1 + strlen(":memory:"),
				"memory.limit_in_bytes");
		least = limit < least ? limit : least;
	}
	/* cgroup v1 says "no limit" by a number no machine has. */
	return least >= (uint64_t)1 << 60 ? UINT64_MAX : least;
}

static void look_at_memory(struct doctor *d)
{
	char text[TEXT_NUMBER_BYTES];
	uint64_t limit = memory_limit();
	if (limit == UINT64_MAX) {
		doctor_add(d, "memory", DOCTOR_OK, false, "no limit of the control group", "");
		return;
	}
	text_size(limit, text);
	doctor_add(d, "memory", limit < MEMORY_WANTED ? DOCTOR_LIMITED : DOCTOR_OK, false,
		doctor_text(d, "the control group's limit is %s", text),
		limit < MEMORY_NEEDED
			? "at least 32M for the driver alone; 128M, as mkfs and fsck count too"
		: limit < MEMORY_WANTED ? "128M, as mkfs and fsck of large volumes count too"
					: "");
}

void doctor_limits(struct doctor *d)
{
	struct rlimit files = {0};
	look_at_memory(d);
	if (getrlimit(RLIMIT_NOFILE, &files) < 0)
		return;
	/* The driver raises its own to the hard limit. */
	bool enough = files.rlim_max == RLIM_INFINITY || files.rlim_max >= FILES_WANTED;
	doctor_add(d, "open files", enough ? DOCTOR_OK : DOCTOR_LIMITED, false,
		files.rlim_max == RLIM_INFINITY
			? "no limit"
			: doctor_text(d, "%llu at most", (unsigned long long)files.rlim_max),
		enough ? ""
		       : "LimitNOFILE=1048576 (systemd), --ulimit nofile (container): many volumes "
			 "and calls at once need more");
}

/* ---- kubelet ---- */

/* Whether mounts below path are seen by others: the mount it lies on is shared. */
static bool is_shared(const char *path)
{
	FILE *file = fopen("/proc/self/mountinfo", "re");
	char *line = NULL;
	size_t cap = 0, best = 0;
	bool shared = false;
	while (file != NULL && getline(&line, &cap, file) > 0) {
		char *save = NULL, *field = strtok_r(line, " ", &save);
		for (unsigned i = 1; field != NULL && i < 5; i++)
			field = strtok_r(NULL, " ", &save);
		if (field == NULL)
			continue;
		size_t len = strcmp(field, "/") == 0 ? 0 : strlen(field);
		/* The last one of a path hides those before it. */
		if (len < best || strncmp(path, field, len) != 0 ||
			(path[len] != '/' && path[len] != '\0'))
			continue;
		best = len;
		shared = false;
		strtok_r(NULL, " ", &save); /* mount options */
		while ((field = strtok_r(NULL, " ", &save)) != NULL && strcmp(field, "-") != 0)
			shared = shared || strncmp(field, "shared:", 7) == 0;
	}
	free(line);
	if (file != NULL)
		fclose(file);
	return shared;
}

void doctor_kubelet(struct doctor *d)
{
	char *real = realpath(d->kubelet_root, NULL);
	if (real == NULL) {
		doctor_add(d, "kubelet", DOCTOR_MISSING, false,
			doctor_text(d, "%s: %s", d->kubelet_root, strerrordesc_np(errno)),
			"nothing, unless this is a Kubernetes node: then mount its directory into "
			"the container, or name it with --kubelet-root");
		return;
	}
	const char *found = strcmp(real, d->kubelet_root) == 0
				    ? doctor_text(d, "%s", real)
				    : doctor_text(d, "%s, which is %s", d->kubelet_root, real);
	if (is_shared(real))
		doctor_add(d, "kubelet", DOCTOR_OK, false,
			doctor_text(d, "%s; mounts below it are shared", found), "");
	else
		doctor_add(d, "kubelet", DOCTOR_LIMITED, false,
			doctor_text(d, "%s; mounts below it stay in this mount namespace", found),
			"mountPropagation: Bidirectional for the driver's container; on the host, "
			"mount --make-rshared /");
	free(real);
}

/* ---- the driver ---- */

static void add_driver(struct doctor *d, const struct inventory *inv)
{
	char up[TEXT_NUMBER_BYTES];
	unsigned unwell = 0;
	for (size_t i = 0; i < inv->pools.count; i++)
		unwell += ((const Ringvol__V1__Pool *)(const void *)inv->pools.at[i])->state !=
			  RINGVOL__V1__POOL__STATE__READY;
	text_age(inv->driver != NULL ? (uint64_t)inv->driver->uptime_seconds : 0, up);
	doctor_add(d, "driver", unwell != 0 ? DOCTOR_LIMITED : DOCTOR_OK, false,
		doctor_text(d, "version %s answers, up %s; pools: %zu ready, %u not",
			inv->driver != NULL ? inventory_str(inv->driver->version) : "?", up,
			inv->pools.count - unwell, unwell),
		unwell != 0 ? "ringvol ls says why" : "");
}

void doctor_driver(struct doctor *d)
{
	Ringvol__V1__ListRequest__Kind kinds[] = {
		RINGVOL__V1__LIST_REQUEST__KIND__DRIVER, RINGVOL__V1__LIST_REQUEST__KIND__POOLS};
	Ringvol__V1__ListRequest request = RINGVOL__V1__LIST_REQUEST__INIT;
	struct grpc_client *client = NULL;
	struct inventory inv = {0};
	struct err err = {0};
	request.kinds = kinds;
	request.n_kinds = 2;
	int r = grpc_client_open(&client, d->args.endpoint, &err);
	if (r == 0)
		r = inventory_ask(&inv, client, &request, &err);
	if (r == 0)
		add_driver(d, &inv);
	else if (client == NULL && err.code == ERR_UNAVAILABLE)
		doctor_add(d, "driver", DOCTOR_MISSING, false, err.message,
			"ringvol serve, or systemctl start ringvol; --endpoint, if it is elsewhere");
	else
		doctor_add(d, "driver", DOCTOR_LIMITED, false, err.message,
			"see its log; --endpoint, if it is another");
	grpc_client_close(client);
	inventory_free(&inv);
}
