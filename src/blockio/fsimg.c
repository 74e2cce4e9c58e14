/* SPDX-License-Identifier: Apache-2.0 */
/* The file systems by name, size and identity. The rest is in fsimg_probe.c (reading what is
 * there), fsimg_tools.c (commands) and fsimg_options.c (what users may pass to them). */
#include "blockio/fsimg.h"

#include <errno.h>
#include <sha2.h>
#include <string.h>

static const struct {
	const char *name;
	uint64_t min_mib;
} types[FSIMG_TYPES] = {
	[FSIMG_NONE] = {"", 1},
	[FSIMG_EXT4] = {"ext4", 16},
	[FSIMG_XFS] = {"xfs", 300},
	[FSIMG_BTRFS] = {"btrfs", 256}, /* mkfs takes 109, but the kernel resizes none below */
};

const char *fsimg_name(enum fsimg_type type)
{
	return types[type].name;
}

int fsimg_parse_name(const char *name, enum fsimg_type *ret)
{
	for (enum fsimg_type type = FSIMG_EXT4; type < FSIMG_TYPES; type++)
		if (strcmp(name, types[type].name) == 0) {
			*ret = type;
			return 0;
		}
	return -EINVAL;
}

uint64_t fsimg_min_bytes(enum fsimg_type type)
{
	return types[type].min_mib << 20;
}

void fsimg_uuid_of(const char *volume_id, uint8_t ret_uuid[16])
{
	static const char domain[] = "ringvol file system uuid";
	uint8_t digest[SHA256_DIGEST_LENGTH];
	SHA2_CTX ctx;
	SHA256Init(&ctx);
	SHA256Update(&ctx, (const uint8_t *)domain, sizeof domain);
	SHA256Update(&ctx, (const uint8_t *)volume_id, strlen(volume_id));
	SHA256Final(digest, &ctx);
	memcpy(ret_uuid, digest, 16);
	ret_uuid[6] = (uint8_t)((ret_uuid[6] & 0x0f) | 0x80); /* version 8: made our own way */
	ret_uuid[8] = (uint8_t)((ret_uuid[8] & 0x3f) | 0x80); /* the RFC 9562 variant */
}
