/* SPDX-License-Identifier: Apache-2.0 */
/* A raw pool in a simulated ring, over a dm-thin in memory, for tests of thin volumes: what they
 * make there, and what has to be true whatever has failed. For one test program each. */
#ifndef RINGVOL_TESTS_SIM_THIN_WORLD_H
#define RINGVOL_TESTS_SIM_THIN_WORLD_H

#include "../thin_metadata.h"
#include "../unit/fake_dm.h"
#include "../unit/raw_fixture.h"
#include "faults.h"

#include "pool/index.h"
#include "pool/thin_files.h"
#include "pool/thin_keep.h"
#include "pool/thin_templates.h"

#include <inttypes.h>
#include <sys/mman.h>
#include <sys/xattr.h>

enum { AREA_MIB = 96, NODES = 64 };

/* ---- the kernel ---- */

int __wrap_dm_open(struct dm *ret, const char *path);
int __wrap_dm_open_node(uint32_t dev_major, uint32_t dev_minor, int flags);

#ifndef RINGVOL_TESTS_FAILING_CALLS_H /* which has that one, too */
/* The records have no room for another name of thin/metadata. */
static bool metadata_stay;
/* Nor for one of a template's. */
static bool templates_stay;

int __wrap_renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags);
int __real_renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags);

int __wrap_renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
	if (!(metadata_stay && strcmp(from, THIN_METADATA_FILE) == 0) &&
		!(templates_stay && thin_template_name_is(from)))
		return __real_renameat2(from_dir, from, to_dir, to, flags);
	errno = ENOSPC;
	return -1;
}
#endif

/* What each id has, as files. */
static struct {
	uint32_t id;
	int fd;
} bytes_of[NODES];
static unsigned bytes_count;

static inline int *bytes(uint32_t id)
{
	for (unsigned i = 0; i < bytes_count; i++)
		if (bytes_of[i].id == id)
			return &bytes_of[i].fd;
	cr_assert_lt(bytes_count, NODES);
	bytes_of[bytes_count].id = id;
	bytes_of[bytes_count].fd = memfd_create("thin", MFD_CLOEXEC);
	return &bytes_of[bytes_count++].fd;
}

static inline void bytes_drop(void)
{
	while (bytes_count > 0)
		close(bytes_of[--bytes_count].fd);
}

/* So many openings of the device mapper go well, and the next one fails so. */
static unsigned dm_open_after;
static int dm_open_fails;

int __wrap_dm_open(struct dm *ret, const char *path)
{
	(void)path;
	if (dm_open_fails != 0 && dm_open_after-- == 0) {
		int r = dm_open_fails;
		dm_open_fails = 0;
		return r;
	}
	*ret = (struct dm){.fd = -1, .call = fake_dm_call};
	return 0;
}

static inline void refuse_dm(unsigned after)
{
	dm_open_after = after;
	dm_open_fails = -EMFILE;
}

/* Whether an opening was refused. */
static inline bool dm_was_refused(void)
{
	bool refused = dm_open_fails == 0;
	dm_open_fails = 0;
	return refused;
}

/* There is a device of the metadata, which is the whole disk. */
static bool metadata_device;
/* The next device cannot be opened. */
static int node_open_fails;

int __wrap_dm_open_node(uint32_t dev_major, uint32_t dev_minor, int flags)
{
	const struct fake_device *d = &fake_dm_devices[dev_minor - FAKE_DM_MINOR];
	uint32_t id;
	(void)dev_major;
	(void)flags;
	if (node_open_fails != 0) {
		int r = node_open_fails;
		node_open_fails = 0;
		return r;
	}
	if (metadata_device && strstr(d->name, "thinmeta") != NULL)
		return open(raw_root.disk, O_RDWR | O_CLOEXEC);
	if (sscanf(d->now.targets[0].params, "%*u:%*u %u", &id) != 1 ||
		strcmp(d->now.targets[0].type, "thin") != 0)
		return -ENXIO;
	for (unsigned i = 0; i < fake_thin_count; i++)
		if (fake_thins[i].id == id)
			fake_thins[i].used = true;
	return fcntl(*bytes(id), F_DUPFD_CLOEXEC, 0);
}

static const struct meta_super new_super = {.details = 1,
	.mappings = 1,
	.metadata_used = 10,
	.metadata_total = 4096,
	.block_bytes = 64 << 10,
	.version = 2};

/* As the kernel makes metadata of zeros, and of nothing else. */
static inline void format(const struct dm_target *metadata)
{
	uint8_t blocks[2][META_BLOCK], was[META_BLOCK], zeros[META_BLOCK] = {0};
	uint64_t sector;
	cr_assert_eq(sscanf(metadata->params, "%*u:%*u %" SCNu64, &sector), 1);
	int fd = open(raw_root.disk, O_RDWR | O_CLOEXEC);
	cr_assert_eq(pread(fd, was, sizeof(was), (off_t)(sector * 512)), META_BLOCK);
	meta_write_super(blocks[0], &new_super);
	meta_write_node(blocks[1], 1, true, META_DETAILS, NULL, 0);
	if (memcmp(was, zeros, META_BLOCK) == 0)
		cr_assert_eq(
			pwrite(fd, blocks, sizeof(blocks), (off_t)(sector * 512)), 2 * META_BLOCK);
	fsync(fd);
	close(fd);
}

/* ---- the world ---- */

static inline void make_world(struct fixture *f)
{
	disarm();
	fake_dm_reboot(false);
	fake_thin_torn = 0;
	fake_thin_on_pool = format;
	bytes_drop();
	raw_make(f, AREA_MIB);
}

static inline void open_sim(struct fixture *f, struct ring_sim *sim, uint64_t seed)
{
	make_world(f);
	*sim = (struct ring_sim){
		.seed = seed, .short_every = 3, .eintr_every = 7, .fault = request_fault};
	fixture_open_ring(f, sim);
	f->observer = (struct op_observer){.before = step_fault, .before_call = job_fault};
	raw_open_pools(f);
}

static inline void close_thin(struct fixture *f)
{
	fake_thin_pool_words = NULL;
	fixture_close(f);
	bytes_drop();
}

static inline struct record thin_volume(const char *name, unsigned mib)
{
	struct record rec = raw_volume(name, mib);
	rec.thick = false;
	rec.mkfs_options = "";
	return rec;
}

/* Of the last build. */
static struct err build_err;

/* source: NULL: an empty one; a thin one is shared, a thick one copied. */
static inline enum err_code build(
	struct fixture *f, const struct record *rec, struct pool_object *source)
{
	struct pool_build b;
	struct pool_clone c;
	cr_assert_eq(pool_build_init(&b, &f->reactor, f->pool, rec), 0);
	if (source != NULL) {
		pool_clone_init(&c, source);
		c.build = &b;
		b.share_object = source->rec->thick ? NULL : source;
		b.fill = pool_clone_fill;
		b.fill_end = pool_clone_fill_end;
		b.fill_arg = &c;
		b.fill_writes = true;
	}
	enum err_code code = fixture_run(f, &b.op);
	build_err = b.op.err;
	if (code != ERR_OK)
		fprintf(stderr, "build: %s: %s\n", b.op.err.step, b.op.err.message);
	else /* the kernel keeps a device that somebody has open, and its caller may wait */
		cr_assert(b.thin_id == 0 || b.thin_device.fd < 0);
	pool_build_free(&b);
	return code;
}

static inline struct pool_object *find(struct fixture *f, const char *name)
{
	struct pool_object *o = pools_find_name(f->pools, RECORD_VOLUME, name);
	return o != NULL ? o : pools_find_name(f->pools, RECORD_SNAPSHOT, name);
}

/* A volume or snapshot of a source, which may be NULL; it is shared unless it is thick. */
static inline struct record thin_copy(const char *name, enum record_kind kind, unsigned mib,
	const struct pool_object *source, char id[RECORD_ID_MAX])
{
	struct record rec = thin_volume(name, mib);
	rec.kind = kind;
	id[0] = '\0';
	if (source != NULL) {
		rec.source = source->kind == RECORD_VOLUME ? RECORD_SOURCE_VOLUME
							   : RECORD_SOURCE_SNAPSHOT;
		pool_object_id(source, id);
		rec.shares_extents = !source->rec->thick;
	}
	rec.source_id = id;
	return rec;
}

static inline void remove_named(struct fixture *f, const char *name)
{
	struct pool_object *o = find(f, name);
	cr_assert_not_null(o, "%s", fault.what);
	cr_assert_eq(fixture_remove(f, o), ERR_OK, "%s", fault.what);
	fixture_settle(f);
}

static inline unsigned count_ids(struct fixture *f, const char *dir, bool known)
{
	unsigned count = 0;
	char path[256];
	snprintf(path, sizeof(path), "%s/%s", f->path, dir);
	DIR *d = opendir(path);
	for (const struct dirent *e; (e = readdir(d)) != NULL;) {
		struct image_map map;
		int fd = openat(dirfd(d), e->d_name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
		if (e->d_name[0] != '.' && fd >= 0 && image_map_read(fd, &map) == 0)
			count += map.thin_id != 0 && (!known || fake_thin_has(map.thin_id));
		close(fd);
	}
	closedir(d);
	return count;
}

static const char *const dirs[] = {"volumes", "snapshots", "trash", "templates"};

/* But for those that stand for the bytes of ids. */
static inline unsigned count_fds(struct fixture *f)
{
	return fixture_count_fds(f) - bytes_count;
}

/* At any moment, whatever has happened. */
static inline void check_files(struct fixture *f)
{
	unsigned known = 0;
	for (unsigned i = 0; i < 4; i++)
		known += count_ids(f, dirs[i], true);
	cr_assert_eq(
		known, fake_thin_count, "%s: %u files, %u ids", fault.what, known, fake_thin_count);
	cr_assert_eq(fake_thin_torn, 0);
}

static inline void check_devices(unsigned volumes)
{
	unsigned count = 0;
	for (unsigned i = 0; i < FAKE_DM_DEVICES; i++) {
		const struct fake_device *d = &fake_dm_devices[i];
		cr_assert_not(d->there && d->suspended, "%s: %s", fault.what, d->name);
		cr_assert_null(strstr(d->there ? d->name : "", "thinfill"), "%s", fault.what);
		count += d->there;
	}
	cr_assert_leq(count, 3 + volumes, "%s", fault.what);
}

static inline void check_rest(struct fixture *f, unsigned files, unsigned fds)
{
	fixture_settle(f);
	unsigned now_fds = count_fds(f);
	cr_assert_eq(now_fds, fds, "%s: %u and %u", fault.what, now_fds, fds);
	check_files(f);
	cr_assert_eq(fixture_count(f, "trash"), 0, "%s", fault.what);
	cr_assert_eq(
		f->pool->raw->thin.files, files, "%s: %u", fault.what, f->pool->raw->thin.files);
	cr_assert_eq(fake_thin_count, files, "%s", fault.what);
	cr_assert(f->pool->reserved_bytes == 0 && f->pool->reserved_thin_bytes == 0, "%s",
		fault.what);
	cr_assert_eq(f->pool->ops, 0, "%s", fault.what);
	check_devices(0);
}

/* What fails leaves trash for the next pass, which comes by itself. */
static inline void sweep_trash(struct fixture *f)
{
	thin_keep_kick(f->pool);
	fixture_settle(f);
	pool_trash_kick(f->pool);
	fixture_settle(f);
}

static inline ino_t inode_of(struct fixture *f, const char *name)
{
	char path[128];
	struct stat st;
	snprintf(path, sizeof(path), "%s/%s", f->path, name);
	cr_assert_eq(stat(path, &st), 0);
	return st.st_ino;
}

static inline void says(const char *text, const char *part)
{
	cr_assert_not_null(strstr(text, part), "%s", text);
}

static inline void build_fails(
	struct fixture *f, const struct record *rec, enum err_code code, const char *part)
{
	cr_assert_eq(build(f, rec, NULL), code, "%d: %s", build_err.code, build_err.message);
	says(build_err.message, part);
	sweep_trash(f);
}

/* ---- the thin pool ---- */

/* So many have its device open. */
static inline void set_open(unsigned count)
{
	for (unsigned i = 0; i < FAKE_DM_DEVICES; i++)
		if (strstr(fake_dm_devices[i].name, "thinpool") != NULL)
			fake_dm_devices[i].open = count;
}

/* A block of its metadata. */
static inline void write_metadata(struct fixture *f, uint64_t number, const uint8_t *block)
{
	struct image_map map = raw_map(f, "thin/metadata");
	off_t at = (off_t)(map.pieces[0].address - RAW_START + RAW_OFFSET + number * META_BLOCK);
	int fd = open(raw_root.disk, O_RDWR | O_CLOEXEC);
	cr_assert_eq(pwrite(fd, block, META_BLOCK, at), META_BLOCK);
	cr_assert_eq(fsync(fd), 0);
	close(fd);
}

static inline void look(struct fixture *f)
{
	thin_keep_kick(f->pool);
	fixture_settle(f);
}

static inline unsigned data_mib(const struct fixture *f)
{
	return (unsigned)(image_map_bytes(&f->pool->raw->thin.data) / RAW_MIB);
}

static inline unsigned device_mib(const char *what)
{
	char name[DM_NAME_LEN];
	uint64_t sectors = 0;
	snprintf(name, sizeof(name), "ringvol-%s-%.8s", what, RAW_POOL_UUID);
	for (unsigned i = 0; i < FAKE_DM_DEVICES; i++) {
		const struct fake_device *d = &fake_dm_devices[i];
		for (unsigned t = 0; d->there && strcmp(d->name, name) == 0 && t < d->now.count;
			t++)
			sectors += d->now.targets[t].length_sectors;
	}
	return (unsigned)(sectors * DM_SECTOR_BYTES / RAW_MIB);
}

/* What the driver knows, the images say and the devices have is the same. */
static inline void check_grown(struct fixture *f)
{
	struct image_map metadata = raw_map(f, "thin/metadata"), data = raw_map(f, "thin/data");
	cr_assert(image_map_equal(&metadata, &f->pool->raw->thin.metadata));
	cr_assert(image_map_equal(&data, &f->pool->raw->thin.data));
	cr_assert_eq(device_mib("thinmeta"), image_map_bytes(&metadata) / RAW_MIB);
	cr_assert_eq(device_mib("thindata"), data_mib(f));
	cr_assert_eq(device_mib("thinpool"), data_mib(f));
}

/* Done before that step of the thin pool's, once. */
static struct {
	const char *step;
	void (*act)(struct fixture *f);
	struct fixture *f;
} ahead;

static inline int act_ahead(void *arg, const char *op_name, const char *step_name)
{
	(void)arg;
	if (ahead.step != NULL && strcmp(op_name, "thin_keep") == 0 &&
		strcmp(step_name, ahead.step) == 0) {
		ahead.step = NULL;
		ahead.act(ahead.f);
	}
	return 0;
}

static inline void act_before(struct fixture *f, const char *step, void (*act)(struct fixture *f))
{
	f->observer.before = act_ahead;
	ahead.f = f;
	ahead.act = act;
	ahead.step = step;
}

/* Here the metadata have no device that thin_check could look at. */
static inline void forget_activity(const struct fixture *f)
{
	char path[256];
	snprintf(path, sizeof(path), "%s/thin/metadata", f->path);
	cr_assert_eq(removexattr(path, THIN_ACTIVE_XATTR), 0);
}

#endif
