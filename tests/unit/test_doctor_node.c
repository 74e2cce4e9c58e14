/* SPDX-License-Identifier: Apache-2.0 */
/* What `ringvol doctor` says of udev, LVM, md, multipath and btrfs, over a directory that stands
 * for a node's root. */
#include "tools/doctor_node.h"
#include "tools/doctor_node_conf.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[] = "/tmp/ringvol-doctor-XXXXXX";
static struct doctor d;

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
	(void)st, (void)flag, (void)ftw;
	return remove(path);
}

static void setup(void)
{
	strcpy(root, "/tmp/ringvol-doctor-XXXXXX");
	cr_assert_not_null(mkdtemp(root));
	d = (struct doctor){.args.arena = arena_new(0)};
	cr_assert_not_null(d.args.arena);
}

static void teardown(void)
{
	nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	free(d.findings);
	arena_unref(d.args.arena);
}

TestSuite(doctor_node, .init = setup, .fini = teardown);

/* Makes a file with its directories. */
static void put(const char *path, const char *text)
{
	char full[256];
	snprintf(full, sizeof(full), "%s%s", root, path);
	for (char *at = strchr(full + strlen(root) + 1, '/'); at != NULL;
		at = strchr(at + 1, '/')) {
		*at = '\0';
		cr_assert(mkdir(full, 0755) == 0 || errno == EEXIST);
		*at = '/';
	}
	FILE *file = fopen(full, "w");
	cr_assert_not_null(file, "%s", full);
	fputs(text, file);
	fclose(file);
}

static void look(bool own, const uint64_t *seqs, size_t count)
{
	struct doctor_node node = {root, own, seqs, count};
	d.count = 0;
	doctor_node_look(&d, &node);
	cr_assert_eq(d.count, 5);
}

static void says(
	const char *check, enum doctor_verdict verdict, const char *found, const char *remedy)
{
	for (size_t i = 0; i < d.count; i++) {
		const struct doctor_finding *f = &d.findings[i];
		if (strcmp(f->check, check) != 0)
			continue;
		cr_assert_eq(f->verdict, verdict, "%s: %s", check, f->found);
		cr_assert_not_null(strstr(f->found, found), "%s: %s", check, f->found);
		cr_assert_not_null(strstr(f->remedy, remedy), "%s: %s", check, f->remedy);
		cr_assert_eq(f->remedy[0] == '\0', verdict == DOCTOR_OK);
		cr_assert_not(f->needed);
		return;
	}
	cr_assert_fail("no row for %s", check);
}

Test(doctor_node, nothing_on_the_node)
{
	look(true, NULL, 0);
	says("udev", DOCTOR_OK, "not on this node", "");
	says("btrfs", DOCTOR_OK, "not loaded", "");
	says("lvm", DOCTOR_OK, "not on this node", "");
	says("md", DOCTOR_OK, "not on this node", "");
	says("multipath", DOCTOR_OK, "not on this node", "");
}

static void a_node_with_all(void)
{
	put("/run/udev/control", "");
	put("/dev/btrfs-control", "");
	put("/usr/sbin/lvm", "");
	put("/usr/sbin/mdadm", "");
	put("/usr/sbin/multipathd", "");
}

Test(doctor_node, nothing_of_ours_installed)
{
	a_node_with_all();
	look(true, NULL, 0);
	says("udev", DOCTOR_LIMITED, "no 10-ringvol.rules", "/etc/udev/rules.d");
	says("btrfs", DOCTOR_LIMITED, "udev shows", "forget");
	says("lvm", DOCTOR_LIMITED, "physical volume", "/etc/lvm/lvmlocal.conf");
	says("md", DOCTOR_LIMITED, "assemble", "/etc/mdadm/mdadm.conf.d");
	says("multipath", DOCTOR_OK, "by default", "");
}

Test(doctor_node, all_installed)
{
	a_node_with_all();
	put("/usr/lib/udev/rules.d/10-ringvol.rules", "");
	look(true, NULL, 0);
	says("udev", DOCTOR_LIMITED, "no 62-ringvol.rules", "62-ringvol.rules");
	put("/etc/udev/rules.d/62-ringvol.rules", "");
	put("/etc/lvm/lvmlocal.conf", "devices {\n\tglobal_filter = [ \"r|^/dev/loop[0-9]|\", "
				      "\"r|^/dev/ublkb|\", \"r|^/dev/mapper/ringvol-|\" ]\n}\n");
	put("/etc/mdadm/mdadm.conf",
		"DEVICE partitions\nHOMEHOST <system>\nARRAY /dev/md0 UUID=1:2:3:4\n");
	put("/etc/mdadm/mdadm.conf.d/ringvol.conf", "AUTO -all\n");
	put("/etc/multipath/conf.d/ringvol.conf", "");
	look(true, NULL, 0);
	says("udev", DOCTOR_OK, "leave volumes alone", "");
	says("btrfs", DOCTOR_OK, "no rule", "");
	says("lvm", DOCTOR_OK, "global_filter", "");
	says("md", DOCTOR_OK, "has a line for", "");
	says("multipath", DOCTOR_OK, "our devices", "");
}

/* The rules are there, and yet a device was probed: before they were. */
Test(doctor_node, a_device_that_was_probed)
{
	const uint64_t seqs[] = {7, 12};
	a_node_with_all();
	put("/etc/udev/rules.d/10-ringvol.rules", "");
	put("/etc/udev/rules.d/62-ringvol.rules", "");
	put("/dev/disk/by-diskseq/12", "");
	look(true, seqs, 2);
	says("udev", DOCTOR_LIMITED, "by-diskseq/12", "udevadm trigger");
	look(false, seqs, 2);
	says("udev", DOCTOR_LIMITED, "by-diskseq/12", "udevadm trigger");
	look(true, seqs, 1);
	says("udev", DOCTOR_OK, "leave volumes alone", "");
}

/* A container has /dev of the node, and an /etc that is its own. */
Test(doctor_node, from_a_container)
{
	const uint64_t seqs[] = {7};
	put("/dev/btrfs-control", "");
	look(false, NULL, 0);
	says("udev", DOCTOR_OK, "not on this node", "");
	put("/dev/disk/by-diskseq/3", "");
	look(false, NULL, 0);
	says("udev", DOCTOR_UNKNOWN, "cannot be seen", "on the node");
	says("btrfs", DOCTOR_UNKNOWN, "cannot be seen", "on the node");
	says("lvm", DOCTOR_UNKNOWN, "cannot be seen", "on the node");
	says("md", DOCTOR_UNKNOWN, "cannot be seen", "on the node");
	says("multipath", DOCTOR_UNKNOWN, "cannot be seen", "on the node");
	look(false, seqs, 1);
	says("udev", DOCTOR_OK, "none of the 1 devices", "");
	put("/dev/disk/by-diskseq/7", "");
	look(false, seqs, 1);
	says("udev", DOCTOR_LIMITED, "by-diskseq/7", "deploy/host/udev");
}

Test(doctor_node, lvm_with_a_list_of_devices)
{
	a_node_with_all();
	put("/etc/lvm/lvm.conf", "devices {\n\tuse_devicesfile = 1\n}\n");
	look(true, NULL, 0);
	says("lvm", DOCTOR_LIMITED, "physical volume", "lvmlocal.conf");
	put("/etc/lvm/devices/system.devices", "");
	look(true, NULL, 0);
	says("lvm", DOCTOR_OK, "list", "");
}

Test(doctor_node, multipath_with_exceptions)
{
	a_node_with_all();
	put("/etc/multipath.conf", "blacklist_exceptions {\n\tdevnode \"^loop\"\n}\n");
	look(true, NULL, 0);
	says("multipath", DOCTOR_LIMITED, "blacklist_exceptions", "loop");
}

/* ---- the configuration languages ---- */

static void conf(enum doctor_conf (*ask)(char *), const char *text, enum doctor_conf want)
{
	char copy[512];
	snprintf(copy, sizeof(copy), "%s", text);
	cr_assert_eq(ask(copy), want, "%s", text);
}

Test(doctor_node_conf, lvm)
{
	enum doctor_conf (*ask)(char *) = doctor_conf_lvm_filter;
	conf(ask, "", DOCTOR_CONF_SILENT);
	conf(ask, "# global_filter = [ \"r|.*|\" ]", DOCTOR_CONF_SILENT);
	conf(ask, "my_global_filter = [ \"r|.*|\" ]", DOCTOR_CONF_SILENT);
	conf(ask, "global_filter = [ \"r|.*|\" ]", DOCTOR_CONF_LEAVES);
	conf(ask, "global_filter=\"r|.*|\"", DOCTOR_CONF_LEAVES);
	conf(ask, "global_filter = [ \"a|^/dev/sda|\", \"r|.*|\" ]", DOCTOR_CONF_LEAVES);
	/* The first that matches decides. */
	conf(ask, "global_filter = [ \"a|.*|\", \"r|loop|\" ]", DOCTOR_CONF_TAKES);
	/* One kind is left out. */
	conf(ask, "global_filter = [ \"r|loop|\", \"r|ringvol|\" ]", DOCTOR_CONF_TAKES);
	conf(ask, "global_filter = [ \"r/loop/\", \"r(ublk)\", \"r[ringvol]\" ]",
		DOCTOR_CONF_LEAVES);
	/* Not closed, too long, no delimiter at the end, no such expression. */
	conf(ask, "global_filter = [ \"r|.*|", DOCTOR_CONF_TAKES);
	conf(ask, "global_filter = [ \"r|.*\" ]", DOCTOR_CONF_TAKES);
	conf(ask, "global_filter = [ \"r|(|\" ]", DOCTOR_CONF_TAKES);
	conf(ask, "global_filter", DOCTOR_CONF_SILENT);
	ask = doctor_conf_lvm_devices_file;
	conf(ask, "use_devicesfile = 1", DOCTOR_CONF_LEAVES);
	conf(ask, "use_devicesfile=0", DOCTOR_CONF_TAKES);
	conf(ask, "use_devicesfile", DOCTOR_CONF_SILENT);
}

Test(doctor_node_conf, md)
{
	enum doctor_conf (*ask)(char *) = doctor_conf_md;
	conf(ask, "HOMEHOST <system>\nMAILADDR root\n", DOCTOR_CONF_SILENT);
	conf(ask, "AUTO -all", DOCTOR_CONF_LEAVES);
	conf(ask, "auto +imsm -all", DOCTOR_CONF_TAKES);
	conf(ask, "AUTO\n +1.x -all", DOCTOR_CONF_TAKES);
	conf(ask, "AUTO homehost -all", DOCTOR_CONF_TAKES);
	conf(ask, "# AUTO -all", DOCTOR_CONF_SILENT);
	conf(ask, "DEVICE partitions containers", DOCTOR_CONF_SILENT);
	conf(ask, "DEVICE /dev/sd* /dev/nvme*", DOCTOR_CONF_LEAVES);
	conf(ask, "DEV /dev/sd*\nDEVICE /dev/loop*", DOCTOR_CONF_SILENT);
	conf(ask, "DEVICE /dev/sd*\nAUTO +1.x -all", DOCTOR_CONF_LEAVES);
	conf(ask, "DEVICE partitions\nAUTO -all", DOCTOR_CONF_LEAVES);
}

Test(doctor_node_conf, multipath)
{
	enum doctor_conf (*ask)(char *) = doctor_conf_multipath;
	conf(ask, "blacklist {\n devnode \".*\"\n}", DOCTOR_CONF_SILENT);
	conf(ask, "blacklist_exceptions {\n devnode \"^sd\"\n devnode \"ublk\"\n}",
		DOCTOR_CONF_TAKES);
	conf(ask, "blacklist_exceptions {\n devnode \"^sd\"\n}\ndevnode \"loop\"",
		DOCTOR_CONF_LEAVES);
	conf(ask, "blacklist_exceptions { devnode }", DOCTOR_CONF_LEAVES);
	conf(ask, "blacklist_exceptions { ", DOCTOR_CONF_SILENT);
}
