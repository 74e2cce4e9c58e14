/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a tenant may write on an image is read by root: fsimg_probe_fd() on bytes placed where the
 * superblocks are. The first byte chooses a place (and so a file system) and the size of the image.
 */
#include "fuzz.h"

#include "blockio/fsimg.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void check(const struct fsimg_probe *p)
{
	must(strnlen(p->found, sizeof(p->found)) < sizeof(p->found));
	must(p->type < FSIMG_TYPES);
	must(p->type == FSIMG_NONE ||
		(!p->ambivalent && strcmp(p->found, fsimg_name(p->type)) == 0));
	must(!p->dirty || p->type != FSIMG_XFS); /* its mount tells */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	static const off_t places[] = {1024, 0, 64 * 1024, 0x1b0};
	static const off_t sizes[] = {0, 1 << 20, 16 << 20, 1LL << 40};
	if (len == 0)
		return 0;
	int fd = memfd_create("image", MFD_CLOEXEC);
	must(fd >= 0);
	must(ftruncate(fd, sizes[data[0] >> 2 & 3]) == 0);
	if (len > 1)
		must(pwrite(fd, data + 1, len - 1, places[data[0] & 3]) == (ssize_t)(len - 1));
	struct fsimg_probe probe = {0};
	if (fsimg_probe_fd(fd, &probe) == 0)
		check(&probe);
	close(fd);
	return 0;
}
