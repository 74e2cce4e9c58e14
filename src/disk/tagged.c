/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names from tags and back, and how a device of a volume is let go. Owns nothing.
 *
 * The happy path of removing: open the node, swap in the retired table, remove. As the node is
 * open, the kernel puts the removal off until it is closed, and does it beside us; without it the
 * removal would wait for grace periods.
 */
#include "disk/tagged.h"

#include "base/clock.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define TAG_PREFIX  "ringvol:"
#define NAME_PREFIX "ringvol-"

enum {
	RETIRED_TARGETS = 2,
	/* The longest of the waits, each twice the one before, for the kernel to take away a device
	 * that was let go. After 255 ms in all, somebody counts as keeping it. */
	GOING_WAIT_MS = 128,
};

/* ---- names ---- */

static void dashes_for_colons(char *text)
{
	for (char *p = text; (p = strchr(p, ':')) != NULL;)
		*p = '-';
}

int tagged_names(const char *tag, const char *uuid_prefix, char ret_name[DM_NAME_LEN],
	char ret_uuid[DM_UUID_LEN])
{
	size_t len = strlen(tag);
	if (len <= strlen(TAG_PREFIX) || len >= TAGGED_TAG_BYTES ||
		strncmp(tag, TAG_PREFIX, strlen(TAG_PREFIX)) != 0 || strchr(tag, '/') != NULL)
		return -EINVAL;
	const char *rest = tag + strlen(TAG_PREFIX);
	snprintf(ret_name, DM_NAME_LEN, NAME_PREFIX "%s", rest);
	snprintf(ret_uuid, DM_UUID_LEN, "%s%s", uuid_prefix, rest);
	dashes_for_colons(ret_name);
	dashes_for_colons(ret_uuid);
	return 0;
}

int tagged_uuid(
	const char *tag, const char *uuid_prefix, uint64_t image_ino, char ret_uuid[DM_UUID_LEN])
{
	char name[DM_NAME_LEN];
	int r = tagged_names(tag, uuid_prefix, name, ret_uuid);
	size_t len = r == 0 ? strlen(ret_uuid) : 0;
	if (r == 0)
		snprintf(ret_uuid + len, DM_UUID_LEN - len, "-%" PRIx64, image_ino);
	return r;
}

/* The tag that a name says: "ringvol-aaaaaaaa-bbbbbbbb". */
static bool tag_of(const char *name, char ret_tag[TAGGED_TAG_BYTES])
{
	char pool[9], random[9];
	int end = 0;
	if (sscanf(name, NAME_PREFIX "%8[0-9a-f]-%8[0-9a-f]%n", pool, random, &end) != 2 ||
		name[end] != '\0' || strlen(pool) != 8 || strlen(random) != 8)
		return false;
	snprintf(ret_tag, TAGGED_TAG_BYTES, TAG_PREFIX "%s:%s", pool, random);
	return true;
}

/* ---- looking ---- */

int tagged_look(struct dm *dm, const char *name, const char *uuid, struct dm_device *ret)
{
	int r = dm_look(dm, uuid, ret);
	if (r == -ENXIO && dm_look_name(dm, name, ret) == 0)
		return -EEXIST;
	return r == 0 && strcmp(ret->name, name) != 0 ? -EEXIST : r;
}

int tagged_look_settled(struct dm *dm, const char *name, const char *uuid, struct dm_device *ret)
{
	int r = tagged_look(dm, name, uuid, ret);
	for (unsigned ms = 1; r == 0 && ret->going_away && ms <= GOING_WAIT_MS; ms *= 2) {
		clock_sleep_ms(ms);
		r = tagged_look(dm, name, uuid, ret);
	}
	return r;
}

/* ---- removing ---- */

int tagged_table_retired(uint64_t size_bytes, struct dm_target ret[2])
{
	uint64_t sectors = size_bytes / DM_SECTOR_BYTES;
	if (sectors <= TAGGED_TAIL_SECTORS)
		return -EINVAL;
	uint64_t tail = sectors - TAGGED_TAIL_SECTORS;
	ret[0] = (struct dm_target){.length_sectors = tail, .type = "error"};
	ret[1] = (struct dm_target){
		.start_sectors = tail, .length_sectors = TAGGED_TAIL_SECTORS, .type = "error"};
	return 0;
}

bool tagged_is_retired(const struct dm_target *targets, unsigned count)
{
	return count == RETIRED_TARGETS && strcmp(targets[0].type, "error") == 0 &&
	       strcmp(targets[1].type, "error") == 0 &&
	       targets[1].length_sectors == TAGGED_TAIL_SECTORS;
}

static int retire(struct dm *dm, const struct dm_device *device, uint64_t size_bytes, int node_fd)
{
	struct dm_target targets[RETIRED_TARGETS];
	/* Who has it open may have written what is in memory yet. What cannot be written must still
	 * be let go. */
	if (device->open_count > 0 && node_fd >= 0)
		(void)fsync(node_fd);
	int r = tagged_table_retired(size_bytes, targets);
	if (r == 0)
		r = dm_load(dm, device->uuid, targets, RETIRED_TARGETS, false);
	return r == 0 ? dm_resume(dm, device->uuid, NULL) : r;
}

int tagged_remove(
	struct dm *dm, const struct dm_device *device, uint64_t size_bytes, bool *ret_waits)
{
	_cleanup_fd_ int node_fd = -1;
	int retired = 0;
	if (size_bytes != 0) {
		/* The device stays as long as it is open. Without it all goes as well. */
		node_fd = dm_open_node(device->major, device->minor, O_RDONLY | O_NONBLOCK);
		if (node_fd < 0)
			node_fd = -1;
		retired = retire(dm, device, size_bytes, node_fd);
		/* Without its help the removal below frees what lies below, and waits for that. */
		if (retired < 0)
			fd_close(&node_fd);
	}
	int r = dm_remove(dm, device->uuid, ret_waits);
	if (r == 0 && node_fd >= 0)
		*ret_waits = device->open_count > 0;
	return r == 0 && *ret_waits ? retired : r;
}

/* ---- all of them ---- */

struct names {
	int (*each)(void *arg, const char *tag);
	void *arg;
	int res;
};

static void on_name(void *arg, const char *name, uint32_t dev_major, uint32_t dev_minor)
{
	struct names *names = arg;
	char tag[TAGGED_TAG_BYTES];
	(void)dev_major;
	(void)dev_minor;
	int r = tag_of(name, tag) ? names->each(names->arg, tag) : 0;
	if (r < 0 && r != -ENXIO && r != -EEXIST && names->res == 0)
		names->res = r;
}

int tagged_each(struct dm *dm, int (*each)(void *arg, const char *tag), void *arg)
{
	struct names names = {each, arg, 0};
	int r = dm_list(dm, on_name, &names);
	return r < 0 ? r : names.res;
}
