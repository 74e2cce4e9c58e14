/* SPDX-License-Identifier: Apache-2.0 */
/* StorageClass parameters: defaults, each key's values, and what is refused by name. And the keys
 * of encrypted volumes, which a request brings. */
#include "base/secret.h"
#include "csi/key.h"
#include "csi/messages.h"
#include "csi/params.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

struct pairs {
	Csi__V1__StringPair pair[12], *list[12];
	size_t n;
};

static void add(struct pairs *p, const char *key, const char *value)
{
	csi__v1__string_pair__init(&p->pair[p->n]);
	p->pair[p->n].key = csi_bytes(key);
	p->pair[p->n].value = csi_bytes(value);
	p->list[p->n] = &p->pair[p->n];
	p->n++;
}

static int parse_one(const char *key, const char *value, struct csi_params *params, struct err *err)
{
	struct pairs p = {.n = 0};
	add(&p, key, value);
	return csi_params_parse(p.list, p.n, params, err);
}

Test(params, defaults)
{
	struct csi_params params;
	struct err err = {0};
	cr_assert_eq(csi_params_parse(NULL, 0, &params, &err), 0);
	cr_expect_str_eq(params.pool, "default");
	cr_expect_str_eq(params.mkfs_options, "");
	cr_expect(!params.pool_given && !params.thick && !params.fs_given);
	cr_expect(!params.snapshot_freeze && params.block_size == 0);
	cr_expect_eq(params.device, BACKEND_LOOP);
	cr_expect_eq(params.fs, FSIMG_EXT4);
	cr_expect_eq(params.erase, RECORD_ERASE_NONE);
	cr_expect_eq(params.encryption, RECORD_PLAIN);
	cr_expect_eq(params.attach, RECORD_ATTACH_LOCAL);
}

Test(params, all)
{
	struct pairs p = {.n = 0};
	struct csi_params params;
	struct err err = {0};
	add(&p, "pool", "fast");
	add(&p, "device", "ublk");
	add(&p, "provisioning", "thick");
	add(&p, "csi.storage.k8s.io/fstype", "xfs");
	add(&p, "mkfsOptions", "-i size=512");
	add(&p, "blockSize", "4096");
	add(&p, "eraseOnDelete", "zero");
	add(&p, "encryption", "luks2");
	add(&p, "attach", "remote");
	add(&p, "snapshotFreeze", "true");
	cr_assert_eq(csi_params_parse(p.list, p.n, &params, &err), 0, "%s", err.message);
	cr_expect_str_eq(params.pool, "fast");
	cr_expect_str_eq(params.mkfs_options, "-i size=512");
	cr_expect(params.pool_given && params.thick && params.fs_given && params.snapshot_freeze);
	cr_expect_eq(params.device, BACKEND_UBLK);
	cr_expect_eq(params.fs, FSIMG_XFS);
	cr_expect_eq(params.block_size, 4096);
	cr_expect_eq(params.erase, RECORD_ERASE_ZERO);
	cr_expect_eq(params.encryption, RECORD_LUKS2);
	cr_expect_eq(params.attach, RECORD_ATTACH_REMOTE);
}

Test(params, others_keys_are_ignored)
{
	struct csi_params params;
	struct err err = {0};
	cr_expect_eq(parse_one("csi.storage.k8s.io/pvc/name", "data-0", &params, &err), 0);
	cr_expect_eq(parse_one("csi.storage.k8s.io/fstype", "", &params, &err), 0);
	cr_expect_not(params.fs_given, "an empty type is none");
}

Test(params, refused)
{
	static const struct {
		const char *key, *value;
	} bad[] = {
		{"pool", ""},
		{"device", "nbd"},
		{"device", ""},
		{"provisioning", "Thick"},
		{"csi.storage.k8s.io/fstype", "ntfs"},
		{"blockSize", "1024"},
		{"blockSize", "0512"},
		{"eraseOnDelete", "true"},
		{"encryption", "luks"},
		{"attach", "yes"},
		{"snapshotFreeze", "yes"},
		{"snapshotFreeze", ""},
		{"Pool", "default"},
		{"csi.storage.k8s.i", "x"},
		{"", ""},
		{"size", "1Gi"},
	};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct csi_params params = {.pool = "untouched"};
		struct err err = {0};
		cr_expect_lt(parse_one(bad[i].key, bad[i].value, &params, &err), 0, "%s=%s",
			bad[i].key, bad[i].value);
		cr_expect_eq(err.code, ERR_INVALID);
		cr_expect_not_null(strstr(err.message, bad[i].key), "'%s' does not name %s",
			err.message, bad[i].key);
		cr_expect_str_eq(params.pool, "untouched");
	}
}

Test(params, long_values_are_not_shown)
{
	struct csi_params params;
	struct err err = {0};
	char value[RECORD_OPTIONS_MAX + 1];
	memset(value, 'x', sizeof(value) - 1);
	value[sizeof(value) - 1] = '\0';
	cr_expect_lt(parse_one("device", value, &params, &err), 0);
	cr_expect_null(strstr(err.message, "xxx"));
	err_clear(&err);
	cr_expect_lt(parse_one(value, "x", &params, &err), 0);
	cr_expect_null(strstr(err.message, "xxx"));
	err_clear(&err);
	cr_expect_lt(parse_one("mkfsOptions", value, &params, &err), 0);
	cr_expect_not_null(strstr(err.message, "mkfsOptions"));
}

/* What is at most as long as this is shown, and options may be one byte less than their room. */
Test(params, how_long_they_may_be)
{
	char value[RECORD_OPTIONS_MAX + 1], want[200];
	for (size_t len = 64; len <= 65; len++) {
		struct csi_params params;
		struct err err = {0};
		memset(value, 'x', len);
		value[len] = '\0';
		cr_expect_lt(parse_one("device", value, &params, &err), 0);
		snprintf(want, sizeof(want),
			len == 64 ? "parameters: device is '%s', but takes loop, ublk or disk"
				  : "parameters: device takes loop, ublk or disk",
			value);
		cr_expect_str_eq(err.message, want);
		err_clear(&err);
		cr_expect_lt(parse_one(value, "", &params, &err), 0);
		snprintf(want, sizeof(want),
			len == 64 ? "parameters: '%s' is not known"
				  : "parameters: a key of 65 bytes is not known",
			value);
		cr_expect_str_eq(err.message, want);
	}
	for (size_t len = RECORD_OPTIONS_MAX - 1; len <= RECORD_OPTIONS_MAX; len++) {
		struct csi_params params;
		struct err err = {0};
		memset(value, 'x', len);
		value[len] = '\0';
		int r = parse_one("mkfsOptions", value, &params, &err);
		cr_expect_eq(r == 0, len < RECORD_OPTIONS_MAX);
		cr_expect(r < 0 || strcmp(params.mkfs_options, value) == 0);
	}
}

/* A pool decides what was not given; what is given is, whatever it is. */
Test(params, which_are_given)
{
	static const struct {
		const char *key, *value;
		bool device, thick, pool, fs;
	} table[] = {
		{"device", "loop", true, false, false, false},
		{"device", "disk", true, false, false, false},
		{"provisioning", "thin", false, true, false, false},
		{"provisioning", "thick", false, true, false, false},
		{"pool", "default", false, false, true, false},
		{"csi.storage.k8s.io/fstype", "ext4", false, false, false, true},
		{"source", "debian", false, false, false, false},
		{"mkfsOptions", "", false, false, false, false},
		{"blockSize", "512", false, false, false, false},
		{"allowVolumeModeChange", "true", false, false, false, false},
		{"csi.storage.k8s.io/pv/name", "x", false, false, false, false},
	};
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		struct csi_params params;
		struct err err = {0};
		const char *key = table[i].key;
		cr_assert_eq(parse_one(key, table[i].value, &params, &err), 0, "%s", err.message);
		cr_expect_eq(params.device_given, table[i].device, "%s", key);
		cr_expect_eq(params.thick_given, table[i].thick, "%s", key);
		cr_expect_eq(params.pool_given, table[i].pool, "%s", key);
		cr_expect_eq(params.fs_given, table[i].fs, "%s", key);
		cr_expect_eq(params.allow_mode_change, strncmp(key, "allow", 5) == 0);
		cr_expect_str_eq(params.source, strcmp(key, "source") == 0 ? "debian" : "");
		cr_expect_eq(params.given, 0);
	}
}

/* ---- mutable ones ---- */

static int lay_one(const char *key, const char *value, struct csi_params *params, struct err *err)
{
	struct pairs p = {.n = 0};
	add(&p, key, value);
	return csi_params_parse_mutable(p.list, p.n, params, err);
}

Test(params, limits)
{
	static const struct {
		const char *key, *value;
		unsigned given;
		struct io_limits limits;
	} good[] = {
		{"iops", "1000", CSI_READ_IOPS | CSI_WRITE_IOPS, {1000, 1000, 0, 0}},
		{"iops", "5k", CSI_READ_IOPS | CSI_WRITE_IOPS, {5000, 5000, 0, 0}},
		{"readIops", "10", CSI_READ_IOPS, {10, 0, 0, 0}},
		{"writeIops", "1G", CSI_WRITE_IOPS, {0, 1000000000, 0, 0}},
		{"bandwidth", "100Mi", CSI_READ_BANDWIDTH | CSI_WRITE_BANDWIDTH,
			{0, 0, 100 << 20, 100 << 20}},
		{"readBandwidth", "50M", CSI_READ_BANDWIDTH, {0, 0, 50000000, 0}},
		{"readBandwidth", "65536", CSI_READ_BANDWIDTH, {0, 0, 65536, 0}},
		{"writeBandwidth", "1Pi", CSI_WRITE_BANDWIDTH, {0, 0, 0, UINT64_C(1) << 50}},
		{"writeBandwidth", "2Gi", CSI_WRITE_BANDWIDTH, {0, 0, 0, UINT64_C(2) << 30}},
		{"iops", "", CSI_READ_IOPS | CSI_WRITE_IOPS, {0}},
		{"iops", "0", CSI_READ_IOPS | CSI_WRITE_IOPS, {0}},
		{"writeBandwidth", "none", CSI_WRITE_BANDWIDTH, {0}},
	};
	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		struct csi_params params = {0};
		struct err err = {0};
		cr_assert_eq(lay_one(good[i].key, good[i].value, &params, &err), 0, "%s=%s: %s",
			good[i].key, good[i].value, err.message);
		cr_expect_eq(params.given, good[i].given, "%s", good[i].key);
		cr_expect(io_limits_equal(&params.limits, &good[i].limits), "%s=%s", good[i].key,
			good[i].value);
	}
}

/* A direction's own key goes before that of both, in whatever order they come. */
Test(params, limits_of_a_direction)
{
	for (unsigned order = 0; order < 2; order++) {
		struct pairs p = {.n = 0};
		struct csi_params params = {0};
		struct err err = {0};
		add(&p, order ? "iops" : "readIops", order ? "1000" : "200");
		add(&p, order ? "readIops" : "iops", order ? "200" : "1000");
		add(&p, "bandwidth", "1Mi");
		add(&p, "writeBandwidth", "none");
		cr_assert_eq(csi_params_parse_mutable(p.list, p.n, &params, &err), 0);
		cr_expect(io_limits_equal(
			&params.limits, &(struct io_limits){200, 1000, 1 << 20, 0}));
		cr_expect_eq(params.given, CSI_LIMITS);
	}
}

Test(params, what_is_not_given_stays)
{
	struct csi_params params = {0};
	struct io_limits limits = {1, 2, 3, 4};
	struct err err = {0};
	cr_assert_eq(lay_one("writeIops", "50", &params, &err), 0);
	csi_params_lay_limits(&params, &limits);
	cr_expect(io_limits_equal(&limits, &(struct io_limits){1, 50, 3, 4}));
	cr_assert_eq(lay_one("bandwidth", "none", &params, &err), 0);
	csi_params_lay_limits(&params, &limits);
	cr_expect(io_limits_equal(&limits, &(struct io_limits){1, 50, 0, 0}));
}

Test(params, mutable_ones_go_before_the_class)
{
	struct csi_params params;
	struct err err = {0};
	cr_assert_eq(parse_one("eraseOnDelete", "none", &params, &err), 0);
	cr_assert_eq(lay_one("eraseOnDelete", "zero", &params, &err), 0);
	cr_assert_eq(lay_one("snapshotFreeze", "true", &params, &err), 0);
	cr_expect(params.erase == RECORD_ERASE_ZERO && params.snapshot_freeze);
	cr_expect_eq(params.given, CSI_ERASE | CSI_SNAPSHOT_FREEZE);
}

Test(params, mutable_ones_that_are_refused)
{
	static const struct {
		const char *key, *value, *says;
	} bad[] = {
		{"iops", "9", "mutable_parameters: iops is '9'"},
		{"iops", "1001M", "mutable_parameters: iops is"},
		{"iops", "-1", "mutable_parameters: iops is"},
		{"iops", "1.5k", "mutable_parameters: iops is"},
		{"iops", "many", "mutable_parameters: iops is"},
		{"iops", "1000000000000000000000", "mutable_parameters: iops is"},
		{"bandwidth", "65535", "mutable_parameters: bandwidth is"},
		{"bandwidth", "2Pi", "mutable_parameters: bandwidth is"},
		{"bandwidth", "999999999999999999Pi", "mutable_parameters: bandwidth is"},
		{"bandwidth", "1mi", "mutable_parameters: bandwidth is"},
		{"bandwidth", "Mi", "mutable_parameters: bandwidth is"},
		{"bandwidth", "1 Mi", "mutable_parameters: bandwidth is"},
		{"eraseOnDelete", "burn", "mutable_parameters: eraseOnDelete is 'burn'"},
		{"snapshotFreeze", "1", "mutable_parameters: snapshotFreeze is"},
		{"pool", "fast", "mutable_parameters: pool cannot be changed later"},
		{"IOPS", "1000", "mutable_parameters: 'IOPS' is not known"},
		{"csi.storage.k8s.io/pvc/name", "x", "is not known"},
	};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct pairs p = {.n = 0};
		struct csi_params params = {.limits = {.read_iops = 77}};
		struct err err = {0};
		add(&p, "readIops", "1000");
		add(&p, bad[i].key, bad[i].value);
		cr_expect_lt(csi_params_parse_mutable(p.list, p.n, &params, &err), 0, "%s=%s",
			bad[i].key, bad[i].value);
		cr_expect_eq(err.code, ERR_INVALID);
		cr_expect_not_null(strstr(err.message, bad[i].says), "'%s'", err.message);
		cr_expect(params.limits.read_iops == 77 && params.given == 0, "all or nothing");
	}
	struct csi_params params;
	struct err err = {0};
	cr_expect_lt(parse_one("iops", "1000", &params, &err), 0);
	cr_expect_not_null(strstr(err.message, "VolumeAttributesClass"), "%s", err.message);
}

Test(params, choose_fs)
{
	struct csi_params params;
	struct csi_access access = {.fs = FSIMG_EXT4};
	enum fsimg_type fs;
	struct err err = {0};
	cr_assert_eq(csi_params_parse(NULL, 0, &params, &err), 0);
	cr_expect_eq(csi_params_choose_fs(&params, &access, FSIMG_NONE, &fs, &err), 0);
	cr_expect_eq(fs, FSIMG_EXT4, "the default");
	cr_expect_eq(csi_params_choose_fs(&params, &access, FSIMG_XFS, &fs, &err), 0);
	cr_expect_eq(fs, FSIMG_XFS, "the source's");
	access.fs_given = true;
	access.fs = FSIMG_BTRFS;
	cr_expect_eq(csi_params_choose_fs(&params, &access, FSIMG_XFS, &fs, &err), 0);
	cr_expect_eq(fs, FSIMG_BTRFS, "the capability's");
	cr_assert_eq(parse_one("csi.storage.k8s.io/fstype", "btrfs", &params, &err), 0);
	cr_expect_eq(csi_params_choose_fs(&params, &access, FSIMG_NONE, &fs, &err), 0);
	cr_assert_eq(parse_one("csi.storage.k8s.io/fstype", "xfs", &params, &err), 0);
	cr_expect_lt(csi_params_choose_fs(&params, &access, FSIMG_NONE, &fs, &err), 0);
	cr_expect_eq(err.code, ERR_INVALID, "they contradict each other");

	/* Options are checked against what is made; they mean nothing to a block volume. */
	err_clear(&err);
	access = (struct csi_access){.fs = FSIMG_EXT4};
	cr_assert_eq(parse_one("mkfsOptions", "-L /etc/passwd", &params, &err), 0);
	cr_expect_lt(csi_params_choose_fs(&params, &access, FSIMG_NONE, &fs, &err), 0);
	cr_expect_eq(err.code, ERR_INVALID);
	access = (struct csi_access){.block = true};
	err_clear(&err);
	cr_expect_eq(csi_params_choose_fs(&params, &access, FSIMG_NONE, &fs, &err), 0);
	cr_expect_eq(fs, FSIMG_NONE);
}

/* What is below an encryption does not read as zeros, whatever a class says. */
Test(params, an_encrypted_volume_is_not_zeroed)
{
	struct csi_params params;
	struct csi_access access = {.fs = FSIMG_EXT4};
	enum fsimg_type fs;
	struct err err = {0};
	cr_assert_eq(parse_one("mkfsOptions", "-E assume_storage_prezeroed=1", &params, &err), 0);
	cr_expect_eq(csi_params_choose_fs(&params, &access, FSIMG_NONE, &fs, &err), 0);
	params.encryption = RECORD_LUKS2;
	cr_expect_lt(csi_params_choose_fs(&params, &access, FSIMG_NONE, &fs, &err), 0);
	cr_expect_eq(err.code, ERR_INVALID);
}

Test(params, check_none)
{
	struct pairs p = {.n = 0};
	struct err err = {0};
	add(&p, "csi.storage.k8s.io/volumesnapshot/name", "s");
	cr_expect_eq(csi_params_check_none(p.list, p.n, &err), 0);
	/* Kubernetes' own tests of group snapshots write it there. */
	add(&p, "deletionPolicy", "Delete");
	add(&p, "deletionPolicy", "Retain");
	cr_expect_eq(csi_params_check_none(p.list, p.n, &err), 0);
	static const char *const wrong[][3] = {
		{"freeze", "true", "'freeze' is not known"},
		{"deletionPolicy", "retain", "a field of the class"},
		{"pool", "default", "pool belongs to a StorageClass"},
		{"snapshotFreeze", "true", "snapshotFreeze belongs to"},
	};
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct pairs q = {.n = 0};
		err_clear(&err);
		add(&q, wrong[i][0], wrong[i][1]);
		cr_expect_lt(csi_params_check_none(q.list, q.n, &err), 0);
		cr_expect_eq(err.code, ERR_INVALID);
		cr_expect_not_null(strstr(err.message, wrong[i][2]), "%s", err.message);
	}
}

/* What --extra-create-metadata says is for people: what is no name of Kubernetes is left out, and
 * nothing is refused for it. */
Test(params, claim)
{
	static const struct {
		const char *namespace, *name, *claim;
	} said[] = {
		{"shop", "data-db-0", "shop/data-db-0"},
		{"a", "0.a-b.c", "a/0.a-b.c"},
		{NULL, "data", ""},
		{"shop", NULL, ""},
		{"", "data", ""},
		{"shop", "", ""},
		{"Shop", "data", ""},
		{"my.shop", "data", ""},
		{"shop", "a\nlevel=error", ""},
		{"shop", "-a", ""},
		{"shop", "a.", ""},
		{"shop/x", "a", ""},
		{"a{", "a", ""},
		{"az", "09", "az/09"},
		{"a-0-z", "a.b", "a-0-z/a.b"},
		{"0:", "a", ""},
		{"a", "/", ""},
		{"a", "`a", ""},
		{"a-", "a", ""},
	};
	struct arena *arena = arena_new(0);
	char longest[255];
	for (size_t i = 0; i < sizeof(said) / sizeof(said[0]); i++) {
		struct pairs p = {.n = 0};
		if (said[i].namespace != NULL)
			add(&p, "csi.storage.k8s.io/pvc/namespace", said[i].namespace);
		add(&p, "csi.storage.k8s.io/pv/name", "pvc-1");
		if (said[i].name != NULL)
			add(&p, "csi.storage.k8s.io/pvc/name", said[i].name);
		cr_expect_str_eq(csi_params_claim(arena, p.list, p.n, "pvc"), said[i].claim);
		cr_expect_str_eq(csi_params_claim(arena, p.list, p.n, "volumesnapshot"), "");
	}
	for (size_t len = 63; len <= 64; len++) {
		struct pairs p = {.n = 0};
		memset(longest, 'n', len);
		longest[len] = '\0';
		add(&p, "csi.storage.k8s.io/pvc/namespace", longest);
		add(&p, "csi.storage.k8s.io/pvc/name", "a");
		cr_expect_eq(strlen(csi_params_claim(arena, p.list, p.n, "pvc")),
			len == 63 ? len + 2 : 0);
	}
	for (size_t len = 253; len <= 254; len++) {
		struct pairs p = {.n = 0};
		memset(longest, 'a', len);
		longest[len] = '\0';
		add(&p, "csi.storage.k8s.io/volumesnapshot/namespace", "n");
		add(&p, "csi.storage.k8s.io/volumesnapshot/name", longest);
		cr_expect_eq(strlen(csi_params_claim(arena, p.list, p.n, "volumesnapshot")),
			len == 253 ? 2 + len : 0);
	}
	arena_unref(arena);
}

/* ---- keys ---- */

Test(key, is_moved_out_of_the_request)
{
	char key[] = "correct horse", other[] = "of somebody else";
	struct pairs p = {.n = 0};
	struct secret *secret = NULL;
	add(&p, "key", key);
	add(&p, "other", other);
	cr_assert_eq(csi_key_take(p.list, p.n, &secret), 0);
	cr_assert_not_null(secret);
	cr_expect_eq(secret_len(secret), strlen("correct horse"));
	cr_expect_eq(memcmp(secret_bytes(secret), "correct horse", secret_len(secret)), 0);
	secret_free(secret);
	for (size_t i = 0; i < sizeof(key); i++)
		cr_expect_eq(key[i], '\0');
	for (size_t i = 0; i < sizeof(other); i++)
		cr_expect_eq(other[i], '\0', "nothing of a request's secrets stays");
}

Test(key, of_none)
{
	struct secret *secret = NULL;
	struct pairs p = {.n = 0};
	char empty[] = "";
	struct err err = {0};
	cr_assert_eq(csi_key_take(NULL, 0, &secret), 0);
	cr_expect_null(secret);
	cr_expect_lt(csi_key_check("a", NULL, 0, "node-stage", &err), 0);
	cr_expect_eq(err.code, ERR_INVALID);
	cr_expect_not_null(strstr(err.message, "csi.storage.k8s.io/node-stage-secret-name"));
	add(&p, "key", empty);
	cr_expect_lt(csi_key_check("a", p.list, p.n, "node-stage", &err), 0);
	cr_assert_eq(csi_key_take(p.list, p.n, &secret), 0);
	cr_expect_null(secret);
}
