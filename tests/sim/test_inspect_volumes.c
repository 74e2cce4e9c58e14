/* SPDX-License-Identifier: Apache-2.0 */
/* Inspect.List: each field of volumes, their devices and I/O, of snapshots, and of what is
 * quarantined. */
#include "inspect_lines.h"

#include "base/clock.h"
#include "node/health.h"
#include "node/volume.h"
#include "pool/attachment.h"
#include "pool/private.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static const char *id_of(const struct pool_object *object)
{
	static char id[RECORD_ID_MAX];
	pool_object_id(object, id);
	return id;
}

#define VOLUME(head, tail)                                                                         \
	"volume{id='%s' name='v' pool='default' access_type='block' " head                         \
	"size_bytes=16777216 block_size=512" tail "}"

static void says_volume(const struct pool_object *o, const char *fmt)
{
	says(list(KIND(VOLUMES)), fmt, id_of(o));
}

Test(inspect, a_volumes_record)
{
	open_world(WORLD_EXT4, 1, true);
	struct pool_object *o = insert(RECORD_VOLUME, "v");
	struct record *rec = o->rec;
	says_volume(o, VOLUME("provisioning='thin' ", ""));
	rec->thick = true;
	rec->created_ns = 1500000000;
	o->allocated_bytes = 4096;
	says(list(KIND(VOLUMES)),
		"volume{id='%s' name='v' pool='default' access_type='block' provisioning='thick' size_bytes=16777216 allocated_bytes=4096 block_size=512 created}",
		id_of(o));
	o->allocated_bytes = 0;
	rec->thick = false;
	rec->created_ns = 0;
	rec->claim = "ci/data";
	rec->source = RECORD_SOURCE_SNAPSHOT;
	rec->source_id = "cafe0123.s.0123abcd";
	says_volume(
		o, VOLUME("provisioning='thin' ",
			   " source{kind='snapshot' id='cafe0123.s.0123abcd'} claim='ci/data'"));
	rec->source = RECORD_SOURCE_VOLUME;
	o->shared = true;
	says_volume(o,
		VOLUME("provisioning='thin' ",
			" source{kind='volume' id='cafe0123.s.0123abcd'} shares_extents=1 claim='ci/data'"));
	rec->claim = "";
	rec->source = RECORD_SOURCE_NONE;
	o->shared = false;
	static const struct {
		struct io_limits limits;
		const char *shown;
	} limits[] = {
		{{.read_iops = 1}, " limits{read_iops=1}"},
		{{.write_iops = 2}, " limits{write_iops=2}"},
		{{.read_bandwidth = 3}, " limits{read_bandwidth=3}"},
		{{.write_bandwidth = 4}, " limits{write_bandwidth=4}"},
		{{5, 6, 7, 8},
			" limits{read_iops=5 write_iops=6 read_bandwidth=7 write_bandwidth=8}"},
	};
	for (unsigned i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
		rec->limits = limits[i].limits;
		says(list(KIND(VOLUMES)), VOLUME("provisioning='thin' ", "%s"), id_of(o),
			limits[i].shown);
	}
	take_out(o);
	world_close(w);
}

/* As they were told when the volume was attached, in their order. */
Test(inspect, attachments)
{
	open_world(WORLD_EXT4, 1, true);
	struct pool_object *o = insert(RECORD_VOLUME, "v");
	const struct attachment all[] = {
		{.node = "node-1", .mode = ATTACHMENT_WRITER, .export = "", .key = ""},
		{.node = "node-2",
			.mode = ATTACHMENT_READER_ONLY,
			.read_only = true,
			.export = "01234567-89ab-4cde-8f01-23456789abcd",
			.key = "DHHC-1:00:secret:"},
	};
	struct attachments *one = attachments_with(NULL, &all[0]);
	o->attachments = one;
	says_volume(o, VOLUME("provisioning='thin' ", " attachments{node_id='node-1'}"));
	struct attachments *both = attachments_with(one, &all[1]);
	o->attachments = both;
	says_volume(o, VOLUME("provisioning='thin' ",
			       " attachments{node_id='node-1'} "
			       "attachments{node_id='node-2' read_only=1 exported=1}"));
	o->attachments = NULL;
	attachments_free(one);
	attachments_free(both);
	take_out(o);
	world_close(w);
}

/* Two at once, each by its name, its sentence and since when it is so. */
Test(inspect, conditions)
{
	open_world(WORLD_EXT4, 1, true);
	struct pool_object *o = insert(RECORD_VOLUME, "v");
	struct arena *arena = arena_new(0);
	struct node_condition found[NODE_CONDITION_KINDS];
	char want[1200];
	o->image = POOL_IMAGE_MISSING;
	pool_enter(o->pool, POOL_READ_ONLY, "it cannot be written");
	unsigned count = node_volume_conditions(arena, w->csi->node, o, found);
	cr_assert_eq(count, 2);
	int n = snprintf(
		want, sizeof(want), VOLUME("provisioning='thin' ", " conditions{"), id_of(o));
	n--; /* the brace of the volume */
	for (unsigned i = 0; i < count; i++) {
		char since[CLOCK_BYTES];
		cr_assert_neq(found[i].reason[0], '\0');
		clock_print((uint64_t)found[i].since_unix * 1000000000u, since);
		n += snprintf(want + n, sizeof(want) - (size_t)n, "%smessage='%s'%s%s%s kind='%s'}",
			i > 0 ? " conditions{" : "", found[i].reason,
			since[0] != '\0' ? " since='" : "", since, since[0] != '\0' ? "'" : "",
			node_condition_names[found[i].kind]);
	}
	cr_expect_neq(found[1].since_unix, 0);
	cr_expect_neq(found[0].kind, found[1].kind);
	says(list(KIND(VOLUMES)), "%s}", want);
	pool_enter(o->pool, POOL_SERVED, "%s", "");
	arena_unref(arena);
	take_out(o);
	world_close(w);
}

/* ---- devices and their I/O ---- */

/* Attached, as far as memory has it; nothing looks at the device meanwhile. */
static struct node_volume *attach(struct pool_object *o)
{
	struct node_volume *nv = node_volume_get(o);
	cr_assert_not_null(nv);
	nv->dev = (struct backend_dev){.attached = true, .major = 7, .minor = 9};
	strcpy(nv->dev.path, "/dev/loop9");
	return nv;
}

static void detach(struct pool_object *o)
{
	node_volume_find(o)->dev.attached = false;
	node_volume_free(node_volume_find(o));
	o->node = NULL;
	take_out(o);
}

static const char *attached_line(bool histograms)
{
	return list_with(KIND(VOLUMES), true, histograms);
}

#define DEVICE(tail)                                                                               \
	VOLUME("provisioning='thin' ", " device{type='loop' path='/dev/loop9' major=7 minor=9" tail)

Test(inspect, a_device_and_its_mounts)
{
	open_world(WORLD_EXT4, 1, true);
	struct pool_object *o = insert(RECORD_VOLUME, "v");
	o->rec->device = BACKEND_LOOP;
	says(attached_line(false), "%s", "");
	struct node_volume *nv = attach(o);
	says(attached_line(false), DEVICE("}"), id_of(o));
	nv->dev.direct_io = nv->dev.read_only = true;
	nv->dev.below_major = 7;
	nv->dev.below_minor = 3;
	cr_assert_eq(node_volume_add_mount(nv, "/a", true, false), 0);
	cr_assert_eq(node_volume_add_mount(nv, "/b", false, false), 0);
	says(attached_line(false),
		DEVICE(" direct_io=1 read_only=1 below_major=7 below_minor=3} "
		       "mounts{path='/a' read_only=1} mounts{path='/b'}"),
		id_of(o));
	nv->dev.attached = false;
	says(attached_line(false), "%s", "");
	says(list(KIND(VOLUMES)),
		VOLUME("provisioning='thin' ", " mounts{path='/a' read_only=1} mounts{path='/b'}"),
		id_of(o));
	detach(o);
	world_close(w);
}

static void fill_counters(bool exact)
{
	memset(&counted.counters, 0, sizeof(counted.counters));
	counted.there = true;
	counted.counters.exact = exact;
	counted.counters.since_ns = 1;
	for (unsigned i = 0; i < PROBE_OPS; i++) {
		struct probe_op_counters *c = &counted.counters.op[i];
		c->ops = 10 * i + 1;
		c->bytes = 10 * i + 2;
		c->busy_ns = 10 * i + 3;
		c->in_flight = i;
		c->latency.count[0] = i;
		c->latency.count[HIST_BUCKETS - 1] = 2;
		c->queue.count[5] = 3;
		c->queue.count[6] = i;
	}
	counted.counters.op[PROBE_WRITE].errors = 4;
	counted.counters.op[PROBE_WRITE].last_errno = EIO;
	counted.counters.op[PROBE_WRITE].last_error_ns = 2000000003;
	counted.counters.op[PROBE_FLUSH].last_errno = -1; /* of no error */
	counted.counters.op[PROBE_DISCARD].last_errno = EPERM;
}

#define ERRORS " last_errno=5 last_error='1970-01-01T00:00:02.000000003Z'"
#define SINCE  " since='1970-01-01T00:00:00.000000001Z' "

static const char io_line[] =
	" io{exact=1" SINCE
	"ops{op='read' ops=1 bytes=2 busy_ns=3 latency{bucket=97 count=2} queue{bucket=5 count=3}} "
	"ops{op='write' ops=11 bytes=12 errors=4 busy_ns=13 in_flight=1" ERRORS
	" latency{bucket=97 count=1 count=2} queue{bucket=5 bucket=6 count=3 count=1}} "
	"ops{op='flush' ops=21 bytes=22 busy_ns=23 in_flight=2"
	" latency{bucket=97 count=2 count=2} queue{bucket=5 bucket=6 count=3 count=2}} "
	"ops{op='discard' ops=31 bytes=32 busy_ns=33 in_flight=3 last_errno=1"
	" latency{bucket=97 count=3 count=2} queue{bucket=5 bucket=6 count=3 count=3}}}";

static const char plain_line[] =
	SINCE "ops{op='read' ops=1 bytes=2 busy_ns=3} "
	      "ops{op='write' ops=11 bytes=12 errors=4 busy_ns=13 in_flight=1" ERRORS "} "
	      "ops{op='flush' ops=21 bytes=22 busy_ns=23 in_flight=2} "
	      "ops{op='discard' ops=31 bytes=32 busy_ns=33 in_flight=3 last_errno=1}}";

/* Counters are those of the device that has the image. Histograms come where they are asked for,
 * and where BPF has counted them. */
Test(inspect, what_a_device_does)
{
	open_world(WORLD_EXT4, 1, true);
	struct pool_object *o = insert(RECORD_VOLUME, "v");
	o->rec->device = BACKEND_LOOP;
	struct node_volume *nv = attach(o);
	counted.major = 7;
	counted.minor = 9;
	fill_counters(true);
	says(attached_line(true), DEVICE("}"), id_of(o)); /* nothing counts */
	w->csi->node->probes = (struct probes *)&counted;
	says(attached_line(true), DEVICE("}%s"), id_of(o), io_line);
	says(attached_line(false), DEVICE("} io{exact=1%s"), id_of(o), plain_line);
	fill_counters(false);
	says(attached_line(true), DEVICE("} io{%s"), id_of(o), plain_line + 1);
	counted.there = false;
	says(attached_line(true), DEVICE("}"), id_of(o));
	counted.there = true;
	nv->dev.below_major = 8;
	nv->dev.below_minor = 4;
	says(attached_line(true), DEVICE(" below_major=8 below_minor=4}"), id_of(o));
	counted.major = 8;
	counted.minor = 4;
	says(attached_line(false), DEVICE(" below_major=8 below_minor=4} io{%s"), id_of(o),
		plain_line + 1);
	w->csi->node->probes = NULL;
	detach(o);
	world_close(w);
}

Test(inspect, a_histogram_that_is_full)
{
	open_world(WORLD_EXT4, 1, true);
	struct pool_object *o = insert(RECORD_VOLUME, "v");
	attach(o);
	char want[4000];
	size_t n = 0;
	memset(&counted, 0, sizeof(counted));
	counted.there = counted.counters.exact = true;
	counted.major = 7;
	counted.minor = 9;
	for (unsigned i = 0; i < HIST_BUCKETS; i++) {
		counted.counters.op[PROBE_READ].latency.count[i] = 1000 + i;
		if (i > 0) /* 0 is left out of a line */
			n += (size_t)snprintf(want + n, sizeof(want) - n, "bucket=%u ", i);
	}
	for (unsigned i = 0; i < HIST_BUCKETS; i++)
		n += (size_t)snprintf(want + n, sizeof(want) - n, "count=%u%s", 1000 + i,
			i < HIST_BUCKETS - 1 ? " " : "} queue{}}");
	w->csi->node->probes = (struct probes *)&counted;
	cr_expect_not_null(strstr(attached_line(true), want), "%s\n%s", got.lines, want);
	w->csi->node->probes = NULL;
	detach(o);
	world_close(w);
}

#define TAG "ringvol:fedcba98:0badcafe"
#define BORROWED                                                                                   \
	"borrowed{tag='" TAG "' %sdevice{type='nvme-tcp' path='/dev/dm-3' major=253 minor=3"

Test(inspect, a_borrowed_volume)
{
	open_world(WORLD_EXT4, 1, true);
	struct borrows *b = w->csi->borrows;
	struct attach_info info = {.there = true, .major = 253, .minor = 3, .path = "/dev/dm-3"};
	counted.major = 253;
	counted.minor = 3;
	fill_counters(true);
	struct borrowed *one = borrows_put(b, TAG, &info);
	cr_assert_not_null(one);
	says(attached_line(true), BORROWED "}}", "");
	one->block = true;
	says(attached_line(true), BORROWED "}}", ""); /* who has it is not known */
	strcpy(one->node, "node-2");
	says(attached_line(true), BORROWED "}}", "owner='node-2' access_type='block' ");
	one->block = false;
	one->read_only = one->suspended = true;
	one->size_bytes = 5;
	strcpy(one->id, "fedcba98.far.0badcafe");
	cr_assert_eq(borrowed_set_path(&one->staging, "/stage"), 0);
	b->probes = (struct probes *)&counted;
	says(attached_line(false),
		"borrowed{id='fedcba98.far.0badcafe' tag='" TAG
		"' owner='node-2' access_type='mount' size_bytes=5 device{type='nvme-tcp' path='/dev/dm-3' major=253 minor=3 read_only=1} mounts{path='/stage' read_only=1} io{exact=1%.*s suspended=1}",
		(int)sizeof(plain_line), plain_line);
	b->probes = NULL;
	borrows_drop(b, one);
	says(attached_line(false), "%s", "");
	world_close(w);
}

/* ---- snapshots and what is quarantined ---- */

Test(inspect, a_snapshots_record)
{
	open_world(WORLD_EXT4, 1, true);
	struct pool_object *o = insert(RECORD_SNAPSHOT, "s");
	says(list(KIND(SNAPSHOTS)), "snapshot{id='%s' name='s' pool='default' size_bytes=16777216}",
		id_of(o));
	o->rec->claim = "ci/snap";
	o->rec->source_id = "cafe0123.v.0123abcd";
	o->rec->group = "cafe0123.g.0123abcd";
	o->rec->created_ns = 1;
	o->shared = true;
	o->allocated_bytes = 4096;
	says(list(KIND(SNAPSHOTS)),
		"snapshot{id='%s' name='s' pool='default' source_volume_id='cafe0123.v.0123abcd' size_bytes=16777216 allocated_bytes=4096 created shares_extents=1 claim='ci/snap' group='cafe0123.g.0123abcd'}",
		id_of(o));
	take_out(o);
	world_close(w);
}
/* Of each pool, volumes before snapshots, and what is well between them is none. */
Test(inspect, what_is_quarantined)
{
	open_world(WORLD_EXT4, 1, true);
	w->two_pools = true;
	world_restart(w);
	struct pool_object *all[] = {
		insert_damaged(0, RECORD_VOLUME, "a", "its record is damaged"),
		insert(RECORD_VOLUME, "b"),
		insert_damaged(0, RECORD_VOLUME, "c", NULL),
		insert(RECORD_SNAPSHOT, "a"),
		insert_damaged(0, RECORD_SNAPSHOT, "d", "no record"),
		insert_damaged(1, RECORD_SNAPSHOT, "a", "no record"),
	};
	says(list(KIND(QUARANTINED)), "%s",
		"quarantined{pool='default' kind='volume' key='a' why='its record is damaged'}\n"
		"quarantined{pool='default' kind='volume' key='c' why='damaged'}\n"
		"quarantined{pool='default' kind='snapshot' key='d' why='no record'}\n"
		"quarantined{pool='other' kind='snapshot' key='a' why='no record'}");
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		take_out(all[i]);
	says(list(KIND(QUARANTINED)), "%s", "");
	world_close(w);
}
