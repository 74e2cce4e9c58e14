/* SPDX-License-Identifier: Apache-2.0 */
/* Records, keys and ids: what is printed parses to the same, what is damaged does not parse. */
#include "pool/record.h"

#include "pool/record_text.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <sha256.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static struct record sample(void)
{
	return (struct record){
		.kind = RECORD_VOLUME,
		.name = "pvc-0a1b",
		.random = "0badcafe",
		.size_bytes = 1 << 30,
		.created_ns = 1795183200123456789,
		.fs = FSIMG_EXT4,
		.block_size = 4096,
		.thick = true,
		.device = 1,
		.erase = RECORD_ERASE_ZERO,
		.snapshot_freeze = true,
		.mkfs_options = "-m 1 -O ^has_journal",
		.source = RECORD_SOURCE_SNAPSHOT,
		.source_id = "01234567.snap.89abcdef",
		.shares_extents = true,
		.family = "01234567.golden.00000000",
		.allow_mode_change = true,
		.encryption = RECORD_LUKS2,
		.unformatted = true,
		.attach = RECORD_ATTACH_REMOTE,
		.claim = "shop/data-db-0",
	};
}

static int print(const struct record *rec, char text[RECORD_BYTES_MAX])
{
	struct record *made = record_new(rec);
	int len = record_print(made, text, RECORD_BYTES_MAX);
	record_free(made);
	return len;
}

static void same(const struct record *a, const struct record *b)
{
	cr_assert_eq(a->kind, b->kind);
	cr_assert_str_eq(a->name, b->name);
	cr_assert_str_eq(a->random, b->random);
	cr_assert_eq(a->size_bytes, b->size_bytes);
	cr_assert_eq(a->created_ns, b->created_ns);
	cr_assert_eq(a->fs, b->fs);
	cr_assert_eq(a->block_size, b->block_size);
	cr_assert_eq(a->thick, b->thick);
	cr_assert_eq(a->device, b->device);
	cr_assert_eq(a->erase, b->erase);
	cr_assert_eq(a->snapshot_freeze, b->snapshot_freeze);
	cr_assert_str_eq(a->mkfs_options ? a->mkfs_options : "", b->mkfs_options);
	cr_assert_eq(a->source, b->source);
	cr_assert_str_eq(a->source_id ? a->source_id : "", b->source_id);
	cr_assert_eq(a->shares_extents, b->shares_extents);
	cr_assert_str_eq(a->family ? a->family : "", b->family);
	cr_assert_eq(a->allow_mode_change, b->allow_mode_change);
	cr_assert_eq(a->encryption, b->encryption);
	cr_assert_eq(a->attach, b->attach);
	cr_assert_eq(a->unformatted, b->unformatted);
	cr_assert(io_limits_equal(&a->limits, &b->limits));
	cr_assert_str_eq(a->group ? a->group : "", b->group);
	cr_assert_str_eq(a->owner ? a->owner : "", b->owner);
	cr_assert_str_eq(a->born ? a->born : "", b->born);
	cr_assert_eq(a->moves, b->moves);
	cr_assert_str_eq(b->claim, ""); /* it is kept apart */
}

static void round_trip(const struct record *rec)
{
	char text[RECORD_BYTES_MAX], key[RECORD_KEY_MAX];
	struct record *back = NULL;
	int len = print(rec, text);
	cr_assert_gt(len, 0);
	record_key(rec->name, key);
	cr_assert_eq(record_parse(text, (size_t)len, key, &back), 0, "%s", text);
	same(rec, back);
	cr_assert_str_eq(back->key, key);
	record_free(back);
}

Test(record, round_trip)
{
	struct record rec = sample();
	round_trip(&rec);
	rec = (struct record){.name = "x", .random = "00000000"};
	round_trip(&rec);
	rec = sample();
	rec.size_bytes = rec.created_ns = UINT64_MAX;
	rec.block_size = UINT32_MAX;
	rec.device = RECORD_DEVICE_MAX;
	rec.kind = RECORD_SNAPSHOT;
	round_trip(&rec);
	rec.name = "100%\n\x7f\x01=; \xF0\x9F\x92\xBE";
	rec.group = "01234567.g.00000000";
	rec.owner = "/var/lib/kubelet/pods/1";
	rec.born = "89abcdef";
	rec.moves = UINT64_MAX;
	round_trip(&rec);
}

/* Each by itself, and none where there is none: an older driver reads that. */
Test(record, limits)
{
	char text[RECORD_BYTES_MAX];
	for (unsigned bits = 0; bits < 16; bits++) {
		struct record rec = sample();
		rec.limits = (struct io_limits){
			.read_iops = bits & 1 ? 10 : 0,
			.write_iops = bits & 2 ? 1000 : 0,
			.read_bandwidth = bits & 4 ? 65536 : 0,
			.write_bandwidth = bits & 8 ? UINT64_C(1) << 40 : 0,
		};
		round_trip(&rec);
		print(&rec, text);
		cr_expect_eq(strstr(text, "\nread_iops=10\n") != NULL, (bits & 1) != 0);
		cr_expect_eq(strstr(text, "\nwrite_iops=1000\n") != NULL, (bits & 2) != 0);
		cr_expect_eq(strstr(text, "\nread_bandwidth=65536\n") != NULL, (bits & 4) != 0);
		cr_expect_eq(
			strstr(text, "\nwrite_bandwidth=1099511627776\n") != NULL, (bits & 8) != 0);
	}
}

Test(record, an_encrypted_image_has_room_for_a_header)
{
	struct record rec = sample();
	cr_assert_eq(record_image_bytes(&rec), (1 << 30) + (16 << 20));
	cr_assert_not(record_allocates(&rec));
	rec.unformatted = false;
	cr_assert(record_allocates(&rec));
	rec.encryption = RECORD_PLAIN;
	cr_assert_eq(record_image_bytes(&rec), 1 << 30);
	rec.thick = false;
	cr_assert_not(record_allocates(&rec));
}

Test(record, every_flipped_byte_is_found)
{
	struct record rec = sample(), *back = NULL;
	char text[RECORD_BYTES_MAX];
	int len = print(&rec, text);
	for (int i = 0; i < len; i++)
		for (int bit = 0; bit < 8; bit++) {
			text[i] ^= (char)(1 << bit);
			cr_assert_eq(record_parse(text, (size_t)len, "pvc-0a1b", &back), -EBADMSG,
				"byte %d bit %d", i, bit);
			text[i] ^= (char)(1 << bit);
		}
	for (int i = 0; i < len; i++)
		cr_assert_eq(record_parse(text, (size_t)i, "pvc-0a1b", &back), -EBADMSG);
	cr_assert_eq(record_parse(text, (size_t)len, "pvc-0a1c", &back), -EBADMSG);
	cr_assert_null(back);
}

/* Puts a right sum under a text. */
static int parse_summed(const char *body)
{
	char text[RECORD_BYTES_MAX + 64], hex[SHA256_DIGEST_STRING_LENGTH];
	struct record *back = NULL;
	SHA256Data((const uint8_t *)body, strlen(body), hex);
	int len = snprintf(text, sizeof(text), "%ssum=%.16s\n", body, hex);
	int r = record_parse(text, (size_t)len, "x", &back);
	record_free(back);
	return r;
}

#define BODY                                                                                       \
	"ringvol-record 1\nkind=volume\nname=x\nrandom=00000000\nsize_bytes=1048576\n"             \
	"created_ns=1\nfs=ext4\nblock_size=512\nthick=false\ndevice=0\nerase=none\n"               \
	"snapshot_freeze=false\nsource=none\nshares_extents=false\n"

Test(record, the_future_is_not_guessed_at)
{
	cr_assert_eq(parse_summed(BODY), 0);
	cr_assert_eq(parse_summed(BODY "colour=red\n"), -EPROTONOSUPPORT);
	cr_assert_eq(parse_summed("ringvol-record 2\n" BODY), -EPROTONOSUPPORT);
	cr_assert_eq(parse_summed("ringvol-recorb 1\n" BODY), -EBADMSG);
	cr_assert_eq(parse_summed(BODY "thick=true\n"), -EBADMSG); /* twice */
	/* One text for one value: what is false is left out, and what older drivers wrote is read.
	 */
	cr_assert_eq(parse_summed(BODY), 0);
	cr_assert_eq(parse_summed(BODY "allow_mode_change=true\n"), 0);
	cr_assert_eq(parse_summed(BODY "allow_mode_change=false\n"), -EBADMSG);
	cr_assert_eq(parse_summed(BODY "allow_mode_change=maybe\n"), -EPROTONOSUPPORT);
	cr_assert_eq(parse_summed(BODY "attach=remote\n"), 0);
	cr_assert_eq(parse_summed(BODY "attach=local\n"), -EBADMSG); /* left out, then */
	cr_assert_eq(parse_summed(BODY "attach=everywhere\n"), -EPROTONOSUPPORT);
	cr_assert_eq(parse_summed(BODY "encryption=luks2\n"), 0);
	cr_assert_eq(parse_summed(BODY "encryption=none\n"), -EBADMSG);
	cr_assert_eq(parse_summed(BODY "encryption=luks3\n"), -EPROTONOSUPPORT);
	cr_assert_eq(parse_summed(BODY "encryption=luks2\nunformatted=true\n"), 0);
	cr_assert_eq(parse_summed(BODY "encryption=luks2\nunformatted=false\n"), -EBADMSG);
	cr_assert_eq(parse_summed(BODY "unformatted=true\n"), -EBADMSG); /* it is formatted */
	cr_assert_eq(parse_summed(BODY "read_iops=10\nwrite_bandwidth=65536\n"), 0);
	cr_assert_eq(parse_summed(BODY "read_iops=0\n"), -EBADMSG); /* left out, then */
	cr_assert_eq(parse_summed(BODY "read_iops=many\n"), -EBADMSG);
	cr_assert_eq(parse_summed(BODY "write_iops=10\nread_iops=10\n"), -EBADMSG); /* order */
	cr_assert_eq(parse_summed(BODY "family=f\n"), 0);
	cr_assert_eq(parse_summed(BODY "claim=a/b\n"), -EPROTONOSUPPORT);
	cr_assert_eq(parse_summed(BODY "mkfs_options=o\n"), -EBADMSG); /* out of order */
	cr_assert_eq(parse_summed(BODY "colour\n"), -EBADMSG);
	cr_assert_eq(parse_summed(BODY "family=a%0ab\n"), -EBADMSG); /* lower case */
	cr_assert_eq(parse_summed(BODY "family=a%41b\n"), -EBADMSG); /* needless */
	cr_assert_eq(parse_summed(BODY "family=a%00b\n"), -EBADMSG);
	cr_assert_eq(parse_summed(BODY "family=a%1"
				       "\n"),
		-EBADMSG);
	cr_assert_eq(parse_summed(BODY "family=\n"), -EBADMSG);
	cr_assert_eq(parse_summed(BODY "family=a%0Ab\n"), 0);
	cr_assert_eq(parse_summed("ringvol-record 1\nkind=volume\nname=x\n"), -EBADMSG);
	cr_assert_eq(parse_summed(BODY "born=01234567\nmoves=1\n"), 0);
	cr_assert_eq(parse_summed(BODY "moves=1\n"), 0); /* it is back where it was made */
	cr_assert_eq(parse_summed(BODY "born=01234567\n"), -EBADMSG);
	cr_assert_eq(parse_summed(BODY "born=0123456\nmoves=1\n"), -EBADMSG);
	cr_assert_eq(parse_summed(BODY "born=0123456g\nmoves=1\n"), -EBADMSG);
	cr_assert_eq(parse_summed("ringvol-record"), -EBADMSG);
	cr_assert_eq(parse_summed("ringvol-record 1\n"), -EBADMSG);

	static const char *const bad[][2] = {
		{"kind=volume", "kind=group"},
		{"fs=ext4", "fs=zfs"},
		{"erase=none", "erase=burn"},
		{"thick=false", "thick=maybe"},
		{"device=0", "device=3"},
		{"device=0", "device=255"},
	};
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		char text[RECORD_BYTES_MAX];
		const char *at = strstr(BODY, bad[i][0]);
		snprintf(text, sizeof(text), "%.*s%s%s", (int)(at - BODY), BODY, bad[i][1],
			at + strlen(bad[i][0]));
		cr_assert_eq(parse_summed(text), -EPROTONOSUPPORT, "%s", bad[i][1]);
	}
	static const char *const numbers[] = {"size_bytes=", "size_bytes=-1", "size_bytes=01",
		"size_bytes=0x10", "size_bytes=18446744073709551616", "size_bytes=1 "};
	for (unsigned i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		char text[RECORD_BYTES_MAX];
		const char *old = "size_bytes=1048576", *at = strstr(BODY, old);
		snprintf(text, sizeof(text), "%.*s%s%s", (int)(at - BODY), BODY, numbers[i],
			at + strlen(old));
		cr_assert_eq(parse_summed(text), -EBADMSG, "%s", numbers[i]);
	}
}

/* BODY with another text in the place of one of its own. */
static int parse_with(const char *old, const char *new)
{
	char text[2 * RECORD_BYTES_MAX];
	const char *at = strstr(BODY, old);
	cr_assert_not_null(at, "%s", old);
	snprintf(text, sizeof(text), "%.*s%s%s", (int)(at - BODY), BODY, new, at + strlen(old));
	return parse_summed(text);
}

/* At each limit, and one beyond it. */
Test(record, numbers_and_escapes_at_their_limits)
{
	static const struct {
		const char *old, *new;
		int r;
	} all[] = {
		{"size_bytes=1048576", "size_bytes=0", 0},
		{"size_bytes=1048576", "size_bytes=18446744073709551615", 0},
		{"size_bytes=1048576", "size_bytes=18446744073709551619", -EBADMSG},
		{"size_bytes=1048576", "size_bytes=28446744073709551615", -EBADMSG},
		{"size_bytes=1048576", "size_bytes=00", -EBADMSG},
		{"size_bytes=1048576", "size_bytes=1/", -EBADMSG},
		{"size_bytes=1048576", "size_bytes=1:", -EBADMSG},
		{"block_size=512", "block_size=4294967295", 0},
		{"block_size=512", "block_size=4294967296", -EBADMSG},
		{"device=0", "device=2", 0},
		{"device=0", "device=256", -EBADMSG},
		{"random=00000000", "random=09afbcde", 0},
		{"random=00000000", "random=0000000", -EBADMSG},
		{"random=00000000", "random=000000000", -EBADMSG},
		{"random=00000000", "random=0000000g", -EBADMSG},
		{"thick=false", "thick=true", 0},
		{"thick=false", "thick=t", -EPROTONOSUPPORT},
		{"source=none", "source=none\nsource_id=%25%01%1F%7F%0A%19", 0},
		{"source=none", "source=none\nsource_id=%20", -EBADMSG},
		{"source=none", "source=none\nsource_id=%7E", -EBADMSG},
		{"source=none", "source=none\nsource_id=%80", -EBADMSG},
		{"source=none", "source=none\nsource_id=%0G", -EBADMSG},
		{"source=none", "source=none\nsource_id=%0@", -EBADMSG},
		{"source=none", "source=none\nsource_id=%0/", -EBADMSG},
		{"source=none", "source=none\nsource_id=%0:", -EBADMSG},
		{"source=none", "source=none\nsource_id=%:0", -EBADMSG},
		{"source=none", "source=none\nsource_id=a\x1f", -EBADMSG},
		{"source=none", "source=none\nsource_id=a\x7f", -EBADMSG},
		{"source=none", "source=none\nsource_id=%", -EBADMSG},
	};
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		cr_expect_eq(parse_with(all[i].old, all[i].new), all[i].r, "%s", all[i].new);
	char text[RECORD_OWNER_MAX + 64];
	static const struct {
		const char *behind, *name;
		size_t max;
	} strings[] = {
		{"snapshot_freeze=false", "mkfs_options", RECORD_OPTIONS_MAX},
		{"source=none", "source_id", RECORD_ID_MAX - 1},
		{"shares_extents=false", "family", RECORD_ID_MAX - 1},
		{"shares_extents=false", "group", RECORD_ID_MAX - 1},
		{"shares_extents=false", "owner", RECORD_OWNER_MAX},
	};
	for (unsigned i = 0; i < sizeof(strings) / sizeof(strings[0]); i++)
		for (size_t more = 0; more < 2; more++) {
			int n = snprintf(
				text, sizeof(text), "%s\n%s=", strings[i].behind, strings[i].name);
			memset(text + n, 'a', strings[i].max + more);
			text[(size_t)n + strings[i].max + more] = '\0';
			cr_expect_eq(parse_with(strings[i].behind, text), more ? -EBADMSG : 0,
				"%s and %zu", strings[i].name, more);
		}
}

/* The text ends with a NUL that its length does not count, and needs all of the room it has. */
Test(record, is_printed_where_it_just_fits)
{
	struct record rec = sample(), *made = record_new(&rec);
	char text[RECORD_BYTES_MAX], again[RECORD_BYTES_MAX];
	int len = record_print(made, text, sizeof(text));
	cr_assert_gt(len, 0);
	cr_assert_eq((size_t)len, strlen(text));
	memset(again, 'x', sizeof(again));
	cr_assert_eq(record_print(made, again, (size_t)len + 1), len);
	cr_assert_str_eq(again, text);
	cr_assert_eq(again[len + 1], 'x');
	for (int cap = 1; cap <= len; cap++)
		cr_assert_eq(record_print(made, again, (size_t)cap), -E2BIG, "%d", cap);
	record_free(made);
}

/* Longer than any record of ours, though its sum is right. */
Test(record, text_has_a_longest_and_a_shortest)
{
	static const char head[] = "head 1\n";
	char text[256], *lines = NULL;
	struct record_text o = {.buf = text, .cap = sizeof(text)};
	record_text_put(&o, head);
	record_text_put(&o, "a=b\n");
	int n = record_text_end(&o);
	cr_assert_gt(n, 0);
	size_t len = (size_t)n;
	cr_assert_eq(record_text_open(text, len, len - 1, head, &lines), -EBADMSG);
	cr_assert_eq(record_text_open(text, len, len, head, &lines), 0);
	cr_assert_str_eq(lines, "a=b\n");
	free(lines);
	cr_assert_eq(record_text_open(text, len, len, "head 2\n", &lines), -EPROTONOSUPPORT);
	cr_assert_eq(record_text_open(text, len, len, "heap 1\n", &lines), -EBADMSG);
	o = (struct record_text){.buf = text, .cap = sizeof(text)};
	record_text_put(&o, head);
	n = record_text_end(&o);
	cr_assert_eq(record_text_open(text, (size_t)n, (size_t)n, head, &lines), 0);
	cr_assert_str_eq(lines, "");
	free(lines);
	/* A sum alone, of nothing. */
	o = (struct record_text){.buf = text, .cap = sizeof(text)};
	n = record_text_end(&o);
	cr_assert_eq(record_text_open(text, (size_t)n, sizeof(text), head, &lines), -EBADMSG);
}

/* What an image in the trash is to be erased with, as its record's own line says. */
Test(record, erase_of_what_is_deleted)
{
	char text[RECORD_BYTES_MAX];
	for (unsigned erase = RECORD_ERASE_NONE; erase <= RECORD_ERASE_ZERO; erase++) {
		struct record rec = sample();
		rec.erase = erase;
		rec.name = "erase=zero\nerase=discard";
		cr_assert_gt(print(&rec, text), 0);
		cr_assert_eq(record_text_erase(text), erase);
	}
	cr_assert_eq(record_text_erase(""), RECORD_ERASE_NONE);
	cr_assert_eq(record_text_erase("\nerase=zero"), RECORD_ERASE_NONE, "its line is cut");
}

/* What else lies where a file of text should be is told, and nothing is waited for. */
Test(record, text_is_read_from_a_file)
{
	static const struct {
		const char *name;
		int res;
		const char *why;
	} all[] = {
		{"sound", 5, NULL},
		{"gone", -ENOENT, "its file cannot be read"},
		{"dir", -EMEDIUMTYPE, "its file is not a regular file"},
		{"fifo", -EMEDIUMTYPE, "its file is not a regular file"},
		{"socket", -EMEDIUMTYPE, "its file is not a regular file"},
		{"link", -EMEDIUMTYPE, "its file is not a regular file"},
	};
	char top[] = "/tmp/ringvol-record.XXXXXX", text[8] = "";
	cr_assert_not_null(mkdtemp(top));
	int dir = open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int fd = openat(dir, "sound", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	cr_assert_eq(write(fd, "hello", 5), 5);
	close(fd);
	cr_assert_eq(mkdirat(dir, "dir", 0700), 0);
	cr_assert_eq(mkfifoat(dir, "fifo", 0600), 0);
	cr_assert_eq(mknodat(dir, "socket", S_IFSOCK | 0600, 0), 0);
	cr_assert_eq(symlinkat("sound", dir, "link"), 0);
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		ssize_t n = record_text_read(dir, all[i].name, text, sizeof(text));
		cr_expect_eq(n, all[i].res, "%s: %zd", all[i].name, n);
		if (n < 0)
			cr_expect_str_eq(record_text_why((int)n), all[i].why);
		cr_expect_eq(
			unlinkat(dir, all[i].name, n == -EMEDIUMTYPE && i == 2 ? AT_REMOVEDIR : 0),
			n == -ENOENT ? -1 : 0);
	}
	cr_assert_eq(memcmp(text, "hello", 5), 0);
	cr_expect_str_eq(record_text_why(-EBADMSG), "its file is damaged");
	cr_expect_str_eq(
		record_text_why(-EPROTONOSUPPORT), "its file is of a later version of ringvol");
	close(dir);
	cr_assert_eq(rmdir(top), 0);
}

Test(record, too_long_is_refused)
{
	struct record rec = sample();
	char text[RECORD_BYTES_MAX], long_options[RECORD_BYTES_MAX];
	memset(long_options, 'x', sizeof(long_options));
	long_options[sizeof(long_options) - 1] = '\0';
	rec.mkfs_options = long_options;
	cr_assert_eq(print(&rec, text), -E2BIG);
	/* The longest of everything fits, also where every byte is encoded. */
	char name[RECORD_NAME_MAX + 1], options[RECORD_OPTIONS_MAX + 1], id[RECORD_ID_MAX],
		claim[RECORD_CLAIM_MAX + 1];
	memset(claim, 'a', sizeof(claim));
	claim[RECORD_CLAIM_MAX] = '\0';
	memset(name, '\n', sizeof(name));
	memset(options, '%', sizeof(options));
	memset(id, 'a', sizeof(id));
	name[RECORD_NAME_MAX] = options[RECORD_OPTIONS_MAX] = id[RECORD_ID_MAX - 1] = '\0';
	rec.name = name;
	rec.mkfs_options = options;
	rec.source_id = rec.family = id;
	rec.claim = claim;
	rec.limits = (struct io_limits){UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX};
	round_trip(&rec);
}

static void random_name(char *name, size_t max)
{
	static const char *const pieces[] = {"a", "Z", "9", ".", "..", "-", "_", "/", " ", "\n",
		"%", "=", "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x92\xBE", "\x01", "\x7f", "pvc-",
		"\\", "\""};
	size_t len = 0, want = 1 + (size_t)rand() % max;
	name[0] = '\0';
	while (len < want) {
		const char *piece = pieces[(size_t)rand() % (sizeof(pieces) / sizeof(pieces[0]))];
		if (len + strlen(piece) > max)
			break;
		strcpy(name + len, piece);
		len += strlen(piece);
	}
	if (len == 0)
		strcpy(name, "a");
}

Test(record, random_names)
{
	unsigned seed = (unsigned)time(NULL);
	fprintf(stderr, "seed %u\n", seed);
	srand(seed);
	for (int i = 0; i < 3000; i++) {
		char name[RECORD_NAME_MAX + 1], key[RECORD_KEY_MAX], id[RECORD_ID_MAX];
		random_name(name, RECORD_NAME_MAX);
		record_key(name, key);
		cr_assert(record_key_valid(key), "%s", key);
		cr_assert_null(strchr(key, '/'));
		cr_assert_neq(key[0], '.');
		struct record rec = sample();
		rec.name = name;
		round_trip(&rec);

		struct record *made = record_new(&rec);
		struct record_id parsed;
		record_id_print("01234567", made, id);
		cr_assert_eq(record_id_parse(id, &parsed), 0, "%s", id);
		cr_assert_str_eq(parsed.pool, "01234567");
		cr_assert_str_eq(parsed.key, key);
		cr_assert_str_eq(parsed.random, rec.random);
		record_free(made);
	}
}

Test(record, keys)
{
	char key[RECORD_KEY_MAX], name[80];
	record_key("pvc-1.a_B", key);
	cr_assert_str_eq(key, "pvc-1.a_B");
	memset(name, 'a', sizeof(name));
	name[63] = '\0';
	record_key(name, key);
	cr_assert_str_eq(key, name);
	name[63] = 'a';
	name[64] = '\0';
	record_key(name, key);
	cr_assert_eq(key[0], '=');
	cr_assert_eq(strlen(key), 41);
	static const char *const hashed[] = {
		"..", ".", "", "-a", "_a", "a/b", "=a", "a b", "\xF0\x9F\x92\xBE", "a\n"};
	for (unsigned i = 0; i < sizeof(hashed) / sizeof(hashed[0]); i++) {
		record_key(hashed[i], key);
		cr_assert_eq(key[0], '=', "%s", hashed[i]);
		cr_assert(record_key_valid(key));
	}
	static const char *const bad[] = {"", ".", "..", ".a", "a/b", "=", "=abc", "-a", "a b",
		"=0123456789abcdef0123456789abcdef0123456G",
		"=0123456789ABCDEF0123456789abcdef01234567",
		"=0123456789abcdef0123456789abcdef012345678", "a\n"};
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		cr_assert_not(record_key_valid(bad[i]), "%s", bad[i]);
	name[63] = 'a';
	cr_assert_not(record_key_valid(name));
}

Test(record, ids)
{
	struct record_id id;
	static const char *const bad[] = {"", ".", "..", "01234567", "01234567..89abcdef",
		"01234567.a.89abcdeG", "0123456.a.89abcdef", "01234567.a.89abcde",
		"01234567.../x.89abcdef", "01234567.a/b.89abcdef", "01234567.-a.89abcdef",
		"01234567.a.89ABCDEF", "01234567-a.89abcdef", "01234567.a-89abcdef",
		"01234567.a.89abcdef ", "01234567.=123.89abcdef", "/etc/passwd"};
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		cr_assert_eq(record_id_parse(bad[i], &id), -EINVAL, "%s", bad[i]);
	cr_assert_eq(record_id_parse("01234567.a.b.c.89abcdef", &id), 0);
	cr_assert_str_eq(id.key, "a.b.c");
	cr_assert_eq(record_id_parse("01234567.a.89abcdef", &id), 0);
	cr_assert_str_eq(id.pool, "01234567");
	cr_assert_str_eq(id.key, "a");
	cr_assert_str_eq(id.random, "89abcdef");
	cr_assert_eq(record_id_parse("0123456g.a.89abcdef", &id), -EINVAL);
	char text[RECORD_ID_MAX + 2];
	/* A key of 63 bytes, and one of 64. */
	for (unsigned len = 63; len <= 64; len++) {
		snprintf(text, sizeof(text), "01234567.%0*d.89abcdef", (int)len, 1);
		cr_assert_eq(record_id_parse(text, &id), len == 63 ? 0 : -EINVAL);
	}
	/* One that has moved is called as where it was born. */
	struct record rec = sample();
	for (unsigned moved = 0; moved < 3; moved++) {
		rec.born = (const char *[]){NULL, "", "deadbeef"}[moved];
		rec.moves = moved;
		struct record *made = record_new(&rec);
		record_id_print("01234567", made, text);
		cr_assert_str_eq(text,
			moved == 2 ? "deadbeef.pvc-0a1b.0badcafe" : "01234567.pvc-0a1b.0badcafe");
		record_free(made);
	}
	for (size_t len = 126; len <= 129; len++) {
		memset(text, 'a', sizeof(text));
		text[8] = text[len - 9] = '.';
		text[len] = '\0';
		cr_assert_eq(record_id_parse(text, &id), -EINVAL);
	}
}
