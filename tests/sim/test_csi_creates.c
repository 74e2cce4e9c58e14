/* SPDX-License-Identifier: Apache-2.0 */
/* CreateVolume and CreateSnapshot: what is refused, in which words, and what is in the record of
 * what is made. */
#include "answers.h"

#include "pool/index.h"
#include "pool/private.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAIRS_MAX = 8 };

/* What a class says: pairs of a key and a value, with blanks between. */
struct class
{
	const char *parameters, *mutable; /* NULL: nothing */
};

static struct words {
	char text[400];
	Csi__V1__StringPair pairs[PAIRS_MAX], *list[PAIRS_MAX];
} fixed, changing;

static size_t take_words(struct words *to, const char *from)
{
	size_t n = 0;
	char *rest = NULL;
	snprintf(to->text, sizeof(to->text), "%s", from != NULL ? from : "");
	for (char *key = strtok_r(to->text, " ", &rest); key != NULL;
		key = strtok_r(NULL, " ", &rest)) {
		const char *value = strtok_r(NULL, " ", &rest);
		cr_assert(n < PAIRS_MAX && value != NULL);
		csi__v1__string_pair__init(&to->pairs[n]);
		to->pairs[n].key = csi_bytes(key);
		to->pairs[n].value = csi_bytes(value);
		to->list[n] = &to->pairs[n];
		n++;
	}
	return n;
}

static int64_t required = 16 * MIB, limit;
static bool is_elsewhere, has_no_source_type;

static const char *creates(const char *name, enum source from, struct class class)
{
	Csi__V1__CreateVolumeRequest req = CSI__V1__CREATE_VOLUME_REQUEST__INIT;
	Csi__V1__CapacityRange range = CSI__V1__CAPACITY_RANGE__INIT;
	Csi__V1__VolumeContentSource untyped = CSI__V1__VOLUME_CONTENT_SOURCE__INIT;
	Csi__V1__VolumeCapability *caps[1] = {capability()};
	range.required_bytes = required;
	range.limit_bytes = limit;
	req.name = csi_bytes(name);
	if (required != 0 || limit != 0)
		req.capacity_range = &range;
	req.n_volume_capabilities = 1;
	req.volume_capabilities = caps;
	req.n_parameters = take_words(&fixed, class.parameters);
	req.parameters = fixed.list;
	req.n_mutable_parameters = take_words(&changing, class.mutable);
	req.mutable_parameters = changing.list;
	req.accessibility_requirements = is_elsewhere ? elsewhere() : NULL;
	req.volume_content_source = has_no_source_type ? &untyped : content_source(from);
	return ASK("Controller", CreateVolume, create_volume);
}

#define CLASS(...) ((struct class){__VA_ARGS__})

static const char *snaps(const char *name)
{
	Csi__V1__CreateSnapshotRequest req = CSI__V1__CREATE_SNAPSHOT_REQUEST__INIT;
	req.name = csi_bytes(name);
	req.source_volume_id = csi_bytes(volume_id);
	return ASK("Controller", CreateSnapshot, create_snapshot);
}

static struct record *record_of(enum record_kind kind, const char *name)
{
	struct pool_object *object = pools_find_name(w->pools, kind, name);
	cr_assert_not_null(object, "%s", name);
	return object->rec;
}

static void is_made(const char *got)
{
	cr_assert_eq(strncmp(got, "volume{", 7), 0, "%s", got);
}

/* Deletes what has that name, and nothing where nothing has. */
static void take_back(const char *name)
{
	char id[RECORD_ID_MAX];
	const struct pool_object *object = pools_find_name(w->pools, RECORD_VOLUME, name);
	if (object == NULL)
		return;
	pool_object_id(object, id);
	cr_assert_eq(delete_patiently(id), GRPC_OK);
}

static void refuses(const char *got, const char *want)
{
	says(got, "%s", want);
	cr_expect_null(pools_find_name(w->pools, RECORD_VOLUME, "new"));
}

/* ---- the record ---- */

Test(csi_creates, as_the_class_says, .timeout = 120)
{
	open_world(WORLD_XFS, 1, false);
	limit = 0;
	is_made(creates("new", EMPTY,
		CLASS("device loop provisioning thick blockSize 4096 eraseOnDelete zero snapshotFreeze false allowVolumeModeChange true mkfsOptions -m1 csi.storage.k8s.io/fstype ext4",
			"readIops 100 writeBandwidth 1000000")));
	const struct record *rec = record_of(RECORD_VOLUME, "new");
	cr_expect_eq(rec->size_bytes, 16 * MIB);
	cr_expect_eq(rec->fs, FSIMG_EXT4);
	cr_expect_eq(rec->block_size, 4096);
	cr_expect(rec->thick && rec->allow_mode_change);
	cr_expect_eq(rec->device, BACKEND_LOOP);
	cr_expect_eq(rec->erase, RECORD_ERASE_ZERO);
	cr_expect_not(rec->snapshot_freeze);
	cr_expect_eq(rec->encryption, RECORD_PLAIN);
	cr_expect_eq(rec->attach, RECORD_ATTACH_LOCAL);
	cr_expect_eq(rec->limits.read_iops, 100);
	cr_expect_eq(rec->limits.write_bandwidth, 1000000);
	cr_expect_eq(rec->limits.write_iops, 0);
	cr_expect_str_eq(rec->mkfs_options, "-m1");
	cr_expect_eq(rec->source, RECORD_SOURCE_NONE);
	cr_expect_not(rec->unformatted);
	take_back("new");
	world_close(w);
}

Test(csi_creates, as_it_is_where_the_class_says_nothing, .timeout = 120)
{
	open_world(WORLD_XFS, 1, true);
	pools_at(w->pools, 0)->overcommit = 10.0;
	required = limit = 0;
	is_made(creates("new", EMPTY,
		CLASS("csi.storage.k8s.io/pvc/namespace ci csi.storage.k8s.io/pvc/name data encryption luks2")));
	const struct record *rec = record_of(RECORD_VOLUME, "new");
	cr_expect_eq(rec->size_bytes, 1024 * MIB);
	cr_expect_eq(rec->fs, FSIMG_NONE);
	cr_expect_eq(rec->block_size, 4096, "of an encrypted one");
	cr_expect(rec->unformatted);
	cr_expect_str_eq(rec->claim, "ci/data");
	cr_expect_str_eq(rec->mkfs_options, "");
	cr_expect_not(rec->thick || rec->allow_mode_change);
	take_back("new");
	is_made(creates("new", EMPTY, CLASS(NULL)));
	rec = record_of(RECORD_VOLUME, "new");
	cr_expect_eq(rec->block_size, pool_block_size(pools_at(w->pools, 0)));
	cr_expect_not(rec->unformatted);
	cr_expect_str_eq(rec->claim, "");
	take_back("new");
	world_close(w);
}

/* ---- of a source ---- */

Test(csi_creates, as_its_source_is, .timeout = 120)
{
	open_world(WORLD_XFS, 1, false);
	create_bytes = 20 * MIB;
	cr_assert_eq(create("m", EMPTY, volume_id), GRPC_OK);
	cr_assert_eq(do_snapshot(), GRPC_OK);
	for (enum source from = FROM_VOLUME; from <= FROM_SNAPSHOT; from++) {
		required = limit = 0;
		is_made(creates("new", from, CLASS("device loop")));
		const struct record *rec = record_of(RECORD_VOLUME, "new");
		cr_expect_eq(rec->size_bytes, 20 * MIB);
		cr_expect_eq(rec->fs, FSIMG_EXT4);
		cr_expect(rec->shares_extents);
		cr_expect_eq(rec->source,
			from == FROM_VOLUME ? RECORD_SOURCE_VOLUME : RECORD_SOURCE_SNAPSHOT);
		cr_expect_str_eq(rec->source_id, from == FROM_VOLUME ? volume_id : snapshot_id);
		cr_expect_eq(rec->block_size, record_of(RECORD_VOLUME, "m")->block_size);
		take_back("new");
		required = 24 * MIB;
		is_made(creates("new", from, CLASS("provisioning thick")));
		rec = record_of(RECORD_VOLUME, "new");
		cr_expect_eq(rec->size_bytes, 24 * MIB);
		cr_expect(rec->thick && !rec->shares_extents);
		take_back("new");
		required = 0;
		limit = 19 * MIB;
		refuses(creates("new", from, CLASS(NULL)),
			"11: capacity_range: limit_bytes (19922944) is too small, the least that serves is 20971520 bytes (sizes are multiples of 1 MiB)");
	}
	required = limit = 0;
	cr_assert_eq(undo_snapshot(), GRPC_OK);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	world_close(w);
}

Test(csi_creates, sources_that_do_not_fit, .timeout = 120)
{
	char want[300];
	open_world(WORLD_XFS, 1, false);
	cr_assert_eq(create("m", EMPTY, volume_id), GRPC_OK);
	struct record *rec = record_of(RECORD_VOLUME, "m");
	has_no_source_type = true;
	refuses(creates("new", EMPTY, CLASS(NULL)),
		"3: volume_content_source: neither a snapshot nor a volume");
	has_no_source_type = false;
	refuses(creates("new", FROM_VOLUME, CLASS("encryption luks2")),
		"3: volume_content_source: m is not encrypted, and so is what is made of it: use a class with encryption: none");
	rec->encryption = RECORD_LUKS2;
	refuses(creates("new", FROM_VOLUME, CLASS(NULL)),
		"3: volume_content_source: m is encrypted, and so is what is made of it: use a class with encryption: luks2");
	rec->encryption = RECORD_PLAIN;
	snprintf(want, sizeof(want),
		"3: parameters: blockSize is %u, but the content source was made for %u",
		rec->block_size == 512 ? 4096 : 512, rec->block_size);
	refuses(creates("new", FROM_VOLUME,
			CLASS(rec->block_size == 512 ? "blockSize 4096" : "blockSize 512")),
		want);
	refuses(creates("new", FROM_VOLUME, CLASS("eraseOnDelete zero")),
		"9: parameters: eraseOnDelete would erase nothing of what is shared with the content source; ask for provisioning thick, which copies");
	is_made(creates("new", FROM_VOLUME, CLASS("eraseOnDelete zero provisioning thick")));
	take_back("new");
	fs_type = "xfs";
	refuses(creates("new", FROM_VOLUME, CLASS(NULL)),
		"3: volume_content_source: m holds ext4, the request asks for xfs");
	fs_type = "ext4";
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	world_close(w);
}

static int no_probe(void *arg, const char *op_name, const char *step_name)
{
	(void)arg;
	(void)op_name;
	return strcmp(step_name, "look for file system") == 0 ? -EIO : 0;
}

/* A block volume's bytes are mounted only if the class says so, and if they are what is asked for.
 */
Test(csi_creates, from_block_to_mount, .timeout = 120)
{
	char command[160];
	static const char *const allows = "allowVolumeModeChange true";
	open_world(WORLD_XFS, 1, true);
	required = 0;
	cr_assert_eq(create("b", EMPTY, volume_id), GRPC_OK);
	block = false;
	fs_type = "";
	refuses(creates("new", FROM_VOLUME, CLASS(NULL)),
		"3: volume_content_source: b is a block volume's; it becomes a mount volume only if the class says allowVolumeModeChange: \"true\", as the kernel will mount what the block volume's user wrote");
	refuses(creates("new", FROM_VOLUME, CLASS(allows)),
		"3: volume_content_source: b is to be mounted as ext4, xfs or btrfs and holds no file system");
	struct record *rec = record_of(RECORD_VOLUME, "b");
	rec->encryption = RECORD_LUKS2;
	refuses(creates("new", FROM_VOLUME, CLASS("encryption luks2 allowVolumeModeChange true")),
		"3: volume_content_source: b is an encrypted block volume's, which becomes no mount volume: ask for a block volume");
	rec->encryption = RECORD_PLAIN;
	snprintf(command, sizeof(command), "mkfs.ext4 -q -b 4096 -O ^metadata_csum -F %s/volumes/b",
		w->pool_path);
	cr_assert_eq(system(command), 0);
	fs_type = "xfs";
	refuses(creates("new", FROM_VOLUME, CLASS(allows)),
		"3: volume_content_source: b is to be mounted as xfs and holds ext4");
	fs_type = "";
	refuses(creates("new", FROM_VOLUME,
			CLASS("allowVolumeModeChange true csi.storage.k8s.io/fstype xfs")),
		"3: volume_content_source: b is to be mounted as xfs and holds ext4");
	is_made(creates("new", FROM_VOLUME, CLASS(allows)));
	cr_expect_eq(record_of(RECORD_VOLUME, "new")->fs, FSIMG_EXT4);
	take_back("new");
	fs_type = "ext4";
	is_made(creates("new", FROM_VOLUME, CLASS(allows)));
	take_back("new");
	w->observer.before_call = no_probe;
	refuses(creates("new", FROM_VOLUME, CLASS(allows)),
		"13: b: looking for a file system on it: Input/output error");
	w->observer.before_call = NULL;
	/* A journal on another device: s_journal_dev. */
	snprintf(command, sizeof(command),
		"printf '\\1' | dd of=%s/volumes/b bs=1 seek=1252 conv=notrunc 2>/dev/null",
		w->pool_path);
	cr_assert_eq(system(command), 0);
	refuses(creates("new", FROM_VOLUME, CLASS(allows)),
		"3: volume_content_source: b is not to be mounted: its file system needs another device besides");
	block = true; /* then nobody looks what it holds */
	is_made(creates("new", FROM_VOLUME, CLASS(NULL)));
	cr_expect_eq(record_of(RECORD_VOLUME, "new")->fs, FSIMG_NONE);
	take_back("new");
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	world_close(w);
}

/* ---- pools and nodes ---- */

Test(csi_creates, pools_that_are_not_here, .timeout = 120)
{
	char want[300], class[120] = "pool ";
	open_world(WORLD_XFS, 1, true);
	w->two_pools = true;
	world_restart(w);
	required = 16 * MIB;
	refuses(creates("new", EMPTY, CLASS("pool fast")),
		"3: parameters: this node has no pool fast");
	memset(class + 5, 'p', 65);
	refuses(creates("new", EMPTY, CLASS(class)),
		"3: parameters: this node has no pool of that name");
	class[5 + 64] = '\0';
	snprintf(want, sizeof(want), "3: parameters: this node has no %s", class);
	refuses(creates("new", EMPTY, CLASS(class)), want);
	cr_assert_eq(create("m", EMPTY, volume_id), GRPC_OK);
	refuses(creates("new", FROM_VOLUME, CLASS("pool other")),
		"3: parameters: pool is other, but the content source lies in pool default; a copy stays in its pool");
	is_made(creates("new", FROM_VOLUME, CLASS("pool default")));
	take_back("new");
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	refuses(creates("new", EMPTY, CLASS("attach remote")),
		"9: parameters: attach: remote needs a driver with --attach and --export-address");
	const struct node_exports_config none = {.address = NULL};
	w->csi->node->export_config = &none;
	refuses(creates("new", EMPTY, CLASS("attach remote")),
		"9: parameters: attach: remote needs a driver with --export-address");
	w->csi->node->export_config = NULL;
	world_close(w);
}

/* One that has moved here was asked for where it was. */
Test(csi_creates, of_another_node, .timeout = 120)
{
	static const char away[] = "8: accessibility_requirements: none of requisite is this node "
				   "(topology.ringvol.dev/node=node-1)";
	open_world(WORLD_XFS, 1, true);
	required = 16 * MIB;
	is_elsewhere = true;
	refuses(creates("new", EMPTY, CLASS(NULL)), away);
	is_elsewhere = false;
	is_made(creates("m", EMPTY, CLASS(NULL)));
	is_elsewhere = true;
	refuses(creates("m", EMPTY, CLASS(NULL)), away);
	record_of(RECORD_VOLUME, "m")->moves = 1;
	is_made(creates("m", EMPTY, CLASS(NULL)));
	record_of(RECORD_VOLUME, "m")->moves = 0;
	is_elsewhere = false;
	take_back("m");
	world_close(w);
}

/* ---- names that are taken ---- */

static void take_name(enum record_kind kind, const char *key, const char *why)
{
	struct pool_found found = {.why = why, .kind = kind};
	strcpy(found.key, key);
	cr_assert_not_null(pool_index_insert(pools_at(w->pools, 0), &found));
}

static void free_name(enum record_kind kind, const char *key)
{
	struct pool_object *object = pools_find_name(w->pools, kind, key);
	pool_index_remove(object);
	pool_object_free(object);
}

Test(csi_creates, names_that_are_taken, .timeout = 120)
{
	open_world(WORLD_XFS, 1, true);
	required = 16 * MIB;
	for (unsigned i = 0; i < 2; i++) {
		take_name(RECORD_VOLUME, "x", i == 0 ? "its record is gone" : NULL);
		says(creates("x", EMPTY, CLASS(NULL)),
			"6: name x is taken in pool default by a quarantined volume (x): %s; look at it with ringvol check",
			i == 0 ? "its record is gone" : "damaged");
		free_name(RECORD_VOLUME, "x");
	}
	is_made(creates("m", EMPTY, CLASS(NULL)));
	struct record *rec = record_of(RECORD_VOLUME, "m");
	rec->owner = "/pods/1";
	says(creates("m", EMPTY, CLASS(NULL)),
		"6: name m is that of an inline volume, of /pods/1; choose another");
	rec->claim = "ci/pod";
	says(creates("m", EMPTY, CLASS(NULL)),
		"6: name m is that of an inline volume, of ci/pod; choose another");
	rec->owner = rec->claim = "";
	pool_object_id(pools_find_name(w->pools, RECORD_VOLUME, "m"), volume_id);
	take_name(RECORD_SNAPSHOT, "s", "no record");
	says(snaps("s"),
		"6: name s is taken in pool default by a quarantined snapshot (s): no record; look at it with ringvol check");
	free_name(RECORD_SNAPSHOT, "s");
	rec->limits.read_iops = 7;
	rec->allow_mode_change = true;
	rec->attach = RECORD_ATTACH_REMOTE;
	rec->thick = true;
	cr_expect_eq(strncmp(snaps("s"), "snapshot{", 9), 0);
	struct record *of = record_of(RECORD_SNAPSHOT, "s");
	cr_expect_eq(of->limits.read_iops, 0);
	cr_expect_eq(of->attach, RECORD_ATTACH_LOCAL);
	cr_expect_not(of->thick || of->allow_mode_change);
	cr_expect_eq(of->source, RECORD_SOURCE_VOLUME);
	cr_expect_str_eq(of->source_id, volume_id);
	cr_expect_str_eq(of->group, "");
	of->group = "0123abcd.g.0123abcd";
	says(snaps("s"), "6: snapshot s exists, as a member of group snapshot 0123abcd.g.0123abcd");
	of->group = "";
	pool_object_id(pools_find_name(w->pools, RECORD_SNAPSHOT, "s"), snapshot_id);
	cr_assert_eq(undo_snapshot(), GRPC_OK);
	take_back("m");
	world_close(w);
}

/* Who says nothing of its size gets the one that is there, of whatever size. */
Test(csi_creates, again_without_a_size, .timeout = 120)
{
	char made[400];
	open_world(WORLD_XFS, 1, false);
	required = 20 * MIB;
	snprintf(made, sizeof(made), "%s", creates("new", EMPTY, CLASS(NULL)));
	is_made(made);
	required = limit = 0;
	says(creates("new", EMPTY, CLASS(NULL)), "%s", made);
	cr_expect_eq(record_of(RECORD_VOLUME, "new")->size_bytes, 20 * MIB);
	take_back("new");
	world_close(w);
}

/* What mkfs is told is for the file system that the capability asks for. */
Test(csi_creates, options_of_another_file_system, .timeout = 120)
{
	open_world(WORLD_XFS, 1, false);
	required = 300 * MIB;
	fs_type = "xfs";
	refuses(creates("new", EMPTY, CLASS("mkfsOptions -Enodiscard")),
		"3: mkfsOptions: \"-Enodiscard\" is not allowed for xfs");
	fs_type = "ext4";
	is_made(creates("new", EMPTY, CLASS("mkfsOptions -Enodiscard")));
	cr_expect_str_eq(record_of(RECORD_VOLUME, "new")->mkfs_options, "-Enodiscard");
	take_back("new");
	world_close(w);
}
