/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernel is told when a file system is mounted with an SELinux label. The kernel's calls
 * are the test's own (the linker puts them there), as few machines run SELinux.
 */
#include "mount/mnt.h"

#include "base/fd.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

static char told[1024];
static bool selinux;

int __wrap_fsopen(const char *name, unsigned flags);
int __wrap_fsconfig(int fd, unsigned command, const char *key, const void *value, int aux);
int __wrap_fsmount(int fd, unsigned flags, unsigned attrs);
int __wrap_move_mount(int from, const char *from_path, int to, const char *to_path, unsigned flags);

int __wrap_fsopen(const char *name, unsigned flags)
{
	(void)name;
	(void)flags;
	return open("/dev/null", O_RDONLY | O_CLOEXEC);
}

int __wrap_fsconfig(int fd, unsigned command, const char *key, const void *value, int aux)
{
	(void)fd;
	(void)aux;
	size_t at = strlen(told);
	if (command == FSCONFIG_CMD_CREATE)
		snprintf(told + at, sizeof(told) - at, "create");
	else
		snprintf(told + at, sizeof(told) - at, "%s=%s;", key,
			value != NULL ? (const char *)value : "");
	if (selinux || strcmp(key != NULL ? key : "", "context") != 0)
		return 0;
	errno = EINVAL; /* from the file system, which no security module kept it from */
	return -1;
}

int __wrap_fsmount(int fd, unsigned flags, unsigned attrs)
{
	(void)flags;
	(void)attrs;
	return fcntl(fd, F_DUPFD_CLOEXEC, 0);
}

int __wrap_move_mount(int from, const char *from_path, int to, const char *to_path, unsigned flags)
{
	(void)from;
	(void)from_path;
	(void)to;
	(void)to_path;
	(void)flags;
	return 0;
}

static int mount_with(const char *label, const char *options, struct mnt_result *ret)
{
	static struct mnt_mount_req req;
	size_t len = sizeof(*ret);
	char dir[] = "/tmp/ringvol-label-XXXXXX";
	cr_assert_not_null(mkdtemp(dir));
	req = (struct mnt_mount_req){.type = FSIMG_BTRFS};
	strcpy(req.device, "/dev/loop0");
	strcpy(req.target, dir);
	strcpy(req.options, options);
	strcpy(req.label, label);
	told[0] = '\0';
	int r = mnt_calls[MNT_MOUNT](&req, sizeof(req), ret, &len);
	rmdir(dir);
	return r;
}

/* As it is: no quotes, and its commas are no end of an option. */
Test(mnt_label, goes_to_the_kernel_whole)
{
	struct mnt_result result;
	selinux = true;
	cr_assert_eq(mount_with("system_u:object_r:container_file_t:s0:c10,c25", "commit=5,noatime",
			     &result),
		0, "%s", result.why);
	cr_expect_str_eq(told,
		"source=/dev/loop0;commit=5;context=system_u:object_r:container_file_t:s0:c10,c25;create");
	/* Another one the next time it is staged; and none. */
	cr_assert_eq(mount_with("a:b:c", "", &result), 0);
	cr_expect_str_eq(told, "source=/dev/loop0;context=a:b:c;create");
	cr_assert_eq(mount_with("", "", &result), 0);
	cr_expect_str_eq(told, "source=/dev/loop0;create");
}

/* Nothing is mounted without the label that keeps other pods out. */
Test(mnt_label, is_refused_where_there_is_no_selinux)
{
	struct mnt_result result;
	selinux = false;
	cr_assert_eq(mount_with("a:b:c:s0", "", &result), -EINVAL);
	cr_expect_str_eq(told, "source=/dev/loop0;context=a:b:c:s0;");
	cr_expect_not_null(strstr(result.why, "SELinux is off on this node"), "%s", result.why);
}
