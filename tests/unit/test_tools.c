/* SPDX-License-Identifier: Apache-2.0 */
/* What the tools show: clean text, numbers in few columns, tables that fit, rates, JSON. */
#include "base/clock.h"
#include "tools/json.h"
#include "tools/rates.h"
#include "tools/table.h"
#include "tools/tool.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static struct arena *arena;

static void setup(void)
{
	arena = arena_new(0);
	cr_assert_not_null(arena);
}

static void teardown(void)
{
	arena_unref(arena);
}

TestSuite(tools, .init = setup, .fini = teardown);

/* ---- text ---- */

static void clean(const char *from, const char *want)
{
	const char *got = text_clean(arena, from);
	cr_assert_str_eq(got, want, "%s", got);
}

Test(tools, clean)
{
	clean("", "");
	clean("pvc-1 größe 数", "pvc-1 größe 数");
	clean("\033[31mred\a\r\n\t\x7f", "\\x1b[31mred\\x07\\x0d\\x0a\\x09\\x7f");
	clean("\xc2\x9b"
	      "0m",
		"\\u009b0m");
	clean("a\xe2\x80\xae"
	      "b",
		"a\\u202eb");
	clean("\xff\xc3", "\\xff\\xc3");
	clean("\xed\xa0\x80", "\\xed\\xa0\\x80"); /* a surrogate */
	clean("\xf3\xa0\x81\x81", "\\U000e0041");
}

Test(tools, columns)
{
	cr_assert_eq(text_columns("abc"), 3);
	cr_assert_eq(text_columns("größe"), 5);
	cr_assert_eq(text_columns("数据"), 4);
	cr_assert_eq(text_columns("e\xcc\x81"), 1); /* with a combining accent */
	cr_assert_eq(text_fit("abc", 2), 2);
	cr_assert_eq(text_fit("数据", 3), 3);
	cr_assert_eq(text_fit("e\xcc\x81x", 1), 3);
	cr_assert_eq(text_fit("", 4), 0);
}

static void shorten(const char *from, unsigned columns, const char *want)
{
	const char *got = text_shorten(arena, from, columns, true);
	cr_assert_str_eq(got, want, "%s to %u: %s", from, columns, got);
	cr_assert_leq(text_columns(got), columns);
}

Test(tools, shorten)
{
	shorten("pvc-0123456789", 14, "pvc-0123456789");
	shorten("pvc-0123456789", 9, "pvc-…6789");
	shorten("pvc-0123456789", 8, "pvc…6789");
	shorten("abcdef", 1, "…");
	shorten("abcdef", 2, "…f");
	shorten("abcdef", 0, "");
	shorten("数据数据", 5, "数…据");
	shorten("数据数据", 4, "…据");
	cr_assert_str_eq(text_shorten(arena, "abcdef", 3, false), "a~f");
}

Test(tools, numbers)
{
	static const struct {
		uint64_t bytes;
		const char *text;
	} sizes[] = {
		{0, "0"},
		{1023, "1023"},
		{1024, "1K"},
		{1536, "1.5K"},
		{10 << 20, "10M"},
		{(1 << 20) - 1, "1M"},
		{(UINT64_C(1) << 30) + (UINT64_C(1) << 29), "1.5G"},
		{UINT64_MAX, "16E"},
	};
	char text[TEXT_NUMBER_BYTES];
	for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		text_size(sizes[i].bytes, text);
		cr_assert_str_eq(text, sizes[i].text, "%s, want %s", text, sizes[i].text);
	}
	text_count(0, text);
	cr_assert_str_eq(text, "0");
	text_count(0.5, text);
	cr_assert_str_eq(text, "0.5");
	text_count(999.6, text);
	cr_assert_str_eq(text, "1k");
	text_count(310400, text);
	cr_assert_str_eq(text, "310k");
	text_duration(0, text);
	cr_assert_str_eq(text, "-");
	text_duration(850, text);
	cr_assert_str_eq(text, "850n");
	text_duration(12345, text);
	cr_assert_str_eq(text, "12u");
	text_duration(4500000, text);
	cr_assert_str_eq(text, "4.5m");
	text_duration(UINT64_C(17) * 1000000000, text);
	cr_assert_str_eq(text, "17s");
	text_age(59, text);
	cr_assert_str_eq(text, "59s");
	text_age(3 * 86400 + 5, text);
	cr_assert_str_eq(text, "3d");
}

Test(tools, sparkline)
{
	char text[64];
	text_sparkline((const uint64_t[]){512, 1024, 2048, 4096, 8192, 16384, 32768, 65536}, 8,
		true, text);
	cr_assert_str_eq(text, "▁▂▃▄▅▆▇█");
	text_sparkline((const uint64_t[]){512, 1024, 2048, 4096, 8192, 16384, 32768, 65536}, 8,
		false, text);
	cr_assert_str_eq(text, "_.-~=+*#");
	text_sparkline((const uint64_t[]){0, 5, 0}, 3, true, text);
	cr_assert_str_eq(text, " ▁ ");
	text_sparkline((const uint64_t[]){0, 0}, 2, true, text);
	cr_assert_str_eq(text, "  ");
	text_sparkline((const uint64_t[]){1, UINT64_MAX}, 2, true, text);
	cr_assert_str_eq(text, "▁█");
	text_sparkline(NULL, 0, true, text);
	cr_assert_str_eq(text, "");
}

/* ---- tables ---- */

static const struct table_column columns[] = {
	{"NAME", .least = 6},
	{"SIZE", .right = true, .needed = 5},
	{"STATE", .needed = 9},
	{"PATH", .least = 8, .needed = 1},
	{NULL},
};

static char *table_of(unsigned width, bool colour)
{
	struct table *t = table_new(columns);
	struct text_stream stream = {.columns = width, .utf8 = true, .colour = colour};
	struct buf out = {0};
	table_row(t);
	table_cell(t, TABLE_PLAIN, "a-long-name-indeed");
	table_cell(t, TABLE_PLAIN, "64M");
	table_cell(t, TABLE_BAD, "sick");
	table_cell(t, TABLE_PLAIN, "/var/lib/ringvol");
	table_row(t);
	table_cell(t, TABLE_PLAIN, "b\033");
	table_cellf(t, TABLE_PLAIN, "%d", 5);
	cr_assert_eq(table_print(t, &stream, 0, -1, &out), 0);
	char *text = arena_alloc(arena, out.len);
	memcpy(text, out.data, out.len);
	buf_free(&out);
	table_free(t);
	return text;
}

Test(tools, table_whole)
{
	cr_assert_str_eq(table_of(0, false), "NAME                SIZE  STATE  PATH\n"
					     "a-long-name-indeed   64M  sick   /var/lib/ringvol\n"
					     "b\\x1b                  5\n");
}

Test(tools, table_fits)
{
	cr_assert_str_eq(table_of(36, false), "NAME        SIZE  STATE  PATH\n"
					      "a-lo…ndeed   64M  sick   /var/…ngvol\n"
					      "b\\x1b          5\n");
	cr_assert_str_eq(table_of(22, false), "NAME       SIZE  STATE\n"
					      "a-lo…deed   64M  sick\n"
					      "b\\x1b         5\n");
	cr_assert_str_eq(table_of(6, false), "NAME\na-…eed\nb\\x1b\n");
	cr_assert_str_eq(table_of(2, false), "…E\n…d\n…b\n");
}

Test(tools, table_of_any_width)
{
	for (unsigned width = 1; width < 60; width++) {
		char *text = table_of(width, false);
		for (char *line; (line = strsep(&text, "\n")) != NULL;)
			cr_assert_leq(text_columns(line), width, "%u: %s", width, line);
	}
}

Test(tools, table_colours)
{
	cr_assert_not_null(strstr(table_of(0, true), "\033[31msick\033[0m"));
	cr_assert_null(strstr(table_of(0, false), "\033"));
}

/* ---- rates ---- */

/* An answer with one volume that has read so much. */
static struct inventory answer(
	const char *id, const char *device, uint64_t reads, uint32_t bucket, uint64_t errors)
{
	struct inventory inv = {.arena = arena};
	Ringvol__V1__Volume *v = arena_new_of(arena, Ringvol__V1__Volume);
	Ringvol__V1__Device *d = arena_new_of(arena, Ringvol__V1__Device);
	Ringvol__V1__Io *io = arena_new_of(arena, Ringvol__V1__Io);
	Ringvol__V1__IoOp *op = arena_new_of(arena, Ringvol__V1__IoOp);
	Ringvol__V1__Histogram *h = arena_new_of(arena, Ringvol__V1__Histogram);
	ringvol__v1__volume__init(v);
	ringvol__v1__device__init(d);
	ringvol__v1__io__init(io);
	ringvol__v1__io_op__init(op);
	ringvol__v1__histogram__init(h);
#define TEXT(s) (ProtobufCBinaryData){strlen(s), (uint8_t *)arena_strdup(arena, s)}
	v->id = v->name = TEXT(id);
	d->path = TEXT(device);
	op->op = TEXT("read");
#undef TEXT
	op->ops = reads;
	op->bytes = reads * 4096;
	op->errors = errors;
	op->in_flight = 3;
	op->latency = h;
	h->n_bucket = h->n_count = 1;
	h->bucket = arena_alloc(arena, sizeof(uint32_t));
	h->count = arena_alloc(arena, sizeof(uint64_t));
	h->bucket[0] = bucket;
	h->count[0] = reads;
	io->exact = true;
	io->n_ops = 1;
	io->ops = arena_alloc(arena, sizeof(*io->ops));
	io->ops[0] = op;
	v->device = d;
	v->io = io;
	cr_assert_eq(inventory_add(&inv.volumes, &v->base), 0);
	return inv;
}

static void take(struct rates *rates, struct inventory inv, uint64_t seconds)
{
	cr_assert_eq(rates_take(rates, &inv, seconds * 1000000000), 0);
	free(inv.volumes.at);
}

Test(tools, rates)
{
	struct rates rates = {0};
	take(&rates, answer("p.v.1", "/dev/loop1", 1000, 40, 2), 10);
	cr_assert_eq(rates.count, 1);
	cr_assert_not(rates.at[0].counted);
	cr_assert_eq(rates.at[0].all.ops, 0); /* what was before is not this interval's */
	cr_assert_eq(rates.at[0].all.errors_total, 2);
	take(&rates, answer("p.v.1", "/dev/loop1", 1500, 40, 5), 12);
	const struct rates_volume *v = &rates.at[0];
	cr_assert(v->counted && v->exact && v->op[0].timed && !v->op[1].timed);
	cr_assert_float_eq(v->seconds, 2.0, 1e-9);
	cr_assert_eq(v->op[0].ops, 500);
	cr_assert_eq(v->all.bytes, 500 * 4096);
	cr_assert_eq(v->all.errors, 3);
	cr_assert_eq(v->all.in_flight, 3);
	uint64_t low = hist_bucket_start_ns(40), high = hist_bucket_start_ns(41);
	cr_assert(v->all.p99_ns >= low && v->all.p99_ns < high);
	cr_assert_eq(v->history[RATES_HISTORY - 1], v->all.p99_ns);
	rates_free(&rates);
}

Test(tools, rates_begin_anew)
{
	struct rates rates = {0};
	take(&rates, answer("p.v.1", "/dev/loop1", 1000, 40, 0), 1);
	take(&rates, answer("p.v.1", "/dev/loop1", 10, 40, 0), 2); /* attached anew */
	cr_assert_eq(rates.at[0].all.ops, 10);
	take(&rates, answer("p.v.1", "/dev/loop9", 2000, 40, 0), 3); /* on another device */
	cr_assert_eq(rates.at[0].all.ops, 2000);
	take(&rates, answer("p.w.1", "/dev/loop9", 2000, 40, 0), 4); /* another volume there */
	cr_assert_eq(rates.count, 1);
	cr_assert_str_eq(rates.at[0].name, "p.w.1");
	cr_assert_not(rates.at[0].counted);
	take(&rates, (struct inventory){0}, 5);
	cr_assert_eq(rates.count, 0);
	rates_free(&rates);
}

/* A volume of another node goes by its id, or as long as nobody has named that by its tag. */
Test(tools, rates_of_borrowed)
{
	struct rates rates = {0};
	const char *const ids[] = {"", "fedcba98.far.0badcafe", "fedcba98.far.0badcafe"};
	for (unsigned i = 0; i < 3; i++) {
		struct inventory inv = answer("p.v.1", "/dev/loop1", 5, 3, 0);
		struct inventory its = answer("x", "/dev/dm-1", 100 + 7 * i, 3, 0);
		const Ringvol__V1__Volume *v = (const void *)its.volumes.at[0];
		Ringvol__V1__Borrowed b = RINGVOL__V1__BORROWED__INIT;
		b.id = (ProtobufCBinaryData){strlen(ids[i]), (uint8_t *)ids[i]};
		b.tag = (ProtobufCBinaryData){25, (uint8_t *)"ringvol:fedcba98:0badcafe"};
		if (i > 0)
			b.owner = (ProtobufCBinaryData){6, (uint8_t *)"node-2"};
		b.device = v->device;
		b.io = v->io;
		cr_assert_eq(inventory_add(&inv.borrowed, &b.base), 0);
		take(&rates, inv, i + 1);
		free(inv.borrowed.at);
		free(its.volumes.at);
		cr_assert_eq(rates.count, 2);
		const struct rates_volume *one = &rates.at[i == 0 ? 1 : 0];
		cr_assert_str_eq(one->id, i == 0 ? "ringvol:fedcba98:0badcafe" : ids[i]);
		cr_assert_str_eq(one->name, i == 0 ? "ringvol:fedcba98:0badcafe" : "far");
		cr_assert_str_eq(one->pool, i == 0 ? "of another node" : "of node-2");
		cr_assert_eq(one->counted, i == 2);
		cr_assert_eq(one->op[0].ops, i == 2 ? 7 : 0);
	}
	rates_free(&rates);
}

/* A driver of another version may send what this tool has no room for. */
Test(tools, rates_of_odd_answers)
{
	struct rates rates = {0};
	struct inventory inv = answer("p.v.1", "/dev/loop1", 5, HIST_BUCKETS + 7, 0);
	take(&rates, inv, 1);
	inv = answer("p.v.1", "/dev/loop1", 9, HIST_BUCKETS + 7, 0);
	((Ringvol__V1__Volume *)(void *)inv.volumes.at[0])->io->ops[0]->latency->n_count = 0;
	take(&rates, inv, 2);
	cr_assert_eq(rates.at[0].all.ops, 4);
	cr_assert_not(rates.at[0].all.timed);
	inv = answer("p.v.1", "/dev/loop1", 9, 3, 0);
	((Ringvol__V1__Volume *)(void *)inv.volumes.at[0])->io = NULL;
	take(&rates, inv, 3);
	cr_assert_not(rates.at[0].counted);
	rates_free(&rates);
}

Test(tools, rates_sort)
{
	struct rates rates = {0};
	struct rates_volume at[3] = {
		{.id = "a", .name = "a"}, {.id = "b", .name = "b"}, {.id = "c", .name = "c"}};
	at[1].all.ops = 9;
	at[2].all.p99_ns = 7;
	rates.at = at;
	rates.count = 3;
	static const struct {
		enum rates_key key;
		bool reverse;
		const char *order;
	} cases[] = {
		{RATES_BY_NAME, false, "abc"},
		{RATES_BY_NAME, true, "cba"},
		{RATES_BY_IOPS, false, "bac"},
		{RATES_BY_IOPS, true, "acb"},
		{RATES_BY_P99, false, "cab"},
		{RATES_BY_ERRORS, true, "abc"},
	};
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const struct rates_volume **all =
			rates_sort(&rates, cases[i].key, cases[i].reverse);
		for (unsigned k = 0; k < 3; k++)
			cr_assert_eq(all[k]->name[0], cases[i].order[k], "case %u", i);
		free(all);
	}
}

/* ---- JSON ---- */

Test(tools, json)
{
	char *text = NULL;
	size_t len;
	struct json j = {.out = open_memstream(&text, &len)};
	Ringvol__V1__Volume v = RINGVOL__V1__VOLUME__INIT;
	Ringvol__V1__Mount mount = RINGVOL__V1__MOUNT__INIT, *mounts[] = {&mount};
	v.name = (ProtobufCBinaryData){4, (uint8_t *)"a\"\xff\n"};
	v.size_bytes = UINT64_MAX;
	v.n_mounts = 1;
	v.mounts = mounts;
	mount.read_only = true;
	json_open(&j, NULL, '[');
	json_put_double(&j, NULL, 1.0 / 0.0);
	json_put_message(&j, NULL, &v.base);
	json_close(&j, ']');
	fclose(j.out);
	cr_assert_str_eq(text,
		"[null,{\"id\":\"\",\"name\":\"a\\\"\\ufffd\\u000a\",\"pool\":\"\",\"access_type\":\"\","
		"\"fs\":\"\",\"provisioning\":\"\",\"size_bytes\":18446744073709551615,"
		"\"allocated_bytes\":0,\"block_size\":0,\"created\":\"\",\"source\":null,"
		"\"shares_extents\":false,\"device\":null,\"mounts\":[{\"path\":\"\",\"read_only\":true}],"
		"\"conditions\":[],\"io\":null,\"claim\":\"\",\"limits\":null,\"attachments\":[],\"node\":\"\"}]",
		"%s", text);
	free(text);
}

Test(tools, json_enum)
{
	char *text = NULL;
	size_t len;
	struct json j = {.out = open_memstream(&text, &len)};
	Ringvol__V1__Driver driver = RINGVOL__V1__DRIVER__INIT;
	driver.probes = RINGVOL__V1__DRIVER__PROBES__SYSFS;
	json_put_message(&j, NULL, &driver.base);
	driver.probes = (Ringvol__V1__Driver__Probes)77;
	json_put_message(&j, NULL, &driver.base);
	fclose(j.out);
	cr_assert_not_null(strstr(text, "\"probes\":\"sysfs\""));
	cr_assert_not_null(strstr(text, "\"probes\":77"));
	free(text);
}

/* ---- times and pools ---- */

Test(tools, when)
{
	char text[CLOCK_BYTES];
	clock_print(0, text);
	cr_assert_str_eq(text, "");
	clock_print(UINT64_C(1763727627123456789), text);
	cr_assert_str_eq(text, "2025-11-21T12:20:27.123456789Z");
	cr_assert_eq(clock_of_monotonic(0), 0);
	cr_assert_eq(clock_of_monotonic(UINT64_MAX), 0);
	cr_assert_leq(clock_of_monotonic(clock_monotonic_ns()), clock_now_ns());
}

Test(tools, pool_args)
{
	struct tool_args args = {.arena = arena};
	struct err err = {0};
	cr_assert_eq(tool_set_pool(&args, "fast=/mnt/a,overcommit=2,init", &err), 0);
	cr_assert_eq(tool_set_pool(&args, "/mnt/b=c", &err), 0);
	cr_assert_eq(tool_set_pool(&args, "/", &err), 0);
	cr_assert_str_eq(args.pools[0].name, "fast");
	cr_assert_str_eq(args.pools[0].path, "/mnt/a");
	cr_assert_str_eq(args.pools[1].name, "b=c");
	cr_assert_str_eq(args.pools[1].path, "/mnt/b=c");
	cr_assert_str_eq(args.pools[2].path, "/");
	cr_assert_lt(tool_set_pool(&args, "x=relative", &err), 0);
}
