/* SPDX-License-Identifier: Apache-2.0 */
/* A pool as the tools read it (pool/survey.h): what is said of one that is not sound, its lock, its
 * names, its room. The disks and the device mapper are the test's, put there by the linker. */
#include "raw_fixture.h"

#include "disk/thin_pool.h"
#include "pool/survey.h"

#include <sys/file.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>

int __wrap_disk_open(
	const char *path, enum disk_use use, const char *node, struct disk **ret, struct err *err);
int __wrap_disk_records(struct disk *disk, bool read_only, int *ret_root_fd, struct err *err);
bool __wrap_dm_is_loaded(void);
int __wrap_dm_open(struct dm *ret, const char *control_path);
int __wrap_thin_volume_bytes(struct dm *dm, const char *uuid, uint64_t *ret);
void __wrap_clock_sleep_ms(unsigned ms);
int __wrap_fstatvfs64(int fd, struct statvfs *ret);
int __wrap_fstatfs64(int fd, struct statfs *ret);
int __real_fstatfs64(int fd, struct statfs *ret);

/* ---- what the linker puts there ---- */

static struct {
	struct survey *holder; /* has the lock until that many waits were counted */
	unsigned waits_left, waits;
} lock;

void __wrap_clock_sleep_ms(unsigned ms)
{
	cr_assert_gt(ms, 0);
	lock.waits++;
	if (lock.waits_left > 0 && --lock.waits_left == 0)
		survey_close(lock.holder);
}

static struct {
	bool read_only;
	int fails, type_fails; /* errno */
} fs;

int __wrap_fstatvfs64(int fd, struct statvfs *ret)
{
	cr_assert_geq(fd, 0);
	*ret = (struct statvfs){.f_bsize = 1 << 20,
		.f_frsize = 4096,
		.f_blocks = 1000,
		.f_bfree = 400,
		.f_bavail = 300,
		.f_flag = ST_NOATIME | (fs.read_only ? ST_RDONLY : 0)};
	errno = fs.fails;
	return fs.fails != 0 ? -1 : 0;
}

int __wrap_fstatfs64(int fd, struct statfs *ret)
{
	int r = __real_fstatfs64(fd, ret);
	if (fs.type_fails == 0)
		return r;
	errno = fs.type_fails;
	return -1;
}

static struct {
	enum err_code open_fails, records_fail;
	enum disk_use use;
	bool read_only;
	struct disk *disk;
} raw;

int __wrap_disk_open(
	const char *path, enum disk_use use, const char *node, struct disk **ret, struct err *err)
{
	struct pool_root root;
	cr_assert_null(node);
	raw.use = use;
	if (raw.open_fails != ERR_OK)
		return err_set(err, raw.open_fails, "no disk of %s", path);
	cr_assert_eq(raw_open_root(path, RAW_NODE, &root, err), 0);
	close(root.fd);
	*ret = raw.disk = root.disk;
	return 0;
}

int __wrap_disk_records(struct disk *disk, bool read_only, int *ret_root_fd, struct err *err)
{
	cr_assert_eq(disk, raw.disk);
	raw.read_only = read_only;
	if (raw.records_fail != ERR_OK)
		return err_set(err, raw.records_fail, "no records here");
	*ret_root_fd = open(raw_root.records, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return 0;
}

static struct {
	bool there, loaded; /* a device mapper: it can be opened, its module is there */
	int open_fails, fails;
	unsigned asked;
	char uuid[DM_UUID_LEN];
} thin;

bool __wrap_dm_is_loaded(void)
{
	return thin.loaded;
}

int __wrap_dm_open(struct dm *ret, const char *control_path)
{
	(void)control_path;
	*ret = (struct dm){.fd = -1};
	return thin.there ? thin.open_fails : -ENOENT;
}

int __wrap_thin_volume_bytes(struct dm *dm, const char *uuid, uint64_t *ret)
{
	(void)dm;
	thin.asked++;
	strcpy(thin.uuid, uuid);
	if (thin.fails == 0)
		*ret = 3 * RAW_MIB;
	return thin.fails;
}

/* ---- directory pools ---- */

static void make_dir_pool(struct fixture *f)
{
	fixture_make(f, FIXTURE_DIR, false);
}

static void drop(struct fixture *f)
{
	fixture_sh("rm -rf %s", f->top);
}

/* What a look finds; why NULL: nothing wrong. */
static void expect(struct fixture *f, enum pool_state state, const char *why)
{
	struct survey s;
	survey_open(&s, f->path, SURVEY_LOOK);
	cr_expect_eq(s.state, state, "%d: %s", s.state, s.why);
	if (why != NULL)
		cr_expect_not_null(strstr(s.why, why), "%s", s.why);
	else
		cr_expect_str_eq(s.why, "");
	survey_close(&s);
}

Test(survey, a_sound_directory_pool)
{
	struct fixture f;
	struct survey s;
	char text[128];
	make_dir_pool(&f);
	survey_open(&s, f.path, SURVEY_LOOK);
	cr_expect_eq(s.state, POOL_READY, "%s", s.why);
	cr_expect_str_eq(s.why, "");
	cr_expect_str_eq(s.path, f.path);
	cr_expect_eq(strlen(s.uuid), UUID_BYTES - 1);
	fixture_sh("cat %s/" POOL_FILE " > %s/text", f.path, f.top);
	snprintf(text, sizeof(text), "%s/text", f.top);
	int fd = open(text, O_RDONLY | O_CLOEXEC);
	char uuid[UUID_BYTES];
	cr_expect(pool_file_read(fd, uuid) == 0 && strcmp(uuid, s.uuid) == 0);
	close(fd);
	cr_expect(!s.served && !s.read_only && s.disk == NULL && s.lock_fd == -1);
	/* Blocks are counted in f_frsize, and what root alone may take is not free. */
	cr_expect_eq(s.capacity_bytes, 1000 * 4096);
	cr_expect_eq(s.free_bytes, 300 * 4096);
	struct statfs type;
	cr_expect_eq(statfs(f.path, &type), 0);
	cr_expect_eq(s.fs_type, (unsigned long)type.f_type);
	int fds[SURVEY_DIRS];
	for (unsigned i = 0; i < SURVEY_DIRS; i++) {
		fds[i] = s.fds[i];
		cr_expect_eq(s.fds[i] >= 0, i != SURVEY_THIN, "%u", i);
		cr_expect(i == SURVEY_THIN || fcntl(fds[i], F_GETFD) == FD_CLOEXEC, "%u", i);
	}
	survey_close(&s);
	for (unsigned i = 0; i < SURVEY_DIRS; i++)
		cr_expect(s.fds[i] == -1 && fcntl(fds[i], F_GETFD) == -1, "%u", i);
	drop(&f);
}

/* The first thing that is wrong is named, and it is what a driver would say. */
Test(survey, what_is_missing_or_damaged_is_named)
{
	struct fixture f;
	make_dir_pool(&f);
	fixture_sh("rmdir %s/groups %s/departed %s/templates %s/copies %s/trash %s/snapshots",
		f.path, f.path, f.path, f.path, f.path, f.path);
	expect(&f, POOL_READY, NULL);
	fixture_sh("touch %s/groups %s/templates", f.path, f.path);
	expect(&f, POOL_READY, NULL);
	fixture_sh("touch %s/snapshots", f.path);
	expect(&f, POOL_SICK, "/snapshots: Not a directory");
	fixture_sh("rm %s/snapshots; rmdir %s/volumes", f.path, f.path);
	expect(&f, POOL_SICK, "/volumes: No such file or directory");
	fixture_sh("echo hello > %s/" POOL_FILE, f.path);
	expect(&f, POOL_SICK, "/" POOL_FILE " is damaged or of a later version (Bad message)");
	fixture_sh("cd %s && rm " POOL_FILE " && ln -s nowhere " POOL_FILE, f.path);
	expect(&f, POOL_SICK, "/" POOL_FILE ": Too many levels of symbolic links");
	fixture_sh("rm %s/" POOL_FILE, f.path);
	expect(&f, POOL_MISSING, "has no " POOL_FILE " file: mount the pool's file system there");
	fixture_sh("rm -r %s && touch %s", f.path, f.path);
	expect(&f, POOL_MISSING, "/pool: Not a directory");
	fixture_sh("rm %s", f.path);
	expect(&f, POOL_MISSING, "/pool: No such file or directory");
	fixture_sh("ln -s pool %s", f.path);
	expect(&f, POOL_SICK, "/pool: Too many levels of symbolic links");
	drop(&f);
}

Test(survey, a_file_system_that_is_read_only_or_does_not_answer)
{
	struct fixture f;
	struct survey s;
	make_dir_pool(&f);
	fs.read_only = true;
	expect(&f, POOL_SICK, "/pool is read-only: look for errors of its disk");
	survey_open(&s, f.path, SURVEY_LOOK);
	cr_expect(s.read_only && s.fds[SURVEY_VOLUMES] >= 0 && s.uuid[0] != '\0');
	survey_close(&s);
	fixture_sh("mv %s/" POOL_FILE " %s/away", f.path, f.top);
	expect(&f, POOL_MISSING, "has no " POOL_FILE);
	fixture_sh("mv %s/away %s/" POOL_FILE, f.top, f.path);
	fs.fails = EIO;
	expect(&f, POOL_SICK, "/pool: Input/output error");
	fs.fails = 0;
	fs.type_fails = EIO;
	expect(&f, POOL_SICK, "/pool: Input/output error");
	survey_open(&s, f.path, SURVEY_LOOK);
	cr_expect(!s.read_only && s.capacity_bytes == 0 && s.fs_type == 0);
	survey_close(&s);
	drop(&f);
}

static bool is_locked(const struct fixture *f)
{
	char path[128];
	snprintf(path, sizeof(path), "%s/" POOL_FILE, f->path);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	bool locked = flock(fd, LOCK_EX | LOCK_NB) < 0;
	close(fd);
	return locked;
}

/* A look takes no lock; a check takes it at once or not at all; a repair waits for it. */
Test(survey, the_lock)
{
	struct fixture f;
	struct survey first, second;
	make_dir_pool(&f);
	survey_open(&first, f.path, SURVEY_LOOK);
	cr_expect(first.lock_fd == -1 && !is_locked(&f));
	survey_close(&first);
	survey_open(&first, f.path, SURVEY_LOCK);
	cr_expect(first.lock_fd >= 0 && !first.served && is_locked(&f));
	survey_open(&second, f.path, SURVEY_LOOK);
	cr_expect(!second.served && second.state == POOL_READY);
	survey_close(&second);
	survey_open(&second, f.path, SURVEY_LOCK);
	cr_expect(second.served && second.lock_fd == -1 && second.state == POOL_READY);
	cr_expect_eq(lock.waits, 0);
	survey_close(&second);
	survey_open(&second, f.path, SURVEY_MEND);
	cr_expect(second.served && second.lock_fd == -1 && second.state == POOL_READY);
	cr_expect_eq(lock.waits, 10, "%u", lock.waits);
	survey_close(&second);
	cr_expect(is_locked(&f));
	lock.holder = &first;
	lock.waits_left = 3;
	survey_open(&second, f.path, SURVEY_MEND);
	cr_expect(!second.served && second.lock_fd >= 0 && is_locked(&f));
	cr_expect_eq(lock.waits, 13, "%u", lock.waits);
	survey_close(&second);
	cr_expect(second.lock_fd == -1 && !is_locked(&f));
	/* Of a pool whose file is damaged, too. */
	fixture_sh("echo hello > %s/" POOL_FILE, f.path);
	survey_open(&first, f.path, SURVEY_LOCK);
	cr_expect(first.state == POOL_SICK && first.uuid[0] == '\0' && is_locked(&f));
	survey_close(&first);
	drop(&f);
}

/* ---- names ---- */

#define HEX16 "0123456789abcdef"
#define HEX40 HEX16 HEX16 "01234567"

Test(survey, names_that_ringvol_gives)
{
	static const struct {
		enum survey_dir dir;
		const char *name;
		bool ours;
	} names[] = {
		{SURVEY_ROOT, "volumes", true},
		{SURVEY_ROOT, "departed", true},
		{SURVEY_ROOT, "thin", true},
		{SURVEY_ROOT, "ringvol.pool", true},
		{SURVEY_ROOT, "", false},
		{SURVEY_ROOT, "ringvol.disk", false},
		{SURVEY_ROOT, "lost+found", false},
		{SURVEY_VOLUMES, "pvc-1", true},
		{SURVEY_VOLUMES, ".pvc-1", false},
		{SURVEY_SNAPSHOTS, "s", true},
		{SURVEY_SNAPSHOTS, "+s", false},
		{SURVEY_GROUPS, "g", true},
		{SURVEY_GROUPS, "+new-" HEX16, false},
		{SURVEY_DEPARTED, "v", true},
		{SURVEY_DEPARTED, "+new-" HEX16, true},
		{SURVEY_DEPARTED, "+new-" HEX16 "0", false},
		{SURVEY_DEPARTED, ".v", false},
		{SURVEY_TEMPLATES, "thin-any", true},
		{SURVEY_TEMPLATES, "xfs-" HEX40, true},
		{SURVEY_TEMPLATES, "ext4-" HEX40, true},
		{SURVEY_TEMPLATES, "ext9-" HEX40, false},
		{SURVEY_TEMPLATES, "xfs-" HEX40 "0", false},
		{SURVEY_TEMPLATES, "xfs-" HEX16, false},
		{SURVEY_TEMPLATES, "xfs-" HEX16 HEX16 "0123456x", false},
		{SURVEY_TEMPLATES, "xfs" HEX40, false},
		{SURVEY_TEMPLATES, "xfs", false},
		{SURVEY_TEMPLATES, "a-type-with-a-name-too-long-" HEX40, false},
		{SURVEY_TEMPLATES, "atypewithanametoolong-" HEX40, false},
		{SURVEY_TRASH, HEX16, true},
		{SURVEY_TRASH, "new-" HEX16, true},
		{SURVEY_TRASH, "old-" HEX16, false},
		{SURVEY_COPIES, "part-a", true},
		{SURVEY_COPIES, "part-.a", false},
		{SURVEY_COPIES, "send-" HEX16, true},
		{SURVEY_COPIES, "send-" HEX16 ".grant", true},
		{SURVEY_COPIES, "sent-" HEX16, false},
		{SURVEY_THIN, "metadata", true},
		{SURVEY_THIN, "data", true},
		{SURVEY_THIN, "metadata.old", false},
		{SURVEY_DIRS, "volumes", false},
	};
	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		cr_expect_eq(survey_name_is_ours(names[i].dir, names[i].name), names[i].ours,
			"%u/%s", names[i].dir, names[i].name);
}

static int count_name(void *arg, const char *name)
{
	cr_expect_str_neq(name, ".");
	return ++*(int *)arg == 3 ? 17 : 0;
}

Test(survey, each_name_until_one_is_enough)
{
	struct fixture f;
	struct survey s;
	int count = 0;
	make_dir_pool(&f);
	survey_open(&s, f.path, SURVEY_LOOK);
	cr_expect_eq(survey_each(&s, SURVEY_THIN, count_name, &count), 0);
	cr_expect_eq(count, 0, "there is no such directory");
	fixture_sh("touch %s/volumes/a %s/volumes/b", f.path, f.path);
	cr_expect_eq(survey_each(&s, SURVEY_VOLUMES, count_name, &count), 0);
	cr_expect_eq(count, 2);
	cr_expect_eq(survey_each(&s, SURVEY_VOLUMES, count_name, &count), 17);
	cr_expect_eq(count, 3);
	survey_close(&s);
	drop(&f);
}

/* ---- objects ---- */

Test(survey, objects_are_sorted_by_key)
{
	static const char *const names[] = {"d", "b", "e", "a", "c"};
	struct fixture f;
	struct survey s;
	struct pool_found *objects;
	size_t count;
	fixture_open(&f, FIXTURE_DIR);
	for (unsigned i = 0; i < 5; i++)
		fixture_make_volume(&f, names[i], (i + 1) * 4096);
	fixture_close_pools(&f);
	fixture_sh("cd %s/volumes && touch .other bad", f.path);
	survey_open(&s, f.path, SURVEY_LOOK);
	cr_assert_eq(survey_objects(&s, RECORD_VOLUME, &objects, &count), 0);
	cr_assert_eq(count, 6, "%zu", count);
	static const char *const sorted[] = {"a", "b", "bad", "c", "d", "e"};
	for (unsigned i = 0; i < 6; i++) {
		cr_expect_str_eq(objects[i].key, sorted[i]);
		cr_expect_eq(objects[i].rec == NULL, i == 2);
		cr_expect(objects[i].kind == RECORD_VOLUME && objects[i].thin_id == 0);
	}
	cr_expect_str_eq(objects[2].why, "it has no record");
	cr_expect_eq(objects[5].rec->size_bytes, 3 * 4096);
	cr_expect_eq(objects[5].image_bytes, 3 * 4096);
	survey_objects_free(objects, count);
	/* There may be none, and none of a kind whose directory is not there. */
	cr_assert_eq(survey_objects(&s, RECORD_SNAPSHOT, &objects, &count), 0);
	cr_expect(count == 0 && objects == NULL);
	survey_objects_free(objects, count);
	fd_close(&s.fds[SURVEY_SNAPSHOTS]);
	count = 1;
	cr_assert_eq(survey_objects(&s, RECORD_SNAPSHOT, &objects, &count), 0);
	cr_expect(count == 0 && objects == NULL);
	survey_close(&s);
	fixture_close(&f);
}

/* A list that lacks some is not said to be whole. */
Test(survey, objects_that_nobody_can_tell_of)
{
	struct fixture f;
	struct survey s;
	struct pool_found *objects = NULL;
	struct rlimit was, now;
	size_t count = 17;
	make_dir_pool(&f);
	fixture_sh("touch %s/volumes/a", f.path);
	survey_open(&s, f.path, SURVEY_LOOK);
	cr_assert_eq(getrlimit(RLIMIT_NOFILE, &was), 0);
	int next = fcntl(s.fds[SURVEY_ROOT], F_DUPFD_CLOEXEC, 0);
	close(next);
	now = (struct rlimit){.rlim_cur = (rlim_t)next + 1, .rlim_max = was.rlim_max};
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &now), 0);
	int r = survey_objects(&s, RECORD_VOLUME, &objects, &count);
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &was), 0);
	cr_expect_eq(r, -EMFILE, "%d", r);
	cr_expect(objects == NULL && count == 17);
	survey_close(&s);
	drop(&f);
}

/* ---- raw pools ---- */

/* With the volumes a and b of 10 MiB. Its place is a directory of its own. */
static const char *make_raw_pool(struct fixture *f)
{
	static char place[128];
	raw_open(f, 64);
	raw_make_volume(f, "a", 10);
	raw_make_volume(f, "b", 10);
	fixture_close_pools(f);
	thin.there = true;
	snprintf(place, sizeof(place), "%s/place", f->top);
	fixture_sh("mkdir %s && touch %s/" DISK_FILE, place, place);
	return place;
}

static void put_map(const struct fixture *f, const char *name, const struct image_map *map)
{
	char path[128];
	snprintf(path, sizeof(path), "%s/%s", f->path, name);
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	cr_assert_eq(image_map_write(fd, map), 0);
	close(fd);
}

Test(survey, the_room_of_a_raw_pool)
{
	struct fixture f;
	struct survey s;
	const char *place = make_raw_pool(&f);
	const struct image_map two = {.count = 1,
				       .pieces = {{RAW_START + 30 * RAW_MIB, 2 * RAW_MIB}}},
			       most = {.count = 1, .pieces = {{RAW_START, 60 * RAW_MIB}}};
	fs.read_only = true; /* of the mount that it is looked at through */
	survey_open(&s, place, SURVEY_LOOK);
	cr_expect_eq(s.state, POOL_READY, "%s", s.why);
	cr_expect_str_eq(s.uuid, RAW_POOL_UUID);
	cr_expect_not(s.read_only);
	cr_expect(raw.use == DISK_LOOK && raw.read_only && s.disk == raw.disk);
	cr_expect_eq(s.capacity_bytes, 64 * RAW_MIB);
	cr_expect_eq(s.free_bytes, 44 * RAW_MIB);
	survey_close(&s);
	cr_expect_null(s.disk);
	/* What is deleted counts as free, anything else does not. */
	put_map(&f, "trash/" HEX16, &two);
	put_map(&f, "copies/send-" HEX16, &two);
	fixture_sh("touch %s/volumes/z", f.path);
	put_map(&f, "thin/data", &two);
	survey_open(&s, place, SURVEY_LOCK);
	cr_expect_eq(s.free_bytes, 40 * RAW_MIB);
	cr_expect(raw.use == DISK_LOOK && raw.read_only && s.lock_fd >= 0 && !s.served);
	survey_close(&s);
	/* Maps that say more than there is. */
	put_map(&f, "thin/data", &most);
	survey_open(&s, place, SURVEY_LOOK);
	cr_expect_eq(s.free_bytes, 0);
	cr_expect_eq(s.capacity_bytes, 64 * RAW_MIB);
	survey_close(&s);
	raw_root.area_bytes = 22 * RAW_MIB;
	put_map(&f, "thin/data", &two);
	fixture_sh("rm %s/copies/*", f.path);
	survey_open(&s, place, SURVEY_MEND);
	cr_expect_eq(s.free_bytes, 0);
	cr_expect(raw.use == DISK_CHANGE && !raw.read_only);
	survey_close(&s);
	fixture_close(&f);
}

Test(survey, a_raw_pool_that_cannot_be_opened)
{
	static const struct {
		enum err_code code;
		enum pool_state state;
	} cases[] = {{ERR_UNAVAILABLE, POOL_MISSING}, {ERR_PRECONDITION, POOL_MISSING},
		{ERR_DATA_LOSS, POOL_SICK}, {ERR_INTERNAL, POOL_SICK}};
	struct fixture f;
	struct survey s;
	const char *place = make_raw_pool(&f);
	for (unsigned i = 0; i < 8; i++) {
		char why[160];
		bool records = i >= 4;
		raw.open_fails = records ? ERR_OK : cases[i % 4].code;
		raw.records_fail = records ? cases[i % 4].code : ERR_OK;
		survey_open(&s, place, SURVEY_LOOK);
		cr_expect_eq(s.state, cases[i % 4].state, "%u: %d", i, s.state);
		snprintf(why, sizeof(why), "no disk of %s", place);
		cr_expect_str_eq(s.why, records ? "no records here" : why);
		cr_expect(s.fds[SURVEY_ROOT] == -1 && s.fds[SURVEY_VOLUMES] == -1);
		cr_expect_eq(s.disk != NULL, records);
		cr_expect(s.capacity_bytes == 0 && s.uuid[0] == '\0');
		struct disk *disk = records ? disk_ref(s.disk) : NULL;
		survey_close(&s);
		cr_expect(disk == NULL || disk->refs == 1);
		disk_unref(disk);
	}
	fixture_close(&f);
}

/* What a thin volume has its device says, where there is one. */
Test(survey, what_thin_volumes_have)
{
	struct fixture f;
	struct survey s;
	struct pool_found *objects;
	size_t count;
	const char *place = make_raw_pool(&f);
	const struct image_map seven = {.thin_id = 7};
	put_map(&f, "volumes/b", &seven);
	put_map(&f, "volumes/c", &seven); /* no record: nobody knows its device */
	fixture_sh("touch %s/volumes/d", f.path);
	static const struct {
		bool loaded;
		int open_fails, fails;
		uint64_t mib;
		unsigned asked;
	} cases[] = {{true, 0, 0, 3, 1}, {false, 0, 0, 0, 0}, {true, -EACCES, 0, 0, 0},
		{true, 0, -ENXIO, 0, 1}};
	for (unsigned i = 0; i < 4; i++) {
		thin.loaded = cases[i].loaded;
		thin.open_fails = cases[i].open_fails;
		thin.fails = cases[i].fails;
		thin.asked = 0;
		survey_open(&s, place, SURVEY_LOOK);
		cr_assert_eq(survey_objects(&s, RECORD_VOLUME, &objects, &count), 0);
		cr_assert_eq(count, 4);
		cr_expect(objects[0].thin_id == 0 && objects[0].allocated_bytes == 10 * RAW_MIB);
		cr_expect(objects[1].thin_id == 7 && objects[2].thin_id == 7);
		cr_expect_eq(objects[1].allocated_bytes, cases[i].mib * RAW_MIB, "%u", i);
		cr_expect(objects[2].rec == NULL && objects[2].allocated_bytes == 0);
		cr_expect(objects[3].thin_id == 0 && objects[3].allocated_bytes == 0);
		cr_expect_eq(thin.asked, cases[i].asked, "%u", i);
		char uuid[DM_UUID_LEN];
		snprintf(uuid, sizeof(uuid), "RINGVOL-disk-%.8s-%s-%llx", RAW_POOL_UUID,
			objects[1].rec->random, (unsigned long long)objects[1].image_ino);
		cr_expect_str_eq(thin.uuid, uuid);
		survey_objects_free(objects, count);
		survey_close(&s);
	}
	fixture_close(&f);
}
