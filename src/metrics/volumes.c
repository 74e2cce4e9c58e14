/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What there is to tell of each attached volume. The format wants a family's samples together, so
 * every family is a walk of its own over the volumes, in the order of their ids: a walk that goes
 * on after the last id seen does not mind volumes that come and go.
 */
#include "metrics/private.h"

#include "node/health.h"
#include "node/volume.h"
#include "pool/index.h"
#include "probes/probes.h"

#include <string.h>

/* A volume has 46 series: 3 histograms of 12, 3 counters of bytes, 4 of errors, 3 gauges; one with
 * limits up to 9 more. */

/* Ends of buckets of base/hist.h, so that the counts are exact: powers of four from 16 us to 1 s.
 */
static const struct text_scale io_scale = {
	.count = 9,
	.bounds_ns = {1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28,
		1 << 30},
	.le = {"0.000016384", "0.000065536", "0.000262144", "0.001048576", "0.004194304",
		"0.016777216", "0.067108864", "0.268435456", "1.073741824"},
};

enum { SYSFS_WORK = 10, BPF_WORK = 2 }; /* of one probes_read() */

struct volume {
	struct scrape *scrape;
	const struct metrics *metrics;
	const struct pool_object *object;
	const struct node_volume *node;
	char labels[TEXT_LABELS_MAX];
};

static void label_volume(struct volume *v)
{
	const char *name = v->object->rec->name;
	char id[RECORD_ID_MAX];
	/* A name is unique unless a copy of a pool, or one from elsewhere, was mounted here: equal
	 * labels would spoil the whole scrape. */
	if (pools_find_name(v->metrics->csi->pools, RECORD_VOLUME, name) != v->object) {
		pool_object_id(v->object, id);
		name = id;
	}
	text_label(v->labels, false, "volume", name);
}

/* The next attached volume; false when the walk is over or the piece has looked at enough, which
 * s->cursor tells apart. */
static bool next_attached(struct scrape *s, struct volume *ret)
{
	struct csi *csi = s->metrics->csi;
	struct pool_object *object;
	while (s->work < SCRAPE_WORK_MAX &&
		(object = pools_next(csi->pools, RECORD_VOLUME, &s->cursor)) != NULL) {
		s->work++;
		const struct node_volume *node = node_volume_find(object);
		if (node == NULL || !node->dev.attached)
			continue;
		*ret = (struct volume){
			.scrape = s, .metrics = s->metrics, .object = object, .node = node};
		label_volume(ret);
		return true;
	}
	return false;
}

/* One volume of a family. True when all were told of. */
static bool render_volume(struct scrape *s, const struct family *f, struct text *t)
{
	struct volume v;
	if (next_attached(s, &v)) {
		f->volume(t, f->name, &v);
		return false;
	}
	if (s->work >= SCRAPE_WORK_MAX)
		return false;
	s->cursor = (struct pool_walk){0};
	return true;
}

/* ---- gauges ---- */

static void tell_capacity(struct text *t, const char *name, struct volume *v)
{
	text_u64(t, name, v->labels, NULL, v->object->rec->size_bytes);
}

static void tell_allocated(struct text *t, const char *name, struct volume *v)
{
	text_u64(t, name, v->labels, NULL, v->object->allocated_bytes);
}

static void tell_abnormal(struct text *t, const char *name, struct volume *v)
{
	const char *why = node_volume_abnormal(v->scrape->arena, v->metrics->csi->node, v->object);
	text_u64(t, name, v->labels, NULL, why != NULL);
}

/* ---- I/O limits ---- */

static const char *const direction_labels[] = {"op=\"read\"", "op=\"write\""};

static void tell_limit_iops(struct text *t, const char *name, struct volume *v)
{
	const struct io_limits *l = &v->object->rec->limits;
	if (l->read_iops != 0)
		text_u64(t, name, v->labels, direction_labels[0], l->read_iops);
	if (l->write_iops != 0)
		text_u64(t, name, v->labels, direction_labels[1], l->write_iops);
}

static void tell_limit_bandwidth(struct text *t, const char *name, struct volume *v)
{
	const struct io_limits *l = &v->object->rec->limits;
	if (l->read_bandwidth != 0)
		text_u64(t, name, v->labels, direction_labels[0], l->read_bandwidth);
	if (l->write_bandwidth != 0)
		text_u64(t, name, v->labels, direction_labels[1], l->write_bandwidth);
}

static void tell_limit_enforced(struct text *t, const char *name, struct volume *v)
{
	if (io_limits_any(&v->object->rec->limits))
		text_u64(t, name, v->labels, NULL,
			v->node->health.since_ns[NODE_LIMIT_NOT_ENFORCED] == 0);
}

/* What the kernel holds up in a cgroup it tells nobody: 0 would be a lie. */
static bool counts_throttled(const struct volume *v)
{
	return io_limits_any(&v->node->dev.limits);
}

static void tell_throttled(struct text *t, const char *name, struct volume *v)
{
	for (unsigned write = 0; counts_throttled(v) && write < 2; write++)
		text_u64(t, name, v->labels, direction_labels[write],
			v->node->dev.throttled.requests[write]);
}

static void tell_throttled_seconds(struct text *t, const char *name, struct volume *v)
{
	for (unsigned write = 0; counts_throttled(v) && write < 2; write++)
		text_seconds(t, name, v->labels, direction_labels[write],
			v->node->dev.throttled.wait_ns[write]);
}

/* ---- input and output ---- */

static const char *const op_labels[PROBE_OPS] = {
	[PROBE_READ] = "op=\"read\"",
	[PROBE_WRITE] = "op=\"write\"",
	[PROBE_FLUSH] = "op=\"flush\"",
	[PROBE_DISCARD] = "op=\"discard\"",
};

static bool read_counters(struct volume *v, struct probe_counters *ret)
{
	struct probes *probes = v->metrics->csi->node->probes;
	uint32_t major, minor;
	backend_dev_below(&v->node->dev, &major, &minor);
	if (probes == NULL || probes_read(probes, major, minor, ret) < 0)
		return false;
	v->scrape->work += ret->exact ? BPF_WORK : SYSFS_WORK;
	return true;
}

static void tell_io(struct text *t, const char *name, struct volume *v)
{
	struct probe_counters c;
	uint64_t counts[TEXT_BOUNDS_MAX + 1];
	if (!read_counters(v, &c))
		return;
	for (unsigned op = 0; op < PROBE_DISCARD; op++) {
		const struct probe_op_counters *o = &c.op[op];
		if (c.exact)
			text_scale_regroup(&io_scale, &o->latency, counts);
		text_histogram(t, name, v->labels, op_labels[op], c.exact ? &io_scale : NULL,
			c.exact ? counts : &o->ops, o->busy_ns);
	}
}

static void tell_bytes(struct text *t, const char *name, struct volume *v)
{
	struct probe_counters c;
	if (!read_counters(v, &c))
		return;
	for (unsigned op = 0; op < PROBE_OPS; op++)
		if (op != PROBE_FLUSH) /* it carries none */
			text_u64(t, name, v->labels, op_labels[op], c.op[op].bytes);
}

static void tell_errors(struct text *t, const char *name, struct volume *v)
{
	struct probe_counters c;
	/* Without BPF errors are not known, and 0 would be a lie. */
	struct probes *probes = v->metrics->csi->node->probes;
	if (probes == NULL || probes_state(probes) != PROBES_BPF || !read_counters(v, &c) ||
		!c.exact)
		return;
	for (unsigned op = 0; op < PROBE_OPS; op++)
		text_u64(t, name, v->labels, op_labels[op], c.op[op].errors);
}

const struct family volume_families[] = {
	{"ringvol_volume_capacity_bytes", "gauge", "Size of an attached volume.", render_volume,
		.volume = tell_capacity},
	{"ringvol_volume_allocated_bytes", "gauge",
		"Bytes an attached volume takes in its pool, shared ones included.", render_volume,
		.volume = tell_allocated},
	{"ringvol_volume_abnormal", "gauge",
		"1 while something is wrong with an attached volume (ringvol ls says what).",
		render_volume, .volume = tell_abnormal},
	{"ringvol_volume_io_seconds", "histogram",
		"Time from the issue of a request to a volume's device to its completion.",
		render_volume, .volume = tell_io},
	{"ringvol_volume_io_bytes_total", "counter",
		"Bytes read from, written to and discarded on a volume's device.", render_volume,
		.volume = tell_bytes},
	{"ringvol_volume_io_errors_total", "counter", "Requests that a volume's device failed.",
		render_volume, .volume = tell_errors},
	{"ringvol_volume_limit_iops", "gauge",
		"Operations a second that an attached volume is limited to.", render_volume,
		.volume = tell_limit_iops},
	{"ringvol_volume_limit_bandwidth_bytes", "gauge",
		"Bytes a second that an attached volume is limited to.", render_volume,
		.volume = tell_limit_bandwidth},
	{"ringvol_volume_limit_enforced", "gauge",
		"0 while the limits of an attached volume are not in force for all that use it.",
		render_volume, .volume = tell_limit_enforced},
	{"ringvol_volume_throttled_total", "counter",
		"Requests to a ublk volume that waited for its limits.", render_volume,
		.volume = tell_throttled},
	{"ringvol_volume_throttled_seconds_total", "counter",
		"Time that requests to a ublk volume waited for its limits.", render_volume,
		.volume = tell_throttled_seconds},
	{NULL},
};
