/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pools that other versions wrote. The texts below are bytes that drivers of those versions made,
 * sum included: they never change. What a version before this one wrote is read, and written back
 * as the same bytes. What a later one may write is refused with the reason, and left as it is.
 */
#include "pool/grow.h"
#include "pool/index.h"
#include "pool_fixture.h"

#include <sha256.h>
#include <sys/xattr.h>

#define UUID      "01234567-89ab-4def-8123-456789abcdef"
#define VOLUME_ID "01234567.pvc-0a1b.0badcafe"

/* ringvol.pool, since 2026-11-20. */
static const char pool_file[] = "ringvol-pool 1\nuuid=" UUID "\n";

/* Records, as of 2026-11-20. */
static const char volume_first[] =
	"ringvol-record 1\nkind=volume\nname=pvc-0a1b\nrandom=0badcafe\nsize_bytes=67108864\n"
	"created_ns=1795183200123456789\nfs=ext4\nblock_size=4096\nthick=true\ndevice=1\n"
	"erase=zero\nsnapshot_freeze=true\nmkfs_options=-m 1\nsource=none\nshares_extents=false\n"
	"sum=365636b7013ab372\n";
static const char snapshot_first[] =
	"ringvol-record 1\nkind=snapshot\nname=snap/100%25\nrandom=89abcdef\nsize_bytes=67108864\n"
	"created_ns=1795183201000000000\nfs=ext4\nblock_size=4096\nthick=false\ndevice=0\n"
	"erase=none\nsnapshot_freeze=false\nsource=volume\nsource_id=" VOLUME_ID "\n"
	"shares_extents=true\nsum=4bc853e76ef8e4d6\n";
static const char clone_first[] =
	"ringvol-record 1\nkind=volume\nname=restored\nrandom=00000001\nsize_bytes=67108864\n"
	"created_ns=1795183202000000000\nfs=ext4\nblock_size=4096\nthick=false\ndevice=0\n"
	"erase=none\nsnapshot_freeze=false\nsource=snapshot\n"
	"source_id=01234567.=8f7c93f40d9b0ae2e6e37e3d4e0e0c06d0f6a1f2.89abcdef\n"
	"shares_extents=true\nfamily=" VOLUME_ID "\nsum=8983caacf39d6745\n";
/* allow_mode_change, since 2026-11-22. */
static const char volume_mode[] =
	"ringvol-record 1\nkind=volume\nname=pvc-0a1b\nrandom=0badcafe\nsize_bytes=67108864\n"
	"created_ns=1795183200123456789\nfs=ext4\nblock_size=4096\nthick=true\ndevice=1\n"
	"erase=zero\nsnapshot_freeze=true\nmkfs_options=-m 1\nsource=none\nshares_extents=false\n"
	"allow_mode_change=true\nsum=3d4c88d252f2a8c2\n";
/* encryption and unformatted, since 2026-11-23. */
static const char volume_luks2[] =
	"ringvol-record 1\nkind=volume\nname=pvc-0a1b\nrandom=0badcafe\nsize_bytes=67108864\n"
	"created_ns=1795183200123456789\nfs=ext4\nblock_size=4096\nthick=true\ndevice=1\n"
	"erase=zero\nsnapshot_freeze=true\nmkfs_options=-m 1\nsource=none\nshares_extents=false\n"
	"encryption=luks2\nsum=7cb0bf03d4383e3b\n";
static const char volume_unformatted[] =
	"ringvol-record 1\nkind=volume\nname=pvc-0a1b\nrandom=0badcafe\nsize_bytes=67108864\n"
	"created_ns=1795183200123456789\nfs=ext4\nblock_size=4096\nthick=true\ndevice=1\n"
	"erase=zero\nsnapshot_freeze=true\nmkfs_options=-m 1\nsource=none\nshares_extents=false\n"
	"encryption=luks2\nunformatted=true\nsum=1d06e5c2fd28c060\n";
/* attach, and the attribute beside the record, since 2026-11-26. */
static const char volume_remote[] =
	"ringvol-record 1\nkind=volume\nname=pvc-0a1b\nrandom=0badcafe\nsize_bytes=67108864\n"
	"created_ns=1795183200123456789\nfs=ext4\nblock_size=4096\nthick=true\ndevice=1\n"
	"erase=zero\nsnapshot_freeze=true\nmkfs_options=-m 1\nsource=none\nshares_extents=false\n"
	"attach=remote\nsum=8f6b2bd1afef9399\n";
static const char attachments[] =
	"ringvol-attachments 1\nnode=worker-1\nmode=5\nblock=true\nread_only=false\n"
	"node=worker-2\nmode=5\nblock=true\nread_only=false\n"
	"export=0f2e4d6c-8b0a-4192-a3b4-c5d6e7f80910\nkey=DHHC-1:00:c2VjcmV0:\nsum=d75964dce7aed4c5\n";
/* For two hours of 2026-11-22, and in no release: the claim in the text. */
static const char volume_claim_inside[] =
	"ringvol-record 1\nkind=volume\nname=pvc-0a1b\nrandom=0badcafe\nsize_bytes=67108864\n"
	"created_ns=1795183200123456789\nfs=ext4\nblock_size=4096\nthick=true\ndevice=1\n"
	"erase=zero\nsnapshot_freeze=true\nmkfs_options=-m 1\nsource=none\nshares_extents=false\n"
	"claim=shop/data-db-0\nsum=1760a6665e39966c\n";

static const char snapshot_key[] = "=13ab8cd362bc9f000d1d2c30f26a00d4659884e0";

static void put_file(struct fixture *f, const char *name, const char *text)
{
	char path[256];
	snprintf(path, sizeof(path), "%s/%s", f->path, name);
	_cleanup_fd_ int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	cr_assert_geq(fd, 0);
	cr_assert_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text));
}

/* claim: NULL: none. */
static void put_object(struct fixture *f, const char *name, const char *record, const char *claim)
{
	char path[256];
	snprintf(path, sizeof(path), "%s/%s", f->path, name);
	_cleanup_fd_ int fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	cr_assert_geq(fd, 0);
	cr_assert_eq(ftruncate(fd, 64 << 20), 0);
	cr_assert_eq(fsetxattr(fd, "trusted.ringvol", record, strlen(record), 0), 0);
	if (claim != NULL)
		cr_assert_eq(fsetxattr(fd, "trusted.ringvol.claim", claim, strlen(claim), 0), 0);
}

/* The directories that the first version made. Skips the test where there can be no pool. */
static void make(struct fixture *f, const char *file)
{
	fixture_make(f, FIXTURE_DIR, false);
	fixture_sh(
		"cd %s && rm -rf ./* && mkdir -m 700 volumes snapshots templates trash", f->path);
	put_file(f, "ringvol.pool", file);
}

static void open_it(struct fixture *f)
{
	fixture_open_ring(f, NULL);
	fixture_open_pools(f);
	while (!pool_answers(f->pool)) /* it takes its time on a busy machine */
		fixture_turn(f);
}

static void holds(struct fixture *f, const char *name, const char *record)
{
	char path[256], text[RECORD_BYTES_MAX + 1] = "";
	snprintf(path, sizeof(path), "%s/%s", f->path, name);
	cr_assert_geq(getxattr(path, "trusted.ringvol", text, RECORD_BYTES_MAX), 0, "%s", name);
	cr_assert_str_eq(text, record);
}

static void written_back_as_it_was(const struct pool_object *o, const char *record)
{
	char text[RECORD_BYTES_MAX];
	cr_assert(o != NULL && o->rec != NULL, "%s", o == NULL ? "not there" : o->why);
	cr_assert_gt(record_print(o->rec, text, sizeof(text)), 0);
	cr_assert_str_eq(text, record);
}

Test(formats, the_first_is_read)
{
	struct fixture f;
	make(&f, pool_file);
	char path[64];
	snprintf(path, sizeof(path), "snapshots/%s", snapshot_key);
	put_object(&f, "volumes/pvc-0a1b", volume_first, NULL);
	put_object(&f, "volumes/restored", clone_first, NULL);
	put_object(&f, path, snapshot_first, NULL);
	open_it(&f);
	cr_assert_eq(pool_state(f.pool), POOL_READY, "%s", pool_why(f.pool));
	cr_assert_str_eq(pool_uuid8(f.pool), "01234567");

	struct pool_object *v = NULL;
	struct err err = {0};
	cr_assert_eq(
		pools_find_id(f.pools, RECORD_VOLUME, VOLUME_ID, &v, &err), 0, "%s", err.message);
	written_back_as_it_was(v, volume_first);
	cr_assert_eq(v->rec->size_bytes, 64 << 20);
	cr_assert_eq(v->rec->fs, FSIMG_EXT4);
	cr_assert_eq(v->rec->erase, RECORD_ERASE_ZERO);
	cr_assert(v->rec->thick && v->rec->snapshot_freeze && v->rec->device == 1);
	cr_assert_not(v->rec->allow_mode_change);
	cr_assert_str_eq(v->rec->mkfs_options, "-m 1");
	cr_assert_str_eq(v->rec->claim, "");
	struct pool_object *s = pools_find_name(f.pools, RECORD_SNAPSHOT, "snap/100%");
	written_back_as_it_was(s, snapshot_first);
	cr_assert_str_eq(s->rec->source_id, VOLUME_ID);
	struct pool_object *c = pools_find_name(f.pools, RECORD_VOLUME, "restored");
	written_back_as_it_was(c, clone_first);
	cr_assert(v->shared && s->shared && c->shared);
	fixture_close(&f);
}

/* The image is larger than the volume. */
static void encrypted_is_read(const char *record, bool unformatted)
{
	struct fixture f;
	make(&f, pool_file);
	put_object(&f, "volumes/pvc-0a1b", record, NULL);
	open_it(&f);
	struct pool_object *v = pools_find_name(f.pools, RECORD_VOLUME, "pvc-0a1b");
	written_back_as_it_was(v, record);
	cr_assert_eq(v->rec->encryption, RECORD_LUKS2);
	cr_assert_eq(v->rec->unformatted, unformatted);
	cr_assert_eq(v->rec->size_bytes, 64 << 20);
	cr_assert_eq(v->image, POOL_IMAGE_TRUNCATED); /* it has no room for its header */
	fixture_close(&f);
}

Test(formats, an_encrypted_volume_is_read)
{
	encrypted_is_read(volume_luks2, false);
}

Test(formats, an_encrypted_volume_that_was_never_staged_is_read)
{
	encrypted_is_read(volume_unformatted, true);
}

Test(formats, a_change_of_mode_and_a_claim_apart_are_read)
{
	struct fixture f;
	make(&f, pool_file);
	put_object(&f, "volumes/pvc-0a1b", volume_mode, "shop/data-db-0");
	open_it(&f);
	struct pool_object *v = pools_find_name(f.pools, RECORD_VOLUME, "pvc-0a1b");
	written_back_as_it_was(v, volume_mode);
	cr_assert(v->rec->allow_mode_change);
	cr_assert_str_eq(v->rec->claim, "shop/data-db-0");
	fixture_close(&f);
}

Test(formats, attachments_are_read)
{
	struct fixture f;
	char path[256], text[ATTACHMENTS_BYTES_MAX];
	make(&f, pool_file);
	put_object(&f, "volumes/pvc-0a1b", volume_remote, NULL);
	snprintf(path, sizeof(path), "%s/volumes/pvc-0a1b", f.path);
	cr_assert_eq(setxattr(path, ATTACHMENTS_XATTR, attachments, strlen(attachments), 0), 0);
	open_it(&f);
	struct pool_object *v = pools_find_name(f.pools, RECORD_VOLUME, "pvc-0a1b");
	written_back_as_it_was(v, volume_remote);
	cr_assert_eq(v->rec->attach, RECORD_ATTACH_REMOTE);
	cr_assert_eq(v->attachments->count, 2);
	cr_assert_str_eq(attachments_find(v->attachments, "worker-2")->key, "DHHC-1:00:c2VjcmV0:");
	cr_assert_gt(attachments_print(v->attachments, text, sizeof(text)), 0);
	cr_assert_str_eq(text, attachments);
	fixture_close(&f);
}

/* An older driver may come back: what this one changes of an old record is read by it. */
Test(formats, a_grown_volume_of_the_first_has_no_new_keys)
{
	struct fixture f;
	struct pool_grow g;
	char path[256], text[RECORD_BYTES_MAX + 1] = "";
	make(&f, pool_file);
	put_object(&f, "volumes/restored", clone_first, NULL);
	open_it(&f);
	pool_grow_init(
		&g, &f.reactor, pools_find_name(f.pools, RECORD_VOLUME, "restored"), 65 << 20);
	cr_assert_eq(fixture_run(&f, &g.op), ERR_OK, "%s", g.op.err.message);
	snprintf(path, sizeof(path), "%s/volumes/restored", f.path);
	cr_assert_gt(getxattr(path, "trusted.ringvol", text, RECORD_BYTES_MAX), 0);
	char *size = strstr(text, "size_bytes=68157440\n");
	cr_assert_not_null(size);
	memcpy(size, "size_bytes=67108864\n", 20);
	cr_assert_eq(strncmp(text, clone_first, strlen(clone_first) - strlen("0123456789abcdef\n")),
		0, "%s", text);
	fixture_close(&f);
}

/* The trash of each version: with a record, without one, parked. */
Test(formats, the_trash_of_each_is_given_back)
{
	struct fixture f;
	make(&f, pool_file);
	put_object(&f, "trash/0123456789abcdef", volume_first, NULL);
	put_object(&f, "trash/123456789abcdef0", clone_first, NULL);
	put_object(&f, "trash/23456789abcdef01", volume_claim_inside, NULL);
	put_object(&f, "trash/new-3456789abcdef012", clone_first, NULL);
	put_file(&f, "trash/456789abcdef0123", "no record");
	put_file(&f, "trash/somebody-else's", "");
	open_it(&f);
	fixture_settle(&f);
	cr_assert_eq(fixture_count(&f, "trash"), 1);
	fixture_close(&f);
}

/* ---- what comes later ---- */

static void quarantined(const char *record, const char *why)
{
	struct fixture f;
	struct pool_object *v = NULL;
	struct err err = {0};
	make(&f, pool_file);
	put_object(&f, "volumes/pvc-0a1b", record, NULL);
	open_it(&f);
	cr_assert_eq(pool_state(f.pool), POOL_READY, "%s", pool_why(f.pool));
	cr_assert(pools_find_id(f.pools, RECORD_VOLUME, VOLUME_ID, &v, &err) < 0);
	cr_assert_eq(err.code, ERR_DATA_LOSS);
	cr_assert_not_null(strstr(err.message, why), "%s", err.message);
	/* Its name stays taken, and nobody deletes it. */
	struct pool_object *o = pools_find_name(f.pools, RECORD_VOLUME, "pvc-0a1b");
	struct record rec = fixture_volume("pvc-0a1b", 1 << 20);
	cr_assert_eq(fixture_build(&f, &rec, NULL, NULL), ERR_EXISTS);
	cr_assert_eq(fixture_remove(&f, o), ERR_DATA_LOSS);
	holds(&f, "volumes/pvc-0a1b", record);
	fixture_close(&f);
}

/* The first version's record with something else at its end or beginning, and a right sum. */
static const char *later(const char *head, const char *tail)
{
	static char text[RECORD_BYTES_MAX];
	char hex[SHA256_DIGEST_STRING_LENGTH];
	const char *body = volume_first + strlen("ringvol-record 1\n");
	int len = snprintf(text, sizeof(text), "%s%.*s%s", head,
		(int)(strlen(body) - strlen("sum=0123456789abcdef\n")), body, tail);
	SHA256Data((const uint8_t *)text, (size_t)len, hex);
	snprintf(text + len, sizeof(text) - (size_t)len, "sum=%.16s\n", hex);
	return text;
}

Test(formats, a_later_record_is_quarantined)
{
	const char *why = "its record is of a later version of ringvol";
	quarantined(later("ringvol-record 2\n", ""), why);
	quarantined(later("ringvol-record 1\n", "colour=red\n"), why);
	quarantined(volume_claim_inside, why);
	quarantined("ringvol-record 1\nand no more of it\n", "its record is damaged");
}

static void not_served(const char *file)
{
	struct fixture f;
	make(&f, file);
	put_object(&f, "volumes/pvc-0a1b", volume_first, NULL);
	open_it(&f);
	cr_assert_eq(pool_state(f.pool), POOL_SICK);
	cr_assert_not_null(strstr(pool_why(f.pool), "is damaged or of a later version"), "%s",
		pool_why(f.pool));
	cr_assert_eq(pools_find_name(f.pools, RECORD_VOLUME, "pvc-0a1b"), NULL);
	holds(&f, "volumes/pvc-0a1b", volume_first);
	fixture_close(&f);
}

Test(formats, a_later_pool_is_not_served)
{
	not_served("ringvol-pool 2\nuuid=" UUID "\n");
	not_served("ringvol-pool 1\nuuid=" UUID "\ncolour=red\n");
}
