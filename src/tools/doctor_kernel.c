/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernel has and allows: io_uring, file systems, ublk, BPF, and the capabilities we run
 * with. Features are tried, versions only told.
 */
#include "tools/doctor.h"

#include "backends/dm/dm.h"
#include "backends/ublk/ublk_ctl.h"
#include "base/fd.h"
#include "probes/probes.h"
#include "reactor/ring.h"
#include "reactor/ring_uring.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/capability.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>

static bool has(const struct doctor *d, unsigned capability)
{
	return (d->capabilities >> capability & 1) != 0;
}

void doctor_kernel(struct doctor *d)
{
	struct utsname name;
	if (uname(&name) < 0)
		return;
	doctor_add(d, "kernel", DOCTOR_OK, false,
		doctor_text(d, "%s %s, %s", name.sysname, name.release, name.machine), "");
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

void doctor_capabilities(struct doctor *d)
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
		if (has(d, wanted[i].number))
			continue;
		names = doctor_text(
			d, "%s%sCAP_%s", names, names[0] != '\0' ? ", " : "", wanted[i].name);
		without = doctor_text(
			d, "%s%s%s", without, without[0] != '\0' ? "; " : "", wanted[i].without);
		if (verdict != DOCTOR_MISSING)
			verdict = wanted[i].needed ? DOCTOR_MISSING : DOCTOR_LIMITED;
	}
	if (verdict == DOCTOR_OK)
		doctor_add(d, "capabilities", DOCTOR_OK, true, "all that are used", "");
	else
		doctor_add(d, "capabilities", verdict, true,
			doctor_text(d, "no %s: %s", names, without),
			"run as root; in a container, privileged; under systemd, as in "
			"deploy/ringvol.service");
}

/* ---- io_uring ---- */

void doctor_io_uring(struct doctor *d)
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
		doctor_add(d, "io_uring", DOCTOR_MISSING, true,
			doctor_text(d, "%.*s%s",
				remedy != NULL ? (int)(remedy - err.message)
					       : (int)strlen(err.message),
				err.message, seccomp[0] == '2' ? " (a seccomp filter is on)" : ""),
			remedy != NULL ? remedy + 2 : "");
		return;
	}
	const struct ring_features *f = ring_features(ring);
	const char *missing = doctor_text(d, "%s%s%s%s", f->defer_taskrun ? "" : " DEFER_TASKRUN",
		f->multishot_accept ? "" : " accept", f->multishot_recv ? "" : " multishot receive",
		f->buf_ring ? "" : " buffer rings");
	if (missing[0] == '\0')
		doctor_add(d, "io_uring", DOCTOR_OK, true, "with all that is used", "");
	else
		doctor_add(d, "io_uring", DOCTOR_LIMITED, true,
			doctor_text(d, "without%s: slower", missing), "a kernel from 6.1 on");
	ring_close(ring);
}

/* ---- modules ---- */

/* Whether the kernel has it, as a module or built in: "xfs". Unknown where the host's modules
 * cannot be seen. */
enum module { MODULE_THERE, MODULE_NOT_THERE, MODULE_UNKNOWN };

static enum module find_module(const char *name)
{
	static const char *const lists[] = {"modules.dep", "modules.builtin"};
	struct utsname uts;
	if (uname(&uts) < 0)
		return MODULE_UNKNOWN;
	enum module answer = MODULE_UNKNOWN;
	for (unsigned i = 0; i < 2; i++) {
		char path[256], line[4096], file[64];
		snprintf(path, sizeof(path), "/lib/modules/%s/%s", uts.release, lists[i]);
		snprintf(file, sizeof(file), "/%s.ko", name);
		FILE *list = fopen(path, "re");
		if (list == NULL)
			continue;
		answer = answer == MODULE_UNKNOWN ? MODULE_NOT_THERE : answer;
		while (answer != MODULE_THERE && fgets(line, sizeof(line), list) != NULL) {
			line[strcspn(line, ":\n")] = '\0';
			const char *at = strstr(line, file);
			if (at != NULL && (at[strlen(file)] == '\0' || at[strlen(file)] == '.'))
				answer = MODULE_THERE;
		}
		fclose(list);
	}
	return answer;
}

void doctor_file_systems(struct doctor *d)
{
	static const char *const names[] = {"ext4", "xfs", "btrfs"};
	char text[8192] = "", want[16];
	(void)fd_read_file(AT_FDCWD, "/proc/filesystems", text, sizeof(text));
	const char *there = "", *absent = "", *unknown = "";
	for (unsigned i = 0; i < 3; i++) {
		snprintf(want, sizeof(want), "\t%s\n", names[i]);
		enum module module =
			strstr(text, want) != NULL ? MODULE_THERE : find_module(names[i]);
		const char **list = module == MODULE_THERE       ? &there
				    : module == MODULE_NOT_THERE ? &absent
								 : &unknown;
		*list = doctor_text(d, "%s%s%s", *list, (*list)[0] != '\0' ? ", " : "", names[i]);
	}
	if (absent[0] == '\0' && unknown[0] == '\0') {
		doctor_add(d, "file systems", DOCTOR_OK, false,
			doctor_text(d, "the kernel has %s", there), "");
		return;
	}
	doctor_add(d, "file systems", DOCTOR_LIMITED, false,
		doctor_text(d, "the kernel has %s%s%s%s%s",
			there[0] != '\0' ? there : "none loaded", absent[0] != '\0' ? "; not " : "",
			absent, unknown[0] != '\0' ? "; perhaps as modules " : "", unknown),
		absent[0] != '\0' ? "volumes of that type cannot be mounted: use another, or a "
				    "kernel with the module"
				  : "nothing, if the host has the modules: mounting loads them");
}

/* ---- device mapper ---- */

static void add_no_device_mapper(struct doctor *d)
{
	bool loaded = access("/sys/class/misc/device-mapper", F_OK) == 0;
	enum module module = find_module("dm-mod");
	if (loaded)
		doctor_add(d, "device mapper", DOCTOR_LIMITED, false,
			"it is in the kernel, but " DM_CONTROL_PATH
			" is not here: raw block volumes are refused",
			"give the container the host's /dev");
	else if (module == MODULE_THERE)
		doctor_add(d, "device mapper", DOCTOR_LIMITED, false,
			"the module is there, not loaded: raw block volumes are refused",
			"modprobe dm_mod");
	else
		doctor_add(d, "device mapper", DOCTOR_MISSING, false,
			module == MODULE_NOT_THERE
				? "this kernel has no module dm-mod: raw block volumes are refused"
				: "no " DM_CONTROL_PATH ": raw block volumes are refused",
			"modprobe dm_mod, or a kernel with it; 'device: ublk' needs none; or "
			"accept that pods hold loop nodes (ringvol serve --block-on-loop)");
}

/* Opening it loads the module, where the node is there and kmod can. */
void doctor_device_mapper(struct doctor *d)
{
	struct dm dm;
	int r = dm_open(&dm, DM_CONTROL_PATH);
	if (r == 0) {
		dm_close(&dm);
		doctor_add(d, "device mapper", DOCTOR_OK, false,
			"pods with raw block volumes hold no loop node", "");
	} else if (r == -ENOENT || r == -ENXIO || r == -ENODEV) {
		add_no_device_mapper(d);
	} else {
		doctor_add(d, "device mapper", DOCTOR_LIMITED, false,
			doctor_text(d,
				DM_CONTROL_PATH " answers: %s: raw block volumes are refused",
				strerrordesc_np(-r)),
			"run as root, with the device allowed (deploy/ringvol.service)");
	}
}

/* ---- ublk ---- */

struct ublk_ask {
	struct ublk_ctl_call call;
	bool ended;
	int res;
};

static void on_features(struct ublk_ctl_call *call, int res)
{
	struct ublk_ask *ask = container_of(call, struct ublk_ask, call);
	ask->ended = true;
	ask->res = res;
}

/* 0, or -errno; the call's bound ends it whatever the kernel does. */
static int ask_features(uint64_t *ret)
{
	struct ring *ring = NULL;
	struct ublk_ctl *ctl = NULL;
	struct ublk_ask ask = {.call = {.command = UBLK_ABI_GET_FEATURES,
				       .dev_id = UINT32_MAX,
				       .on_end = on_features}};
	int r = ring_open(&ring, &(struct ring_config){0});
	if (r < 0)
		return r;
	r = ublk_ctl_open(&ctl, &(struct ublk_ctl_config){.ring = ring, .bound_ms = 2000});
	if (r == 0)
		ublk_ctl_submit(ctl, &ask.call);
	while (r == 0 && !ask.ended)
		r = ring_turn(ring, true);
	ublk_ctl_close(ctl);
	ring_close(ring);
	if (r == 0)
		r = ask.res;
	*ret = ask.call.features;
	return r < 0 ? r : 0;
}

static void add_features(struct doctor *d, uint64_t features)
{
	const uint64_t recovery = UBLK_ABI_F_RECOVERY | UBLK_ABI_F_RECOVERY_REISSUE;
	const char *found = doctor_text(d, "features 0x%llx", (unsigned long long)features);
	if ((features & recovery) == recovery)
		doctor_add(d, "ublk", DOCTOR_OK, false,
			doctor_text(d, "%s, with user recovery", found), "");
	else
		doctor_add(d, "ublk", DOCTOR_LIMITED, false,
			doctor_text(
				d, "%s, without user recovery: ublk volumes are refused", found),
			"a kernel from 6.5 on; loop volumes are not concerned");
}

void doctor_ublk(struct doctor *d)
{
	uint64_t features = 0;
	if (access("/dev/ublk-control", F_OK) == 0) {
		int r = ask_features(&features);
		if (r == 0)
			add_features(d, features);
		else
			doctor_add(d, "ublk", DOCTOR_LIMITED, false,
				doctor_text(
					d, "/dev/ublk-control answers: %s", strerrordesc_np(-r)),
				r == -EPERM || r == -EACCES
					? "run it as root, with the device allowed"
					: "see the kernel log; loop volumes are not concerned");
		return;
	}
	bool loaded = access("/sys/module/ublk_drv", F_OK) == 0;
	enum module module = loaded ? MODULE_THERE : find_module("ublk_drv");
	if (loaded)
		doctor_add(d, "ublk", DOCTOR_LIMITED, false,
			"the module is loaded, but /dev/ublk-control is not here",
			"give the container the host's /dev");
	else if (module == MODULE_THERE)
		doctor_add(d, "ublk", DOCTOR_LIMITED, false, "the module is there, not loaded",
			"modprobe ublk_drv, if volumes with 'device: ublk' are wanted");
	else
		doctor_add(d, "ublk", DOCTOR_MISSING, false,
			module == MODULE_NOT_THERE ? "this kernel has no module ublk_drv"
						   : "no /dev/ublk-control",
			"a kernel with ublk_drv (6.5 or newer), if volumes with 'device: ublk' are "
			"wanted; 'device: loop' needs nothing of it");
}

/* ---- BPF ---- */

void doctor_probes(struct doctor *d)
{
	char why[PROBES_WHY_MAX] = "";
	if (probes_try(why) == 0) {
		doctor_add(d, "BPF probes", DOCTOR_OK, false,
			"they load: latency and I/O errors are known for each volume", "");
		return;
	}
	/* The message is "what: remedy". */
	const char *remedy = strstr(why, ": ");
	int len = remedy != NULL ? (int)(remedy - why) : (int)strlen(why);
	doctor_add(d, "BPF probes", DOCTOR_LIMITED, false,
		doctor_text(d,
			"%.*s; of volumes operations and bytes are known, latency and I/O "
			"errors are not",
			len, why),
		remedy != NULL ? remedy + 2 : "see the driver's log");
}
