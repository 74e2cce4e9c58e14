/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loading: a work job opens the pool's directories, takes its lock and reads every record. The loop
 * then takes over what was read. A file with a record that cannot be read is quarantined: its name
 * stays taken and nobody touches it. A pool that cannot be opened is missing, with a sentence why.
 *
 * A pool that comes back is read again and compared with memory in place. An operation cut short
 * keeps pointers, so what it may still be reading is never freed, but put aside until the pools are
 * closed. An object that is attached or mounted (`node`) stays as it is.
 */
#include "pool/load.h"

#include "base/buf.h"
#include "pool/arrival.h"
#include "pool/departure_load.h"
#include "pool/group.h"
#include "pool/group_load.h"
#include "pool/hold.h"
#include "pool/index.h"
#include "pool/presence.h"
#include "pool/raw_load.h"
#include "pool/sync.h"
#include "pool/trash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/xattr.h>

/* ---- the job: opening ---- */

static void load_end(struct pool_load *load, enum pool_life life, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
static void load_end(struct pool_load *load, enum pool_life life, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(load->why, sizeof(load->why), fmt, ap);
	va_end(ap);
	load->life = life;
}

/* A failed call: what is not there is missing, anything else a sick pool. */
static void load_end_sys(struct pool_load *load, int res, const char *what)
{
	load_end(load, res == -ENOENT || res == -ENOTDIR ? POOL_AWAY : POOL_UNREAD,
		"pool %s: %s%s%s: %s", load->name, load->path, what[0] != '\0' ? "/" : "", what,
		strerrordesc_np(-res));
}

/* The lock file; makes the directory a pool first where that is wanted. */
static int open_lock(struct pool_load *load)
{
	int *lock = &load->fds[POOL_FD_LOCK];
	*lock = openat(load->fds[POOL_FD_ROOT], POOL_FILE, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (*lock < 0 && errno == ENOENT && load->init && load->disk == NULL) {
		struct err err = {0};
		struct fs_features features;
		bool existed;
		if (pool_init_dir(load->path, &features, &existed, &err) < 0) {
			load_end(load, POOL_AWAY, "pool %s: %s", load->name, err.message);
			return -1;
		}
		*lock = openat(
			load->fds[POOL_FD_ROOT], POOL_FILE, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	}
	if (*lock < 0 && errno == ENOENT && load->disk != NULL) {
		load_end(load, POOL_UNREAD,
			"pool %s: the records on disk %s have no " POOL_FILE
			" file, they are damaged: look at them with ringvol check",
			load->name, load->disk->members[0].path);
		return -1;
	}
	if (*lock < 0 && errno == ENOENT) {
		load_end(load, POOL_AWAY,
			"%s has no " POOL_FILE " file: mount the pool's file system there, or run "
			"'ringvol pool init %s'",
			load->path, load->path);
		return -1;
	}
	if (*lock < 0) {
		load_end_sys(load, -errno, POOL_FILE);
		return -1;
	}
	int r = pool_lock_take(*lock);
	if (r < 0) {
		if (r == -EWOULDBLOCK)
			load_end(load, POOL_AWAY,
				"pool %s at %s is served by another driver: stop it, or give this "
				"one another pool; " POOL_LOCK_LEFT,
				load->name, load->path);
		else
			load_end_sys(load, r, POOL_FILE);
		return -1;
	}
	r = pool_file_read(*lock, load->uuid);
	if (r < 0) {
		load_end(load, POOL_UNREAD,
			"pool %s: the file %s/" POOL_FILE " is damaged or of a later version (%s)",
			load->name, load->path, strerrordesc_np(-r));
		return -1;
	}
	if (load->disk != NULL && strcmp(load->uuid, load->disk->uuid) != 0) {
		load_end(load, POOL_UNREAD,
			"pool %s: disk %s holds the records of another pool (%.8s instead of %.8s)",
			load->name, load->disk->members[0].path, load->uuid, load->disk->uuid);
		return -1;
	}
	return 0;
}

/* volumes/ must be there: without it the pool is damaged or empty, and nothing could tell which. It
 * is damaged, too, if memory knows snapshots and snapshots/ is not there. Else snapshots/ is made
 * again: somebody may have removed it when it was empty. So are the others, caches and leftovers.
 * In a raw pool none is made again: what the files in it occupied would count as free. */
static bool may_make(const struct pool_load *load, unsigned i)
{
	return load->disk == NULL &&
	       (i >= POOL_FD_TEMPLATES || (i == POOL_FD_SNAPSHOTS && !load->had_snapshots));
}

static int open_dirs(struct pool_load *load)
{
	int root = load->fds[POOL_FD_ROOT];
	for (unsigned i = POOL_FD_VOLUMES; i < POOL_DIRS_END; i++) {
		const char *name = pool_dir_names[i];
		if (may_make(load, i) && mkdirat(root, name, 0700) < 0 && errno != EEXIST &&
			errno != EROFS) {
			load_end_sys(load, -errno, name);
			return -1;
		}
		load->fds[i] = openat(root, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (load->fds[i] < 0) {
			load_end(load, POOL_UNREAD, "pool %s: the directory %s/%s: %s", load->name,
				load->path, name, strerrordesc_np(errno));
			return -1;
		}
	}
	return 0;
}

/* A pool of an earlier version has no thin/. One that has lost it has lost what its volumes' maps
 * lead to, which is found with them (raw_load.c). */
static int open_thin(struct pool_load *load)
{
	int root = load->fds[POOL_FD_ROOT], *fd = &load->fds[POOL_FD_THIN];
	if (load->disk == NULL) {
		*fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
		return 0;
	}
	if (mkdirat(root, THIN_DIR, 0700) < 0 && errno != EEXIST && errno != EROFS) {
		load_end_sys(load, -errno, THIN_DIR);
		return -1;
	}
	*fd = openat(root, THIN_DIR, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (*fd < 0 && errno != ENOENT) {
		load_end_sys(load, -errno, THIN_DIR);
		return -1;
	}
	return 0; /* read-only, and it never had one */
}

/* What an earlier run was building is trash: no client has been told of it. The pool may have come
 * back with an operation still under way: that one's rename fails then. */
static int drop_parked(struct pool_load *load)
{
	int r = trash_drop_parked(load->fds[POOL_FD_TRASH]);
	if (r < 0)
		load_end_sys(load, r, pool_dir_names[POOL_FD_TRASH]);
	if (r < 0 || load->disk == NULL)
		return r;
	r = thin_templates_sweep(load->fds[POOL_FD_TEMPLATES], load->fds[POOL_FD_TRASH]);
	if (r < 0)
		load_end_sys(load, r, pool_dir_names[POOL_FD_TEMPLATES]);
	return r;
}

int pool_probe(int root, const struct disk *disk, struct fs_features *ret, bool *ret_probed)
{
	int r = fs_features_probe(root, ret);
	*ret_probed = r == 0;
	if (r == -ENOSPC || r == -EDQUOT)
		r = fs_features_probe_full(root, POOL_FILE, ret);
	if (r < 0 || disk == NULL)
		return r;
	/* The bytes of volumes are on the disks, where nothing is shared and all is allocated. */
	ret->reflink = false;
	ret->fallocate = true;
	ret->nocow_lies = false;
	ret->dio_align = ret->shared_dio_align = disk->block_size;
	return 0;
}

/* A pool that is read-only or full cannot tell: each check asks again until it can. */
static int probe(struct pool_load *load)
{
	int r = pool_probe(load->fds[POOL_FD_ROOT], load->disk, &load->features, &load->probed);
	struct statfs fs;
	if (fstatfs(load->fds[POOL_FD_ROOT], &fs) < 0) {
		load_end_sys(load, -errno, "");
		return -1;
	}
	load->capacity_bytes = (uint64_t)fs.f_blocks * (uint64_t)fs.f_bsize;
	load->free_bytes = (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize;
	if (r == -EROFS) {
		load_end(load, POOL_READ_ONLY,
			"pool %s: %s is read-only: look for errors of its disk in the kernel log, "
			"mend it and mount it writable",
			load->name, load->path);
		return 0;
	}
	if (r < 0) {
		load_end_sys(load, r, "");
		return -1;
	}
	if (!load->features.tmpfile || !load->features.xattr) {
		load_end(load, POOL_UNREAD,
			"pool %s: the file system of %s has no %s, a pool needs it", load->name,
			load->path, load->features.tmpfile ? "trusted.* attributes" : "O_TMPFILE");
		return -1;
	}
	return 0;
}

/* ---- the job: reading ---- */

struct reading {
	struct pool_load *load;
	enum record_kind kind;
};

static int read_one(void *arg, const char *name)
{
	const struct reading *reading = arg;
	struct pool_load *load = reading->load;
	/* A name that is no key cannot be an object's: it is not ours, and in nobody's way. */
	if (!record_key_valid(name))
		return 0;
	if (array_grow(&load->found, &load->found_cap, load->found_count, sizeof(*load->found)) < 0)
		return -ENOMEM;
	int r = pool_read_object(load->fds[POOL_FD_VOLUMES + reading->kind], name, reading->kind,
		&load->found[load->found_count]);
	load->found_count += r == 0;
	return r == -ENOENT ? 0 : r;
}

static int compare_found(const void *a, const void *b)
{
	const struct pool_found *x = a, *y = b;
	return x->kind != y->kind ? (x->kind < y->kind ? -1 : 1) : strcmp(x->key, y->key);
}

/* An earlier run may have been killed between a change and the sync after it. A call repeated after
 * the restart is answered from the index, so what is read now has to be durable first. Where there
 * is one log, a change made now comes after all of those. Elsewhere (btrfs, ext4 without a journal)
 * all of the file system has to be synced. */
static int make_durable(struct pool_load *load)
{
	int lock = load->fds[POOL_FD_LOCK];
	if (load->life == POOL_READ_ONLY)
		return 0; /* read-only: nothing can be done about it, nor made there */
	if (pool_one_log(&load->features) ? futimens(lock, NULL) < 0 || fsync(lock) < 0
					  : syncfs(load->fds[POOL_FD_ROOT]) < 0) {
		load_end_sys(load, -errno, POOL_FILE);
		return -1;
	}
	return 0;
}

/* Before they are read, so that nothing happens unseen. */
static void watch_images(struct pool_load *load)
{
	int fd = pool_presence_watch(load->fds[POOL_FD_VOLUMES], load->fds[POOL_FD_SNAPSHOTS]);
	load->unwatched = fd < 0;
	load->fds[POOL_FD_EVENTS] = fd >= 0 ? fd : open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static int open_root(struct pool_load *load)
{
	struct pool_root root = {.fd = -1};
	struct err err = {0};
	int r = load->open_root(load->path, load->node, &root, &err);
	if (r == -ENOENT && err.code == ERR_OK && load->init && fd_make_dir(load->path, 0700) == 0)
		r = load->open_root(load->path, load->node, &root, &err);
	if (r < 0 && err.code == ERR_OK)
		err_sys(&err, r, "%s", load->path);
	if (r < 0)
		load_end(load, r == -ENOENT || r == -ENOTDIR ? POOL_AWAY : POOL_UNREAD,
			"pool %s: %s", load->name, err.message);
	load->fds[POOL_FD_ROOT] = root.fd;
	load->disk = root.disk;
	return r;
}

/* What is free is known when all maps are read. */
static int read_maps(struct pool_load *load)
{
	struct err err = {0};
	if (load->disk == NULL)
		return 0;
	int r = pool_raw_load(
		load->disk, load->fds, load->found, load->found_count, &load->raw, &err);
	if (r < 0)
		load_end(load, POOL_UNREAD, "pool %s: %s", load->name, err.message);
	else
		load->disk = NULL; /* it is load->raw's now */
	return r;
}

static int read_groups(struct pool_load *load)
{
	struct group_load groups = {
		.fds = load->fds,
		.read_only = load->life == POOL_READ_ONLY,
		.one_log = pool_one_log(&load->features),
		.found = load->found,
		.found_count = load->found_count,
		.groups = &load->groups,
	};
	memcpy(groups.uuid8, load->uuid, sizeof(groups.uuid8) - 1);
	int r = group_load_run(&groups);
	load->found_count = groups.found_count;
	load->groups_dir = groups.dir;
	if (r < 0)
		load_end_sys(load, r, pool_dir_names[POOL_FD_GROUPS]);
	return r;
}

static int read_departures(struct pool_load *load)
{
	struct departure_load departures = {
		.root_fd = load->fds[POOL_FD_ROOT],
		.volumes_fd = load->fds[POOL_FD_VOLUMES],
		.trash_fd = load->fds[POOL_FD_TRASH],
		.read_only = load->life == POOL_READ_ONLY,
		.found = load->found,
		.found_count = load->found_count,
		.departures = &load->departures,
	};
	memcpy(departures.uuid8, load->uuid, sizeof(departures.uuid8) - 1);
	int r = departure_load_run(&departures);
	load->fds[POOL_FD_DEPARTED] = departures.fd;
	load->found_count = departures.found_count;
	if (r < 0)
		load_end_sys(load, r, pool_dir_names[POOL_FD_DEPARTED]);
	return r;
}

static void read_pool(struct pool_load *load)
{
	if (open_root(load) < 0)
		return;
	load_end(load, POOL_SERVED, "%s", "");
	if (open_lock(load) < 0 || open_dirs(load) < 0 || open_thin(load) < 0 ||
		drop_parked(load) < 0 || probe(load) < 0 || make_durable(load) < 0)
		return;
	watch_images(load);
	/* A copy that is forgotten is asked for again: what cannot be read keeps no pool away. */
	(void)pool_holds_read(load->fds[POOL_FD_COPIES], &load->holds);
	/* Nor does a part: it stays, and a repeat of the move finds it. */
	(void)pool_arrivals_read(load->fds[POOL_FD_COPIES], &load->arrivals);
	for (unsigned kind = 0; kind < 2; kind++) {
		struct reading reading = {load, kind};
		int dir = POOL_FD_VOLUMES + (int)kind;
		int r = fd_each_name(load->fds[dir], read_one, &reading);
		if (r < 0) {
			load_end_sys(load, r, pool_dir_names[dir]);
			return;
		}
	}
	if (load->found_count > 0)
		qsort(load->found, load->found_count, sizeof(*load->found), compare_found);
	if (read_departures(load) == 0 && read_groups(load) == 0)
		(void)read_maps(load);
}

bool pool_load_holds(const struct pool_load *load)
{
	return load->fds[POOL_FD_ROOT] >= 0 || load->raw != NULL;
}

void pool_load_let_go(struct pool_load *load)
{
	for (unsigned i = 0; i < POOL_FDS; i++)
		fd_close(&load->fds[i]);
	disk_unref(load->disk);
	load->disk = NULL;
	pool_raw_free(load->raw);
	load->raw = NULL;
}

void pool_load_run(struct pool_load *load)
{
	read_pool(load);
	if (load->life < POOL_SERVED)
		pool_load_let_go(load);
}

void pool_load_clean(struct pool_load *load)
{
	for (size_t i = 0; i < load->found_count; i++) {
		record_free(load->found[i].rec);
		attachments_free(load->found[i].attachments);
	}
	free(load->found);
	for (struct list *l; (l = list_pop(&load->holds)) != NULL;)
		pool_hold_free(container_of(l, struct pool_hold, link));
	for (struct list *l; (l = list_pop(&load->groups)) != NULL;)
		pool_group_free(container_of(l, struct pool_group, link));
	pool_departures_free(&load->departures);
	pool_arrivals_free(&load->arrivals);
	pool_load_let_go(load);
	free(load->name);
	free(load->path);
	free(load->node);
}

void pool_fds_retire(const int fds[POOL_FDS])
{
	_cleanup_fd_ int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
	for (unsigned i = 0; null >= 0 && i < POOL_FDS; i++)
		dup3(null, fds[i], O_CLOEXEC);
}

/* ---- taking over ---- */

static struct pool_found *find_found(struct pool_load *load, const struct pool_object *o)
{
	struct pool_found want = {.kind = o->kind};
	strcpy(want.key, o->key);
	return load->found_count == 0 ? NULL
				      : bsearch(&want, load->found, load->found_count,
						sizeof(*load->found), compare_found);
}

static bool same_record(const struct record *a, const struct record *b)
{
	char x[RECORD_BYTES_MAX], y[RECORD_BYTES_MAX];
	return record_print(a, x, sizeof(x)) > 0 && record_print(b, y, sizeof(y)) > 0 &&
	       strcmp(x, y) == 0;
}

/* The same object, maybe with another record: by a driver elsewhere, while the pool was not here.
 */
static void refresh(struct pool_object *o, struct pool_found *found)
{
	struct pool_dead_record *dead = NULL;
	pool_sums_sub(o);
	if (!same_record(o->rec, found->rec) && (dead = calloc(1, sizeof(*dead))) != NULL) {
		dead->rec = o->rec;
		list_push(&o->pool->dead_records, &dead->link);
		o->rec = found->rec;
		found->rec = NULL;
	}
	attachments_free(o->attachments);
	o->attachments = found->attachments;
	found->attachments = NULL;
	o->allocated_bytes = found->allocated_bytes;
	o->image_dev = found->image_dev;
	o->image_ino = found->image_ino;
	pool_entry(o)->thin_id = found->thin_id;
	pool_entry(o)->left = found->left;
	pool_image_found(o, found->truncated ? POOL_IMAGE_TRUNCATED : POOL_IMAGE_WHOLE);
	pool_sums_add(o);
}

static void put_aside(struct pool_object *o)
{
	pool_index_remove(o);
	list_push(&o->pool->dead, &pool_entry(o)->link);
}

static void reconcile(struct pool_load *load, struct pool *pool)
{
	for (unsigned kind = 0; kind < 2; kind++)
		for (size_t i = pool->index[kind].count; i-- > 0;) {
			struct pool_object *o = pool->index[kind].at[i];
			struct pool_found *found = find_found(load, o);
			if (found != NULL && o->rec != NULL && found->rec != NULL &&
				strcmp(o->rec->random, found->rec->random) == 0)
				refresh(o, found);
			else if (o->node == NULL)
				put_aside(o);
			else
				pool_image_found(o, POOL_IMAGE_MISSING); /* in use all the same */
		}
}

static void take_fds(struct pool_load *load, struct pool *pool)
{
	bool first = pool->fds[POOL_FD_ROOT] < 0;
	for (unsigned i = 0; i < POOL_FDS; i++) {
		if (first) {
			pool->fds[i] = load->fds[i];
			load->fds[i] = -1;
		} else {
			dup3(load->fds[i], pool->fds[i], O_CLOEXEC);
		}
	}
}

/* 0 unless the uuid says that this is not the pool meant. */
static int check_uuid(const struct pool_load *load, struct pool *pool)
{
	if (pool->uuid[0] != '\0' && strcmp(pool->uuid, load->uuid) != 0) {
		pool_enter(pool, POOL_AWAY,
			"pool %s: at %s is another pool now (%.8s instead of %s): mount the right "
			"one, or restart the driver",
			pool->name, pool->path, load->uuid, pool->uuid8);
		return -1;
	}
	char uuid8[9];
	snprintf(uuid8, sizeof(uuid8), "%.8s", load->uuid);
	struct pool *twin = pools_by_uuid8(pool->pools, uuid8);
	if (twin != NULL && twin != pool) {
		pool_enter(pool, POOL_AWAY,
			"pool %s at %s has the same id as pool %s (%s): one is a copy of the other, "
			"only one can be served",
			pool->name, pool->path, twin->name, uuid8);
		return -1;
	}
	return 0;
}

/* That of an earlier load is let go with what is left of this one. */
static void take_raw(struct pool_load *load, struct pool *pool)
{
	struct pool_raw *before = pool->raw;
	if (load->raw == NULL)
		return;
	disk_publish(pool->uuid8, load->raw->disk);
	pool->raw = load->raw;
	load->raw = before;
}

void pool_load_adopt(struct pool_load *load, struct pool *pool)
{
	if (load->life < POOL_SERVED) {
		pool_enter(pool, load->life, "%s", load->why);
		return;
	}
	if (check_uuid(load, pool) < 0)
		return;
	strcpy(pool->uuid, load->uuid);
	snprintf(pool->uuid8, sizeof(pool->uuid8), "%.8s", load->uuid);
	take_fds(load, pool);
	take_raw(load, pool);
	pool->images_unwatched = load->unwatched;
	if (load->probed || !pool->probed)
		pool->features = load->features;
	else /* of a full one, too */
		pool->features.no_journal |= load->features.no_journal;
	/* A pool that came back read-only is asked when it can be written to. */
	pool->probed = load->probed || (pool->probed && load->life == POOL_SERVED);
	reconcile(load, pool);
	bool complete = true;
	for (size_t i = 0; i < load->found_count; i++)
		if (pool_index_find(pool, load->found[i].kind, load->found[i].key) == NULL)
			complete &= pool_index_insert(pool, &load->found[i]) != NULL;
	complete &= group_load_adopt(pool, &load->groups);
	pool->groups.dir = load->groups_dir;
	pool_holds_adopt(pool, &load->holds);
	pool_departures_adopt(pool, &load->departures);
	pool_arrivals_adopt(pool, &load->arrivals);
	pool_family_update_all(pool);
	pool->capacity_bytes = load->capacity_bytes;
	pool->free_bytes = load->free_bytes;
	pool_usage_see(pool, load->capacity_bytes, load->free_bytes);
	pool->measured_ns = ring_now_ns(pool->pools->reactor->ring);
	if (!complete) {
		/* Not the whole truth: as good as not loaded. The next look reads it again. The
		 * last of the descriptors are the load's to let go. */
		for (unsigned i = 0; i < POOL_FDS; i++)
			if (load->fds[i] < 0)
				load->fds[i] = fcntl(pool->fds[i], F_DUPFD_CLOEXEC, 0);
		pool_fds_retire(pool->fds);
		pool_enter(
			pool, POOL_UNREAD, "pool %s: out of memory while loading it", pool->name);
		return;
	}
	pool_enter(pool, load->life, "%s", load->why);
}
