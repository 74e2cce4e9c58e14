/* SPDX-License-Identifier: Apache-2.0 */
/* What lies in a pool's directory, read file by file: whatever is there is told apart, and said in
 * words. And whether the root that is open is still the one that is there. */
#include "pool_fixture.h"

#include "disk/owner.h"
#include "disk/place.h"
#include "pool/record_text.h"
#include "pool/root.h"

#include <sys/file.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>

enum { MIB = 1 << 20 };

static struct fixture f;
static int dir;

static void begin(enum fixture_fs fs)
{
	fixture_make(&f, fs, true);
	dir = open(f.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cr_assert_geq(dir, 0);
}

static void end(void)
{
	close(dir);
	if (f.mounted)
		umount2(f.path, MNT_DETACH);
	fixture_sh("rm -rf %s", f.top);
}

/* ---- ringvol.pool ---- */

Test(layout, the_file_of_a_pool_is_as_it_was_written)
{
#define UUID "0f2e4d6c-8b0a-4192-a3b4-c5d6e7f80910"
	static const struct {
		const char *text;
		int r;
	} all[] = {
		{"ringvol-pool 1\nuuid=" UUID "\n", 0},
		{"", -EBADMSG},
		{"ringvol-pool 1\nuuid=" UUID, -EBADMSG},
		{"ringvol-pool 1\nuuid=" UUID "\n\n", -EBADMSG},
		{"ringvol-pool 1\nuuid=" UUID "x", -EBADMSG},
		{"ringvol-pool 2\nuuid=" UUID "\n", -EBADMSG},
		{"ringvol-pool 1\nuuid=0f2e4d6c-8b0a-4192-a3b4-c5d6e7f8091g\n", -EBADMSG},
	};
	char uuid[POOL_UUID_BYTES] = "kept";
	begin(FIXTURE_DIR);
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		_cleanup_fd_ int fd =
			openat(dir, "file", O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
		ssize_t len = (ssize_t)strlen(all[i].text);
		cr_assert_eq(write(fd, all[i].text, (size_t)len), len);
		strcpy(uuid, "kept");
		cr_expect_eq(pool_file_read(fd, uuid), all[i].r, "%s", all[i].text);
		cr_expect_str_eq(uuid, all[i].r == 0 ? UUID : "kept");
	}
	cr_assert_eq(pool_file_read(dir, uuid), -EISDIR);
	end();
}

/* All of it is there when the file is, and again it is left as it is. */
Test(layout, a_directory_is_made_a_pool)
{
	static const char *const dirs[] = {
		"volumes", "snapshots", "templates", "trash", "copies", "groups", "departed"};
	struct fs_features features;
	struct err err = {0};
	bool existed = true;
	char uuid[POOL_UUID_BYTES], want[256];
	struct stat st;
	begin(FIXTURE_DIR);
	cr_assert_eq(pool_init_root(dir, "PATH", UUID, &features, &existed, &err), 0);
	cr_assert_not(existed);
	for (unsigned i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++) {
		cr_expect_eq(fstatat(dir, dirs[i], &st, 0), 0, "%s", dirs[i]);
		cr_expect_eq(st.st_mode, S_IFDIR | 0700, "%s", dirs[i]);
	}
	cr_assert_eq(fixture_count(&f, "."), sizeof(dirs) / sizeof(dirs[0]) + 1);
	_cleanup_fd_ int file = openat(dir, POOL_FILE, O_RDONLY | O_CLOEXEC);
	cr_assert_eq(pool_file_read(file, uuid), 0);
	cr_assert_str_eq(uuid, UUID);
	memset(&features, 0, sizeof(features));
	cr_assert_eq(pool_init_root(dir, "PATH", NULL, &features, &existed, &err), 0);
	cr_assert(existed && features.tmpfile && features.xattr);
	cr_assert_eq(pool_file_read(file, uuid), 0);
	cr_assert_str_eq(uuid, UUID);

	fixture_sh("echo x >> %s/" POOL_FILE, f.path);
	cr_assert_lt(pool_init_root(dir, "PATH", NULL, &features, &existed, &err), 0);
	cr_assert_eq(err.code, ERR_PRECONDITION);
	cr_assert_str_eq(
		err.message, "PATH has a " POOL_FILE " file that is damaged or of a later version");
	/* What it is a link to is not looked at. */
	fixture_sh("cd %s && mv " POOL_FILE " x && ln -s x " POOL_FILE, f.path);
	err_clear(&err);
	cr_assert_eq(pool_init_root(dir, "PATH", NULL, &features, &existed, &err), -ELOOP);
	cr_assert_not_null(strstr(err.message, "opening PATH/" POOL_FILE), "%s", err.message);
	/* One of our directories with something in it, and a file of such a name. */
	for (unsigned i = 0; i < 2; i++) {
		fixture_sh("rm -r %s/*; cd %s && %s", f.path, f.path,
			i == 0 ? "mkdir trash snapshots && touch snapshots/x" : "touch snapshots");
		err_clear(&err);
		cr_assert_lt(pool_init_root(dir, "PATH", NULL, &features, &existed, &err), 0);
		cr_assert_eq(err.code, ERR_PRECONDITION);
		snprintf(want, sizeof(want),
			"PATH is not empty (there is snapshots): a pool is made in an empty "
			"directory");
		cr_assert_str_eq(err.message, want);
	}
	/* What is another's, though it is empty; and below ours nothing is ours. */
	static const char *const others[][2] = {{"other", "(there is other)"},
		{"groups/lost+found", "(there is groups)"}, {"trash/trash", "(there is trash)"}};
	for (unsigned i = 0; i < 3; i++) {
		fixture_sh("cd %s && rm -r * && mkdir -p %s", f.path, others[i][0]);
		err_clear(&err);
		cr_assert_lt(pool_init_root(dir, "PATH", NULL, &features, &existed, &err), 0);
		cr_assert_not_null(strstr(err.message, others[i][1]), "%s", err.message);
	}
	end();
}

/* Nothing is made where it could not be kept. */
Test(layout, a_file_system_without_attributes_has_no_pool)
{
	struct fs_features features;
	struct err err = {0};
	bool existed;
	fixture_make(&f, FIXTURE_DIR, true);
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
		mount("ramfs", f.path, "ramfs", 0, NULL) < 0) {
		fixture_sh("rm -rf %s", f.top);
		cr_skip_test("cannot mount here");
	}
	cr_assert_lt(pool_init_dir(f.path, &features, &existed, &err), 0);
	cr_assert_eq(err.code, ERR_PRECONDITION);
	cr_assert_not_null(strstr(err.message, "has no trusted.* attributes, a pool needs it"),
		"%s", err.message);
	cr_assert_eq(fixture_count(&f, "."), 0);
	umount2(f.path, MNT_DETACH);
	fixture_sh("rm -rf %s", f.top);
}

Test(layout, a_path_that_can_be_no_directory)
{
	struct fs_features features;
	struct err err = {0};
	bool existed;
	char path[128];
	begin(FIXTURE_DIR);
	fixture_sh("touch %s/file", f.path);
	snprintf(path, sizeof(path), "%s/file", f.path);
	cr_assert_lt(pool_init_dir(path, &features, &existed, &err), 0);
	cr_assert_not_null(strstr(err.message, path), "%s", err.message);
	end();
}

Test(layout, random_digits_are_as_many_as_asked_for)
{
	char text[20], again[20];
	memset(text, 'x', sizeof(text));
	pool_random_hex(text, 16);
	cr_assert_eq(strlen(text), 16);
	cr_assert_eq(text[17], 'x');
	cr_assert(record_text_is_hex(text, 16));
	pool_random_hex(again, 16);
	cr_assert_str_neq(text, again);
	pool_random_hex(text, 2);
	cr_assert_eq(strlen(text), 2);
}

/* ---- one object ---- */

static char record_text[RECORD_BYTES_MAX];
static size_t record_len;

static struct record volume_x(void)
{
	struct record rec = fixture_volume("x", MIB);
	strcpy(rec.random, "00000001");
	return rec;
}

static void print_record(const struct record *rec)
{
	struct record *made = record_new(rec);
	int len = record_print(made, record_text, sizeof(record_text));
	record_free(made);
	cr_assert_gt(len, 0);
	record_len = (size_t)len;
}

/* A file of that size; text: its record, NULL: none. */
static int plant(const char *key, uint64_t size, const void *text, size_t len)
{
	int fd = openat(dir, key, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	cr_assert_geq(fd, 0);
	cr_assert_eq(ftruncate(fd, (off_t)size), 0);
	cr_assert(text == NULL || fsetxattr(fd, RECORD_XATTR, text, len, 0) == 0);
	return fd;
}

static struct pool_found look(const char *key, enum record_kind kind)
{
	struct pool_found found = {0};
	cr_assert_eq(pool_read_object(dir, key, kind, &found), 0, "%s", key);
	cr_assert_str_eq(found.key, key);
	cr_assert_eq(found.kind, kind);
	return found;
}

static void drop(struct pool_found *found)
{
	record_free(found->rec);
	attachments_free(found->attachments);
}

static void check_why(const char *key, const char *why)
{
	struct pool_found found = look(key, RECORD_VOLUME);
	cr_expect(found.rec == NULL && found.attachments == NULL, "%s", key);
	cr_expect_not(found.truncated);
	cr_expect(found.why != NULL && strcmp(found.why, why) == 0, "%s: %s", key, found.why);
	drop(&found);
}

Test(layout, what_is_no_object_says_why)
{
	static const char future[] = "ringvol-record 2\n";
	char large[RECORD_BYTES_MAX + 2], text[128];
	struct pool_found found;
	struct record rec = volume_x();
	begin(FIXTURE_XFS);
	memset(large, 'x', sizeof(large));
	close(plant("none", MIB, NULL, 0));
	close(plant("damaged", MIB, "hello", 5));
	close(plant("largest", MIB, large, RECORD_BYTES_MAX + 1));
	close(plant("larger", MIB, large, RECORD_BYTES_MAX + 2));
	print_record(&rec);
	close(plant("another", MIB, record_text, record_len));
	rec.kind = RECORD_SNAPSHOT;
	print_record(&rec);
	close(plant("x", MIB, record_text, record_len));
	struct record_text o = {.buf = text, .cap = sizeof(text)};
	record_text_put(&o, future);
	close(plant("future", MIB, text, (size_t)record_text_end(&o)));
	cr_assert_eq(mkdirat(dir, "dir", 0700), 0);
	cr_assert_eq(mkfifoat(dir, "fifo", 0600), 0);
	cr_assert_eq(mknodat(dir, "socket", S_IFSOCK | 0600, 0), 0);
	cr_assert_eq(symlinkat("x", dir, "link"), 0);

	cr_assert_eq(pool_read_object(dir, "gone", RECORD_VOLUME, &found), -ENOENT);
	check_why("none", "it has no record");
	check_why("damaged", "its record is damaged");
	check_why("largest", "its record is damaged");
	check_why("larger", "its record is too large to be one of ours");
	check_why("another", "its record is damaged");
	check_why("x", "its record is of another kind than its directory");
	check_why("future", "its record is of a later version of ringvol");
	static const char *const others[] = {"dir", "fifo", "socket", "link"};
	for (unsigned i = 0; i < 4; i++)
		check_why(others[i], "it is not a regular file");
	end();
}

/* Its bytes, who it is attached to and for whom it was made, too. */
Test(layout, an_object_is_read_with_all_that_is_noted)
{
	char claim[RECORD_CLAIM_MAX + 2];
	struct record rec = volume_x();
	struct stat st;
	begin(FIXTURE_XFS);
	print_record(&rec);
	int fd = plant("x", MIB, record_text, record_len);
	cr_assert_eq(pwrite(fd, "data", 4, 0), 4);
	cr_assert_eq(fsync(fd), 0);
	cr_assert_eq(fstat(fd, &st), 0);
	struct pool_found found = look("x", RECORD_VOLUME);
	cr_assert_null(found.why);
	cr_assert(!found.truncated && found.attachments == NULL);
	cr_assert_eq(found.image_bytes, MIB);
	cr_assert_eq(found.allocated_bytes, (uint64_t)st.st_blocks * 512);
	cr_assert_gt(found.allocated_bytes, 0);
	cr_assert(found.image_dev == st.st_dev && found.image_ino == st.st_ino);
	cr_assert_str_eq(found.rec->claim, "");
	drop(&found);
	/* One byte less is too few, one more is no harm. */
	for (int more = -1; more <= 1; more++) {
		cr_assert_eq(ftruncate(fd, MIB + more), 0);
		found = look("x", RECORD_VOLUME);
		cr_expect_eq(found.truncated, more < 0);
		cr_expect_not_null(found.rec);
		drop(&found);
	}
	/* A claim that is longer than any is left out. */
	memset(claim, 'c', sizeof(claim));
	for (size_t len = RECORD_CLAIM_MAX - 1; len <= RECORD_CLAIM_MAX + 1; len++) {
		cr_assert_eq(fsetxattr(fd, RECORD_CLAIM_XATTR, claim, len, 0), 0);
		found = look("x", RECORD_VOLUME);
		cr_expect_eq(strlen(found.rec->claim), len > RECORD_CLAIM_MAX ? 0 : len);
		cr_expect_eq(found.rec->size_bytes, MIB);
		drop(&found);
	}
	close(fd);
	end();
}

Test(layout, a_volume_whose_attachments_cannot_be_read_is_none)
{
	static const char why[] =
		"the note of the nodes that it is attached to is damaged, or of a later version of ringvol";
	static char large[ATTACHMENTS_BYTES_MAX + 1];
	char text[256];
	struct attachment one = {.node = "n", .mode = ATTACHMENT_WRITER, .export = "", .key = ""};
	struct record rec = volume_x();
	begin(FIXTURE_XFS);
	print_record(&rec);
	int fd = plant("x", MIB, record_text, record_len);
	memset(large, 'x', sizeof(large));
	for (size_t i = 0; i < 2; i++) {
		size_t len = ATTACHMENTS_BYTES_MAX + i;
		cr_assert_eq(fsetxattr(fd, ATTACHMENTS_XATTR, large, len, 0), 0);
		check_why("x", why);
	}
	struct record_text o = {.buf = text, .cap = sizeof(text)};
	record_text_put(&o, "ringvol-attachments 2\n");
	int len = record_text_end(&o);
	cr_assert_eq(fsetxattr(fd, ATTACHMENTS_XATTR, text, (size_t)len, 0), 0);
	check_why("x", why);
	struct attachments *a = attachments_with(NULL, &one);
	cr_assert_eq(attachments_write(fd, a), 0);
	attachments_free(a);
	struct pool_found found = look("x", RECORD_VOLUME);
	cr_assert_null(found.why);
	cr_assert_eq(found.attachments->count, 1);
	cr_assert_str_eq(found.attachments->at[0].node, "n");
	drop(&found);
	/* Of a snapshot nobody asks. */
	cr_assert_eq(fsetxattr(fd, ATTACHMENTS_XATTR, "x", 1, 0), 0);
	rec.kind = RECORD_SNAPSHOT;
	print_record(&rec);
	cr_assert_eq(fsetxattr(fd, RECORD_XATTR, record_text, record_len, 0), 0);
	found = look("x", RECORD_SNAPSHOT);
	cr_assert(found.why == NULL && found.attachments == NULL);
	drop(&found);
	close(fd);
	end();
}

/* ---- the root ---- */

static struct pool_root_look look_root(
	const char *path, const struct disk *disk, const int fds[POOL_FDS])
{
	struct pool_root_look ret = {.read_only = true};
	cr_assert_eq(pool_root_look(path, disk, "node-a", fds, &ret), 0);
	return ret;
}

Test(root, a_directory_is_what_its_path_shows)
{
	struct pool_root_look l;
	struct pool_root root;
	struct err err = {0};
	char want[256], long_path[600];
	int fds[POOL_FDS];
	fixture_make(&f, FIXTURE_DIR, false);
	cr_assert_eq(pool_root_open(f.path, "node-a", &root, &err), 0);
	cr_assert_null(root.disk);
	for (unsigned i = 0; i < POOL_FDS; i++)
		fds[i] = -1;
	fds[POOL_FD_ROOT] = root.fd;
	fds[POOL_FD_LOCK] = openat(root.fd, POOL_FILE, O_RDONLY | O_CLOEXEC);
	l = look_root(f.path, NULL, fds);
	cr_assert(!l.gone && !l.read_only);
	cr_assert_str_eq(l.why, "");
	/* Moved, with a file, another pool, or a link in its place. */
	static const char *const instead[] = {"true", "touch pool",
		"mkdir pool && cp aside/" POOL_FILE " pool/", "mkdir pool",
		"mkdir pool && ln -s ../aside/" POOL_FILE " pool/"};
	snprintf(want, sizeof(want), "has gone from %s: mount its file system there again", f.path);
	cr_assert_eq(fixture_sh("mv %s %s/aside", f.path, f.top), 0);
	for (unsigned i = 0; i < sizeof(instead) / sizeof(instead[0]); i++) {
		cr_assert_eq(fixture_sh("cd %s && rm -rf pool && %s", f.top, instead[i]), 0);
		l = look_root(f.path, NULL, fds);
		cr_expect(l.gone && !l.read_only, "%s", instead[i]);
		cr_expect_str_eq(l.why, want);
	}
	cr_assert_eq(fixture_sh("cd %s && rm -rf pool && ln -s aside pool", f.top), 0);
	l = look_root(f.path, NULL, fds);
	cr_expect_not(l.gone, "it is the same by another way");
	/* What cannot be looked at is no answer. */
	memset(long_path, 'a', sizeof(long_path));
	long_path[0] = '/';
	long_path[sizeof(long_path) - 1] = '\0';
	cr_assert_eq(pool_root_look(long_path, NULL, "node-a", fds, &l), -ENAMETOOLONG);
	cr_assert_eq(pool_root_open(long_path, "node-a", &root, &err), -ENAMETOOLONG);
	close(fds[POOL_FD_LOCK]);
	fds[POOL_FD_LOCK] = -1;
	cr_assert_eq(pool_root_look(f.path, NULL, "node-a", fds, &l), -EBADF);
	close(fds[POOL_FD_ROOT]);
	fixture_sh("rm -rf %s", f.top);
}

Test(root, a_read_only_file_system_is_told)
{
	int fds[POOL_FDS];
	fixture_make(&f, FIXTURE_TMPFS, false);
	fds[POOL_FD_ROOT] = open(f.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	fds[POOL_FD_LOCK] = openat(fds[POOL_FD_ROOT], POOL_FILE, O_RDONLY | O_CLOEXEC);
	cr_assert_eq(mount(NULL, f.path, NULL, MS_REMOUNT | MS_RDONLY, NULL), 0);
	struct pool_root_look l = look_root(f.path, NULL, fds);
	cr_assert(l.read_only && !l.gone);
	close(fds[POOL_FD_LOCK]);
	close(fds[POOL_FD_ROOT]);
	umount2(f.path, MNT_DETACH);
	fixture_sh("rm -rf %s", f.top);
}

#define OTHER "1f2e4d6c-8b0a-4192-a3b4-c5d6e7f80910"
#define FIRST "2f2e4d6c-8b0a-4192-a3b4-c5d6e7f80910"
#define MORE  "3f2e4d6c-8b0a-4192-a3b4-c5d6e7f80910"

/* As pool init writes it, with an area behind the header. */
static struct disk_header header_of(const char *uuid, unsigned index)
{
	struct disk_header h = {.index = index,
		.count = index == 0 ? 2 : 0,
		.size_bytes = 64 * MIB,
		.start = index * UINT64_C(128) * MIB,
		.offset = index == 0 ? 32 * MIB : MIB,
		.bytes = 16 * MIB,
		.generation = 1};
	strcpy(h.pool, UUID);
	strcpy(h.disk, uuid);
	if (index == 0) {
		strcpy(h.disks[0], FIRST);
		strcpy(h.disks[1], MORE);
		h.records_offset = MIB;
		h.records_bytes = 31 * MIB;
		disk_owner_set(&h, "node-a");
	}
	return h;
}

static void write_header(const struct disk *disk, unsigned i, const struct disk_header *h)
{
	char block[DISK_HEADER_BYTES];
	cr_assert_eq(disk_header_print(h, block), 0);
	struct disk_header back;
	cr_assert_eq(disk_header_parse(block, &back), 0, "it is a sound one");
	cr_assert_eq(pwrite(disk->members[i].fd, block, sizeof(block), 0), sizeof(block));
}

static struct disk disk;
static int disk_fds[POOL_FDS];

static void open_disks(void)
{
	static const char *const uuids[] = {FIRST, MORE};
	begin(FIXTURE_DIR);
	disk = (struct disk){.uuid = UUID, .count = 2};
	disk_fds[POOL_FD_ROOT] = dir;
	close(openat(dir, POOL_FILE, O_RDWR | O_CREAT | O_CLOEXEC, 0600));
	for (unsigned i = 0; i < 2; i++) {
		struct disk_member *m = &disk.members[i];
		strcpy(m->uuid, uuids[i]);
		snprintf(m->path, sizeof(m->path), "/dev/made-up-%u", i);
		m->fd = openat(dir, uuids[i], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
		struct disk_header h = header_of(uuids[i], i);
		write_header(&disk, i, &h);
	}
}

static void check_disks(const char *why)
{
	struct pool_root_look l = look_root("/nowhere", &disk, disk_fds);
	cr_expect_eq(l.gone, why[0] != '\0', "%s", l.why);
	cr_expect_str_eq(l.why, why);
}

Test(root, a_raw_pool_is_what_its_disks_say)
{
	struct pool_root_look l;
	struct disk_header h;
	open_disks();
	check_disks("");
	h = header_of(FIRST, 0);
	h.owner[0] = h.owner_machine[0] = '\0';
	h.owner_since_ns = 0;
	write_header(&disk, 0, &h);
	check_disks("is no node's any more: 'ringvol pool release' was run while this driver "
		    "started");
	disk_owner_set(&h, "node-b");
	write_header(&disk, 0, &h);
	check_disks("is served by node node-b now, which has taken over its disk /dev/made-up-0");
	h = header_of(FIRST, 0);
	strcpy(h.owner_machine, "another");
	write_header(&disk, 0, &h);
	check_disks("is served by node node-a on another machine now, which has taken over its "
		    "disk /dev/made-up-0");
	for (unsigned i = 0; i < 2; i++) {
		h = header_of(FIRST, 0);
		strcpy(i == 0 ? h.pool : h.disk, OTHER);
		strcpy(h.disks[0], h.disk);
		write_header(&disk, 0, &h);
		check_disks("has lost its disk /dev/made-up-0: it is another pool's now");
	}
	/* The next load tells of what is damaged; the second disk says nothing of owners. */
	cr_assert_eq(pwrite(disk.members[0].fd, "x", 1, 0), 1);
	check_disks("");
	h = header_of(MORE, 1);
	strcpy(h.pool, OTHER);
	write_header(&disk, 1, &h);
	check_disks("has lost its disk /dev/made-up-1: it is another pool's now");
	cr_assert_eq(ftruncate(disk.members[1].fd, DISK_HEADER_BYTES - 1), 0);
	check_disks("does not reach its disk /dev/made-up-1 (Input/output error): look for it in "
		    "the kernel log; the pool is served again when it is back");
	close(disk.members[0].fd);
	disk.members[0].fd = -1;
	check_disks("does not reach its disk /dev/made-up-0 (Bad file descriptor): look for it in "
		    "the kernel log; the pool is served again when it is back");
	/* Its records answer, or nobody knows. */
	disk.count = 0;
	check_disks("");
	cr_assert_eq(unlinkat(dir, POOL_FILE, 0), 0);
	cr_assert_eq(pool_root_look("/nowhere", &disk, "node-a", disk_fds, &l), -ENOENT);
	close(disk.members[1].fd);
	end();
}

/* Whose disks are not there yet may come; a file that says nothing of them is damaged. */
Test(root, a_raw_pool_whose_disks_cannot_be_found)
{
	struct pool_root root = {.fd = 7};
	struct err err = {0};
	const struct disk_place place = {
		.pool = OTHER, .disk = FIRST, .device = "/dev/ringvol-made-up"};
	begin(FIXTURE_DIR);
	cr_assert_eq(disk_place_write(f.path, &place), 0);
	cr_assert_eq(pool_root_open(f.path, "node-a", &root, &err), -ENOENT);
	cr_assert_eq(err.code, ERR_UNAVAILABLE, "%s", err.message);
	cr_assert_eq(fixture_sh("printf nonsense > %s/" DISK_FILE, f.path), 0);
	err_clear(&err);
	int r = pool_root_open(f.path, "node-a", &root, &err);
	cr_assert(r < 0 && r != -ENOENT, "%d: %s", r, err.message);
	cr_assert(root.fd == 7 && root.disk == NULL, "it is set with 0 alone");
	end();
}

static struct disk *found; /* instead of those that the directory says */
static enum err_code records_fail;

int __real_disk_open(const char *path, enum disk_use use, const char *node, struct disk **ret_disk,
	struct err *err);
int __wrap_disk_open(const char *path, enum disk_use use, const char *node, struct disk **ret_disk,
	struct err *err);
int __wrap_disk_open(const char *path, enum disk_use use, const char *node, struct disk **ret_disk,
	struct err *err)
{
	if (found == NULL)
		return __real_disk_open(path, use, node, ret_disk, err);
	cr_assert(strcmp(path, f.path) == 0 && use == DISK_SERVE && strcmp(node, "node-a") == 0);
	*ret_disk = disk_ref(found);
	return 0;
}

int __wrap_disk_records(struct disk *of, bool read_only, int *ret_root_fd, struct err *err);
int __wrap_disk_records(struct disk *of, bool read_only, int *ret_root_fd, struct err *err)
{
	cr_assert(of == found && !read_only);
	if (records_fail != ERR_OK)
		return err_set(err, records_fail, "no records"), -EIO;
	*ret_root_fd = 99;
	return 0;
}

/* The disks are given back where their records cannot be had. */
Test(root, a_raw_pool_is_its_disks_and_its_records)
{
	static const struct {
		enum err_code fails;
		int res;
	} all[] = {{ERR_OK, 0}, {ERR_UNAVAILABLE, -ENOENT}, {ERR_PRECONDITION, -ENOENT},
		{ERR_DATA_LOSS, -EIO}, {ERR_INTERNAL, -EIO}};
	const struct disk_place place = {.pool = OTHER, .disk = FIRST, .device = "/dev/made-up"};
	struct disk its = {.refs = 1};
	begin(FIXTURE_DIR);
	cr_assert_eq(disk_place_write(f.path, &place), 0);
	found = &its;
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		struct pool_root root = {.fd = 7};
		struct err err = {0};
		its.refs = 1;
		records_fail = all[i].fails;
		cr_expect_eq(pool_root_open(f.path, "node-a", &root, &err), all[i].res, "%u", i);
		cr_expect_eq(err.code, all[i].fails, "%u", i);
		cr_expect_eq(root.fd, all[i].res == 0 ? 99 : 7, "%u", i);
		cr_expect_eq(root.disk, all[i].res == 0 ? &its : NULL, "%u", i);
		cr_expect_eq(its.refs, all[i].res == 0 ? 2 : 1, "%u", i);
	}
	end();
}
