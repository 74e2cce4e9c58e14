/* SPDX-License-Identifier: Apache-2.0 */
#include "lender.h"

#include "backends/crypt/luks_order.h"
#include "blockio/luks_room.h"
#include "reactor/spawn.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

/* ---- the other node ---- */

struct far far;

struct attach_pair pairs[PAIRS + 1] = {
	{ATTACH_TRANSPORT, "tcp"}, {ATTACH_ADDRESS, "192.0.2.1:4420"},
	{ATTACH_SUBSYSTEM, ATTACH_NQN_PREFIX "a"}, {ATTACH_HOST, ATTACH_HOST_NQN_PREFIX "b"},
	{ATTACH_HOST_ID, "11111111-2222-4333-8444-555555555555"}, {ATTACH_KEY, KEY},
	{ATTACH_NAMESPACE, "01234567-89ab-4cde-8f01-23456789abcd"}, {ATTACH_NODE, "node-2"},
	{ATTACH_VOLUME_MODE, "mount"}, {ATTACH_FS_TYPE, "ext4"},
	{ATTACH_ENCRYPTION, ATTACH_ENCRYPTION_LUKS2}, /* of encrypted ones */
};

void sh(const char *fmt, const char *arg)
{
	char command[512];
	snprintf(command, sizeof(command), fmt, arg);
	cr_assert_eq(system(command), 0, "%s", command);
}

bool opened(char ret[32])
{
	char path[128];
	snprintf(path, sizeof(path), "%s/opened", w->dir);
	FILE *f = far.encrypted ? fopen(path, "re") : NULL;
	bool is = f != NULL && fgets(ret, 32, f) != NULL;
	if (f != NULL)
		fclose(f);
	if (is)
		ret[strcspn(ret, "\n")] = '\0';
	return is;
}

static struct attach_cover device(const char *path)
{
	struct attach_cover ret = {.size_bytes = 0};
	struct stat st;
	char size[64], text[32] = "";
	cr_assert_eq(stat(path, &st), 0);
	ret.major = major(st.st_rdev);
	ret.minor = minor(st.st_rdev);
	snprintf(ret.path, sizeof(ret.path), "%s", path);
	snprintf(size, sizeof(size), "/sys/dev/block/%u:%u/size", ret.major, ret.minor);
	FILE *f = fopen(size, "re");
	cr_assert(f != NULL && fgets(text, sizeof(text), f) != NULL);
	fclose(f);
	ret.size_bytes = strtoull(text, NULL, 10) * 512;
	return ret;
}

void fill(struct attach_info *info)
{
	char over[32];
	if (!far.connected)
		return;
	info->cover = device(far.path);
	info->opened = opened(over);
	const struct attach_cover used = info->opened ? device(over) : info->cover;
	info->there = true;
	info->alive = !far.lost;
	info->local = far.local;
	info->suspended = far.suspended;
	info->major = used.major;
	info->minor = used.minor;
	info->size_bytes = used.size_bytes;
	info->read_only = far.read_only;
	memcpy(info->path, used.path, sizeof(info->path));
	info->probe = (struct fsimg_probe){.type = FSIMG_EXT4,
		.errors = far.errors,
		.fs_bytes = far.fs_bytes != 0 ? far.fs_bytes : 16 << 20};
	memcpy(info->probe.uuid, far.uuid, sizeof(far.uuid));
	if (far.local)
		return;
	snprintf(info->ctrl.name, sizeof(info->ctrl.name), "nvme7");
	snprintf(info->ctrl.state, sizeof(info->ctrl.state), "%s",
		far.state != NULL ? far.state : "live");
	snprintf(info->ctrl.subsystem, sizeof(info->ctrl.subsystem), ATTACH_NQN_PREFIX "a");
	snprintf(info->ctrl.address, sizeof(info->ctrl.address), "traddr=192.0.2.1,trsvcid=4420");
}

static struct attach_info *begin(void *resp, size_t *resp_len)
{
	*resp_len = sizeof(struct attach_info);
	memset(resp, 0, *resp_len);
	return resp;
}

static int fail(struct attach_info *info, int *res)
{
	int r = *res;
	*res = 0;
	if (r < 0 && far.code != ERR_OK)
		err_set(&info->err, far.code, "no such luck");
	return r;
}

static int fake_take(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	const struct attach_take_req *take = req;
	struct attach_info *info = begin(resp, resp_len);
	cr_assert_eq(req_len, sizeof(*take));
	cr_assert_str_eq(take->tag, TAG);
	cr_assert_eq(take->terms.encrypted, far.encrypted);
	int r = fail(info, &far.fail_take);
	if (r < 0)
		return r;
	far.takes++;
	memcpy(far.key, take->terms.key, sizeof(far.key));
	far.probe = take->probe;
	info->found = far.connected;
	if (!far.connected) {
		char command[256];
		far.read_only = take->read_only;
		snprintf(command, sizeof(command), "losetup %s -f --show %s/image",
			take->read_only ? "-r" : "", w->dir);
		FILE *f = popen(command, "re");
		cr_assert(f != NULL && fgets(far.path, sizeof(far.path), f) != NULL);
		cr_assert_eq(pclose(f), 0);
		far.path[strcspn(far.path, "\n")] = '\0';
		far.connected = true;
	}
	bool found = info->found;
	fill(info);
	info->found = found;
	return 0;
}

static int fake_opened(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	const struct attach_take_req *take = req;
	struct attach_info *info = begin(resp, resp_len);
	cr_assert_eq(req_len, sizeof(*take));
	cr_assert_str_eq(take->tag, far.tag);
	cr_assert_str_eq(take->terms.key, "", "it was wiped when it was used");
	int r = fail(info, &far.fail_opened);
	if (r < 0)
		return r;
	fill(info);
	cr_assert(info->opened);
	return 0;
}

/* Whoever has the loop device next may write to it, whatever it was published as here. */
static void detach(const char *path)
{
	sh("blockdev --setrw %1$s; losetup -d %1$s", path);
}

static int fake_give(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	struct attach_info *info = begin(resp, resp_len);
	cr_assert_eq(req_len, sizeof(struct attach_volume_req));
	cr_assert_str_eq(((const struct attach_volume_req *)req)->tag, far.tag);
	int r = fail(info, &far.fail_give);
	if (r < 0)
		return r;
	far.gives++;
	char over[32];
	if (opened(over)) {
		detach(over);
		sh("rm %s/opened", w->dir);
	}
	if (far.connected)
		detach(far.path);
	far.connected = far.lost = false;
	return 0;
}

static int fake_look(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	(void)req;
	(void)req_len;
	fill(begin(resp, resp_len));
	return 0;
}

static int fake_grow(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	const struct attach_volume_req *ask = req;
	struct attach_info *info = begin(resp, resp_len);
	char command[256];
	(void)req_len;
	snprintf(command, sizeof(command), "truncate -s %llu %s/image && losetup -c %s",
		(unsigned long long)ask->want_bytes + (far.encrypted ? LUKS_HEADER_BYTES : 0),
		w->dir, far.path);
	cr_assert_eq(system(command), 0);
	fill(info);
	return 0;
}

void use_fakes(void)
{
	w->calls[ATTACH_TAKE] = fake_take;
	w->calls[ATTACH_GIVE] = fake_give;
	w->calls[ATTACH_OPENED] = fake_opened;
	w->calls[ATTACH_LOOK] = fake_look;
	w->calls[ATTACH_GROW] = fake_grow;
}

/* It takes the key from the end of its order, and shows what is behind the header by a loop device
 * over the cover. Without a key it gives that one the cover's size. */
static void write_child(void)
{
	static char path[128];
	snprintf(path, sizeof(path), "%s/child", w->dir);
	FILE *f = fopen(path, "we");
	cr_assert_not_null(f);
	fprintf(f,
		"#!/bin/sh\n"
		"cd %s; key=$(tail -c +%d <&3)\n"
		". ./does\n"
		"[ -n \"$key\" ] || exec losetup -c $(cat opened)\n"
		"[ \"$key\" = 'the key' ] || { echo 'ringvol luks: no slot has it'; exit %d; }\n"
		"case $(sed -n 's/^flags:.*\\(.\\)$/\\1/p' /proc/self/fdinfo/%d) in 0) ro=-r;; esac\n"
		"losetup $ro -f --show -o %d $(readlink /proc/self/fd/%d) >opened\n",
		w->dir, LUKS_HEAD_BYTES + 1, LUKS_WRONG_KEY, LUKS_DEVICE_FD, (int)LUKS_HEADER_BYTES,
		LUKS_DEVICE_FD);
	cr_assert_eq(fclose(f), 0);
	sh("chmod 700 %1$s/child; true >%1$s/does", w->dir);
	spawn_self_exe = path;
}

void encrypt_far(bool as_block)
{
	far.encrypted = true;
	context_count = PAIRS + 1;
	stage_key = "the key";
	sh("rm %1$s/image; truncate -s 32M %1$s/image", w->dir);
	if (!as_block)
		sh("mkfs.ext4 -q -O metadata_csum_seed -E offset=16777216 %s/image 16M", w->dir);
	write_child();
}

void open_far(uint64_t seed, bool as_block)
{
	open_world(WORLD_EXT4, seed, as_block);
	memset(&far, 0, sizeof(far));
	strcpy(far.tag, TAG);
	pairs[MODE].value = as_block ? "block" : "mount";
	pairs[MODE + 1].value = as_block ? "" : "ext4";
	context = pairs;
	context_count = PAIRS;
	strcpy(volume_id, ID);
	sh("truncate -s 16M %s/image", w->dir);
	if (!as_block)
		sh("mkfs.ext4 -q -O metadata_csum_seed %s/image", w->dir);
	use_fakes();
}

void close_far(void)
{
	cr_assert(!far.connected);
	cr_assert_eq(w->csi->borrows->busy, 0);
	cr_assert(list_empty(&w->csi->borrows->all));
	world_close(w);
}

struct borrowed *entry(void)
{
	return borrows_find(w->csi->borrows, TAG);
}

void child_does(const char *script)
{
	char path[128];
	snprintf(path, sizeof(path), "%s/does", w->dir);
	FILE *f = fopen(path, "we");
	cr_assert(f != NULL && fputs(script, f) >= 0);
	cr_assert_eq(fclose(f), 0);
}

/* ---- calls ---- */

const char *expands_at(const char *path, int64_t required, int64_t limit)
{
	Csi__V1__NodeExpandVolumeRequest req = CSI__V1__NODE_EXPAND_VOLUME_REQUEST__INIT;
	Csi__V1__CapacityRange range = CSI__V1__CAPACITY_RANGE__INIT;
	range.required_bytes = required;
	range.limit_bytes = limit;
	req.volume_id = csi_bytes(volume_id);
	req.volume_path = csi_bytes(path);
	req.capacity_range = &range;
	return ASK("Node", NodeExpandVolume, node_expand_volume);
}

const char *asks_health_at(const char *publish_path, const char *staging)
{
	Csi__V1__NodeGetVolumeHealthRequest req = CSI__V1__NODE_GET_VOLUME_HEALTH_REQUEST__INIT;
	req.volume_id = csi_bytes(volume_id);
	req.volume_publish_path = csi_bytes(publish_path);
	req.staging_target_path = csi_bytes(staging);
	return ASK("Node", NodeGetVolumeHealth, node_get_volume_health);
}

void says_at(const char *got, const char *fmt, const char *path)
{
	char want[500];
	snprintf(want, sizeof(want), fmt, path);
	says(got, "%s", want);
}

void is_released(void)
{
	cr_expect(!far.connected);
	cr_expect_null(entry());
}
