/* SPDX-License-Identifier: Apache-2.0 */
/* The attribute's value: the kernel's boot id, then the first bytes of the text's SHA-256. A mark
 * of another boot or another length is none. */
#include "blockio/boot_mark.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <sha256.h>
#include <string.h>
#include <sys/xattr.h>

enum { BOOT_ID_BYTES = 36 };

struct value {
	char boot_id[BOOT_ID_BYTES];
	struct boot_mark mark;
};

static int read_boot_id(char ret_id[BOOT_ID_BYTES])
{
	_cleanup_fd_ int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	ssize_t len = read(fd, ret_id, BOOT_ID_BYTES);
	return len == BOOT_ID_BYTES ? 0 : len < 0 ? -errno : -EBADMSG;
}

static void digest_text(const char *text, struct boot_mark *ret)
{
	uint8_t digest[SHA256_DIGEST_LENGTH];
	SHA2_CTX ctx;
	SHA256Init(&ctx);
	SHA256Update(&ctx, (const uint8_t *)text, strlen(text));
	SHA256Final(digest, &ctx);
	memcpy(ret->text, digest, sizeof(ret->text));
}

int boot_mark_set(int fd, const char *name, const char *text)
{
	struct value value;
	int r = read_boot_id(value.boot_id);
	if (r < 0)
		return r;
	digest_text(text, &value.mark);
	return fsetxattr(fd, name, &value, sizeof(value), 0) < 0 ? -errno : 0;
}

bool boot_mark_get(int fd, const char *name, struct boot_mark *ret)
{
	struct value value;
	char now[BOOT_ID_BYTES];
	if (fgetxattr(fd, name, &value, sizeof(value)) != sizeof(value) || read_boot_id(now) < 0 ||
		memcmp(now, value.boot_id, sizeof(now)) != 0)
		return false;
	if (ret != NULL)
		*ret = value.mark;
	return true;
}

bool boot_mark_says(const struct boot_mark *mark, const char *text)
{
	struct boot_mark wanted;
	digest_text(text, &wanted);
	return memcmp(mark, &wanted, sizeof(wanted)) == 0;
}

int boot_mark_remove(int fd, const char *name)
{
	return fremovexattr(fd, name) < 0 && errno != ENODATA ? -errno : 0;
}
