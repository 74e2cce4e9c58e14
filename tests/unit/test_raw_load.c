/* SPDX-License-Identifier: Apache-2.0 */
/* What the maps of a raw pool's files say, all together (pool/raw_load.h): what is occupied, whose
 * map is in doubt and why. The devices of nobody are the test's, put there by the linker. */
#include "raw_fixture.h"

#include "pool/raw_devices.h"
#include "pool/raw_load.h"

#include <sys/resource.h>
#include <sys/xattr.h>

int __wrap_raw_devices_strays(
	const struct disk *disk, int trash_fd, struct area *area, uint64_t *ret_bytes);

/* The disks have 0 to 32 and 40 to 64, MiB. */
enum { FIRST_MIB = 32, SECOND_MIB = 40, END_MIB = 64, FREE_MIB = 56, OBJECTS = 8 };

static struct {
	struct fixture f;
	int fds[POOL_FDS];
	struct disk disk;
	struct pool_found found[OBJECTS]; /* sorted by kind and key */
	size_t count;
	struct pool_raw *raw;
	int strays_fail;
	unsigned strays_mib, strays_asked;
} w;

int __wrap_raw_devices_strays(
	const struct disk *disk, int trash_fd, struct area *area, uint64_t *ret_bytes)
{
	cr_assert(disk == &w.disk && trash_fd == w.fds[POOL_FD_TRASH]);
	cr_assert_eq(area_total_bytes(area), FREE_MIB * RAW_MIB);
	w.strays_asked++;
	*ret_bytes = (uint64_t)w.strays_mib * RAW_MIB;
	return w.strays_fail;
}

/* ---- the world ---- */

static void open_world(void)
{
	memset(&w, 0, sizeof(w));
	memset(w.fds, 0xff, sizeof(w.fds));
	fixture_make(&w.f, FIXTURE_DIR, true);
	w.fds[POOL_FD_ROOT] = open(w.f.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	for (int i = POOL_FD_VOLUMES; i <= POOL_FD_THIN; i++) {
		const char *name = i == POOL_FD_THIN ? THIN_DIR : pool_dir_names[i];
		cr_assert_eq(mkdirat(w.fds[POOL_FD_ROOT], name, 0700), 0);
		w.fds[i] = openat(w.fds[POOL_FD_ROOT], name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	}
	w.disk = (struct disk){.uuid = RAW_POOL_UUID,
		.count = 2,
		.refs = 2,
		.members = {{.fd = -1, .start = 0, .bytes = FIRST_MIB * RAW_MIB},
			{.fd = -1,
				.start = SECOND_MIB * RAW_MIB,
				.bytes = (END_MIB - SECOND_MIB) * RAW_MIB}}};
}

static void close_world(void)
{
	pool_raw_free(w.raw);
	for (size_t i = 0; i < w.count; i++)
		record_free(w.found[i].rec);
	for (unsigned i = 0; i < POOL_FDS; i++)
		fd_close(&w.fds[i]);
	fixture_sh("rm -rf %s", w.f.top);
}

TestSuite(raw_load, .init = open_world, .fini = close_world);

/* A file with that text for a map; NULL: without a map. */
static void put_text(const char *name, const char *text)
{
	int fd = openat(w.fds[POOL_FD_ROOT], name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	cr_assert_geq(fd, 0, "%s", name);
	if (text != NULL)
		cr_assert_eq(fsetxattr(fd, IMAGE_MAP_XATTR, text, strlen(text), 0), 0);
	close(fd);
}

static void put_map(const char *name, const struct image_map *map)
{
	put_text(name, NULL);
	int fd = openat(w.fds[POOL_FD_ROOT], name, O_RDWR | O_CLOEXEC);
	cr_assert_eq(image_map_write(fd, map), 0);
	close(fd);
}

/* "volumes/a", with pieces as "0+4 10+2", in MiB. */
static void put(const char *name, const char *pieces)
{
	struct image_map map = {0};
	unsigned at, mib;
	for (int used; sscanf(pieces, "%u+%u%n", &at, &mib, &used) == 2; pieces += used)
		cr_assert_eq(
			image_map_add(&map, (uint64_t)at * RAW_MIB, (uint64_t)mib * RAW_MIB), 0);
	cr_assert_eq(*pieces, '\0');
	put_map(name, &map);
}

static void put_id(const char *name, uint32_t id)
{
	const struct image_map map = {.thin_id = id};
	put_map(name, &map);
}

static struct pool_found *add_object(
	enum record_kind kind, const char *key, unsigned mib, bool thick)
{
	struct record rec = raw_volume(key, mib);
	rec.kind = kind;
	rec.thick = thick;
	struct pool_found *o = &w.found[w.count++];
	*o = (struct pool_found){.kind = kind, .rec = record_new(&rec)};
	strcpy(o->key, key);
	return o;
}

static struct pool_found *add_volume(const char *key, unsigned mib)
{
	return add_object(RECORD_VOLUME, key, mib, true);
}

static int load_with(struct err *err)
{
	*err = (struct err){0};
	w.strays_asked = 0;
	return pool_raw_load(&w.disk, w.fds, w.found, w.count, &w.raw, err);
}

static void load(void)
{
	struct err err;
	cr_assert_eq(load_with(&err), 0, "%s", err.message);
	cr_assert_eq(w.raw->disk, &w.disk);
}

static unsigned free_mib(void)
{
	return (unsigned)(area_free_bytes(w.raw->area) / RAW_MIB);
}

/* NULL: not quarantined. */
static void expect_why(const struct pool_found *o, const char *why)
{
	cr_expect_eq(o->rec == NULL, why != NULL, "%s: %s", o->key, o->why);
	if (why != NULL)
		cr_expect_not_null(strstr(o->why, why), "%s: %s", o->key, o->why);
	else
		cr_expect_null(o->why, "%s: %s", o->key, o->why);
}

static unsigned count_dir(const char *name)
{
	return fixture_count(&w.f, name);
}

/* ---- pieces ---- */

Test(raw_load, every_directorys_files_occupy)
{
	struct pool_found *a = add_volume("a", 4);
	struct pool_found *a_too = add_object(RECORD_SNAPSHOT, "a", 3, true);
	put("volumes/a", "0+4");
	put("snapshots/a", "4+2 50+1");
	put("templates/t", "10+1");
	put("copies/send-0123456789abcdef", "12+2");
	put("trash/0123456789abcdef", "20+5");
	put("trash/0123456789abcdee", "60+4");
	put("volumes/.other", "30+1"); /* no object's */
	w.strays_mib = 3;
	load();
	cr_expect_eq(free_mib(), FREE_MIB - 4 - 3 - 1 - 2 - 5 - 4 - 1);
	cr_expect_eq(w.raw->dirty_bytes, (5 + 4 + 3) * RAW_MIB);
	cr_expect_eq(w.strays_asked, 1);
	expect_why(a, NULL);
	expect_why(a_too, NULL);
	cr_expect(a->allocated_bytes == 4 * RAW_MIB && a_too->allocated_bytes == 3 * RAW_MIB);
	cr_expect(a->thin_id == 0 && w.raw->thin.files == 0 && w.raw->thin.life == THIN_NONE);
	cr_expect(!w.raw->overlaps && !w.raw->thin.refused && w.raw->unread[0] == '\0');
	cr_expect(list_empty(&w.raw->waiting));
}

Test(raw_load, of_two_with_the_same_pieces_both_are_in_doubt)
{
	static const struct {
		const char *pieces[3]; /* of a, b and c, of 2 MiB and more */
		const char *trash;
		const char *doubted;
		unsigned occupied;
	} cases[] = {
		{{"0+4", "4+4", "8+2"}, "10+1", "", 11},
		{{"0+4", "3+4", "8+2"}, "10+1", "ab", 10},
		{{"0+4", "0+4", "4+2"}, "10+1", "ab", 7},
		{{"0+10", "2+2", "6+2"}, "20+1", "abc", 11},
		{{"0+10", "2+2", "10+2"}, "20+1", "ab", 13},
		{{"0+3", "2+6", "7+3"}, "20+1", "abc", 11},
		{{"2+2", "0+9", "8+2"}, "20+1", "abc", 11},
		{{"0+4", "5+4", "11+2"}, "3+1", "a", 10},
		{{"0+4 20+2", "10+2 21+1", "30+2"}, "50+1", "ab", 11},
	};
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		static const char *const names[] = {"volumes/a", "volumes/b", "volumes/c"};
		static const char *const keys[] = {"a", "b", "c"};
		w.count = 0;
		for (unsigned v = 0; v < 3; v++) {
			add_volume(keys[v], 2);
			put(names[v], cases[i].pieces[v]);
		}
		put("trash/0123456789abcdef", cases[i].trash);
		w.disk.refs = 2;
		load();
		for (unsigned v = 0; v < 3; v++)
			expect_why(&w.found[v], strchr(cases[i].doubted, keys[v][0]) != NULL
							? "same pieces of the disks"
							: NULL);
		cr_expect_eq(w.raw->overlaps, cases[i].doubted[0] != '\0', "%u", i);
		cr_expect_eq(free_mib(), FREE_MIB - cases[i].occupied, "%u: %u", i, free_mib());
		pool_raw_free(w.raw);
		w.raw = NULL;
		for (unsigned v = 0; v < 3; v++)
			record_free(w.found[v].rec);
		w.count = 0;
	}
}

/* What of a piece is on the disks is occupied, also of one that is on two. */
Test(raw_load, pieces_off_the_disks)
{
	static const struct {
		const char *pieces;
		bool lost;
		unsigned occupied;
	} cases[] = {{"28+4", false, 4}, {"29+4", true, 3}, {"32+4", true, 0}, {"36+4", true, 0},
		{"39+2", true, 1}, {"40+4", false, 4}, {"60+4", false, 4}, {"61+4", true, 3},
		{"64+4", true, 0}, {"30+12", true, 4}, {"0+70", true, 56}, {"100+2 1+2", true, 2}};
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		w.count = 0;
		struct pool_found *a = add_volume("a", 2);
		put("volumes/a", cases[i].pieces);
		w.disk.refs = 2;
		load();
		expect_why(a, cases[i].lost ? "on none of the disks" : NULL);
		cr_expect_eq(free_mib(), FREE_MIB - cases[i].occupied, "%u: %u", i, free_mib());
		cr_expect_not(w.raw->overlaps);
		pool_raw_free(w.raw);
		w.raw = NULL;
		record_free(a->rec);
		w.count = 0;
	}
}

/* ---- maps that do not fit ---- */

Test(raw_load, maps_that_contradict_their_records)
{
	struct pool_found *whole = add_volume("a-whole", 4), *shorter = add_volume("b-short", 4),
			  *id = add_volume("c-id", 4),
			  *no_id = add_object(RECORD_VOLUME, "d-no-id", 4, false),
			  *none = add_volume("e-none", 4);
	put("volumes/a-whole", "0+4");
	put("volumes/b-short", "10+3");
	put_id("volumes/c-id", 5);
	put("volumes/d-no-id", "20+4");
	put_text("volumes/e-none", NULL);
	put("thin/data", "50+1");
	put("thin/metadata", "51+1");
	load();
	expect_why(whole, NULL);
	expect_why(shorter, "shorter than its record says");
	/* The first reason stays. */
	expect_why(id, "shorter than its record says");
	expect_why(no_id, "does not say where in the thin pool it is");
	expect_why(none, "no map of where its bytes are");
	cr_expect_str_eq(w.raw->unread, "volumes/e-none");
	cr_expect_eq(w.strays_asked, 0);
	cr_expect_eq(free_mib(), FREE_MIB - 4 - 3 - 4 - 2);
	cr_expect(shorter->allocated_bytes == 3 * RAW_MIB && id->thin_id == 5);
}

Test(raw_load, an_id_that_the_record_does_not_know)
{
	struct record rec = raw_volume("a", 4);
	struct pool_found *o = add_volume("a", 4);
	record_free(o->rec);
	rec.thick = false;
	rec.unformatted = true;
	o->rec = record_new(&rec);
	put_id("volumes/a", 5);
	put("thin/data", "50+1");
	put("thin/metadata", "51+1");
	load();
	expect_why(o, "its map says that it is in the thin pool, and its record that it is not");
}

/* Where a map is or was, and cannot be read, nothing is given out. */
Test(raw_load, files_without_a_map)
{
	static const struct {
		const char *make, *text, *name, *unread;
	} cases[] = {
		{"touch volumes/x", NULL, NULL, "volumes/x"},
		{"touch snapshots/x", NULL, NULL, "snapshots/x"},
		{"touch volumes/.x templates/x copies/x trash/0123456789abcdef", NULL, NULL, ""},
		{"echo > trash/0123456789abcdef", NULL, NULL, "trash/0123456789abcdef"},
		{"mkfifo volumes/x; ln -s x volumes/y; mkdir volumes/z", NULL, NULL, ""},
		{"mkdir trash/x; mkfifo trash/y", NULL, NULL, ""},
		{"mkdir lost+found", NULL, NULL, ""},
		{"touch lost+found", NULL, NULL, ""},
		{"ln -s volumes lost+found", NULL, NULL, ""},
		{"mkdir lost+found && touch lost+found/131", NULL, NULL, "lost+found/131"},
		{"true", "hello", "templates/x", "templates/x"},
		{"true", "hello", "copies/x", "copies/x"},
		{"mkdir lost+found && touch lost+found/131", "hello", "copies/x", "copies/x"},
		{"touch volumes/x", "hello", "copies/x", "volumes/x"},
	};
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		fixture_sh("cd %s && %s", w.f.path, cases[i].make);
		if (cases[i].text != NULL)
			put_text(cases[i].name, cases[i].text);
		w.disk.refs = 2;
		load();
		cr_expect_str_eq(w.raw->unread, cases[i].unread, "%u: %s", i, w.raw->unread);
		cr_expect_eq(w.strays_asked, cases[i].unread[0] == '\0', "%u", i);
		cr_expect_eq(free_mib(), FREE_MIB);
		pool_raw_free(w.raw);
		w.raw = NULL;
		fixture_sh("cd %s && rm -rf lost+found volumes/* volumes/.x snapshots/* "
			   "templates/* copies/* trash/*",
			w.f.path);
	}
}

/* ---- the thin pool ---- */

Test(raw_load, a_thin_pool)
{
	struct pool_found *a = add_object(RECORD_VOLUME, "a", 4, false),
			  *b = add_object(RECORD_SNAPSHOT, "b", 4, false);
	put_id("volumes/a", 7);
	put_id("snapshots/b", 3);
	put_id("trash/0123456789abcdef", 9);
	put("thin/metadata", "10+2");
	put("thin/data", "20+4");
	put("thin/metadata.old", "30+1");
	load();
	expect_why(a, NULL);
	expect_why(b, NULL);
	cr_expect(a->thin_id == 7 && b->thin_id == 3 && a->allocated_bytes == 0);
	const struct pool_thin *thin = &w.raw->thin;
	cr_expect(thin->life == THIN_DOWN && !thin->refused && thin->files == 3);
	cr_expect_eq(thin->next_id, 10);
	cr_expect_eq(image_map_bytes(&thin->metadata), 2 * RAW_MIB);
	cr_expect_eq(image_map_bytes(&thin->data), 4 * RAW_MIB);
	/* What a repair has left was moved first, and is overwritten. */
	cr_expect(count_dir("thin") == 2 && count_dir("trash") == 2);
	cr_expect_eq(w.raw->dirty_bytes, RAW_MIB);
	cr_expect_eq(free_mib(), FREE_MIB - 2 - 4 - 1);
}

Test(raw_load, two_with_one_place_in_the_thin_pool)
{
	struct pool_found *a = add_object(RECORD_VOLUME, "a", 4, false),
			  *b = add_object(RECORD_VOLUME, "b", 4, false),
			  *c = add_object(RECORD_VOLUME, "c", 4, false);
	put_id("volumes/a", 7);
	put_id("volumes/b", 6);
	put_id("volumes/c", 7);
	put("thin/metadata", "10+2");
	put("thin/data", "20+4");
	load();
	expect_why(a, "same place in the thin pool");
	expect_why(b, NULL);
	expect_why(c, "same place in the thin pool");
	cr_expect(w.raw->overlaps && w.raw->thin.files == 3 && !w.raw->thin.refused);
}

Test(raw_load, images_of_a_thin_pool_that_are_not_sound)
{
	static const struct {
		const char *metadata, *data; /* pieces; "": none; NULL: text of no map */
		bool ids, refused;
		enum thin_life life;
		const char *unread;
		unsigned occupied, thin, trash;
	} cases[] = {
		{"", "", false, false, THIN_NONE, "", 0, 0, 0},
		{"", "", true, true, THIN_NONE, "thin/data", 0, 0, 0},
		/* Metadata alone are of one that never had a volume, or has none any more. */
		{"10+2", "", false, false, THIN_NONE, "", 2, 0, 1},
		{"", "20+4", false, true, THIN_DOWN, "thin/metadata", 4, 1, 0},
		{NULL, "20+4", true, true, THIN_DOWN, "thin/metadata", 4, 2, 0},
		{"10+2", NULL, true, true, THIN_DOWN, "thin/data", 2, 2, 0},
		{NULL, NULL, true, true, THIN_DOWN, "thin/metadata", 0, 2, 0},
	};
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		for (unsigned m = 0; m < 2; m++) {
			const char *pieces = m == 0 ? cases[i].metadata : cases[i].data;
			const char *name = m == 0 ? "thin/metadata" : "thin/data";
			if (pieces == NULL)
				put_id(name, 4);
			else if (pieces[0] != '\0')
				put(name, pieces);
		}
		if (cases[i].ids)
			put_id("copies/x", 5);
		w.disk.refs = 2;
		load();
		const struct pool_thin *thin = &w.raw->thin;
		cr_expect_str_eq(w.raw->unread, cases[i].unread, "%u: %s", i, w.raw->unread);
		cr_expect(
			thin->refused == cases[i].refused && thin->life == cases[i].life, "%u", i);
		cr_expect_eq(free_mib(), FREE_MIB - cases[i].occupied, "%u: %u", i, free_mib());
		cr_expect_eq(count_dir("thin"), cases[i].thin, "%u", i);
		cr_expect_eq(count_dir("trash"), cases[i].trash, "%u", i);
		pool_raw_free(w.raw);
		w.raw = NULL;
		fixture_sh("cd %s && rm -rf thin/* copies/* trash/*", w.f.path);
	}
	/* A pool that is read-only, and never had one. */
	fd_close(&w.fds[POOL_FD_THIN]);
	w.disk.refs = 2;
	load();
	cr_expect(w.raw->thin.life == THIN_NONE && w.raw->unread[0] == '\0');
}

/* ---- failures ---- */

/* The disks are still the caller's. */
static void expect_failed(int res)
{
	struct err err;
	cr_expect_eq(load_with(&err), res, "%s", err.message);
	cr_expect_not_null(strstr(err.message, "reading the maps: "), "%s", err.message);
	cr_expect(w.raw == NULL && w.disk.refs == 2);
}

Test(raw_load, what_nobody_can_tell)
{
	struct rlimit was, now;
	put("volumes/a", "0+4");
	put("thin/data", "10+4");
	put("thin/metadata", "20+4");
	w.strays_fail = -EIO;
	expect_failed(-EIO);
	cr_expect_eq(w.strays_asked, 1);
	w.strays_fail = 0;
	/* Descriptors for the directory, and none for a file; of the thin pool, and of volumes. */
	cr_assert_eq(getrlimit(RLIMIT_NOFILE, &was), 0);
	for (unsigned i = 0; i < 2; i++) {
		int next = fcntl(w.fds[POOL_FD_ROOT], F_DUPFD_CLOEXEC, 0);
		close(next);
		now = (struct rlimit){
			.rlim_cur = (rlim_t)next + (i == 1), .rlim_max = was.rlim_max};
		cr_assert_eq(setrlimit(RLIMIT_NOFILE, &now), 0);
		expect_failed(-EMFILE);
		cr_assert_eq(setrlimit(RLIMIT_NOFILE, &was), 0);
		fd_close(&w.fds[POOL_FD_THIN]);
	}
	/* Disks that cannot be. */
	w.disk.members[1].start = FIRST_MIB * RAW_MIB;
	expect_failed(-EEXIST);
	w.disk.members[1].start = SECOND_MIB * RAW_MIB;
	/* A directory that does not answer. */
	int file = open("/dev/null", O_RDONLY | O_CLOEXEC);
	cr_assert_eq(dup3(file, w.fds[POOL_FD_COPIES], O_CLOEXEC), w.fds[POOL_FD_COPIES]);
	close(file);
	expect_failed(-ENOTDIR);
}

Test(raw_load, what_of_a_thin_pool_cannot_be_moved)
{
	put("thin/metadata.old", "10+4");
	int trash = w.fds[POOL_FD_TRASH];
	w.fds[POOL_FD_TRASH] = open("/dev/null", O_RDONLY | O_CLOEXEC);
	expect_failed(-ENOTDIR);
	close(trash);
	cr_expect_eq(count_dir("thin"), 1);
}
