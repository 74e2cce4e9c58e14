/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernel gives a process that runs here: capabilities, io_uring, memory and files, and
 * mounts that others see. Features are tried, versions only told.
 */
#include "tools/doctor_findings.h"

#include "base/fd.h"
#include "reactor/ring.h"
#include "reactor/ring_uring.h"
#include "tools/text.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>

enum {
	FILES_WANTED = 65536,
	/* mkfs and fsck of large volumes run within the driver's limit. */
	MEMORY_WANTED = 128 << 20,
	MEMORY_NEEDED = 32 << 20,
};

static void look_at_kernel(struct doctor *d)
{
	struct utsname name;
	if (uname(&name) < 0)
		return;
	doctor_add(d, DOCTOR_OK,
		tool_text(&d->args, "%s %s, %s", name.sysname, name.release, name.machine), "");
}

/* ---- capabilities ---- */

/* A line of /proc/self/status, behind its name; "" if there is none. */
static void status_line(const char *name, char *ret, size_t cap)
{
	char text[8192];
	ret[0] = '\0';
	if (fd_read_file(AT_FDCWD, "/proc/self/status", text, sizeof(text)) < 0)
		return;
	const char *line = strstr(text, name);
	if (line == NULL)
		return;
	line += strlen(name);
	line += strspn(line, " \t");
	snprintf(ret, cap, "%.*s", (int)strcspn(line, "\n"), line);
}

static void look_at_capabilities(struct doctor *d)
{
	static const struct {
		unsigned number;
		const char *name, *without;
		bool needed;
	} wanted[] = {
		{CAP_SYS_ADMIN, "SYS_ADMIN", "no mounts, devices or records", true},
		{CAP_DAC_OVERRIDE, "DAC_OVERRIDE", "directories of pods cannot be entered", false},
		{CAP_FOWNER, "FOWNER", "flags of files that root does not own cannot be set",
			false},
		{CAP_SYS_RESOURCE, "SYS_RESOURCE",
			"a mounted ext4 cannot grow (it grows when it is staged again, once no pod on "
			"the node has it; a pod made anew at once is not enough)",
			false},
	};
	char hex[32];
	status_line("CapEff:", hex, sizeof(hex));
	if (sscanf(hex, "%" SCNx64, &d->capabilities) != 1)
		d->capabilities = 0;
	enum doctor_verdict verdict = DOCTOR_OK;
	const char *without = "", *names = "";
	for (unsigned i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
		if ((d->capabilities >> wanted[i].number & 1) != 0)
			continue;
		names = tool_text(&d->args, "%s%sCAP_%s", names, names[0] != '\0' ? ", " : "",
			wanted[i].name);
		without = tool_text(&d->args, "%s%s%s", without, without[0] != '\0' ? "; " : "",
			wanted[i].without);
		if (verdict != DOCTOR_MISSING)
			verdict = wanted[i].needed ? DOCTOR_MISSING : DOCTOR_LIMITED;
	}
	if (verdict == DOCTOR_OK)
		doctor_add(d, DOCTOR_OK, "all that are used", "");
	else
		doctor_add(d, verdict, tool_text(&d->args, "no %s: %s", names, without),
			"run as root; in a container, privileged; under systemd, as in "
			"deploy/ringvol.service");
}

/* ---- io_uring ---- */

static void look_at_io_uring(struct doctor *d)
{
	struct ring *ring = NULL;
	struct err err = {0};
	int r = ring_open(&ring, &(struct ring_config){0});
	if (r < 0) {
		char seccomp[8];
		status_line("Seccomp:", seccomp, sizeof(seccomp));
		ring_open_why(r, &err);
		/* The message is "what: remedy". */
		const char *remedy = strstr(err.message, ": ");
		doctor_add(d, DOCTOR_MISSING,
			tool_text(&d->args, "%.*s%s",
				remedy != NULL ? (int)(remedy - err.message)
					       : (int)strlen(err.message),
				err.message, seccomp[0] == '2' ? " (a seccomp filter is on)" : ""),
			remedy != NULL ? remedy + 2 : "");
		return;
	}
	const struct ring_features *f = ring_features(ring);
	const char *missing = tool_text(&d->args, "%s%s%s%s",
		f->defer_taskrun ? "" : " DEFER_TASKRUN", f->multishot_accept ? "" : " accept",
		f->multishot_recv ? "" : " multishot receive", f->buf_ring ? "" : " buffer rings");
	if (missing[0] == '\0')
		doctor_add(d, DOCTOR_OK, "with all that is used", "");
	else
		doctor_add(d, DOCTOR_LIMITED, tool_text(&d->args, "without%s: slower", missing),
			"a kernel from 6.1 on");
	ring_close(ring);
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
		doctor_add(d, DOCTOR_OK, "no limit of the control group", "");
		return;
	}
	text_size(limit, text);
	doctor_add(d, limit < MEMORY_WANTED ? DOCTOR_LIMITED : DOCTOR_OK,
		tool_text(&d->args, "the control group's limit is %s", text),
		limit < MEMORY_NEEDED
			? "at least 32M for the driver alone; 128M, as mkfs and fsck count too"
		: limit < MEMORY_WANTED ? "128M, as mkfs and fsck of large volumes count too"
					: "");
}

static void look_at_files(struct doctor *d)
{
	struct rlimit files = {0};
	if (getrlimit(RLIMIT_NOFILE, &files) < 0)
		return;
	/* The driver raises its own to the hard limit. */
	bool enough = files.rlim_max == RLIM_INFINITY || files.rlim_max >= FILES_WANTED;
	doctor_add(d, enough ? DOCTOR_OK : DOCTOR_LIMITED,
		files.rlim_max == RLIM_INFINITY
			? "no limit"
			: tool_text(&d->args, "%llu at most", (unsigned long long)files.rlim_max),
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

static void look_at_kubelet(struct doctor *d)
{
	char *real = realpath(d->kubelet_root, NULL);
	if (real == NULL) {
		doctor_add(d, DOCTOR_MISSING,
			tool_text(&d->args, "%s: %s", d->kubelet_root, strerrordesc_np(errno)),
			"nothing, unless this is a Kubernetes node: then mount its directory into "
			"the container, or name it with --kubelet-root");
		return;
	}
	const char *found = strcmp(real, d->kubelet_root) == 0
				    ? tool_text(&d->args, "%s", real)
				    : tool_text(&d->args, "%s, which is %s", d->kubelet_root, real);
	if (is_shared(real))
		doctor_add(d, DOCTOR_OK,
			tool_text(&d->args, "%s; mounts below it are shared", found), "");
	else
		doctor_add(d, DOCTOR_LIMITED,
			tool_text(&d->args, "%s; mounts below it stay in this mount namespace",
				found),
			"mountPropagation: Bidirectional for the driver's container; on the host, "
			"mount --make-rshared /");
	free(real);
}

const struct doctor_check doctor_kernel_checks[] = {
	{"kernel", false, look_at_kernel},
	{"capabilities", true, look_at_capabilities},
	{"io_uring", true, look_at_io_uring},
	{NULL},
};

const struct doctor_check doctor_process_checks[] = {
	{"memory", false, look_at_memory},
	{"open files", false, look_at_files},
	{"kubelet", false, look_at_kubelet},
	{NULL},
};
