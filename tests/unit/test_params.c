/* SPDX-License-Identifier: Apache-2.0 */
/* StorageClass parameters: defaults, each key's values, and what is refused by name. And the keys
 * of encrypted volumes, which a request brings. */
#include "base/secret.h"
#include "csi/key.h"
#include "csi/messages.h"
#include "csi/params.h"

#include <criterion/criterion.h>

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
	add(&p, "freeze", "true");
	cr_expect_lt(csi_params_check_none(p.list, p.n, &err), 0);
	cr_expect_eq(err.code, ERR_INVALID);
	cr_expect_not_null(strstr(err.message, "freeze"));
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
	struct record rec = {.name = "plain"};
	struct err err = {0};
	cr_assert_eq(csi_key_take(NULL, 0, &secret), 0);
	cr_expect_null(secret);
	cr_expect_eq(csi_key_check(&rec, NULL, 0, "node-stage", &err), 0);
	rec.encryption = RECORD_LUKS2;
	cr_expect_lt(csi_key_check(&rec, NULL, 0, "node-stage", &err), 0);
	cr_expect_eq(err.code, ERR_INVALID);
	cr_expect_not_null(strstr(err.message, "csi.storage.k8s.io/node-stage-secret-name"));
	add(&p, "key", empty);
	cr_expect_lt(csi_key_check(&rec, p.list, p.n, "node-stage", &err), 0);
	cr_assert_eq(csi_key_take(p.list, p.n, &secret), 0);
	cr_expect_null(secret);
}
