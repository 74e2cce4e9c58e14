/* SPDX-License-Identifier: Apache-2.0 */
/* The notes that a pool keeps of copies and of volumes that have left: their texts and names, and
 * what memory does with them. */
#include "pool/departure.h"
#include "pool/departure_file.h"
#include "pool/hold_file.h"
#include "pool/part.h"
#include "pool/private.h"
#include "pool/record_text.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#define GRANT "00112233445566778899aabbccddeeff"

/* ---- holds ---- */

Test(notes, names_of_holds)
{
	static const struct {
		const char *name;
		bool image, grant;
	} all[] = {{"send-0123456789abcdef", true, false},
		{"send-0123456789abcdef.grant", false, true},
		{"send-0123456789abcde", false, false}, {"send-0123456789abcdef0", false, false},
		{"send-0123456789abcdeg", false, false}, {"sent-0123456789abcdef", false, false},
		{"send-0123456789abcdef.granu", false, false},
		{"send-0123456789abcdef.grant0", false, false},
		{"send-0123456789abcdeg.grant", false, false},
		{"sent-0123456789abcdef.grant", false, false},
		{"send-0123456789abcde0.gran", false, false}, {"send-", false, false},
		{"", false, false}};
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		const char *name = all[i].name;
		cr_expect_eq(hold_is_image_name(name), all[i].image, "%s", name);
		cr_expect_eq(hold_is_grant_name(name), all[i].grant, "%s", name);
		cr_expect_eq(hold_name_valid(name), all[i].image || all[i].grant, "%s", name);
	}
	char name[HOLD_FILE_BYTES];
	hold_grant_name("send-0123456789abcdef", name);
	cr_assert_str_eq(name, "send-0123456789abcdef.grant");
}

static struct record *record_of(const char *name)
{
	struct record rec = {.name = name, .random = "89abcdef", .size_bytes = 1 << 20};
	return record_new(&rec);
}

static struct pool_hold hold_of(struct record *rec)
{
	return (struct pool_hold){.grant = GRANT,
		.node_id = "node-b",
		.volume_name = "copy",
		.source_id = "01234567.v.89abcdef",
		.rec = rec};
}

Test(notes, a_hold_is_read_as_it_was_written)
{
	char text[HOLD_TEXT_MAX];
	struct record *rec = record_of("v");
	for (unsigned bits = 0; bits < 4; bits++) {
		struct pool_hold hold = hold_of(rec), back = {.name = "kept"};
		hold.shares = bits & 1;
		hold.move = bits & 2;
		int len = hold_print(&hold, text, sizeof(text));
		cr_assert_gt(len, 0);
		cr_assert_str_eq(text, hold.move ? "ringvol-move 1" : "ringvol-send 1");
		cr_assert_eq(hold_parse(text, (size_t)len, &back), 0);
		cr_expect_str_eq(back.grant, GRANT);
		cr_expect_str_eq(back.node_id, "node-b");
		cr_expect_str_eq(back.volume_name, "copy");
		cr_expect_str_eq(back.source_id, hold.source_id);
		cr_expect(back.shares == hold.shares && back.move == hold.move, "%u", bits);
		cr_expect_str_eq(back.rec->name, "v");
		cr_expect_str_eq(back.name, "kept");
		record_free(back.rec);
		for (int cut = 0; cut < len; cut++) {
			back.rec = NULL;
			cr_assert_eq(hold_parse(text, (size_t)cut, &back),
				cut < 15 ? -EPROTONOSUPPORT : -EBADMSG, "%d", cut);
			cr_assert_null(back.rec);
		}
	}
	record_free(rec);
}

/* One field after another of a text that is sound but for that. */
Test(notes, a_hold_that_contradicts_itself_is_damaged)
{
	static const struct {
		const char *head, *grant, *source_id;
		size_t node_len, name_len;
		int r;
	} all[] = {
		{"ringvol-send 1", GRANT, "01234567.v.89abcdef", 6, 4, 0},
		{"ringvol-move 1", GRANT, "01234567.v.89abcdef", 6, 4, 0},
		{"ringvol-send 2", GRANT, "01234567.v.89abcdef", 6, 4, -EPROTONOSUPPORT},
		{"ringvol-send 11", GRANT, "01234567.v.89abcdef", 6, 4, -EPROTONOSUPPORT},
		{"ringvol-send 1", GRANT "0", "01234567.v.89abcdef", 6, 4, -EBADMSG},
		{"ringvol-send 1", &("0" GRANT)[2], "01234567.v.89abcdef", 6, 4, -EBADMSG},
		{"ringvol-send 1", "0123456789abcdef0123456789abcdeg", "01234567.v.89abcdef", 6, 4,
			-EBADMSG},
		{"ringvol-send 1", GRANT, "01234567.w.89abcdef", 6, 4, -EBADMSG},
		{"ringvol-send 1", GRANT, "nonsense", 6, 4, -EBADMSG},
		{"ringvol-send 1", GRANT, "01234567.v.89abcdef", POOL_HOLD_NODE_MAX - 1, 4, 0},
		{"ringvol-send 1", GRANT, "01234567.v.89abcdef", POOL_HOLD_NODE_MAX, 4, -EBADMSG},
		{"ringvol-send 1", GRANT, "01234567.v.89abcdef", 6, RECORD_NAME_MAX, 0},
		{"ringvol-send 1", GRANT, "01234567.v.89abcdef", 6, RECORD_NAME_MAX + 1, -EBADMSG},
	};
	char text[2 * HOLD_TEXT_MAX], node[POOL_HOLD_NODE_MAX + 2], name[RECORD_NAME_MAX + 2];
	struct record *rec = record_of("v");
	memset(node, 'n', sizeof(node));
	memset(name, 'c', sizeof(name));
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		struct pool_hold back = {0};
		int at = snprintf(text, sizeof(text), "%s%c%s%c%.*s%c%.*s%c%s%c%s%c", all[i].head,
			0, all[i].grant, 0, (int)all[i].node_len, node, 0, (int)all[i].name_len,
			name, 0, all[i].source_id, 0, "0", 0);
		int len = record_print(rec, text + at, RECORD_BYTES_MAX);
		cr_assert_gt(len, 0);
		cr_expect_eq(hold_parse(text, (size_t)(at + len), &back), all[i].r, "%u", i);
		cr_expect_eq(back.rec != NULL, all[i].r == 0);
		record_free(back.rec);
	}
	record_free(rec);
}

/* A record may be as long as any: where there is no room for that, nothing is written. */
Test(notes, a_hold_needs_room_for_any_record)
{
	char text[HOLD_TEXT_MAX];
	struct record *rec = record_of("v");
	struct pool_hold hold = hold_of(rec);
	size_t fields = 15 + POOL_GRANT_BYTES + 7 + 5 + 20 + 2;
	cr_assert_gt(hold_print(&hold, text, fields + RECORD_BYTES_MAX), 0);
	for (size_t cap = 0; cap < fields + RECORD_BYTES_MAX; cap++)
		cr_assert_eq(hold_print(&hold, text, cap), -E2BIG, "%zu", cap);
	char to[5];
	cr_assert(hold_take_field(to, sizeof(to), "four"));
	cr_assert_str_eq(to, "four");
	cr_assert_not(hold_take_field(to, sizeof(to), "fives"));
	record_free(rec);
}

/* ---- departures ---- */

static int parse_note(const char *lines)
{
	char text[DEPARTURE_TEXT_MAX];
	struct pool_departure *d = NULL;
	struct record_text o = {.buf = text, .cap = sizeof(text)};
	record_text_put(&o, "ringvol-departure 1\n");
	record_text_put(&o, lines);
	int len = record_text_end(&o);
	cr_assert_gt(len, 0);
	int r = departure_parse(text, (size_t)len, "v", &d);
	cr_assert_eq(d != NULL, r == 0);
	free(d);
	return r;
}

#define ID   "id=01234567.v.89abcdef\n"
#define BACK "node=b\ngrant=" GRANT "\n"

Test(notes, a_departure_that_is_not_understood)
{
	static const struct {
		const char *lines;
		int r;
	} all[] = {
		{ID "moves=1\nto=deadbeef\n" BACK, 0},
		{ID "moves=18446744073709551615\nto=deadbeef\n" BACK, 0},
		{ID "moves=0\nto=deadbeef\n" BACK, -EBADMSG},
		{ID "moves=18446744073709551616\nto=deadbeef\n" BACK, -EBADMSG},
		{ID "moves=1\nto=deadbee\n" BACK, -EBADMSG},
		{ID "moves=1\nto=deadbeef0\n" BACK, -EBADMSG},
		{ID "moves=1\nto=deadbeeg\n" BACK, -EBADMSG},
		{ID "to=deadbeef\nmoves=1\n" BACK, -EBADMSG},
		{ID ID "moves=1\nto=deadbeef\n" BACK, -EBADMSG},
		{ID "moves=1\nto=deadbeef\n", -EBADMSG},
		{"moves=1\nto=deadbeef\n" BACK, -EBADMSG},
		{"", -EBADMSG},
		{"id=01234567.w.89abcdef\nmoves=1\nto=deadbeef\n" BACK, -EBADMSG},
		{"id=nonsense\nmoves=1\nto=deadbeef\n" BACK, -EBADMSG},
		{ID "moves=1\nto=deadbeef\nnode=\ngrant=" GRANT "\n", -EBADMSG},
		{ID "moves=1\nto=deadbeef\nnode=%41\ngrant=" GRANT "\n", -EBADMSG},
		{ID "moves=1\nto=deadbeef\nnode=b\ngrant=" GRANT "0\n", -EBADMSG},
		{ID "moves=1\nto=deadbeef\n" BACK "grant=" GRANT "\n", -EBADMSG},
		{ID "moves=1\nto=deadbeef\n" BACK "colour=red\n", -EPROTONOSUPPORT},
		{ID "moves\nto=deadbeef\n" BACK, -EBADMSG},
	};
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		cr_expect_eq(parse_note(all[i].lines), all[i].r, "%s", all[i].lines);
	static const size_t node_max = sizeof(((struct pool_departure *)NULL)->node_id) - 1;
	char lines[DEPARTURE_TEXT_MAX];
	for (size_t more = 0; more < 2; more++) {
		int n = snprintf(lines, sizeof(lines), ID "moves=1\nto=deadbeef\nnode=");
		memset(lines + n, 'n', node_max + more);
		strcpy(lines + n + node_max + more, "\ngrant=" GRANT "\n");
		cr_expect_eq(parse_note(lines), more ? -EBADMSG : 0, "%zu", more);
	}
	static const char *const names[] = {"+new-0123456789abcdef", "+new-0123456789abcde",
		"+new-0123456789abcdef0", "+new-0123456789abcdeg", "+neu-0123456789abcdef",
		"+new-"};
	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		cr_expect_eq(departure_is_new_name(names[i]), i == 0, "%s", names[i]);
}

static struct pool pool[2];
static struct pools pools = {.count = 2};

static void setup(void)
{
	for (unsigned i = 0; i < 2; i++) {
		pool[i] = (struct pool){
			.pools = &pools, .name = (char *)(i == 0 ? "a" : "b"), .life = POOL_SERVED};
		list_init(&pool[i].departures);
		list_init(&pool[i].departures_dead);
		pools.at[i] = &pool[i];
	}
}

static void teardown(void)
{
	for (unsigned i = 0; i < 2; i++) {
		pool_departures_free(&pool[i].departures);
		pool_departures_free(&pool[i].departures_dead);
	}
}

TestSuite(departures, .init = setup, .fini = teardown);

static struct pool_departure *note_of(const char *key, uint64_t moves)
{
	struct pool_departure *d = calloc(1, sizeof(*d));
	*d = (struct pool_departure){
		.moves = moves, .to = "deadbeef", .node_id = "node-b", .grant = GRANT};
	list_init(&d->link);
	strcpy(d->key, key);
	snprintf(d->id, sizeof(d->id), "01234567.%s.89abcdef", key);
	return d;
}

Test(departures, are_found_unless_they_are_back)
{
	struct pool_departure *v = note_of("v", 1), *w = note_of("w", 1), *x = note_of("x", 1);
	cr_assert_null(pool_departure_next(&pool[0], NULL));
	pool_departure_enter(&pool[0], v);
	pool_departure_enter(&pool[0], w);
	pool_departure_enter(&pool[0], x);
	cr_assert_eq(v->pool, &pool[0]);
	cr_assert_eq(pool_departure_next(&pool[0], NULL), v);
	cr_assert_eq(pool_departure_next(&pool[0], v), w);
	cr_assert_null(pool_departure_next(&pool[0], x));
	cr_assert_null(pool_departure_of_back(&pool[0], "w"));
	w->back = true;
	cr_assert_eq(pool_departure_next(&pool[0], v), x);
	cr_assert_null(pool_departure_by_key(&pool[0], "w"));
	cr_assert_eq(pool_departure_by_key(&pool[0], "x"), x);
	cr_assert_null(pool_departure_by_key(&pool[0], "y"));
	cr_assert_eq(pool_departure_of_back(&pool[0], "w"), w);
	cr_assert_null(pool_departure_of_back(&pool[0], "v"));
	cr_assert_not(pool_departures_unread(&pool[0]));
	cr_assert(pool_random_departed(&pool[0], "89abcdef"));
	cr_assert_not(pool_random_departed(&pool[0], "89abcde0"));
	x->why = "its file is damaged";
	cr_assert(pool_departures_unread(&pool[0]));
	cr_assert(pool_random_departed(&pool[0], "89abcde0"), "nobody knows");
	x->back = true;
	cr_assert_not(pool_departures_unread(&pool[0]));
	pool_departure_put_aside(v);
	cr_assert_null(pool_departure_next(&pool[0], NULL));
	cr_assert_eq(pool[0].departures_dead.next, &v->link);
}

/* Of the pools that are loaded; of two notes the one of more moves. */
Test(departures, refuse_an_id_with_words)
{
	static const char id[] = "01234567.v.89abcdef";
	struct err err = {0};
	struct pool_departure *first = note_of("v", 2), *second = note_of("v", 3);
	cr_assert_null(pools_departure(&pools, id));
	cr_assert_eq(pools_departure_check(&pools, id, &err), 0);
	pool_departure_enter(&pool[0], first);
	pool_departure_enter(&pool[1], second);
	strcpy(second->to, "feedbeef");
	cr_assert_eq(pools_departure(&pools, id), second);
	first->moves = 4;
	cr_assert_eq(pools_departure(&pools, id), first);
	cr_assert_null(pools_departure(&pools, "01234567.v.89abcde0"));
	cr_assert_null(pools_departure(&pools, "nonsense"));
	cr_assert_eq(pools_departure_check(&pools, "nonsense", &err), 0);
	cr_assert_lt(pools_departure_check(&pools, id, &err), 0);
	cr_assert_eq(err.code, ERR_UNAVAILABLE);
	cr_assert_str_eq(err.message,
		"volume 01234567.v.89abcdef has moved from pool a to pool deadbeef... of node "
		"node-b: ask there");
	pool[0].life = POOL_AWAY;
	cr_assert_eq(pools_departure(&pools, id), second);
	second->why = "its file is damaged";
	cr_assert_null(pools_departure(&pools, id));
	err_clear(&err);
	cr_assert_lt(pools_departure_check(&pools, "01234567.v.00000000", &err), 0);
	cr_assert_eq(err.code, ERR_UNAVAILABLE);
	cr_assert_str_eq(err.message,
		"a volume of the name v has left pool b, and the note that says which and where "
		"to, departed/v, cannot be read: its file is damaged; see ringvol check");
	pool[1].life = POOL_AWAY;
	cr_assert_eq(pools_departure_check(&pools, id, &err), 0);
}

/* Who has one may go on with it where nothing of it has changed. */
Test(departures, are_what_was_read_last)
{
	struct pool_departure *v = note_of("v", 1), *w = note_of("w", 1), *gone = note_of("x", 1);
	struct pool_departure *changed = note_of("w", 1), *fresh = note_of("y", 1);
	struct list found;
	v->unsynced = v->back = true;
	pool_departure_enter(&pool[0], v);
	pool_departure_enter(&pool[0], w);
	pool_departure_enter(&pool[0], gone);
	for (unsigned round = 0; round < 6; round++) {
		struct pool_departure *other = round == 0 ? changed : note_of("w", 1);
		switch (round) {
		case 0:
			other->moves = 2;
			break;
		case 1:
			strcpy(other->to, "feedbeef");
			break;
		case 2:
			strcpy(other->node_id, "node-c");
			break;
		case 3:
			other->grant[0] = 'f';
			break;
		case 4:
			strcpy(other->id, "01234567.w.00000000");
			break;
		case 5:
			other->why = "its file is damaged";
			break;
		}
		list_init(&found);
		list_push(&found, &note_of("v", 1)->link);
		list_push(&found, &other->link);
		if (round == 0)
			list_push(&found, &fresh->link);
		pool_departures_adopt(&pool[0], &found);
		cr_expect_eq(pool_departure_by_key(&pool[0], "v"), v, "%u", round);
		cr_expect_eq(pool_departure_by_key(&pool[0], "w"), other, "%u", round);
		cr_expect(!v->unsynced && !v->back && other->pool == &pool[0]);
		cr_expect_null(pool_departure_by_key(&pool[0], "x"));
		cr_expect_eq(pool_departure_by_key(&pool[0], "y"), round == 0 ? fresh : NULL);
		unsigned dead = 0;
		list_for_each (l, &pool[0].departures_dead)
			dead++;
		cr_expect_eq(dead, round == 0 ? 2 : 3 + round, "%u: %u", round, dead);
	}
}

/* ---- parts ---- */

#define PART "trusted.ringvol.part"
#define DONE "trusted.ringvol.finished"

static char top[] = "/tmp/ringvol-notes.XXXXXX";
static int dir;

static void open_top(void)
{
	if (geteuid() != 0)
		cr_skip_test("needs root: parts use trusted.* attributes");
	cr_assert_not_null(mkdtemp(top));
	dir = open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cr_assert_geq(dir, 0);
}

static void close_top(void)
{
	char command[64];
	close(dir);
	snprintf(command, sizeof(command), "rm -r %s", top);
	cr_assert_eq(system(command), 0);
}

/* A file of that size whose note says what is given. */
static void plant(const char *name, off_t size, const char *note, bool finished)
{
	(void)unlinkat(dir, name, 0);
	int fd = openat(dir, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	cr_assert(fd >= 0 && ftruncate(fd, size) == 0);
	cr_assert(note == NULL || fsetxattr(fd, PART, note, strlen(note), 0) == 0);
	cr_assert(!finished || fsetxattr(fd, DONE, "text", 4, 0) == 0);
	close(fd);
}

static off_t size_of(const char *name)
{
	struct stat st;
	return fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0 ? -1 : st.st_size;
}

static uint64_t allocated_of(int fd)
{
	struct stat st;
	cr_assert_eq(fstat(fd, &st), 0);
	return (uint64_t)st.st_blocks * 512;
}

#define NOTE(of, from) "ringvol-part 1\nof=" of "\nsize=8192\nfrom=" from "\n"

/* What is finished is never cut, begun anew or removed. */
Test(parts, go_on_where_their_note_says)
{
	static const struct {
		const char *note;
		off_t size;
		bool finished;
		int r;
		off_t from, left;
	} all[] = {
		{NOTE("x", "0"), 100, false, 0, 0, 0},
		{NOTE("x", "4096"), 8192, false, 0, 4096, 4096},
		{NOTE("x", "8192"), 8192, false, 0, 8192, 8192},
		{NOTE("x", "12288"), 8192, false, 0, 0, 0},
		{NOTE("x", "4096"), 8193, false, 0, 0, 0},
		{NOTE("x", "4095"), 8192, false, 0, 0, 0},
		{NOTE("x", "4096x"), 8192, false, 0, 0, 0},
		{NOTE("y", "4096"), 8192, false, 0, 0, 0},
		{NULL, 8192, false, 0, 0, 0},
		{NOTE("x", "4096"), 8192, true, 0, 8192, 8192},
		{NOTE("x", "0"), 8192, true, 0, 8192, 8192},
		{NOTE("y", "4096"), 8192, true, -EBUSY, 0, 8192},
		{NOTE("x", "4096"), 8193, true, -EBUSY, 0, 8193},
		{NULL, 8192, true, -EBUSY, 0, 8192},
	};
	open_top();
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		struct pool_part part = {.of = "x", .from_bytes = 7};
		uint64_t allocated = 7;
		int fd = -1;
		plant("part-a", all[i].size, all[i].note, all[i].finished);
		int r = pool_part_open(dir, "part-a", &part, 8192, 0, &fd, &allocated);
		cr_expect_eq(r, all[i].r, "%u: %d", i, r);
		cr_expect_eq(part.from_bytes, (uint64_t)all[i].from, "%u", i);
		cr_expect_eq(part.finished, all[i].finished, "%u", i);
		cr_expect_eq(size_of("part-a"), all[i].left, "%u", i);
		/* The notes may have a block of their own. */
		cr_expect_eq(allocated, all[i].from > 0 ? allocated_of(fd) : 0, "%u", i);
		cr_expect_eq(fd >= 0, r == 0, "%u", i);
		cr_expect_eq(pool_part_is_finished(dir, "a"), all[i].finished, "%u", i);
		if (fd >= 0)
			close(fd);
	}
	close_top();
}

/* What is no file of a part is another's: it is not waited for, and no part is made of it. */
Test(parts, are_files)
{
	struct pool_part part = {.of = "x"};
	uint64_t allocated;
	char key[RECORD_KEY_MAX] = "", text[POOL_PART_TEXT_MAX];
	bool finished;
	int fd;
	open_top();
	cr_assert_not(pool_part_is_finished(dir, "gone"));
	cr_assert(mkfifoat(dir, "part-fifo", 0600) == 0 && symlinkat("x", dir, "part-link") == 0 &&
		  mknodat(dir, "part-socket", S_IFSOCK | 0600, 0) == 0 &&
		  mkdirat(dir, "part-dir", 0700) == 0);
	cr_assert_not(pool_part_is_finished(dir, "link"));
	cr_assert_not(pool_part_is_finished(dir, "socket"));
	cr_assert_eq(pool_part_open(dir, "part-link", &part, 8192, 0, &fd, &allocated), -ELOOP);
	cr_assert_eq(pool_part_open(dir, "part-dir", &part, 8192, 0, &fd, &allocated), -EISDIR);
	cr_assert_eq(pool_part_open(dir, "part-fifo", &part, 8192, 0, &fd, &allocated), 0);
	cr_assert_eq(size_of("part-fifo"), 0);
	cr_assert_eq(pool_part_unfinish(fd), 0, "it was not");
	cr_assert_eq(fsetxattr(fd, DONE, "text", 4, 0), 0);
	cr_assert_eq(pool_part_text(fd, text), 4);
	cr_assert_eq(memcmp(text, "text", 4), 0);
	cr_assert_eq(pool_part_forget(fd), 0);
	cr_assert(!pool_part_fd_is_finished(fd) && fgetxattr(fd, PART, NULL, 0) < 0);
	cr_assert_eq(pool_part_forget(fd), 0, "and again");
	close(fd);
	cr_assert_eq(unlinkat(dir, "part-link", 0), 0);
	cr_assert_eq(unlinkat(dir, "part-socket", 0), 0);
	/* What has no part's name is not asked. */
	plant("sent-a", 0, "ringvol-part 1\nof=01234567.a.89abcdef x", false);
	cr_assert_eq(pool_part_find(dir, "01234567", "89abcdef", key, &finished), 0);
	cr_assert_str_eq(key, "");
	close_top();
}

/* Its note has room for what it is made of, and for no more; else nothing is left. */
Test(parts, a_note_that_is_too_long_is_not_written)
{
	struct pool_part part = {.of = "x"};
	uint64_t allocated;
	int fd;
	open_top();
	memset(part.of, 'y', sizeof(part.of) - 1);
	cr_assert_eq(pool_part_open(dir, "part-a", &part, UINT64_MAX, 0, &fd, &allocated), 0);
	cr_assert_eq(pool_part_note(fd, &part, UINT64_MAX, UINT64_MAX), 0);
	close(fd);
	cr_assert_eq(pool_part_open(dir, "sub/part-a", &part, 8192, 0, &fd, &allocated), -ENOENT);
	close_top();
	cr_assert(pool_part_name_valid("part-a"));
	cr_assert_not(pool_part_name_valid("part-"));
	cr_assert_not(pool_part_name_valid("par-a"));
	cr_assert_not(pool_part_name_valid("part-a/b"));
}

/* ---- holds, as files ---- */

/* The text of a grant for volume v; head: "ringvol-send 1", or of a later version. */
static void plant_grant(const char *name, const char *head)
{
	char text[HOLD_TEXT_MAX];
	struct record *rec = record_of("v");
	struct pool_hold hold = hold_of(rec);
	int len = hold_print(&hold, text, sizeof(text));
	cr_assert_gt(len, 0);
	memcpy(text, head, strlen(head));
	int fd = openat(dir, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	cr_assert_eq(write(fd, text, (size_t)len), len);
	close(fd);
	record_free(rec);
}

/* What is no hold for certain goes; what nobody can tell is left alone, and is none either. */
Test(parts, holds_are_read_from_what_is_left)
{
	static const struct {
		const char *what;
		off_t size; /* of the image; -1: none, -2: a directory */
		bool sent;
		const char *head; /* NULL: no grant */
		bool listed, dropped;
	} all[] = {
		{"sound", 1 << 20, false, "ringvol-send 1", true, false},
		{"sent", 1 << 20, true, "ringvol-send 1", true, false},
		{"larger", (1 << 20) + 1, false, "ringvol-send 1", true, false},
		{"shorter", (1 << 20) - 1, false, "ringvol-send 1", false, false},
		{"a directory", -2, false, "ringvol-send 1", false, false},
		{"of a later version", 1 << 20, false, "ringvol-send 2", false, false},
		{"no image", -1, false, "ringvol-send 1", true, true},
		{"no grant", 1 << 20, false, NULL, true, true},
	};
	static const char image[] = "send-0123456789abcdef",
			  grant[] = "send-0123456789abcdef.grant";
	struct list found;
	open_top();
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		if (all[i].size >= 0)
			plant(image, all[i].size, NULL, false);
		else if (all[i].size == -2)
			cr_assert_eq(mkdirat(dir, image, 0700), 0);
		if (all[i].head != NULL)
			plant_grant(grant, all[i].head);
		_cleanup_fd_ int fd = openat(dir, image, O_RDONLY | O_CLOEXEC);
		cr_assert(!all[i].sent || pool_hold_note_sent(fd) == 0);
		list_init(&found);
		cr_assert_eq(pool_holds_read(dir, &found), 0);
		cr_expect_eq(!list_empty(&found), all[i].listed, "%s", all[i].what);
		for (struct list *l; (l = list_pop(&found)) != NULL;) {
			struct pool_hold *hold = container_of(l, struct pool_hold, link);
			cr_expect_str_eq(hold->name, image);
			cr_expect_eq(hold->dropped, all[i].dropped, "%s", all[i].what);
			cr_expect_eq(hold->opened, !all[i].dropped, "%s", all[i].what);
			cr_expect_eq(hold->sent, all[i].sent, "%s", all[i].what);
			cr_expect(hold->dropped || hold->allocated_bytes == allocated_of(fd));
			cr_expect(list_empty(&found), "each once");
			pool_hold_free(hold);
		}
		(void)unlinkat(dir, image, all[i].size == -2 ? AT_REMOVEDIR : 0);
		(void)unlinkat(dir, grant, 0);
	}
	cr_assert_eq(pool_hold_note_sent(-1), -EBADF);
	close_top();
}
