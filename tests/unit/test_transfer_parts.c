/* SPDX-License-Identifier: Apache-2.0 */
/* What copies between nodes are made of: messages, checksums, the rate; and the files that a pool
 * keeps for them. */
#include "pool_fixture.h"

#include "base/crc32c.h"
#include "pool/hold_make.h"
#include "pool/index.h"
#include "pool/part.h"
#include "pool/private.h"
#include "pool/trash.h"
#include "transfer/chunk.h"
#include "transfer/rate.h"

#include <sys/file.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <time.h>

#define MIB (UINT64_C(1) << 20)

/* ---- checksums ---- */

Test(checksum, known_values)
{
	uint8_t zeros[32] = {0}, ones[32], up[32];
	memset(ones, 0xff, sizeof(ones));
	for (unsigned i = 0; i < sizeof(up); i++)
		up[i] = (uint8_t)i;
	/* RFC 3720, appendix B.4 */
	uint32_t (*const both[])(const void *data, size_t len) = {crc32c, crc32c_by_table};
	for (unsigned i = 0; i < 2; i++) {
		cr_assert_eq(both[i]("123456789", 9), 0xe3069283);
		cr_assert_eq(both[i](zeros, sizeof(zeros)), 0x8a9136aa);
		cr_assert_eq(both[i](ones, sizeof(ones)), 0x62a8ab43);
		cr_assert_eq(both[i](up, sizeof(up)), 0x46dd794e);
		cr_assert_eq(both[i]("", 0), 0);
	}
}

Test(checksum, instruction_and_table_agree)
{
	uint8_t data[300];
	unsigned seed = 5;
	for (unsigned i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)((seed = seed * 1103515245 + 12345) >> 8);
	for (unsigned at = 0; at < 9; at++)
		for (unsigned len = 0; len + at <= sizeof(data); len++)
			cr_assert_eq(crc32c(data + at, len), crc32c_by_table(data + at, len));
}

/* ---- messages ---- */

Test(chunk, is_what_protobuf_writes)
{
	/* offset 8192, checksum 0x44332211, data "abc"; and an end at 300 */
	static const uint8_t want[] = {
		0x08, 0x80, 0x40, 0x1d, 0x11, 0x22, 0x33, 0x44, 0x12, 0x03, 'a', 'b', 'c'};
	static const uint8_t want_end[] = {0x08, 0xac, 0x02, 0x20, 0x01};
	uint8_t mem[CHUNK_HEAD_MAX + 3];
	memcpy(mem + CHUNK_HEAD_MAX, "abc", 3);
	struct chunk chunk = {.offset = 8192, .len = 3, .checksum = 0x44332211}, back;
	size_t len;
	const uint8_t *m = chunk_put_head(&chunk, mem + CHUNK_HEAD_MAX, &len);
	cr_assert_eq(len, sizeof(want));
	cr_assert_eq(memcmp(m, want, len), 0);
	cr_assert(chunk_parse(m, len, &back));
	cr_assert_eq(back.offset, 8192);
	cr_assert_eq(back.checksum, 0x44332211);
	cr_assert_eq(back.len, 3);
	cr_assert_eq(back.data, m + 10);
	cr_assert(!back.end);
	/* No prefix of it is a message with other data. */
	for (size_t n = 0; n < len; n++)
		cr_assert(!chunk_parse(m, n, &back) || back.data == NULL);
	chunk = (struct chunk){.offset = 300, .end = true};
	m = chunk_put_head(&chunk, mem + CHUNK_HEAD_MAX, &len);
	cr_assert_eq(len, sizeof(want_end));
	cr_assert_eq(memcmp(m, want_end, len), 0);
	cr_assert(chunk_parse(m, len, &back));
	cr_assert(back.end);
	cr_assert_eq(back.offset, 300);
}

Test(chunk, unknown_fields_are_skipped_and_nonsense_is_refused)
{
	static const uint8_t unknown[] = {0x08, 0x05, 0x28, 0x07, 0x31, 1, 2, 3, 4, 5, 6, 7, 8,
		0x3a, 0x02, 'x', 'y', 0x45, 1, 2, 3, 4, 0x20, 0x01};
	static const struct {
		const char *name;
		uint8_t bytes[12];
		size_t len;
	} nonsense[] = {
		{"a number without an end", {0x08, 0x80}, 2},
		{"a number of 11 bytes",
			{0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01},
			12},
		{"more data than there is", {0x12, 0x05, 'a'}, 3},
		{"a length of 2^63",
			{0x12, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01}, 11},
		{"half a checksum", {0x1d, 1, 2}, 3},
		{"field 0", {0x00, 0x01}, 2},
		{"a group", {0x0b}, 1},
		{"wire type 7", {0x0f}, 1},
	};
	struct chunk chunk;
	cr_assert(chunk_parse(unknown, sizeof(unknown), &chunk));
	cr_assert_eq(chunk.offset, 5);
	cr_assert(chunk.end);
	cr_assert_eq(chunk.len, 0);
	cr_assert(chunk_parse(NULL, 0, &chunk));
	for (unsigned i = 0; i < sizeof(nonsense) / sizeof(nonsense[0]); i++)
		cr_assert(!chunk_parse(nonsense[i].bytes, nonsense[i].len, &chunk), "%s",
			nonsense[i].name);
}

/* Of data, and behind it the offset: neither may change. */
Test(chunk, checksum_covers_data_and_offset)
{
	static uint8_t both[CHUNK_ALIGN + 8] = {'x'};
	both[CHUNK_ALIGN + 1] = 0x30;
	struct chunk chunk = {.offset = 3 * CHUNK_ALIGN, .data = both, .len = CHUNK_ALIGN};
	chunk.checksum = crc32c_by_table(both, sizeof(both));
	cr_assert_eq(chunk_sum(&chunk), chunk.checksum);
	cr_assert_null(chunk_why_wrong(&chunk, 0, MIB));
	chunk.offset += CHUNK_ALIGN;
	cr_assert_not_null(chunk_why_wrong(&chunk, 0, MIB));
	chunk.offset -= CHUNK_ALIGN;
	both[1] ^= 1;
	cr_assert_not_null(chunk_why_wrong(&chunk, 0, MIB));
}

/* ---- the rate ---- */

Test(rate, is_held_over_time)
{
	struct rate rate = {.bytes_per_s = MIB};
	uint64_t now_ns = UINT64_C(1000000000000), taken = 0, begin_ns = now_ns;
	while (taken < 20 * MIB) {
		now_ns += rate_wait_ms(&rate, now_ns) * 1000000;
		cr_assert_eq(rate_wait_ms(&rate, now_ns), 0);
		(void)rate_take(&rate, now_ns, MIB / 4);
		taken += MIB / 4;
	}
	double s = (double)(now_ns - begin_ns) / 1e9;
	cr_assert_gt(s, 19);
	cr_assert_lt(s, 20.1);
	/* What was not used for long is lost, but for a burst. */
	now_ns += UINT64_C(3600000000000);
	cr_assert_leq(rate_take(&rate, now_ns, MIB / 10), 1);
	cr_assert_geq(rate_take(&rate, now_ns, MIB), 900);
	rate.bytes_per_s = 0;
	cr_assert_eq(rate_take(&rate, now_ns, 1 << 30), 0);
	cr_assert_eq(rate_wait_ms(&rate, now_ns), 0);
}

/* ---- parts ---- */

static struct fixture f;

static int copies_dir(void)
{
	char path[128];
	snprintf(path, sizeof(path), "%s/copies", f.path);
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cr_assert_geq(fd, 0);
	return fd;
}

/* One that the pool does not sweep by itself, as it does after its load. */
static int another_dir(void)
{
	char path[128];
	snprintf(path, sizeof(path), "%s/another", f.path);
	cr_assert_eq(mkdir(path, 0700), 0);
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cr_assert_geq(fd, 0);
	return fd;
}

Test(part, goes_on_with_what_it_is_made_of, .timeout = 60)
{
	struct pool_part part = {.of = "source one"}, other = {.of = "source two"};
	uint64_t allocated;
	int fd, held;
	fixture_open(&f, FIXTURE_DIR);
	int dir = copies_dir();
	cr_assert_eq(pool_part_open(dir, "part-a", &part, 64 * MIB, 0, &fd, &allocated), 0);
	cr_assert_eq(part.from_bytes, 0);
	cr_assert_eq(pwrite(fd, "data", 4, 0), 4);
	cr_assert_eq(pool_part_note(fd, &part, 64 * MIB, 8 * MIB), 0);
	cr_assert_eq(pool_part_open(dir, "part-a", &part, 64 * MIB, 0, &held, &allocated),
		-EWOULDBLOCK, "somebody fills it");
	close(fd);
	part.from_bytes = 0;
	cr_assert_eq(pool_part_open(dir, "part-a", &part, 64 * MIB, 0, &fd, &allocated), 0);
	cr_assert_eq(part.from_bytes, 8 * MIB);
	cr_assert_gt(allocated, 0);
	cr_assert_eq(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
	close(fd);
	/* Of another size, or of something else: anew. */
	cr_assert_eq(pool_part_open(dir, "part-a", &part, 65 * MIB, 0, &fd, &allocated), 0);
	cr_assert_eq(part.from_bytes, 0);
	cr_assert_eq(allocated, 0);
	cr_assert_eq(pool_part_note(fd, &part, 65 * MIB, 8 * MIB), 0);
	close(fd);
	cr_assert_eq(pool_part_open(dir, "part-a", &other, 65 * MIB, 0, &fd, &allocated), 0);
	cr_assert_eq(other.from_bytes, 0);
	close(fd);
	/* What the attribute does not say clearly is not true. */
	static const char *const wrong[] = {"", "ringvol-part 1\n",
		"ringvol-part 1\nof=source two\nsize=68157440\nfrom=8388608",
		"ringvol-part 1\nof=source two\nsize=68157440\nfrom=8388609\n",
		"ringvol-part 1\nof=source two\nsize=68157440\nfrom=68157441\n",
		"ringvol-part 1\nof=source two\nsize=68157440\nfrom=\n",
		"ringvol-part 2\nof=source two\nsize=68157440\nfrom=8388608\n",
		"ringvol-part 1\nof=source two\nsize=68157440\nfrom=8388608\n\n"};
	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		char path[160];
		snprintf(path, sizeof(path), "%s/copies/part-a", f.path);
		cr_assert_eq(
			setxattr(path, "trusted.ringvol.part", wrong[i], strlen(wrong[i]), 0), 0);
		cr_assert_eq(
			pool_part_open(dir, "part-a", &other, 65 * MIB, 0, &fd, &allocated), 0);
		cr_assert_eq(other.from_bytes, 0, "%s", wrong[i]);
		close(fd);
	}
	close(dir);
	fixture_close(&f);
}

/* By what its volume's id begins and ends with. */
Test(part, is_found_by_its_volume, .timeout = 60)
{
	struct pool_part part = {.of = "0123abcd.a.89abcdef 0011223344556677"};
	struct pool_part other = {.of = "0123abcd.b.89abcde0 0011223344556677"};
	const struct record rec = {.kind = RECORD_VOLUME,
		.name = "a",
		.size_bytes = MIB,
		.mkfs_options = "",
		.source_id = "",
		.family = "",
		.claim = "",
		.born = "",
		.owner = "",
		.group = ""};
	char key[RECORD_KEY_MAX] = "kept";
	bool finished = false;
	uint64_t allocated;
	int fd, other_fd;
	fixture_open(&f, FIXTURE_DIR);
	int dir = copies_dir();
	cr_assert_eq(pool_part_open(dir, "part-a", &part, MIB, 0, &fd, &allocated), 0);
	cr_assert_eq(pool_part_open(dir, "part-b", &other, MIB, 0, &other_fd, &allocated), 0);
	cr_assert_eq(pool_part_find(dir, "0123abcd", "00000000", key, &finished), 0);
	cr_assert_eq(pool_part_find(dir, "0123abce", "89abcdef", key, &finished), 0);
	cr_assert_str_eq(key, "kept");
	cr_assert_eq(pool_part_find(dir, "0123abcd", "89abcdef", key, &finished), 1);
	cr_assert_str_eq(key, "a");
	cr_assert(!finished);
	cr_assert_eq(pool_part_finish(dir, fd, &rec, "text", 4), 0);
	cr_assert_eq(pool_part_find(dir, "0123abcd", "89abcdef", key, &finished), 1);
	cr_assert(finished);
	cr_assert_eq(pool_part_find(dir, "0123abcd", "89abcde0", key, &finished), 1);
	cr_assert_str_eq(key, "b");
	cr_assert(!finished);
	/* One that says nothing is nobody's. */
	cr_assert_eq(fremovexattr(other_fd, "trusted.ringvol.part"), 0);
	cr_assert_eq(pool_part_find(dir, "0123abcd", "89abcde0", key, &finished), 0);
	close(other_fd);
	close(fd);
	close(dir);
	fixture_close(&f);
}

Test(part, is_swept_when_it_is_old_and_nobody_fills_it, .timeout = 60)
{
	struct pool_part part = {.of = "x"};
	uint64_t allocated;
	int fd, held;
	fixture_open(&f, FIXTURE_DIR);
	int dir = copies_dir();
	cr_assert_eq(pool_part_open(dir, "part-young", &part, MIB, 0, &fd, &allocated), 0);
	close(fd);
	cr_assert_eq(pool_part_open(dir, "part-old", &part, MIB, 0, &fd, &allocated), 0);
	close(fd);
	cr_assert_eq(pool_part_open(dir, "part-held", &part, MIB, 0, &held, &allocated), 0);
	fixture_sh("touch %s/copies/another", f.path);
	const struct timespec then = {.tv_sec = time(NULL) - POOL_PART_KEEP_S - 60};
	for (unsigned i = 0; i < 3; i++)
		cr_assert_eq(utimensat(dir, (const char *[]){"part-old", "part-held", "another"}[i],
				     (struct timespec[]){then, then}, 0),
			0);
	cr_assert_eq(pool_parts_sweep(dir), 0);
	cr_assert_eq(fixture_count(&f, "copies"), 3);
	cr_assert_lt(faccessat(dir, "part-old", F_OK, 0), 0);
	close(held);
	/* So does the look after the pool. */
	fixture_reopen_pools(&f);
	fixture_settle(&f);
	cr_assert_eq(fixture_count(&f, "copies"), 2);
	cr_assert_eq(faccessat(dir, "part-young", F_OK, 0), 0);
	close(dir);
	fixture_close(&f);
}

/* What happens between an open and its lock. */
static void (*before_lock)(int dir);
static int lock_dir;

int flock(int fd, int operation)
{
	void (*before)(int dir) = before_lock;
	before_lock = NULL;
	if (before != NULL)
		before(lock_dir);
	return (int)syscall(SYS_flock, fd, operation);
}

static void sweep_it(int dir)
{
	cr_assert_eq(unlinkat(dir, "part-a", 0), 0);
}

static void make_another(int dir)
{
	sweep_it(dir);
	int fd = openat(dir, "part-a", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	cr_assert_geq(fd, 0);
	close(fd);
}

/* The sweep takes its name before it is locked: what is opened has a name. */
Test(part, is_swept_while_it_is_opened, .timeout = 60)
{
	static void (*const befores[])(int dir) = {sweep_it, make_another};
	struct pool_part part = {.of = "x"};
	uint64_t allocated;
	struct stat st, named;
	int fd;
	fixture_open(&f, FIXTURE_DIR);
	lock_dir = another_dir();
	for (unsigned i = 0; i < 2; i++) {
		cr_assert_eq(pool_part_open(lock_dir, "part-a", &part, MIB, 0, &fd, &allocated), 0);
		cr_assert_eq(pool_part_note(fd, &part, MIB, 4096), 0);
		close(fd);
		before_lock = befores[i];
		cr_assert_eq(pool_part_open(lock_dir, "part-a", &part, MIB, 0, &fd, &allocated), 0);
		cr_assert_null(before_lock);
		cr_assert_eq(part.from_bytes, 0);
		cr_assert_eq(fstat(fd, &st), 0);
		cr_assert_eq(fstatat(lock_dir, "part-a", &named, 0), 0);
		cr_assert_eq(st.st_ino, named.st_ino);
		close(fd);
	}
	close(lock_dir);
	fixture_close(&f);
}

/* A new one has its name before the sweep has locked the old one: the sweep leaves it. */
Test(part, is_made_while_the_old_one_is_swept, .timeout = 60)
{
	struct pool_part part = {.of = "x"};
	uint64_t allocated;
	int fd;
	fixture_open(&f, FIXTURE_DIR);
	lock_dir = another_dir();
	cr_assert_eq(pool_part_open(lock_dir, "part-a", &part, MIB, 0, &fd, &allocated), 0);
	close(fd);
	const struct timespec then = {.tv_sec = time(NULL) - POOL_PART_KEEP_S - 60};
	cr_assert_eq(utimensat(lock_dir, "part-a", (struct timespec[]){then, then}, 0), 0);
	before_lock = make_another;
	cr_assert_eq(pool_parts_sweep(lock_dir), 0);
	cr_assert_null(before_lock);
	cr_assert_eq(faccessat(lock_dir, "part-a", F_OK, 0), 0);
	close(lock_dir);
	fixture_close(&f);
}

/* Behind what is durable nothing stays, which another stream may have as a hole. */
Test(part, is_cut_to_what_is_durable, .timeout = 60)
{
	struct pool_part part = {.of = "x"};
	uint64_t allocated;
	char byte = 1;
	int fd;
	fixture_open(&f, FIXTURE_DIR);
	int dir = copies_dir();
	for (uint64_t durable = 0; durable <= 4096; durable += 4096) {
		cr_assert_eq(pool_part_open(dir, "part-a", &part, MIB, 0, &fd, &allocated), 0);
		cr_assert_eq(pwrite(fd, "data", 4, 4092), 4);
		cr_assert_eq(pwrite(fd, "stray", 5, 65536), 5);
		cr_assert_eq(pool_part_note(fd, &part, MIB, durable), 0);
		close(fd);
		cr_assert_eq(pool_part_open(dir, "part-a", &part, MIB, 0, &fd, &allocated), 0);
		cr_assert_eq(part.from_bytes, durable);
		cr_assert_eq(lseek(fd, 0, SEEK_END), (off_t)durable);
		cr_assert_eq(allocated > 0, durable > 0);
		cr_assert_eq(pread(fd, &byte, 1, 4095), durable > 0);
		close(fd);
	}
	cr_assert_eq(byte, 'a');
	close(dir);
	fixture_close(&f);
}

/* ---- holds ---- */

static _Thread_local bool no_memory; /* the next one gets none, here on the loop */

void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size)
{
	bool fails = no_memory;
	no_memory = false;
	return fails ? NULL : __real_calloc(count, size);
}

static _Thread_local bool no_record;

struct record *__real_record_new(const struct record *from);
struct record *__wrap_record_new(const struct record *from);
struct record *__wrap_record_new(const struct record *from)
{
	bool fails = no_record;
	no_record = false;
	return fails ? NULL : __real_record_new(from);
}

static struct pool_object *make_volume(const char *name)
{
	struct pool_object *object;
	struct record rec = fixture_volume(name, 16 * MIB);
	rec.mkfs_options = rec.source_id = rec.family = rec.claim = "";
	cr_assert_eq(fixture_build(&f, &rec, NULL, &object), ERR_OK);
	return object;
}

static struct pool_hold *make_hold(struct pool_object *source, const char *node_id)
{
	struct pool_hold_make m;
	char id[RECORD_ID_MAX];
	pool_object_id(source, id);
	pool_hold_make_init(&m, &f.reactor, source, pool_features(f.pool)->reflink);
	m.node_id = node_id;
	m.volume_name = "name\nwith \xc3\xa4";
	m.source_id = id;
	enum err_code code = fixture_run(&f, &m.op);
	cr_assert_eq(code, ERR_OK, "%s", m.op.err.message);
	pool_hold_make_free(&m);
	return m.ret_hold;
}

static void hold_survives(enum fixture_fs fs)
{
	char grant[POOL_GRANT_BYTES], name[64];
	fixture_open(&f, fs);
	struct pool_object *volume = make_volume("source");
	struct pool_hold *hold = make_hold(volume, "node-2");
	strcpy(grant, hold->grant);
	strcpy(name, hold->name);
	cr_assert_eq(fixture_count(&f, "copies"), 2);
	/* What makes no hold goes with the next load. */
	fixture_sh(
		"cd %s/copies && touch send-0123456789abcdef send-aaaaaaaaaaaaaaaa.grant && "
		"cp %s send-bbbbbbbbbbbbbbbb && head -c 100 %s.grant > send-bbbbbbbbbbbbbbbb.grant "
		"&& touch send-no part-x 'send-CCCCCCCCCCCCCCCC'",
		f.path, name, name);
	fixture_reopen_pools(&f);
	fixture_settle(&f);
	cr_assert_eq(fixture_count(&f, "copies"), 5);
	hold = pool_hold_next(f.pool, NULL);
	cr_assert_not_null(hold);
	cr_assert_null(pool_hold_next(f.pool, hold));
	cr_assert_str_eq(hold->grant, grant);
	cr_assert_str_eq(hold->name, name);
	cr_assert_str_eq(hold->node_id, "node-2");
	cr_assert_str_eq(hold->volume_name, "name\nwith \xc3\xa4");
	cr_assert_str_eq(hold->rec->name, "source");
	cr_assert(hold->opened);
	int fd = pool_hold_open(pool_holds_fd(f.pool), hold->name, false);
	cr_assert_geq(fd, 0);
	close(fd);
	pool_hold_drop(hold);
	cr_assert_null(pool_hold_next(f.pool, NULL));
	fixture_settle(&f);
	cr_assert_eq(fixture_count(&f, "copies"), 3);
	cr_assert_eq(fixture_count(&f, "trash"), 0);
	fixture_close(&f);
}

Test(hold, survives_a_restart, .timeout = 60)
{
	hold_survives(FIXTURE_DIR);
}

Test(hold, survives_a_restart_xfs, .timeout = 60)
{
	hold_survives(FIXTURE_XFS);
}

Test(hold, survives_a_restart_btrfs, .timeout = 60)
{
	hold_survives(FIXTURE_BTRFS);
}

Test(hold, is_one_of_so_many, .timeout = 60)
{
	char id[RECORD_ID_MAX];
	fixture_open(&f, FIXTURE_DIR);
	struct pool_object *volume = make_volume("source");
	for (unsigned i = 0; i < POOL_HOLDS_MAX; i++)
		make_hold(volume, "node-2");
	struct pool_hold_make m;
	pool_object_id(volume, id);
	pool_hold_make_init(&m, &f.reactor, volume, false);
	m.node_id = m.volume_name = "x";
	m.source_id = id;
	cr_assert_eq(fixture_run(&f, &m.op), ERR_NO_ROOM);
	pool_hold_make_free(&m);
	cr_assert_eq(fixture_count(&f, "copies"), 2 * POOL_HOLDS_MAX);
	pool_hold_drop(pool_hold_next(f.pool, NULL));
	fixture_settle(&f);
	make_hold(volume, "node-2");
	fixture_close(&f);
}

static struct pool_hold *find_hold_of(const char *node_id)
{
	for (struct pool_hold *h = NULL; (h = pool_hold_next(f.pool, h)) != NULL;)
		if (strcmp(h->node_id, node_id) == 0)
			return h;
	return NULL;
}

static struct pool_object *make_snapshot(struct pool_object *source)
{
	struct pool_object *object;
	char id[RECORD_ID_MAX];
	struct record rec = fixture_volume("snap", 16 * MIB);
	pool_object_id(source, id);
	rec.kind = RECORD_SNAPSHOT;
	rec.source = RECORD_SOURCE_VOLUME;
	rec.source_id = rec.family = id;
	rec.mkfs_options = rec.claim = "";
	rec.shares_extents = pool_features(f.pool)->reflink;
	cr_assert_eq(fixture_build(&f, &rec, source, &object), ERR_OK);
	return object;
}

static void write_volume(const char *name, uint64_t bytes)
{
	fixture_sh("dd if=/dev/urandom of=%s/volumes/%s bs=1M count=%u conv=notrunc,fsync "
		   "status=none",
		f.path, name, (unsigned)(bytes / MIB));
}

/* What is held shares the volume's blocks also when the snapshot is gone, and after a restart. */
Test(hold, is_of_the_family, .timeout = 60)
{
	fixture_open(&f, FIXTURE_XFS);
	if (!pool_features(f.pool)->reflink)
		cr_skip_test("no reflink here");
	struct pool_object *v = make_volume("source");
	write_volume("source", 16 * MIB);
	uint64_t alone = fixture_room(&f).available_bytes;
	struct pool_object *s = make_snapshot(v);
	make_hold(s, "node-2");
	cr_assert_eq(fixture_remove(&f, s), ERR_OK);
	fixture_settle(&f);
	cr_assert(v->shared, "with what is held");
	cr_assert_leq(fixture_room(&f).available_bytes, alone - 15 * MIB);
	fixture_reopen_pools(&f);
	v = pools_find_name(f.pools, RECORD_VOLUME, "source");
	cr_assert(v->shared, "after a restart");
	pool_hold_drop(find_hold_of("node-2"));
	cr_assert(!v->shared);
	fixture_settle(&f);
	cr_assert_leq(alone, fixture_room(&f).available_bytes + 2 * MIB);
	/* A volume's, once: not beside a reservation. */
	make_hold(v, "node-3");
	cr_assert(v->shared);
	uint64_t held = fixture_room(&f).available_bytes;
	cr_assert_leq(held, alone - 15 * MIB);
	cr_assert_geq(held, alone - 18 * MIB);
	fixture_reopen_pools(&f);
	v = pools_find_name(f.pools, RECORD_VOLUME, "source");
	cr_assert(v->shared);
	pool_hold_drop(find_hold_of("node-3"));
	cr_assert(!v->shared);
	fixture_close(&f);
}

static enum err_code try_hold(struct pool_object *source)
{
	struct pool_hold_make m;
	pool_hold_make_init(&m, &f.reactor, source, false);
	m.node_id = m.volume_name = m.source_id = "x";
	enum err_code code = fixture_run(&f, &m.op);
	pool_hold_make_free(&m);
	return code;
}

Test(hold, without_memory, .timeout = 60)
{
	fixture_open(&f, FIXTURE_DIR);
	struct pool_object *volume = make_volume("source");
	no_record = true;
	cr_assert_eq(try_hold(volume), ERR_NO_ROOM);
	cr_assert_not(no_record);
	cr_assert_null(pool_hold_next(f.pool, NULL));
	cr_assert_eq(fixture_count(&f, "copies"), 0);
	struct pool_hold *hold = make_hold(volume, "node-2");
	/* It could not be dropped, and whoever looks at it next does that. */
	no_memory = true;
	pool_hold_drop(hold);
	cr_assert_not(no_memory);
	cr_assert_eq(pool_hold_next(f.pool, NULL), hold);
	cr_assert(hold->dropped);
	pool_hold_drop(hold);
	fixture_settle(&f);
	cr_assert_eq(fixture_count(&f, "copies"), 0);
	fixture_close(&f);
}

/* The other node reserves as much. */
Test(hold, knows_what_it_takes, .timeout = 60)
{
	char path[256];
	struct stat st;
	fixture_open(&f, FIXTURE_DIR);
	struct pool_object *volume = make_volume("source");
	write_volume("source", MIB);
	const struct pool_hold *hold = make_hold(volume, "node-2");
	snprintf(path, sizeof(path), "%s/copies/%s", f.path, hold->name);
	cr_assert_eq(stat(path, &st), 0);
	cr_assert_geq(hold->allocated_bytes, MIB);
	cr_assert_eq(hold->allocated_bytes, (uint64_t)st.st_blocks * 512);
	fixture_close(&f);
}

/* It asks for the room that it may come to need, and has given all of that back at its end. */
Test(hold, leaves_nothing_reserved, .timeout = 60)
{
	struct pool_hold_make m;
	char id[RECORD_ID_MAX];
	fixture_open(&f, FIXTURE_XFS);
	struct pool_object *volume = make_volume("source");
	write_volume("source", MIB);
	struct pool_room room = fixture_room(&f);
	pool_object_id(volume, id);
	for (unsigned more = 0; more < 2; more++) {
		pool_hold_make_init(&m, &f.reactor, volume, false);
		m.node_id = "node-2";
		m.volume_name = "name";
		m.source_id = id;
		m.need_bytes = more ? 2 * room.capacity_bytes : MIB;
		f.pool->used_bytes = 0;
		cr_assert_eq(fixture_run(&f, &m.op), more ? ERR_NO_ROOM : ERR_OK);
		cr_expect_eq(f.pool->reserved_bytes, 0);
		cr_expect_eq(f.pool->ops, 0);
		cr_expect_eq(f.pool->holds_making, 0);
		cr_expect_eq(f.pool->hold_count, 1);
		cr_assert_eq(m.ret_hold == NULL, more);
		if (!more) { /* a copy: it has blocks of its own, that no measure has seen */
			cr_expect_geq(m.ret_hold->allocated_bytes, MIB);
			cr_expect_eq(f.pool->used_bytes, m.ret_hold->allocated_bytes);
			cr_expect_not(m.ret_hold->shares);
		}
		pool_hold_make_free(&m);
	}
	fixture_close(&f);
}

/* Those under way count. */
Test(hold, is_one_of_so_many_at_once, .timeout = 60)
{
	struct pool_hold_make m[2];
	char id[RECORD_ID_MAX];
	fixture_open(&f, FIXTURE_DIR);
	struct pool_object *volume = make_volume("source");
	for (unsigned i = 1; i < POOL_HOLDS_MAX; i++)
		make_hold(volume, "node-2");
	pool_object_id(volume, id);
	for (unsigned i = 0; i < 2; i++) {
		pool_hold_make_init(&m[i], &f.reactor, volume, false);
		m[i].node_id = m[i].volume_name = "x";
		m[i].source_id = id;
	}
	m[0].op.on_end = fixture_on_end;
	op_start(&m[0].op);
	cr_assert_eq(fixture_run(&f, &m[1].op), ERR_NO_ROOM);
	while (op_running(&m[0].op))
		fixture_turn(&f);
	cr_assert(!op_failed(&m[0].op));
	for (unsigned i = 0; i < 2; i++)
		pool_hold_make_free(&m[i]);
	pool_hold_drop(pool_hold_next(f.pool, NULL));
	fixture_settle(&f);
	make_hold(volume, "node-2");
	fixture_close(&f);
}

/* What cannot be read now, or is of a later version, is left alone; so is another pool's. */
Test(hold, in_doubt_stays, .timeout = 60)
{
	char name[64];
	fixture_open(&f, FIXTURE_DIR);
	strcpy(name, make_hold(make_volume("source"), "node-2")->name);
	fixture_sh("cd %s/copies && cp %s send-aaaaaaaaaaaaaaaa && "
		   "sed 's/^ringvol-send 1/ringvol-send 2/' %s.grant > send-aaaaaaaaaaaaaaaa.grant "
		   "&& touch send-bbbbbbbbbbbbbbbb && mkdir send-bbbbbbbbbbbbbbbb.grant",
		f.path, name, name);
	fixture_reopen_pools(&f);
	fixture_settle(&f);
	cr_assert_eq(fixture_count(&f, "copies"), 6);
	struct pool_hold *hold = pool_hold_next(f.pool, NULL);
	cr_assert_str_eq(hold->name, name);
	cr_assert_null(pool_hold_next(f.pool, hold));
	fixture_close_pools(&f);
	fixture_sh("touch %s/copies/send-cccccccccccccccc && cp -a %s %s-twin", f.path, f.path,
		f.path);
	char twin[128];
	snprintf(twin, sizeof(twin), "%s-twin", f.path);
	const struct pool_config configs[] = {
		{.name = "p", .path = f.path, .overcommit = 1.0, .reserve_pct = 5},
		{.name = "q", .path = twin, .overcommit = 1.0, .reserve_pct = 5}};
	fixture_open_configs(&f, configs, 2);
	fixture_settle(&f);
	for (unsigned i = 0; i < 2; i++) {
		unsigned served = pool_state(pools_at(f.pools, i)) == POOL_READY;
		cr_assert_eq(fixture_sh("test $(ls %s/copies | wc -l) = %u", configs[i].path,
				     served ? 6 : 7),
			0, "%u, served: %u", i, served);
	}
	fixture_close(&f);
}

/* Nothing is cut under somebody who has attached what was deleted while it was held. */
Test(hold, is_not_cut_while_it_is_in_use, .timeout = 60)
{
	char path[160], byte;
	fixture_open(&f, FIXTURE_XFS);
	struct pool_object *v = make_volume("source");
	write_volume("source", MIB);
	struct pool_object *s = make_snapshot(v);
	struct pool_hold *hold = make_hold(s, "node-2");
	snprintf(path, sizeof(path), "%s/snapshots/snap", f.path);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	cr_assert_eq(fixture_remove(&f, s), ERR_OK);
	fixture_settle(&f);
	cr_assert_eq(fixture_count(&f, "trash"), 0, "the other name stays");
	pool_hold_drop(hold);
	fixture_settle(&f);
	cr_assert_eq(fixture_count(&f, "trash"), 1);
	cr_assert_eq(pread(fd, &byte, 1, 16 * MIB - 1), 1, "not cut");
	close(fd);
	cr_assert_eq(fixture_remove(&f, v), ERR_OK);
	fixture_settle(&f);
	cr_assert_eq(fixture_count(&f, "trash"), 0);
	fixture_close(&f);
}
