/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What each kind of volume needs: the tools of file systems, file systems in the kernel, device
 * mapper for raw block volumes and raw pools, dm-thin for their thin volumes, encryption, ublk, and
 * BPF for what all of them tell. A tool is run to ask its version; one that hangs is killed and
 * counts as missing.
 */
#include "tools/doctor_findings.h"

#include "backends/crypt/luks_lib.h"
#include "backends/ublk/ublk_ctl.h"
#include "base/fd.h"
#include "disk/dm.h"
#include "probes/probes.h"
#include "reactor/proc.h"
#include "reactor/ring.h"
#include "reactor/ring_uring.h"
#include "tools/run.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/utsname.h>

enum {
	TOOL_TIMEOUT_MS = 5000,
	OUTPUT_BYTES = 2048,
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
			return tool_text(&d->args, "%.*s", (int)(len < 24 ? len : 24), at);
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
	return tool_run(argv, image, TOOL_TIMEOUT_MS, output, cap);
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
	/* thin_check at the start after a crash, thin_repair by `ringvol check --repair`. */
	{"thin tools", "thin-provisioning-tools", false,
		{{"thin_check", "-V"}, {"thin_repair", "-V"}, {"thin_dump", "-V"}}},
};

static void look_at_tools(struct doctor *d, const struct tool_set *set)
{
	char output[OUTPUT_BYTES];
	doctor_begin(d, set->check, set->needed);
	const char *there = "", *absent = "";
	bool mkfs = true;
	for (unsigned i = 0; i < 3 && set->tools[i].name != NULL; i++) {
		char *argv[] = {set->tools[i].name, set->tools[i].option, NULL};
		int r = tool_run(argv, -1, TOOL_TIMEOUT_MS, output, sizeof(output));
		/* One that is run without an option ends with its usage. */
		if (r < 0 || (r != 0 && set->tools[i].option != NULL)) {
			absent = tool_text(&d->args, "%s%s%s", absent,
				absent[0] != '\0' ? ", " : "", set->tools[i].name);
			mkfs = mkfs && i != 0;
		} else {
			there = tool_text(&d->args, "%s%s%s %s", there,
				there[0] != '\0' ? ", " : "", set->tools[i].name,
				version_in(d, output));
		}
	}
	const char *remedy = tool_text(&d->args, "install the package %s", set->package);
	if (absent[0] != '\0')
		doctor_add(d, mkfs ? DOCTOR_LIMITED : DOCTOR_MISSING,
			tool_text(
				&d->args, "no %s%s%s", absent, there[0] != '\0' ? "; " : "", there),
			remedy);
	else if (set->needed && try_mkfs_ext4(output, sizeof(output)) != 0)
		doctor_add(d, DOCTOR_MISSING,
			tool_text(&d->args,
				"%s, but mkfs.ext4 does not know the options it is given", there),
			"e2fsprogs 1.47 or newer");
	else
		doctor_add(d, DOCTOR_OK, there, "");
}

static void look_at_all_tools(struct doctor *d)
{
	for (unsigned i = 0; i < sizeof(tool_sets) / sizeof(tool_sets[0]); i++)
		look_at_tools(d, &tool_sets[i]);
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

static void look_at_file_systems(struct doctor *d)
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
		*list = tool_text(
			&d->args, "%s%s%s", *list, (*list)[0] != '\0' ? ", " : "", names[i]);
	}
	if (absent[0] == '\0' && unknown[0] == '\0') {
		doctor_add(d, DOCTOR_OK, tool_text(&d->args, "the kernel has %s", there), "");
		return;
	}
	doctor_add(d, DOCTOR_LIMITED,
		tool_text(&d->args, "the kernel has %s%s%s%s%s",
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
		doctor_add(d, DOCTOR_LIMITED,
			"it is in the kernel, but " DM_CONTROL_PATH
			" is not here: raw block volumes, raw pools and encrypted volumes are refused",
			"give the container the host's /dev");
	else if (module == MODULE_THERE)
		doctor_add(d, DOCTOR_LIMITED,
			"the module is there, not loaded: raw block volumes, raw pools and encrypted volumes are refused",
			"modprobe dm_mod");
	else
		doctor_add(d, DOCTOR_MISSING,
			module == MODULE_NOT_THERE
				? "this kernel has no module dm-mod: raw block volumes, raw pools and encrypted volumes are refused"
				: "nothing answers at " DM_CONTROL_PATH
				  ": raw block volumes, raw pools and encrypted volumes are refused",
			"modprobe dm_mod, or a kernel with it; 'device: ublk' needs none; or "
			"accept that pods hold loop nodes (ringvol serve --block-on-loop)");
}

/* Opening it loads the module, where the node is there and kmod can. */
static void look_at_device_mapper(struct doctor *d)
{
	struct dm dm;
	int r = dm_open(&dm, DM_CONTROL_PATH);
	if (r == 0) {
		dm_close(&dm);
		doctor_add(d, DOCTOR_OK, "pods with raw block volumes hold no loop node", "");
	} else if (r == -ENOENT || r == -ENXIO || r == -ENODEV) {
		add_no_device_mapper(d);
	} else {
		doctor_add(d, DOCTOR_LIMITED,
			tool_text(&d->args,
				DM_CONTROL_PATH
				" answers: %s: raw block volumes, raw pools and encrypted volumes are refused",
				strerrordesc_np(-r)),
			"run as root, with the device allowed (deploy/ringvol.service)");
	}
}

/* ---- thin volumes ---- */

/* "1.23.0" of a type of target; asking loads its module. -ENXIO: the kernel has none. */
static int target_version(struct doctor *d, struct dm *dm, const char *type, const char **ret)
{
	struct {
		struct dm_ioctl head;
		char data[256];
	} call = {.head = {.version = {DM_VERSION_MAJOR},
			  .data_size = sizeof(call),
			  .data_start = sizeof(call.head)}};
	struct dm_target_versions found;
	snprintf(call.head.name, sizeof(call.head.name), "%s", type);
	if (ioctl(dm->fd, DM_GET_TARGET_VERSION, &call) < 0)
		return -errno;
	if (call.head.data_start > sizeof(call) - sizeof(found))
		return -EPROTO;
	memcpy(&found, (const char *)&call + call.head.data_start, sizeof(found));
	*ret = tool_text(
		&d->args, "%u.%u.%u", found.version[0], found.version[1], found.version[2]);
	return 0;
}

static void look_at_dm_thin(struct doctor *d)
{
	_cleanup_dm_ struct dm dm = {.fd = -1};
	const char *version = "";
	if (dm_open(&dm, DM_CONTROL_PATH) < 0) {
		doctor_add(d, DOCTOR_LIMITED, "the device mapper cannot be asked",
			"see 'device mapper'; thick volumes of raw pools, too, need that");
		return;
	}
	int r = target_version(d, &dm, "thin-pool", &version);
	if (r == 0)
		doctor_add(d, DOCTOR_OK,
			tool_text(&d->args, "the kernel has thin-pool %s", version), "");
	else if (find_module("dm-thin-pool") == MODULE_THERE)
		doctor_add(d, DOCTOR_LIMITED,
			"the module is there, not loaded: thin volumes of raw pools are refused",
			"modprobe dm_thin_pool");
	else
		doctor_add(d, DOCTOR_MISSING,
			tool_text(&d->args,
				"this kernel has no dm-thin (%s): thin volumes of raw pools are refused",
				strerrordesc_np(-r)),
			"modprobe dm_thin_pool, or a kernel with it, if raw pools are to have thin "
			"volumes and snapshots; thick ones need none");
}

/* ---- encryption ---- */

static void look_at_encryption(struct doctor *d)
{
	struct err err = {0};
	if (luks_load(&err) < 0) {
		/* The message is "what: remedy". */
		const char *remedy = strstr(err.message, ": install");
		int len = remedy != NULL ? (int)(remedy - err.message) : (int)strlen(err.message);
		doctor_add(d, DOCTOR_MISSING, tool_text(&d->args, "%.*s", len, err.message),
			tool_text(&d->args, "%s, if volumes with 'encryption: luks2' are wanted",
				remedy != NULL ? remedy + 2 : "install libcryptsetup12"));
		return;
	}
	bool loaded = access("/sys/module/dm_crypt", F_OK) == 0;
	enum module module = loaded ? MODULE_THERE : find_module("dm-crypt");
	if (module == MODULE_THERE)
		doctor_add(d, DOCTOR_OK, "LUKS2, by libcryptsetup and the kernel's dm-crypt", "");
	else
		doctor_add(d, module == MODULE_NOT_THERE ? DOCTOR_MISSING : DOCTOR_UNKNOWN,
			module == MODULE_NOT_THERE ? "this kernel has no module dm-crypt"
						   : "dm-crypt is not loaded, and the "
						     "host's modules cannot be seen",
			"modprobe dm_crypt, or a kernel with it, if volumes with 'encryption: "
			"luks2' are wanted");
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
	const char *found = tool_text(&d->args, "features 0x%llx", (unsigned long long)features);
	if ((features & recovery) == recovery)
		doctor_add(d, DOCTOR_OK, tool_text(&d->args, "%s, with user recovery", found), "");
	else
		doctor_add(d, DOCTOR_LIMITED,
			tool_text(&d->args, "%s, without user recovery: ublk volumes are refused",
				found),
			"a kernel from 6.5 on; loop volumes are not concerned");
}

static void look_at_ublk(struct doctor *d)
{
	uint64_t features = 0;
	if (access("/dev/ublk-control", F_OK) == 0) {
		int r = ask_features(&features);
		if (r == 0)
			add_features(d, features);
		else
			doctor_add(d, DOCTOR_LIMITED,
				tool_text(&d->args, "/dev/ublk-control answers: %s",
					strerrordesc_np(-r)),
				r == -EPERM || r == -EACCES
					? "run it as root, with the device allowed"
					: "see the kernel log; loop volumes are not concerned");
		return;
	}
	bool loaded = access("/sys/module/ublk_drv", F_OK) == 0;
	enum module module = loaded ? MODULE_THERE : find_module("ublk_drv");
	if (loaded)
		doctor_add(d, DOCTOR_LIMITED,
			"the module is loaded, but /dev/ublk-control is not here",
			"give the container the host's /dev");
	else if (module == MODULE_THERE)
		doctor_add(d, DOCTOR_LIMITED, "the module is there, not loaded",
			"modprobe ublk_drv, if volumes with 'device: ublk' are wanted");
	else
		doctor_add(d, DOCTOR_MISSING,
			module == MODULE_NOT_THERE ? "this kernel has no module ublk_drv"
						   : "no /dev/ublk-control",
			"a kernel with ublk_drv (6.5 or newer), if volumes with 'device: ublk' are "
			"wanted; 'device: loop' needs nothing of it");
}

/* ---- BPF ---- */

static void look_at_probes(struct doctor *d)
{
	char why[PROBES_WHY_MAX] = "";
	int r = probes_try(why);
	if (r == 0 && why[0] == '\0') {
		doctor_add(d, DOCTOR_OK,
			"they load: latency and I/O errors are known for each volume", "");
		return;
	}
	/* The message is "what: remedy". */
	const char *remedy = strstr(why, ": ");
	int len = remedy != NULL ? (int)(remedy - why) : (int)strlen(why);
	doctor_add(d, DOCTOR_LIMITED,
		tool_text(&d->args,
			"%.*s; of volumes%s operations and bytes are known, latency and I/O "
			"errors are not",
			len, why, r == 0 ? " of raw pools" : ""),
		remedy != NULL ? remedy + 2 : "see the driver's log");
}

const struct doctor_check doctor_kinds_checks[] = {
	{"tools", false, look_at_all_tools},
	{"file systems", false, look_at_file_systems},
	{"device mapper", false, look_at_device_mapper},
	{"dm-thin", false, look_at_dm_thin},
	{"encryption", false, look_at_encryption},
	{"ublk", false, look_at_ublk},
	{"BPF probes", false, look_at_probes},
	{NULL},
};
