/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters beside a pool, which may be raw or not able to do what they ask for, and beside a
 * volume that is there already. */
#include "backends/backend.h"
#include "csi/params.h"
#include "pool/private.h"
#include "pool/raw.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static struct pool_raw raw;
static const struct fs_features able = {.reflink = true,
	.direct_io = true,
	.fallocate = true,
	.discard = true,
	.dio_align = 512,
	.shared_dio_align = 4096};

static struct pool pool_of(struct fs_features features, bool is_raw)
{
	static char name[] = "fast";
	return (struct pool){.name = name,
		.life = POOL_SERVED,
		.features = features,
		.raw = is_raw ? &raw : NULL};
}

/* "": it is taken. */
static void ends(int r, const struct err *err, enum err_code code, const char *says)
{
	cr_expect_eq(err->code, says[0] == '\0' ? ERR_OK : code, "%s", err->message);
	cr_expect_eq(r < 0, says[0] != '\0', "%s", says);
	cr_expect(says[0] == '\0' ? err->message[0] == '\0' : strstr(err->message, says) != NULL,
		"'%s', not '%s'", err->message, says);
}

/* ---- what a pool decides ---- */

Test(params_pool, settle)
{
	static const struct {
		bool is_raw;
		struct csi_params params;
		const char *says;
		unsigned device, thick; /* afterwards */
	} table[] = {
		{false, {.device = BACKEND_LOOP}, "", BACKEND_LOOP, false},
		{false, {.device = BACKEND_UBLK, .device_given = true, .thick = true}, "",
			BACKEND_UBLK, true},
		{false, {.device = BACKEND_LOOP, .block_size = 512}, "", BACKEND_LOOP, false},
		{false, {.device = BACKEND_DISK, .device_given = true},
			"parameters: device disk is for pools on raw disks, and pool fast is in a directory",
			BACKEND_DISK, false},
		{true, {.device = BACKEND_LOOP}, "", BACKEND_DISK, true},
		{true, {.device = BACKEND_DISK, .device_given = true}, "", BACKEND_DISK, true},
		{true, {.device = BACKEND_LOOP, .device_given = true},
			"parameters: pool fast is on raw disks, whose volumes have device-mapper devices",
			BACKEND_LOOP, false},
		{true, {.thick = true, .thick_given = true}, "", BACKEND_DISK, true},
		{true, {.thick = false, .thick_given = true}, "", BACKEND_DISK, false},
		{true, {.erase = RECORD_ERASE_ZERO}, "", BACKEND_DISK, true},
		{true, {.erase = RECORD_ERASE_ZERO, .thick = true, .thick_given = true}, "",
			BACKEND_DISK, true},
		{true, {.erase = RECORD_ERASE_ZERO, .thick_given = true},
			"parameters: eraseOnDelete would overwrite nothing of a thin volume in pool fast",
			BACKEND_LOOP, false},
		{true, {.block_size = 4096}, "", BACKEND_DISK, true},
		{true, {.block_size = 512},
			"parameters: blockSize is 512, but pool fast is on raw disks, whose blocks of 4096",
			BACKEND_LOOP, false},
	};
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		const struct pool pool = pool_of(able, table[i].is_raw);
		struct csi_params params = table[i].params;
		struct err err = {0};
		int r = csi_params_settle(&params, &pool, &err);
		ends(r, &err, ERR_PRECONDITION, table[i].says);
		cr_expect_eq(params.device, table[i].device, "line %zu", i);
		cr_expect_eq(params.thick, table[i].thick, "line %zu", i);
	}
}

/* ---- what a pool cannot do ---- */

static int loop_check(const struct backend *backend, bool is_raw, struct err *err)
{
	(void)backend;
	return is_raw ? err_set(err, ERR_PRECONDITION, "no loop there") : 0;
}

static const struct backend loop = {.type = BACKEND_LOOP, .name = "loop", .check = loop_check};

Test(params_pool, check_pool)
{
	struct fs_features cow = able, plain = able, blocks = able, buffered = able;
	cow.nocow_lies = true;
	plain.fallocate = plain.discard = false;
	blocks.dio_align = 4096;
	buffered.direct_io = false;
	buffered.dio_align = 4096;
	const struct {
		struct csi_params params;
		struct fs_features features;
		bool is_raw;
		enum err_code code;
		const char *says;
	} table[] = {
		{{.thick = true, .erase = RECORD_ERASE_DISCARD}, able, false, ERR_OK, ""},
		{{.erase = RECORD_ERASE_NONE}, cow, false, ERR_OK, ""},
		{{.thick = true}, cow, false, ERR_INVALID,
			"parameters: provisioning thick cannot be had in pool fast, whose file system copies on write"},
		{{.thick = true}, plain, false, ERR_INVALID,
			"parameters: provisioning thick cannot be had in pool fast, whose file system has no fallocate"},
		{{.thick = false}, plain, false, ERR_OK, ""},
		{{.erase = RECORD_ERASE_ZERO}, cow, false, ERR_PRECONDITION,
			"eraseOnDelete would erase nothing in pool fast, whose file system copies on write"},
		{{.erase = RECORD_ERASE_DISCARD}, plain, false, ERR_PRECONDITION,
			"eraseOnDelete: discard would erase nothing in pool fast, whose disk takes no discards"},
		{{.erase = RECORD_ERASE_ZERO}, plain, false, ERR_OK, ""},
		{{.block_size = 512}, able, false, ERR_OK, ""},
		{{.block_size = 4096}, blocks, false, ERR_OK, ""},
		{{.block_size = 512}, blocks, false, ERR_INVALID,
			"parameters: blockSize 512 is less than the disk of pool fast takes, 4096"},
		{{.block_size = 512}, buffered, false, ERR_OK, ""},
		{{.block_size = 0}, blocks, false, ERR_OK, ""},
		{{.block_size = 0}, able, true, ERR_PRECONDITION, "no loop there"},
		{{.device = BACKEND_UBLK}, able, false, ERR_PRECONDITION,
			"volumes of this device type are switched off on this node (--ublkd off)"},
	};
	backend_add(&loop);
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		const struct pool pool = pool_of(table[i].features, false);
		struct csi_params params = table[i].params;
		struct err err = {0};
		int r = csi_params_check_pool(&params, &pool, table[i].is_raw, &err);
		ends(r, &err, table[i].code, table[i].says);
	}
	struct pool away = pool_of(able, false);
	struct csi_params params = {.device = BACKEND_LOOP};
	struct err err = {0};
	away.life = POOL_READ_ONLY;
	strcpy(away.why, "it is read-only");
	ends(csi_params_check_pool(&params, &away, false, &err), &err, ERR_UNAVAILABLE,
		"it is read-only");
	backend_remove(&loop);
}

/* ---- what is there already ---- */

static struct record made = {.kind = RECORD_VOLUME,
	.name = "v",
	.fs = FSIMG_XFS,
	.device = BACKEND_UBLK,
	.thick = true,
	.block_size = 4096,
	.erase = RECORD_ERASE_ZERO,
	.snapshot_freeze = true,
	.allow_mode_change = true,
	.encryption = RECORD_LUKS2,
	.attach = RECORD_ATTACH_REMOTE,
	.mkfs_options = "-i size=512",
	.limits = {10, 20, 30, 40}};

/* What it was made with. */
static struct csi_params as_made(void)
{
	return (struct csi_params){.pool = "fast",
		.pool_given = true,
		.fs = FSIMG_XFS,
		.fs_given = true,
		.device = BACKEND_UBLK,
		.thick = true,
		.block_size = 4096,
		.erase = RECORD_ERASE_ZERO,
		.snapshot_freeze = true,
		.allow_mode_change = true,
		.encryption = RECORD_LUKS2,
		.attach = RECORD_ATTACH_REMOTE,
		.mkfs_options = "-i size=512",
		.limits = {10, 20, 30, 40},
		.given = CSI_LIMITS | CSI_ERASE | CSI_SNAPSHOT_FREEZE};
}

static void compares(
	const struct csi_params *params, const struct csi_access *access, const char *says)
{
	struct pool pool = pool_of(able, false);
	const struct pool_object volume = {.pool = &pool, .rec = &made};
	struct err err = {0};
	ends(csi_params_compare(params, access, &volume, &err), &err, ERR_EXISTS, says);
}

static const struct csi_access mounted = {.fs = FSIMG_EXT4};

Test(params_pool, compare)
{
	static const struct csi_access as_block = {.block = true},
				       as_ext4 = {.fs = FSIMG_EXT4, .fs_given = true};
	struct csi_params params = as_made();
	compares(&params, &mounted, "");
	compares(&params, &as_block, "volume v exists as a mount volume");
	params.fs_given = false;
	params.mkfs_options = "";
	compares(&params, &as_ext4, "volume v exists with file system xfs, not ext4");
	compares(&params, &mounted, "volume v exists with another mkfsOptions");
	made.mkfs_options = "";
	params.block_size = 0; /* the pool's, whatever it was then */
	compares(&params, &mounted, "");
	params.fs = FSIMG_EXT4;
	compares(&params, &mounted, "volume v exists with file system xfs, not ext4");
	made.source = RECORD_SOURCE_SNAPSHOT; /* without a type it has its source's */
	compares(&params, &mounted, "");
	params.pool = "default";
	compares(&params, &mounted, "volume v exists in another pool, fast");
	params.pool_given = false; /* without a pool it is in its source's */
	compares(&params, &mounted, "");
	made.source = RECORD_SOURCE_NONE;
	params.fs = FSIMG_XFS;
	compares(&params, &mounted, "volume v exists in another pool, fast");
}

/* What could not be made is refused before it is compared. */
Test(params_pool, compare_with_nonsense)
{
	const struct csi_access as_ext4 = {.fs = FSIMG_EXT4, .fs_given = true};
	const struct csi_params params = as_made(); /* with options of xfs */
	struct pool pool = pool_of(able, false);
	const struct pool_object volume = {.pool = &pool, .rec = &made};
	struct err err = {0};
	ends(csi_params_compare(&params, &as_ext4, &volume, &err), &err, ERR_INVALID,
		"parameters: csi.storage.k8s.io/fstype is xfs, but volume_capability's fs_type is ext4");
}

Test(params_pool, compare_each)
{
	struct csi_params p = as_made();
#define OTHER(field, value, name)                                                                  \
	do {                                                                                       \
		p = as_made();                                                                     \
		p.field = (value);                                                                 \
		compares(&p, &mounted, "volume v exists with another " name);                      \
	} while (0)
	OTHER(device, BACKEND_LOOP, "device");
	OTHER(device, BACKEND_DISK, "device");
	OTHER(thick, false, "provisioning");
	OTHER(block_size, 512, "blockSize");
	OTHER(erase, RECORD_ERASE_NONE, "eraseOnDelete");
	OTHER(snapshot_freeze, false, "snapshotFreeze");
	OTHER(allow_mode_change, false, "allowVolumeModeChange");
	OTHER(encryption, RECORD_PLAIN, "encryption");
	OTHER(attach, RECORD_ATTACH_LOCAL, "attach");
	OTHER(mkfs_options, "", "mkfsOptions");
	OTHER(limits.read_iops, 11, "readIops");
	OTHER(limits.write_iops, 11, "writeIops");
	OTHER(limits.read_bandwidth, 11, "readBandwidth");
	OTHER(limits.write_bandwidth, 11, "writeBandwidth");
	/* A limit that is not given may be any; options mean nothing to a block volume. */
	p = as_made();
	p.limits = (struct io_limits){0};
	p.given = 0;
	compares(&p, &mounted, "");
	made.fs = FSIMG_NONE;
	p.mkfs_options = "-m 1";
	compares(&p, &(struct csi_access){.block = true}, "");
	compares(&p, &mounted, "volume v exists as a block volume");
}

/* Each is asked for by its own bit. */
Test(params_pool, compare_mutable)
{
	static const struct {
		unsigned bit;
		const char *key;
	} table[] = {{CSI_READ_IOPS, "readIops"}, {CSI_WRITE_IOPS, "writeIops"},
		{CSI_READ_BANDWIDTH, "readBandwidth"}, {CSI_WRITE_BANDWIDTH, "writeBandwidth"},
		{CSI_ERASE, "eraseOnDelete"}, {CSI_SNAPSHOT_FREEZE, "snapshotFreeze"}};
	const struct pool_object volume = {.rec = &made};
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		struct csi_params params = {.given = table[i].bit};
		struct err err = {0};
		char want[64];
		snprintf(want, sizeof(want), "volume v exists with another %s", table[i].key);
		ends(csi_params_compare_mutable(&params, &volume, &err), &err, ERR_EXISTS, want);
		params = as_made();
		params.given = table[i].bit;
		err_clear(&err);
		ends(csi_params_compare_mutable(&params, &volume, &err), &err, ERR_EXISTS, "");
	}
}
