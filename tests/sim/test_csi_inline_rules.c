/* SPDX-License-Identifier: Apache-2.0 */
/* Inline volumes: where the limits of what is allowed lie, and the words of refusals. */
#include "inline_calls.h"

#include "csi/messages.h"
#include "pool/index.h"
#include "pool/private.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static const struct record *made(void)
{
	const struct pool_object *volume = pools_find_name(w->pools, RECORD_VOLUME, id);
	cr_assert_not_null(volume);
	return volume->rec;
}

static void takes_back(void)
{
	cr_assert_eq(unpublish_wholly(), GRPC_OK);
	world_settle(w);
	cr_expect(!has("volumes "));
}

static void refuses_fmt(const char *fmt, const char *path)
{
	char want[900];
	snprintf(want, sizeof(want), fmt, path);
	refuses(want);
}

/* The target tells whose it is: a directory named like the pod below one named "pods". */
Test(csi_inline, is_the_pods_of_its_target, .timeout = 300)
{
	char right[96], path[700];
	static const char missing[] =
		"3: volume_context: csi.storage.k8s.io/pod.uid is missing: the CSIDriver object has to say podInfoOnMount: true";
	static const char elsewhere[] =
		"3: target_path: %s does not lie in the directory of pod 1234-abcd";
	open_inline(WORLD_XFS, 1);
	memcpy(right, target_path, sizeof(right));
	uid = "";
	refuses(missing);
	uid = NULL;
	refuses(missing);
	uid = "1234/abcd";
	refuses(missing);
	uid = "1234-abcd";
	static const char *const wrong[] = {"pods/1234-abcde/mount", "pods/x1234-abcd/mount",
		"pod/1234-abcd/mount", "pods/1234-abcd", "pods/other/1234-abcd/mount"};
	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		snprintf(target_path, sizeof(target_path), "%.40s/%s", w->dir, wrong[i]);
		refuses_fmt(elsewhere, target_path);
	}
	snprintf(path, sizeof(path), "%s/pods/a/pods/1234-abcd/v", w->dir);
	mkdirs(path);
	snprintf(target_path, sizeof(target_path), "%.40s/pods/a/pods/1234-abcd/v/m", w->dir);
	cr_assert_eq(publish(), GRPC_OK);
	snprintf(path, sizeof(path), "%s/pods/a/pods/1234-abcd", w->dir);
	cr_expect_str_eq(made()->owner, path);
	cr_expect_str_eq(made()->claim, "ci/build");
	/* Another pod's may have its name. */
	memcpy(target_path, right, sizeof(right));
	snprintf(path, sizeof(path),
		"6: inline volume csi-0a1b2c exists, and is that of the pod of %s", made()->owner);
	says(asks(), "%s", path);
	snprintf(target_path, sizeof(target_path), "%.40s/pods/a/pods/1234-abcd/v/m", w->dir);
	takes_back();
	memcpy(target_path, right, sizeof(right));
	nothing_left();
}

/* Who it is for is told where both names are. */
Test(csi_inline, is_made_for_a_pod_by_name, .timeout = 300)
{
	char longest[254 + 1];
	static const struct {
		const char *namespace, *pod, *claim;
	} all[] = {{"ci", "build", "ci/build"}, {"ci", NULL, "ci/"}, {NULL, NULL, ""}};
	open_inline(WORLD_XFS, 1);
	w->csi->config.inlines.n_namespaces = 0;
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		namespace = all[i].namespace;
		pod = all[i].pod;
		cr_assert_eq(publish(), GRPC_OK);
		cr_expect_str_eq(made()->claim, all[i].claim);
		takes_back();
	}
	char space[64];
	memset(space, 's', 63);
	space[63] = '\0';
	memset(longest, 'p', 254);
	longest[254] = '\0';
	namespace = space;
	for (unsigned more = 0; more < 2; more++) {
		pod = longest + 1 - more; /* one byte more than there is room for */
		cr_assert_eq(publish(), GRPC_OK);
		cr_expect_eq(strlen(made()->claim), more ? 0 : RECORD_CLAIM_MAX);
		takes_back();
	}
	nothing_left();
}

Test(csi_inline, has_a_size_between, .timeout = 300)
{
	static const struct {
		const char *size, *fs;
		uint64_t max_bytes, want; /* 0: refused */
		const char *why;
	} all[] = {
		{"64Mi", "ext4", 64 * MIB, 64 * MIB, NULL},
		{"67108865", "ext4", 64 * MIB, 0,
			"3: volume_context: the volume would have 67108865 bytes, and inline volumes have 67108864 at most on this node (--inline max-size)"},
		{"0", "ext4", 64 * MIB, 0,
			"3: volume_context: size takes bytes, as 1073741824 or 1Gi"},
		{"1", "ext4", 64 * MIB, 16 * MIB, NULL},
		{"17825793", "ext4", 64 * MIB, 18 * MIB, NULL},
		{"17825792", "ext4", 64 * MIB, 17 * MIB, NULL},
		{NULL, "ext4", 48 * MIB, 48 * MIB, NULL},
		{NULL, "ext4", 16 * MIB, 16 * MIB, NULL},
		{NULL, "ext4", 16 * MIB - 1, 0,
			"3: volume_context: the volume would have 16777216 bytes, and inline volumes have 16777215 at most on this node (--inline max-size)"},
		{"32Mi", "xfs", 400 * MIB, 300 * MIB, NULL},
		{"32Mi", "xfs", 64 * MIB, 0,
			"3: volume_context: the volume would have 314572800 bytes, and inline volumes have 67108864 at most on this node (--inline max-size)"},
	};
	open_inline(WORLD_XFS, 1);
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		size = all[i].size;
		fs_type = all[i].fs;
		w->csi->config.inlines.max_bytes = all[i].max_bytes;
		if (all[i].want == 0) {
			refuses(all[i].why);
			continue;
		}
		says(asks(), "%s", "");
		cr_expect_eq(made()->size_bytes, all[i].want, "%u", i);
		takes_back();
	}
	nothing_left();
}

/* Each limit by itself: as much as the operator says, or what it says where the pod says none. */
Test(csi_inline, has_limits_of_its_own, .timeout = 300)
{
	static const char *const keys[] = {
		"readIops", "writeIops", "readBandwidth", "writeBandwidth"};
	char want[200];
	open_inline(WORLD_XFS, 1);
	w->csi->config.inlines.most = (struct io_limits){2000, 3000, 4000000, 5000000};
	static const char *const fits[] = {"2000", "3000", "4000000", "5000000"};
	static const char *const less[] = {"1999", "2999", "3999999", "4999999"};
	static const char *const more[] = {"2001", "3001", "4000001", "5000001"};
	for (unsigned i = 0; i < 4; i++) {
		more_key = keys[i];
		more_value = more[i];
		snprintf(want, sizeof(want),
			"3: volume_context: %s is %s, and inline volumes have %s at most on this node (--inline)",
			keys[i], more[i], fits[i]);
		refuses(want);
		for (unsigned n = 0; n < 2; n++) {
			more_value = n == 0 ? fits[i] : less[i];
			says(asks(), "%s", "");
			const struct io_limits *l = &made()->limits;
			cr_expect_eq(l->read_iops, 2000 - (i == 0) * n);
			cr_expect_eq(l->write_iops, 3000 - (i == 1) * n);
			cr_expect_eq(l->read_bandwidth, 4000000 - (i == 2) * n);
			cr_expect_eq(l->write_bandwidth, 5000000 - (i == 3) * n);
			takes_back();
		}
	}
	/* Where the operator says none there is none. */
	w->csi->config.inlines.most = (struct io_limits){.write_iops = 3000};
	more_key = "readIops";
	more_value = "70000";
	says(asks(), "%s", "");
	cr_expect_eq(made()->limits.read_iops, 70000);
	cr_expect_eq(made()->limits.write_iops, 3000);
	cr_expect_eq(made()->limits.read_bandwidth, 0);
	takes_back();
	nothing_left();
}

/* Ids that CreateVolume gives out are no inline volumes'; nor is what makes no name. */
Test(csi_inline, has_a_name_that_is_no_id, .timeout = 300)
{
	char want[300];
	static const char fmt[] = "3: volume_id: %.64s cannot be an inline volume's";
	open_inline(WORLD_XFS, 1);
	strcpy(volume_id, "0123abcd.v.0123abcd");
	snprintf(want, sizeof(want), fmt, volume_id);
	refuses(want);
	strcpy(volume_id, id);
	/* What has the name already may be anything. */
	cr_assert_eq(publish(), GRPC_OK);
	struct pool_object *o = pools_find_name(w->pools, RECORD_VOLUME, id);
	struct record *rec = o->rec;
	o->rec = NULL;
	o->why = "its record is damaged";
	says(asks(),
		"15: inline volume csi-0a1b2c is quarantined in pool default: its record is damaged; see ringvol check");
	o->rec = rec;
	o->why = NULL;
	takes_back();
	nothing_left();
}

Test(csi_inline, has_one_of_so_many_devices, .timeout = 300)
{
	char own[RECORD_ID_MAX];
	open_inline(WORLD_XFS, 1);
	cr_assert_eq(create("own", EMPTY, own), GRPC_OK);
	strcpy(volume_id, own);
	cr_assert_eq(do_stage(), GRPC_OK);
	strcpy(volume_id, id);
	w->csi->config.max_volumes = 1;
	says(asks(), "8: 1 volumes are in use on this node, the most there may be");
	w->csi->config.max_volumes = 2;
	says(asks(), "%s", "");
	says(asks(), "%s", ""); /* it has its device already */
	cr_assert_eq(unpublish_wholly(), GRPC_OK);
	w->csi->config.max_volumes = 0;
	says(asks(), "%s", "");
	cr_assert_eq(unpublish_wholly(), GRPC_OK);
	strcpy(volume_id, own);
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_eq(delete_patiently(own), GRPC_OK);
	nothing_left();
}

/* nosuid and nodev come behind the pod's own mount flags, which leave room for them. */
Test(csi_inline, has_mount_flags_of_its_own, .timeout = 300)
{
	static const struct {
		unsigned eight, nine; /* flags of so many bytes, with the comma */
		bool fits;
	} all[] = {{0, 0, true}, {1, 0, true}, {126, 0, true}, {122, 4, false}, {127, 0, false}};
	char flags[1100];
	open_inline(WORLD_XFS, 1);
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		size_t n = 0;
		flags[0] = '\0';
		for (unsigned k = 0; k < all[i].eight + all[i].nine; k++)
			n += (size_t)sprintf(flags + n, "%s%s", n > 0 ? "," : "",
				k < all[i].eight ? "noatime" : "lazytime");
		mount_flag = n > 0 ? flags : NULL;
		if (!all[i].fits) {
			says(asks(), "3: mount_flags: longer than 1010 bytes in all");
			continue;
		}
		says(asks(), "%s", "");
		takes_back();
	}
	mount_flag = NULL;
	cr_assert_eq(unpublish_wholly(), GRPC_OK);
	nothing_left();
}

Test(csi_inline, of_a_pool_that_is_not_ready, .timeout = 300)
{
	open_inline(WORLD_XFS, 1);
	struct pool *pool = pools_at(w->pools, 0);
	snprintf(pool->why, sizeof(pool->why), "it is on a journey");
	pool->life = POOL_MUTE;
	refuses("14: it is on a journey");
	pool->life = POOL_SERVED;
	nothing_left();
}

/* An image's copy stays in its pool. */
Test(csi_inline, of_an_image_is_in_its_pool, .timeout = 300)
{
	open_inline(WORLD_XFS, 1);
	make_image("root");
	allow_image("root");
	w->csi->config.inlines.n_pools = 2;
	w->csi->config.inlines.pools[0] = "other";
	w->csi->config.inlines.pools[1] = "default";
	more_key = "source";
	more_value = "root";
	says(asks(), "%s", ""); /* and not in the first one of the list */
	cr_expect_eq(made()->source, RECORD_SOURCE_SNAPSHOT);
	cr_expect_str_eq(made()->source_id, snapshot_id);
	takes_back();
	pool_asked = "default";
	says(asks(), "%s", "");
	takes_back();
	pool_asked = "other";
	refuses("3: volume_context: pool is other, but golden image root lies in pool default; a copy stays in its pool");
	pool_asked = NULL;
	w->csi->config.inlines.n_pools = 1;
	refuses("9: volume_context: pool default is not for inline volumes on this node (--inline pools)");
	w->csi->config.inlines.n_sources = 2;
	w->csi->config.inlines.sources[0] = "another";
	w->csi->config.inlines.sources[1] = "root";
	w->csi->config.inlines.pools[0] = "default";
	says(asks(), "%s", "");
	takes_back();
	cr_assert_eq(undo_snapshot(), GRPC_OK);
	nothing_left();
}

/* The record has the pod's directory, of so many bytes at most. */
Test(csi_inline, is_of_a_pod_whose_directory_has_a_bound, .timeout = 300)
{
	char target[RECORD_OWNER_MAX + 64], want[200];
	open_inline(WORLD_XFS, 1);
	for (int more = 1; more >= 0; more--) {
		int owner = snprintf(target, sizeof(target), "%s/", w->dir);
		int end = RECORD_OWNER_MAX + more - (int)strlen("/pods/1234-abcd");
		for (; owner < end; owner++)
			target[owner] = owner % 100 == 0 ? '/' : 'd';
		snprintf(target + owner, sizeof(target) - (size_t)owner, "/pods/1234-abcd/mount");
		target_said = target;
		snprintf(want, sizeof(want),
			"3: target_path: the directory of the pod has more than %d bytes",
			RECORD_OWNER_MAX);
		if (more > 0)
			refuses(want);
		else
			cr_expect_eq(
				strncmp(asks(), "3: target_path: the parent directory of ", 40), 0);
	}
	target_said = NULL;
	world_settle(w);
	cr_expect_eq(strlen(made()->owner), RECORD_OWNER_MAX);
	world_close(w);
}

/* Nothing but a look tells where it is mounted after a restart. */
Test(csi_inline, waits_for_the_look_at_devices, .timeout = 300)
{
	open_inline(WORLD_XFS, 1);
	cr_assert_eq(publish(), GRPC_OK);
	w->scan_faults = 1;
	restart();
	says(asks(),
		"14: volume csi-0a1b2c: devices of an earlier run are still being looked for; try again");
	world_settle(w);
	cr_assert_eq(publish(), GRPC_OK, "a repeat");
	takes_back();
	nothing_left();
}
