/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Overwriting and giving back pieces. Happy path: the image's rename to the trash is made durable,
 * as zeros in a volume that comes back with a loss of power would be lost data. Its last bytes are
 * overwritten, ZERO_AT_ONCE_BYTES a job. At each multiple of RAW_GIVE_BYTES the map is cut there,
 * synced, and what was cut off is given back.
 *
 * How it can fail: a disk or the records answer with errors, a device of the image is still there
 * (a pod keeps it open), or maps are damaged, so that a piece may be another image's. Then the
 * image stays in the trash with the map it has, its pieces stay taken, and the next look after the
 * pool comes here again. Where the records are too full for a shorter map, the image is given back
 * whole, when its file has gone: to delete volumes is what makes room there.
 */
#include "pool/trash_raw.h"

#include "disk/zero.h"
#include "pool/private.h"
#include "pool/raw.h"
#include "pool/raw_devices.h"

#include <errno.h>
#include <unistd.h>

void trash_raw_begin(struct trash_raw *raw, const struct pool *pool)
{
	if (pool->raw == NULL)
		return;
	raw->disk = disk_ref(pool->raw->disk);
	raw->doubt = pool->raw->overlaps || pool->raw->unread[0] != '\0';
	raw->thin_up = pool->raw->thin.life == THIN_UP;
}

void trash_raw_end(struct trash_raw *raw)
{
	if (raw->disk != NULL)
		disk_unref(raw->disk);
	raw->disk = NULL;
}

static int sync_file(int fd)
{
	return fsync(fd) < 0 ? -errno : 0;
}

int trash_raw_open(struct trash_raw *raw, int fd)
{
	int r = image_map_read(fd, &raw->map);
	if (r < 0)
		return r;
	if (raw->doubt || (raw->map.thin_id != 0 && !raw->thin_up))
		return -EBUSY;
	r = raw_devices_check(raw->disk, &raw->map);
	if (r == 0)
		r = sync_file(fd);
	raw->size_bytes = raw->zeroed_from = image_map_bytes(&raw->map);
	raw->uncut = false;
	return r;
}

/* Where in the pool's addresses the image's bytes before `end` are: at most `bytes` of them, in one
 * piece. */
static struct image_piece piece_before(const struct image_map *map, uint64_t end, uint64_t bytes)
{
	const struct image_piece *piece = map->pieces;
	for (; end > piece->bytes; piece++)
		end -= piece->bytes;
	uint64_t len = end < bytes ? end : bytes;
	return (struct image_piece){piece->address + end - len, len};
}

/* The map on the file is what is cut, or what it was; nothing is free unless it is cut for good. */
static int cut_map(struct trash_raw *raw, int fd)
{
	struct image_map was = raw->map;
	image_map_cut(&raw->map, raw->zeroed_from);
	int r = image_map_write(fd, &raw->map);
	if (r == 0)
		r = sync_file(fd);
	if (r < 0) {
		(void)image_map_write(fd, &was);
		raw->map = was;
		return r;
	}
	raw->cut = was;
	raw->cut_from = raw->zeroed_from;
	raw->cut_bytes = image_map_bytes(&was) - raw->zeroed_from;
	return 0;
}

/* What the kernel does not know it has forgotten. 1 or -errno. */
static int forget_thin(const struct trash_raw *raw)
{
	_cleanup_dm_ struct dm dm = {.fd = -1};
	int r = dm_open(&dm, DM_CONTROL_PATH);
	if (r == 0)
		r = thin_pool_delete(&dm, raw->disk->uuid, raw->map.thin_id);
	return r == 0 || r == -ENODATA ? 1 : r;
}

int trash_raw_piece(struct trash_raw *raw, int fd)
{
	if (raw->map.thin_id != 0)
		return forget_thin(raw);
	if (raw->zeroed_from > 0) {
		uint64_t last = raw->zeroed_from % RAW_GIVE_BYTES;
		uint64_t most = last > 0 ? last : RAW_GIVE_BYTES;
		if (most > ZERO_AT_ONCE_BYTES)
			most = ZERO_AT_ONCE_BYTES;
		struct image_piece piece = piece_before(&raw->map, raw->zeroed_from, most);
		/* It may overwrite less at once, from the beginning. */
		for (uint64_t done = 0; done < piece.bytes;) {
			int64_t n = disk_zero(raw->disk, piece.address + done, piece.bytes - done);
			if (n < 0)
				return (int)n;
			done += (uint64_t)n;
		}
		raw->zeroed_from -= piece.bytes;
		if (raw->zeroed_from % RAW_GIVE_BYTES != 0)
			return 0;
		int r = cut_map(raw, fd);
		raw->uncut = r == -ENOSPC;
		if (r < 0 && !raw->uncut)
			return r;
	}
	return raw->zeroed_from == 0;
}

void trash_raw_gone(struct trash_raw *raw)
{
	raw->thin_gone += raw->map.thin_id != 0;
	if (!raw->uncut)
		return;
	raw->cut = raw->map;
	raw->cut_from = 0;
	raw->cut_bytes = image_map_bytes(&raw->map);
}

void trash_raw_give(struct trash_raw *raw, struct pool *pool)
{
	uint64_t bytes = raw->cut_bytes;
	raw->cut_bytes = 0;
	for (; raw->thin_gone > 0; raw->thin_gone--)
		thin_drop_id(pool);
	if (bytes == 0 || pool->raw == NULL)
		return;
	area_give_map(pool->raw->area, &raw->cut, raw->cut_from);
	uint64_t *dirty = &pool->raw->dirty_bytes;
	*dirty = *dirty > bytes ? *dirty - bytes : 0;
	pool_raw_wake(pool);
}
