/* SPDX-License-Identifier: Apache-2.0 */
/* What a process does with itself. */
#include "base/process.h"

#include <criterion/criterion.h>
#include <nghttp2/nghttp2.h>
#include <stdio.h>
#include <string.h>

/* How much of the mappings of this library is resident. */
static unsigned long resident_kib(const char *library)
{
	FILE *f = fopen("/proc/self/smaps", "r");
	char line[512];
	bool ours = false;
	unsigned long sum = 0, kib;
	cr_assert_not_null(f);
	while (fgets(line, sizeof(line), f) != NULL) {
		if (strchr(line, '-') != NULL && strchr(line, '-') < strchr(line, ' '))
			ours = strstr(line, library) != NULL;
		else if (ours && sscanf(line, "Rss: %lu kB", &kib) == 1)
			sum += kib;
	}
	fclose(f);
	return sum;
}

Test(process, text_goes_and_comes_back)
{
	char was[128];
	snprintf(was, sizeof(was), "%s", nghttp2_strerror(NGHTTP2_ERR_NOMEM));
	unsigned long before = resident_kib("libnghttp2");
	process_drop_text("libnghttp2");
	unsigned long after = resident_kib("libnghttp2");
	cr_expect_lt(after, before, "%lu KiB became %lu", before, after);
	cr_expect_str_eq(nghttp2_strerror(NGHTTP2_ERR_NOMEM), was);
	process_drop_text("libc.so");
	process_drop_text("no-such-library");
	cr_expect_gt(resident_kib("libc.so"), 0);
}
