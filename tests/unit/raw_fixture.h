/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A raw pool for tests of src/pool, on any machine: its disk is a file, and its records are a plain
 * directory. The file is as a disk is, with a header, and bytes go to it by direct I/O. In the
 * place of pool_root_open() there is one that opens the two (raw_open_root).
 */
#ifndef RINGVOL_TESTS_RAW_FIXTURE_H
#define RINGVOL_TESTS_RAW_FIXTURE_H

#include "disk/header.h"
#include "disk/owner.h"
#include "pool/private.h"
#include "pool/raw.h"
#include "pool_fixture.h"

#define RAW_POOL_UUID "5f1e0000-0000-4000-8000-00000000001a"
#define RAW_DISK_UUID "d15c0000-0000-4000-8000-000000000001"
#define RAW_NODE      "node-1"

enum {
	RAW_MIB = 1 << 20,
	RAW_START = 0,            /* the first address of the disk */
	RAW_OFFSET = 4 * RAW_MIB, /* and where that is on it */
};

/* What the next root is made of; one fixture at a time. */
static struct {
	char records[96], disk[96];
	uint64_t area_bytes;
	enum err_code fails; /* opening it fails so */
	bool unready;        /* something else about it does */
} raw_root;

static inline int raw_open_root(
	const char *path, const char *node, struct pool_root *ret, struct err *err)
{
	(void)path;
	if (raw_root.fails != ERR_OK) {
		int r = err_set(err, raw_root.fails, "disk %s is not there", raw_root.disk);
		return raw_root.fails == ERR_UNAVAILABLE ? -ENOENT : r;
	}
	struct disk *disk = calloc(1, sizeof(*disk));
	*disk = (struct disk){.uuid = RAW_POOL_UUID, .count = 1, .block_size = 512, .refs = 1};
	struct disk_member *m = &disk->members[0];
	*m = (struct disk_member){.uuid = RAW_DISK_UUID,
		.fd = open(raw_root.disk, O_RDWR | O_DIRECT | O_CLOEXEC),
		.start = RAW_START,
		.offset = RAW_OFFSET,
		.bytes = raw_root.area_bytes};
	snprintf(m->path, sizeof(m->path), "%s", raw_root.disk);
	cr_assert(m->fd >= 0);
	cr_assert_str_eq(node, RAW_NODE);
	*ret = (struct pool_root){
		.fd = open(raw_root.records, O_RDONLY | O_DIRECTORY | O_CLOEXEC), .disk = disk};
	cr_assert(ret->fd >= 0);
	return 0;
}

static inline void raw_write_header_of(const char *pool, const char *disk, const char *owner)
{
	struct disk_header header = {.count = 1,
		.size_bytes = RAW_OFFSET + raw_root.area_bytes + RAW_MIB,
		.start = RAW_START,
		.offset = RAW_OFFSET,
		.bytes = raw_root.area_bytes,
		.records_offset = RAW_MIB,
		.records_bytes = RAW_OFFSET - RAW_MIB,
		.generation = 1};
	strcpy(header.pool, pool);
	strcpy(header.disk, disk);
	strcpy(header.disks[0], disk);
	strcpy(header.owner, owner);
	disk_machine(header.owner_machine); /* the look at each pool after 5 s compares it */
	int fd = open(raw_root.disk, O_RDWR | O_CLOEXEC);
	int r = disk_header_write(fd, &header);
	cr_assert_eq(r, 0, "%s", strerror(-r));
	close(fd);
}

static inline void raw_write_header(const char *owner)
{
	raw_write_header_of(RAW_POOL_UUID, RAW_DISK_UUID, owner);
}

/* Opens and loads it; it is ready, unless raw_root says that something fails. */
static inline void raw_open_pools(struct fixture *f)
{
	struct pool_config config = {
		.name = "p", .path = f->path, .overcommit = 1.0, .reserve_pct = 5};
	f->loaded = false;
	cr_assert_eq(pools_open(&f->pools, &f->reactor, &config, 1), 0);
	pools_serve_as(f->pools, RAW_NODE);
	f->pools->open_root = raw_open_root;
	f->pool = pools_at(f->pools, 0);
	pools_start(f->pools, fixture_on_loaded, fixture_on_changed, f);
	while (!f->loaded)
		fixture_turn(f);
	if (raw_root.fails == ERR_OK && !raw_root.unready)
		cr_assert_eq(pool_state(f->pool), POOL_READY, "%s", pool_why(f->pool));
}

static inline void raw_reopen_pools(struct fixture *f)
{
	fixture_close_pools(f);
	raw_open_pools(f);
}

/* A pool with an area of so many MiB, all of it zeros. Its records are at f->path. */
static inline void raw_make(struct fixture *f, unsigned mib)
{
	struct fs_features features;
	bool existed;
	struct err err = {0};
	fixture_make(f, FIXTURE_DIR, true);
	strcpy(raw_root.records, f->path);
	strcpy(raw_root.disk, f->image);
	raw_root.area_bytes = (uint64_t)mib * RAW_MIB;
	raw_root.fails = ERR_OK;
	int fd = open(f->image, O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
	if (fd < 0) {
		fixture_sh("rm -rf %s", f->top);
		cr_skip_test("the file system of /tmp has no direct I/O");
	}
	cr_assert_eq(ftruncate(fd, (off_t)(RAW_OFFSET + raw_root.area_bytes + RAW_MIB)), 0);
	close(fd);
	raw_write_header(RAW_NODE);
	int root = open(f->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int r = pool_init_root(root, f->path, RAW_POOL_UUID, &features, &existed, &err);
	close(root);
	cr_assert_eq(r, 0, "%s", err.message);
}

static inline void raw_open(struct fixture *f, unsigned mib)
{
	raw_make(f, mib);
	fixture_open_ring(f, NULL);
	raw_open_pools(f);
}

static inline struct record raw_volume(const char *name, unsigned mib)
{
	struct record rec = fixture_volume(name, (uint64_t)mib * RAW_MIB);
	rec.thick = true;
	return rec;
}

static inline struct pool_object *raw_make_volume(struct fixture *f, const char *name, unsigned mib)
{
	struct record rec = raw_volume(name, mib);
	struct pool_object *o = NULL;
	cr_assert_eq(fixture_build(f, &rec, NULL, &o), ERR_OK);
	return o;
}

/* The map of "volumes/x". */
static inline struct image_map raw_map(struct fixture *f, const char *name)
{
	struct image_map map = {0};
	char path[256];
	snprintf(path, sizeof(path), "%s/%s", f->path, name);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	cr_assert(fd >= 0, "%s", path);
	cr_assert_eq(image_map_read(fd, &map), 0);
	close(fd);
	return map;
}

/* Fills the beginning and the end of each unit of the pieces with a byte, or says whether they are
 * full of it. Not all of it: a disk with gigabytes to write makes a pool read as sick. */
static inline bool raw_bytes(const struct image_map *map, bool write, uint8_t byte)
{
	enum { MARK = 4096 };
	int fd = open(raw_root.disk, O_RDWR | O_CLOEXEC);
	uint8_t mem[MARK];
	bool same = true;
	for (unsigned i = 0; i < map->count; i++)
		for (uint64_t at = 0; at < map->pieces[i].bytes; at += RAW_MIB / 2) {
			uint64_t in = map->pieces[i].address - RAW_START + RAW_OFFSET + at;
			off_t offset = (off_t)(at % RAW_MIB == 0 ? in : in + RAW_MIB / 2 - MARK);
			memset(mem, byte, MARK);
			if (write)
				cr_assert_eq(pwrite(fd, mem, MARK, offset), MARK);
			else
				cr_assert_eq(pread(fd, mem, MARK, offset), MARK);
			for (size_t n = 0; n < MARK && same; n++)
				same = mem[n] == byte;
		}
	cr_assert_eq(fsync(fd), 0);
	close(fd);
	return same;
}

static inline uint64_t raw_free_mib(const struct fixture *f)
{
	return area_free_bytes(f->pool->raw->area) / RAW_MIB;
}

static inline uint64_t raw_dirty_mib(const struct fixture *f)
{
	return f->pool->raw->dirty_bytes / RAW_MIB;
}

/* ---- who waits for room ---- */

static struct {
	struct op op;
	struct pool_raw_wait wait;
	struct pool_raw *raw;
} raw_waiter;

static inline int raw_waiter_run(struct op *op)
{
	list_push(&raw_waiter.raw->waiting, &raw_waiter.wait.link);
	return op_wait(op);
}

/* As who makes a volume and finds too few zeros. One at a time. */
static inline void raw_waiter_start(struct fixture *f, struct pool_raw *raw)
{
	static const struct op_step steps[] = {{"wait", .run = raw_waiter_run}, {NULL}};
	raw_waiter.raw = raw;
	raw_waiter.wait = (struct pool_raw_wait){.op = &raw_waiter.op};
	op_init(&raw_waiter.op, &f->reactor, "waiter", steps, fixture_on_end);
	fixture_ended = false;
	op_start(&raw_waiter.op);
	while (list_empty(&raw->waiting))
		fixture_turn(f);
}

static inline void raw_waiter_end(struct fixture *f)
{
	while (!fixture_ended)
		fixture_turn(f);
	cr_assert_not(op_failed(&raw_waiter.op));
}

#endif
