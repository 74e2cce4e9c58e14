/* SPDX-License-Identifier: Apache-2.0 */
/* Borrowed volumes: what is told of their sizes and health, and what the mounts' helper is asked.
 */
#include "lender.h"

#include "node/health.h"
#include "probes/probes.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* ---- sizes ---- */

static struct mnt_info stats;
static int stats_res;

static int stats_say(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	(void)req;
	(void)req_len;
	*resp_len = sizeof(stats);
	memcpy(resp, &stats, sizeof(stats));
	return stats_res;
}

static char look_keys[ATTACH_CALLS][HELPER_KEY_BYTES]; /* of the calls that are made */

int __wrap_op_helper(struct op *op, unsigned fn, const char *key, const void *req, size_t req_len,
	void *resp, size_t resp_cap, uint64_t timeout_ms)
{
	cr_assert_lt(fn, (unsigned)ATTACH_CALLS);
	snprintf(look_keys[fn], HELPER_KEY_BYTES, "%s", key != NULL ? key : "");
	return __real_op_helper(op, fn, key, req, req_len, resp, resp_cap, timeout_ms);
}

/* Staged and published; its file system says what the test says. */
static void open_told(bool as_block)
{
	open_far(1, as_block);
	says(asks_stage(), "%s", "");
	says(asks_publish(), "%s", "");
	stats = (struct mnt_info){.exists = true,
		.is_dir = !as_block,
		.is_mount = true,
		.is_block = as_block,
		.dev_major = entry()->major,
		.dev_minor = entry()->minor,
		.total_bytes = 100,
		.used_bytes = 30,
		.avail_bytes = 60,
		.total_inodes = 10,
		.used_inodes = 4,
		.free_inodes = 6};
	stats_res = 0;
	w->calls[MNT_STATS] = stats_say;
}

static void close_told(void)
{
	says(asks_unpublish(), "%s", "");
	says(asks_unstage(), "%s", "");
	close_far();
}

#define BYTES  "usage{available=60 total=100 used=30 unit=1}"
#define INODES " usage{available=6 total=10 used=4 unit=2}"

Test(borrow_answers, of_sizes, .timeout = 120)
{
	open_told(false);
	static const char nowhere[] = "5: volume " ID " is not at volume_path %s";
	says(asks_stats(), BYTES INODES " " WELL);
	stats.total_inodes = 0;
	says(asks_stats(), BYTES " " WELL);
	w->csi->config.health = CSI_HEALTH_1_13;
	says(asks_stats(), BYTES);
	w->csi->config.health = CSI_HEALTH_1_12;
	stats.dev_minor ^= 1;
	says_at(asks_stats(), nowhere, target_path);
	stats.dev_minor ^= 1;
	stats.exists = false;
	says_at(asks_stats(), nowhere, target_path);
	stats.exists = true;
	stats_res = -EIO;
	says_at(asks_stats(), "13: inspection of %s: Input/output error", target_path);
	cr_expect_eq(entry()->hanging_ns, 0);
	stats_res = -ETIMEDOUT;
	says_at(asks_stats(), HANGS("inspection"), target_path);
	cr_expect_neq(entry()->hanging_ns, 0);
	entry()->hanging_ns = 1;
	says_at(asks_stats(), HANGS("inspection"), target_path);
	cr_expect_eq(entry()->hanging_ns, 1, "since the first look that hung");
	stats_res = 0;
	says(asks_stats(), BYTES " " WELL);
	cr_expect_eq(entry()->hanging_ns, 0);
	stats.shut_down = true;
	cr_expect_eq(strncmp(asks_stats(), BYTES " volume_condition{abnormal=1 message='the file ",
			     strlen(BYTES " volume_condition{abnormal=1 message='the file ")),
		0);
	stats.total_bytes = 0;
	cr_expect_eq(strncmp(asks_stats(), "volume_condition{abnormal=1 ", 28), 0);
	close_told();
	open_told(true);
	says(asks_stats(), "usage{total=100 unit=1} " WELL);
	close_told();
}

/* A look waits behind no call that changes its volume, and behind none of another volume. */
Test(borrow_answers, of_looks_beside_calls, .timeout = 120)
{
	open_told(false);
	for (unsigned i = 0; i < 2; i++) {
		memset(look_keys, 0, sizeof(look_keys));
		(void)(i == 0 ? asks_stats() : asks_health_at(target_path, ""));
		cr_expect_str_eq(look_keys[MNT_STATS], "look/" ID);
		cr_expect_str_eq(look_keys[ATTACH_LOOK], "look/" ID);
	}
	memset(look_keys, 0, sizeof(look_keys));
	(void)asks_health_at("", ""); /* no file system is asked */
	cr_expect_str_eq(look_keys[MNT_STATS], "");
	cr_expect_str_eq(look_keys[ATTACH_LOOK], "look/" ID);
	close_told();
}

/* ---- health ---- */

static struct probe_counters counted;
static int counted_res;

int __wrap_probes_read(
	struct probes *probes, uint32_t major, uint32_t minor, struct probe_counters *ret);

int __wrap_probes_read(
	struct probes *probes, uint32_t major, uint32_t minor, struct probe_counters *ret)
{
	(void)probes;
	cr_expect_eq(major, entry()->major);
	cr_expect_eq(minor, entry()->minor);
	*ret = counted;
	return counted_res;
}

/* The conditions by their names, in the order in which they are told; "": it is well. */
static void is_told(const char *names)
{
	char got[600] = "";
	size_t n = 0;
	const char *at = asks_health_at(target_path, "");
	cr_expect_eq(
		strncmp(at, "volume_health{volume_id='" ID "'", 25 + strlen(ID) + 1), 0, "%s", at);
	while ((at = strstr(at, " reason='")) != NULL) {
		at += strlen(" reason='");
		n += (size_t)snprintf(got + n, sizeof(got) - n, "%s%.*s", n > 0 ? " " : "",
			(int)strcspn(at, "'"), at);
	}
	cr_expect_str_eq(got, names, "%s and not %s", got, names);
}

Test(borrow_answers, of_health, .timeout = 120)
{
	open_told(false);
	is_told("");
	far.state = "connecting";
	is_told("DeviceUnserved");
	far.state = "live";
	is_told("");
	far.lost = true; /* then its connection is no news */
	far.state = "deleting";
	is_told("DeviceGone");
	far.lost = false;
	far.state = NULL;
	entry()->hanging_ns = 1;
	is_told(""); /* its file system answers */
	stats_res = -ETIMEDOUT;
	is_told("Hanging");
	stats_res = 0;
	stats.fs_read_only = true;
	is_told("FileSystemReadOnly");
	entry()->read_only = true;
	is_told("");
	entry()->read_only = false;
	stats.is_block = true;
	is_told("");
	stats.is_block = false;
	stats.shut_down = true; /* which goes before */
	is_told("FileSystemShutDown");
	stats.dev_minor ^= 1; /* it is another's */
	is_told("");
	stats.dev_minor ^= 1;
	stats.exists = false;
	is_told("");
	stats.exists = true;
	far.lost = true;
	is_told("DeviceGone FileSystemShutDown");
	far.lost = false;
	stats.shut_down = stats.fs_read_only = false;
	says(asks_health_at("", ""), "volume_health{volume_id='" ID "'}");
	says(asks_health_at("", staging_path), "volume_health{volume_id='" ID "'}");
	says(asks_health_at("relative", ""),
		"5: volume " ID " is not there: volume_path is not an absolute path: relative");
	says(asks_health_at("", "relative"),
		"5: volume " ID " is not there: volume_path is not an absolute path: relative");
	close_told();
}

/* Of any kind of operation, for ten minutes; as far as BPF has counted them. */
Test(borrow_answers, of_errors, .timeout = 120)
{
	enum { TEN_MINUTES_S = 600 };
	open_told(false);
	/* The simulated clock begins soon after 0. */
	while (ring_now_ns(w->reactor.ring) < 2 * TEN_MINUTES_S * UINT64_C(1000000000))
		cr_assert_eq(ring_sim_settle(w->reactor.ring, 60000), 0);
	uint64_t now_ns = ring_now_ns(w->reactor.ring);
	static const struct {
		unsigned op;
		bool exact;
		int res;
		int64_t ago_ns; /* 0: there was none */
		const char *want;
	} all[] = {
		{PROBE_READ, true, 0, 0, ""},
		{PROBE_READ, true, 0, 1, "IOErrors"},
		{PROBE_DISCARD, true, 0, 1, "IOErrors"},
		{PROBE_WRITE, false, 0, 1, ""},
		{PROBE_WRITE, true, -ENOENT, 1, ""},
		{PROBE_FLUSH, true, 0, TEN_MINUTES_S * INT64_C(1000000000), ""},
		{PROBE_FLUSH, true, 0, (TEN_MINUTES_S - 60) * INT64_C(1000000000), "IOErrors"},
	};
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		memset(&counted, 0, sizeof(counted));
		counted.exact = all[i].exact;
		counted_res = all[i].res;
		if (all[i].ago_ns != 0)
			counted.op[all[i].op].last_error_ns = now_ns - (uint64_t)all[i].ago_ns;
		if (all[i].ago_ns != 0 && all[i].op != PROBE_READ)
			counted.op[PROBE_READ].last_error_ns = 1; /* long ago */
		w->csi->borrows->probes = (struct probes *)&counted;
		is_told(all[i].want);
		w->csi->borrows->probes = NULL;
	}
	close_told();
}

/* Whose device is gone, or does not answer: by its name and address, as far as they are known. */
Test(borrow_answers, of_an_owner_by_name, .timeout = 120)
{
	static const char waits[] =
		"volume_health{volume_id='" ID
		"' health_statuses{status=2 reason='DeviceUnserved' message='%s, which has the volume, does not answer: its I/O waits, for %u s at most; look after that node and the network between'}}";
	open_told(false);
	unsigned loss_s = w->csi->borrows->waits.loss_s;
	far.state = "connecting";
	says(asks_health_at("", ""), waits, "node node-2 (traddr=192.0.2.1,trsvcid=4420)", loss_s);
	entry()->node[0] = '\0';
	says(asks_health_at("", ""), waits, "its node (traddr=192.0.2.1,trsvcid=4420)", loss_s);
	far.local = true; /* which is here, then, and served by nobody else */
	says(asks_health_at("", ""), "volume_health{volume_id='" ID "'}");
	far.lost = true;
	says(asks_health_at("", ""),
		"volume_health{volume_id='" ID
		"' health_statuses{status=2 reason='DeviceGone' message='the volume\'s device is gone: its node does not give it to this node any more, or did not answer for too long; stop the pods that use it, so that it is unstaged and attached anew'}}");
	far.local = far.lost = false;
	close_told();
}

/* ---- what is asked of the mounts' helper ---- */

static struct mnt_mount_req mount_req;
static struct mnt_bind_req bind_req;
static struct mnt_unmount_req unmount_req;

static int mount_is_seen(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	cr_assert_eq(req_len, sizeof(mount_req));
	memcpy(&mount_req, req, sizeof(mount_req));
	return mnt_calls[MNT_MOUNT](req, req_len, resp, resp_len);
}

static int mount_is_refused(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	(void)resp;
	cr_assert_eq(req_len, sizeof(mount_req));
	memcpy(&mount_req, req, sizeof(mount_req));
	*resp_len = 0;
	return -EIO;
}

static int bind_is_seen(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	cr_assert_eq(req_len, sizeof(bind_req));
	memcpy(&bind_req, req, sizeof(bind_req));
	return mnt_calls[MNT_BIND](req, req_len, resp, resp_len);
}

static int unmount_is_seen(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	cr_assert_eq(req_len, sizeof(unmount_req));
	memcpy(&unmount_req, req, sizeof(unmount_req));
	return mnt_calls[MNT_UNMOUNT](req, req_len, resp, resp_len);
}

static void see_mounts(void)
{
	w->calls[MNT_MOUNT] = mount_is_seen;
	w->calls[MNT_BIND] = bind_is_seen;
	w->calls[MNT_UNMOUNT] = unmount_is_seen;
}

/* The UUID of a file system is its volume's, where it can be written. */
Test(borrow_answers, of_what_is_mounted, .timeout = 120)
{
	uint8_t uuid[16];
	open_far(1, false);
	fsimg_uuid_of(ID, uuid);
	w->calls[MNT_MOUNT] = mount_is_refused;
	mount_flag = "noatime,context=\"a:b:c:s0\",nodev";
	(void)asks_stage();
	cr_expect_str_eq(mount_req.options, "noatime,nodev");
	cr_expect_str_eq(mount_req.label, "a:b:c:s0");
	mount_flag = NULL;
	see_mounts();
	for (unsigned n = 0; n < 4; n++) {
		bool whole = n / 2 == 1, reads = n % 2 == 1;
		w->csi->config.staging = !whole;
		access_read_only = !whole && reads;
		publish_read_only = reads;
		says(whole ? asks_publish() : asks_stage(), "%s", "");
		cr_expect_str_eq(mount_req.device, entry()->path);
		cr_expect_str_eq(mount_req.target, whole ? target_path : staging_path);
		cr_expect_str_eq(mount_req.options, "");
		cr_expect_str_eq(mount_req.label, "");
		cr_expect_eq(mount_req.type, FSIMG_EXT4);
		cr_expect_eq(mount_req.read_only, !whole && reads, "%u", n);
		cr_expect_eq(mount_req.view_read_only, whole && reads, "%u", n);
		cr_expect_eq(mount_req.make_target, whole, "%u", n);
		cr_expect_eq(mount_req.set_uuid, whole || !reads, "%u", n);
		cr_expect_arr_eq(mount_req.uuid, uuid, sizeof(uuid));
		says(whole ? asks_unpublish() : asks_unstage(), "%s", "");
		cr_expect_eq(unmount_req.remove, whole, "%u", n);
		cr_expect(unmount_req.trusted);
		cr_expect_str_eq(unmount_req.target, whole ? target_path : staging_path);
	}
	access_read_only = publish_read_only = false;
	memcpy(far.uuid, uuid, sizeof(uuid));
	w->csi->config.staging = true;
	says(asks_stage(), "%s", "");
	cr_expect_not(mount_req.set_uuid, "it has it already");
	says(asks_unstage(), "%s", "");
	close_far();
}

Test(borrow_answers, of_what_is_bound, .timeout = 120)
{
	char first[96];
	for (unsigned n = 0; n < 8; n++) {
		bool whole = n / 4 == 1, as_block = n / 2 % 2 == 1, reads = n % 2 == 0;
		open_far(1, as_block); /* a device that was read-only is left writable */
		see_mounts();
		w->csi->config.staging = !whole;
		strcpy(first, target_path);
		if (whole && !as_block)
			says(asks_publish(), "%s", ""); /* what another one is bound from */
		else if (!whole)
			says(asks_stage(), "%s", "");
		if (whole && !as_block)
			snprintf(target_path, sizeof(target_path), "%s/second", w->dir);
		publish_read_only = reads;
		says(asks_publish(), "%s", "");
		cr_expect_str_eq(bind_req.source, as_block ? entry()->path
						  : whole  ? first
							   : staging_path);
		cr_expect_str_eq(bind_req.target, target_path);
		cr_expect_eq(bind_req.block, as_block);
		cr_expect_eq(bind_req.read_only, reads, "%u", n);
		cr_expect_eq(bind_req.writable, whole && !reads, "%u", n);
		publish_read_only = false;
		cr_expect(far.connected);
		says(asks_unpublish(), "%s", "");
		cr_expect(unmount_req.remove);
		strcpy(target_path, first);
		if (whole && !as_block)
			says(asks_unpublish(), "%s", "");
		else if (!whole)
			says(asks_unstage(), "%s", "");
		close_far();
	}
}
