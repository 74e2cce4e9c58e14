/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What on this node may act on the bytes of a tenant: udev's rules, LVM, md, multipath, btrfs. For
 * each: is it here, is it kept off our devices, and what to install if not (docs/host.md).
 *
 * A container does not see the node's files. There, what udev left in /dev tells: a device of ours
 * that has a link in /dev/disk was probed. What leaves no trace there is said to be unknown.
 */
#include "tools/doctor_node.h"

#include "base/fd.h"
#include "tools/devices.h"
#include "tools/doctor_node_conf.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CONF_BYTES = 1 << 20 };

static const char unseen[] = "the node's files cannot be seen from this container";
static const char ask_the_node[] = "run ringvol doctor on the node itself, or see docs/host.md";

/* ---- files ---- */

static bool path_of(char ret[PATH_MAX], const struct doctor_node *node, const char *path)
{
	return snprintf(ret, PATH_MAX, "%s%s", node->root, path) < PATH_MAX;
}

static bool there(const struct doctor_node *node, const char *path)
{
	char full[PATH_MAX];
	return path_of(full, node, path) && access(full, F_OK) == 0;
}

static bool any_there(const struct doctor_node *node, const char *const *paths)
{
	for (; *paths != NULL; paths++)
		if (there(node, *paths))
			return true;
	return false;
}

typedef enum doctor_conf conf_fn(char *text);

static enum doctor_conf ask_file(const char *full, conf_fn *ask)
{
	_cleanup_free_ char *text = malloc(CONF_BYTES);
	if (text == NULL || fd_read_file(AT_FDCWD, full, text, CONF_BYTES) < 0)
		return DOCTOR_CONF_SILENT;
	return ask(text);
}

/* Each "*.conf" of a directory, until one says something. */
static enum doctor_conf ask_directory(const char *full, conf_fn *ask)
{
	_cleanup_dir_ DIR *dir = opendir(full);
	enum doctor_conf said = DOCTOR_CONF_SILENT;
	const struct dirent *entry;
	while (dir != NULL && said == DOCTOR_CONF_SILENT && (entry = readdir(dir)) != NULL) {
		char file[PATH_MAX + NAME_MAX + 2];
		size_t len = strlen(entry->d_name);
		snprintf(file, sizeof(file), "%s/%s", full, entry->d_name);
		if (len > 5 && strcmp(entry->d_name + len - 5, ".conf") == 0)
			said = ask_file(file, ask);
	}
	return said;
}

/* What the first of these files, or directories with files, says. */
static enum doctor_conf ask_each(
	const struct doctor_node *node, const char *const *paths, conf_fn *ask)
{
	enum doctor_conf said = DOCTOR_CONF_SILENT;
	for (; *paths != NULL && said == DOCTOR_CONF_SILENT; paths++) {
		char full[PATH_MAX];
		struct stat st;
		if (!path_of(full, node, *paths) || stat(full, &st) < 0)
			continue;
		said = S_ISDIR(st.st_mode) ? ask_directory(full, ask) : ask_file(full, ask);
	}
	return said;
}

/* ---- udev ---- */

enum udev {
	UDEV_NONE,   /* no udev on this node */
	UDEV_KEPT,   /* it leaves our devices alone */
	UDEV_PROBES, /* it does not, or nothing says that it does */
	UDEV_UNSEEN,
};

static bool rules_there(const struct doctor_node *node, const char *name)
{
	static const char *const places[] = {"/etc/udev/rules.d", "/run/udev/rules.d",
		"/usr/local/lib/udev/rules.d", "/usr/lib/udev/rules.d", "/lib/udev/rules.d"};
	for (unsigned i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		char path[64];
		snprintf(path, sizeof(path), "%s/%s", places[i], name);
		if (there(node, path))
			return true;
	}
	return false;
}

/* The number of the device, among ours, that udev has made a link for; 0: there is none. */
static uint64_t probed(const struct doctor_node *node)
{
	for (size_t i = 0; i < node->count; i++) {
		char path[64];
		snprintf(path, sizeof(path), "/dev/disk/by-diskseq/%" PRIu64, node->diskseqs[i]);
		if (there(node, path))
			return node->diskseqs[i];
	}
	return 0;
}

static enum udev look_at_udev(struct doctor *d, const struct doctor_node *node)
{
	doctor_begin(d, "udev", false);
	static const char *const signs[] = {"/run/udev/control", "/dev/disk/by-diskseq",
		"/dev/disk/by-uuid", "/dev/disk/by-id", NULL};
	static const char install[] =
		"install deploy/host/udev/10-ringvol.rules and 62-ringvol.rules in "
		"/etc/udev/rules.d of the node (docs/host.md)";
	bool early = rules_there(node, "10-ringvol.rules"),
	     late = rules_there(node, "62-ringvol.rules");
	uint64_t seq = probed(node);
	if (seq != 0) {
		doctor_add(d, DOCTOR_LIMITED,
			tool_text(&d->args,
				"udev probes volumes: /dev/disk/by-diskseq/%" PRIu64
				" is one of ours%s",
				seq,
				early && late ? ", attached before the rules were installed" : ""),
			early && late ? "udevadm trigger --subsystem-match=block" : install);
		return UDEV_PROBES;
	}
	if (!any_there(node, signs)) {
		doctor_add(d, DOCTOR_OK, "not on this node: nothing probes volumes", "");
		return UDEV_NONE;
	}
	if (node->own && early && late) {
		doctor_add(d, DOCTOR_OK, "its rules leave volumes alone", "");
		return UDEV_KEPT;
	}
	if (node->own) {
		doctor_add(d, DOCTOR_LIMITED,
			tool_text(&d->args, "no %s: what a tenant writes is probed and acted upon",
				early ? "62-ringvol.rules" : "10-ringvol.rules"),
			install);
		return UDEV_PROBES;
	}
	if (node->count > 0 && there(node, "/dev/disk/by-diskseq")) {
		doctor_add(d, DOCTOR_OK,
			tool_text(
				&d->args, "none of the %zu devices in use was probed", node->count),
			"");
		return UDEV_KEPT;
	}
	doctor_add(d, DOCTOR_UNKNOWN, unseen, ask_the_node);
	return UDEV_UNSEEN;
}

/* ---- those that read whole disks when somebody calls them ---- */

static void look_at_lvm(struct doctor *d, const struct doctor_node *node)
{
	doctor_begin(d, "lvm", false);
	static const char *const programs[] = {"/usr/sbin/lvm", "/sbin/lvm", NULL};
	/* The local file wins. */
	static const char *const files[] = {"/etc/lvm/lvmlocal.conf", "/etc/lvm/lvm.conf", NULL};
	if (!any_there(node, programs)) {
		doctor_add(d, DOCTOR_OK, "not on this node", "");
		return;
	}
	if (ask_each(node, files, doctor_conf_lvm_filter) == DOCTOR_CONF_LEAVES)
		doctor_add(d, DOCTOR_OK, "global_filter leaves volumes alone", "");
	else if (ask_each(node, files, doctor_conf_lvm_devices_file) == DOCTOR_CONF_LEAVES &&
		 there(node, "/etc/lvm/devices/system.devices"))
		doctor_add(d, DOCTOR_OK, "it uses the devices of its list alone", "");
	else
		doctor_add(d, DOCTOR_LIMITED,
			"it takes a physical volume that a tenant wrote for one of the node's",
			"put global_filter of deploy/host/lvm/lvmlocal.conf into "
			"/etc/lvm/lvmlocal.conf (docs/host.md)");
}

static void look_at_md(struct doctor *d, const struct doctor_node *node)
{
	doctor_begin(d, "md", false);
	static const char *const programs[] = {"/usr/sbin/mdadm", "/sbin/mdadm", NULL};
	static const char *const files[] = {"/etc/mdadm/mdadm.conf", "/etc/mdadm.conf",
		"/etc/mdadm/mdadm.conf.d", "/etc/mdadm.conf.d", NULL};
	if (!any_there(node, programs))
		doctor_add(d, DOCTOR_OK, "mdadm is not on this node", "");
	else if (ask_each(node, files, doctor_conf_md) == DOCTOR_CONF_LEAVES)
		doctor_add(d, DOCTOR_OK, "mdadm assembles what it has a line for", "");
	else
		doctor_add(d, DOCTOR_LIMITED,
			"mdadm --assemble --scan makes an array of what a tenant wrote",
			"list the node's arrays in mdadm.conf, then install "
			"deploy/host/mdadm/ringvol.conf in /etc/mdadm/mdadm.conf.d (docs/host.md)");
}

static void look_at_multipath(struct doctor *d, const struct doctor_node *node)
{
	doctor_begin(d, "multipath", false);
	static const char *const programs[] = {
		"/usr/sbin/multipathd", "/sbin/multipathd", "/etc/multipath.conf", NULL};
	static const char *const files[] = {"/etc/multipath.conf", "/etc/multipath/conf.d", NULL};
	if (!any_there(node, programs))
		doctor_add(d, DOCTOR_OK, "not on this node", "");
	else if (ask_each(node, files, doctor_conf_multipath) == DOCTOR_CONF_TAKES)
		doctor_add(d, DOCTOR_LIMITED, "blacklist_exceptions takes devices of volumes",
			"take loop, ublkb and dm devices out of blacklist_exceptions");
	else if (there(node, "/etc/multipath/conf.d/ringvol.conf"))
		doctor_add(d, DOCTOR_OK, "its blacklist has our devices", "");
	else
		doctor_add(d, DOCTOR_OK, "by default it takes SCSI, DASD and NVMe disks alone", "");
}

/* The kernel learns of a btrfs from udev's rule, or from `btrfs device scan`. */
static void look_at_btrfs(struct doctor *d, const struct doctor_node *node, enum udev udev)
{
	doctor_begin(d, "btrfs", false);
	static const char found[] = "no rule shows volumes to the kernel's btrfs";
	if (!there(node, "/sys/fs/btrfs") && !there(node, "/dev/btrfs-control"))
		doctor_add(d, DOCTOR_OK, "the kernel has not loaded it", "");
	else if (udev == UDEV_KEPT || udev == UDEV_NONE)
		doctor_add(d, DOCTOR_OK, found, "");
	else if (udev == UDEV_UNSEEN)
		doctor_add(d, DOCTOR_UNKNOWN, unseen, ask_the_node);
	else
		doctor_add(d, DOCTOR_LIMITED,
			"udev shows the kernel each btrfs that a tenant wrote",
			"install the rules as for udev; then btrfs device scan --forget DEVICE");
}

void doctor_node_look(struct doctor *d, const struct doctor_node *node)
{
	enum udev udev = look_at_udev(d, node);
	look_at_btrfs(d, node, udev);
	if (node->own) {
		look_at_lvm(d, node);
		look_at_md(d, node);
		look_at_multipath(d, node);
		return;
	}
	static const char *const checks[] = {"lvm", "md", "multipath"};
	for (unsigned i = 0; i < sizeof(checks) / sizeof(checks[0]); i++) {
		doctor_begin(d, checks[i], false);
		doctor_add(d, DOCTOR_UNKNOWN, unseen, ask_the_node);
	}
}

/* ---- this machine ---- */

bool doctor_on_the_node(void)
{
	static const ino_t first_pid_namespace = 0xEFFFFFFC; /* include/linux/proc_ns.h, ABI */
	struct stat ns, root, first;
	if (stat("/proc/self/ns/pid", &ns) < 0 || ns.st_ino != first_pid_namespace ||
		stat("/", &root) < 0)
		return false;
	/* Without the right to look at the first process, namespaces are all that tells. */
	if (stat("/proc/1/root", &first) < 0)
		return access("/run/systemd/system", F_OK) == 0;
	return first.st_dev == root.st_dev && first.st_ino == root.st_ino;
}

static uint64_t diskseq_of(const struct device *dev)
{
	char path[64], text[32];
	snprintf(
		path, sizeof(path), "/sys/dev/block/%u:%u/diskseq", dev->dev.major, dev->dev.minor);
	return fd_read_file(AT_FDCWD, path, text, sizeof(text)) > 0 ? strtoull(text, NULL, 10) : 0;
}

static void look_at_node(struct doctor *d)
{
	struct doctor_node node = {.root = "", .own = doctor_on_the_node()};
	struct devices devices = {0};
	devices_scan(&devices); /* those that were found will do */
	uint64_t *seqs = calloc(devices.count + 1, sizeof(*seqs));
	for (size_t i = 0; seqs != NULL && i < devices.count; i++) {
		uint64_t seq = diskseq_of(&devices.at[i]);
		if (seq != 0)
			seqs[node.count++] = seq;
	}
	node.diskseqs = seqs;
	doctor_node_look(d, &node);
	free(seqs);
	devices_free(&devices);
}

const struct doctor_check doctor_node_checks[] = {
	{"node", false, look_at_node},
	{NULL},
};
