/* SPDX-License-Identifier: Apache-2.0 */
/* boot_mark.c: a mark counts for its text, and for this run of the kernel only. */
#include "blockio/boot_mark.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/xattr.h>
#include <unistd.h>

Test(boot_mark, this_boot)
{
	char path[] = "/tmp/test-boot-mark-XXXXXX";
	int fd = mkostemp(path, O_CLOEXEC);
	cr_assert(fd >= 0);
	unlink(path);
	struct boot_mark mark;
	cr_expect(!boot_mark_get(fd, BOOT_MARK_WRITER, &mark));
	cr_expect_eq(boot_mark_remove(fd, BOOT_MARK_WRITER), 0, "none is no error");

	cr_assert_eq(boot_mark_set(fd, BOOT_MARK_WRITER, "/a/path"), 0);
	cr_assert(boot_mark_get(fd, BOOT_MARK_WRITER, &mark));
	cr_expect(boot_mark_says(&mark, "/a/path"));
	cr_expect(!boot_mark_says(&mark, "/a/path/"));
	cr_expect(!boot_mark_get(fd, BOOT_MARK_FROZEN, NULL), "they are told apart");

	/* Another kernel's: only its id differs. */
	char value[256];
	ssize_t len = fgetxattr(fd, BOOT_MARK_WRITER, value, sizeof(value));
	cr_assert(len > 0);
	value[0] = value[0] == '0' ? '1' : '0';
	cr_assert_eq(fsetxattr(fd, BOOT_MARK_WRITER, value, (size_t)len, 0), 0);
	cr_expect(!boot_mark_get(fd, BOOT_MARK_WRITER, &mark));
	cr_assert_eq(fsetxattr(fd, BOOT_MARK_WRITER, value, (size_t)len - 1, 0), 0);
	cr_expect(!boot_mark_get(fd, BOOT_MARK_WRITER, &mark), "cut short");

	cr_assert_eq(boot_mark_set(fd, BOOT_MARK_WRITER, "/b"), 0, "over an old one");
	cr_assert(boot_mark_get(fd, BOOT_MARK_WRITER, &mark));
	cr_expect(boot_mark_says(&mark, "/b"));
	cr_expect_eq(boot_mark_remove(fd, BOOT_MARK_WRITER), 0);
	cr_expect(!boot_mark_get(fd, BOOT_MARK_WRITER, NULL));
	close(fd);
}
