/* SPDX-License-Identifier: Apache-2.0 */
/* What `ringvol import` reads, without a driver. */
#include "base/fd.h"
#include "tools/import_source.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB ((uint64_t)1 << 20)

static char top[32];
static const volatile sig_atomic_t interrupted = 0;

__attribute__((format(printf, 1, 2))) static void sh(const char *fmt, ...)
{
	char command[512];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(command, sizeof(command), fmt, ap);
	va_end(ap);
	cr_assert_eq(system(command), 0, "%s", command);
}

static void begin(void)
{
	strcpy(top, "/tmp/ringvol-XXXXXX");
	cr_assert_not_null(mkdtemp(top));
	cr_assert_eq(chdir(top), 0);
	sh("mkdir to && truncate -s 1M to.img");
}

static void end(void)
{
	cr_assert_eq(chdir("/"), 0);
	sh("rm -r %s", top);
}

static struct import_source opened(const char *path, enum import_kind kind)
{
	struct import_source s;
	struct err err = {0};
	cr_assert_eq(import_source_open(&s, path, &err), 0, "%s", err.message);
	cr_assert_eq(s.kind, kind);
	return s;
}

static void write_all(struct import_source *s, const char *target, const char *want)
{
	struct err err = {0};
	int r = import_source_write(s, target, &interrupted, &err);
	cr_assert_eq(r < 0, want[0] != '\0', "%s", err.message);
	cr_assert_not_null(strstr(err.message, want), "%s", err.message);
	import_source_close(s);
}

/* An image that is cut short meanwhile becomes none, also where it has a hole by then. */
Test(import, an_image_that_becomes_shorter, .init = begin, .fini = end)
{
	static const char *const makes[] = {
		"dd if=/dev/urandom of=image bs=1M count=3 2>/dev/null", "truncate -s 3M image"};
	for (unsigned i = 0; i < 2; i++) {
		sh("rm -f image; %s", makes[i]);
		struct import_source s = opened("image", IMPORT_RAW);
		cr_assert_eq(s.need_bytes, 3 * MIB);
		sh("truncate -s 2M image");
		write_all(&s, "to.img", "has become shorter meanwhile");
	}
}

/* Names that tar would take for another host's, and options of its. */
Test(import, archives_of_odd_names, .init = begin, .fini = end)
{
	static const char *const names[] = {"host:a.tar", "-x.tar", "a b\n.tar.gz"};
	sh("mkdir from && echo bytes > from/file");
	for (unsigned i = 0; i < 3; i++) {
		sh("tar -C from -c%sf x . && mv -- x '%s'", i == 2 ? "z" : "", names[i]);
		struct import_source s = opened(names[i], IMPORT_ARCHIVE);
		write_all(&s, "to", "");
		sh("cmp from/file to/file && rm to/file");
	}
}

/* What was opened is read, whatever has the name by then; a link to a directory is that one. */
Test(import, a_name_that_becomes_another, .init = begin, .fini = end)
{
	sh("mkdir from other && dd if=/dev/urandom of=from/file bs=1M count=50 2>/dev/null && "
	   "touch other/secret && ln -s from link");
	struct import_source s = opened("link", IMPORT_TREE);
	cr_assert_gt(s.need_bytes, 60 * MIB, "%llu", (unsigned long long)s.need_bytes);
	sh("ln -sfn other link");
	write_all(&s, "to", "");
	sh("cmp from/file to/file && test ! -e to/secret && rm to/file");
	sh("tar -C from -cf a.tar . && tar -C other -cf b.tar .");
	s = opened("a.tar", IMPORT_ARCHIVE);
	sh("mv b.tar a.tar");
	write_all(&s, "to", "");
	sh("cmp from/file to/file && test ! -e to/secret");
}

/* Where nothing is published nothing is written. */
Test(import, a_target_that_is_none, .init = begin, .fini = end)
{
	struct err err = {0};
	sh("mkdir from && truncate -s 1M image && ln -s /proc link");
	struct import_source tree = opened("from", IMPORT_TREE), raw = opened("image", IMPORT_RAW);
	cr_assert_lt(import_source_check_target(&raw, "to.img", &err), 0);
	cr_assert_not_null(strstr(err.message, "is not seen from here"), "%s", err.message);
	cr_assert_lt(import_source_check_target(&raw, "nothing", &err), 0);
	cr_assert_lt(import_source_check_target(&tree, "to", &err), 0);
	cr_assert_lt(import_source_check_target(&tree, "link", &err), 0);
	cr_assert_eq(import_source_check_target(&tree, "/proc", &err), 0);
	import_source_close(&tree);
	import_source_close(&raw);
}
