/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What there is to tell of each attached volume. The format wants a family's samples together, so
 * every family is a walk of its own over the volumes, in the order of their ids: a walk that goes
 * on after the last id seen does not mind volumes that come and go.
 */
#include "metrics/io.h"

#include "node/health.h"
#include "node/volume.h"
#include "pool/index.h"

#include <string.h>

/* A volume has 46 series: 3 histograms of 12, 3 counters of bytes, 4 of errors, 3 gauges; one with
 * limits up to 9 more. */

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

static void tell_io(
	struct scrape *s, const struct family *f, struct text *t, const struct volume *v)
{
	uint32_t major, minor;
	backend_dev_below(&v->node->dev, &major, &minor);
	io_tell(s, f, t, v->metrics->csi->node->probes, major, minor, v->labels);
}

/* One volume of a family. True when all were told of. */
static bool render_volume(struct scrape *s, const struct family *f, struct text *t)
{
	struct volume v;
	if (next_attached(s, &v)) {
		if (f->io != NULL)
			tell_io(s, f, t, &v);
		else
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
		render_volume, .io = io_tell_seconds},
	{"ringvol_volume_io_bytes_total", "counter",
		"Bytes read from, written to and discarded on a volume's device.", render_volume,
		.io = io_tell_bytes},
	{"ringvol_volume_io_errors_total", "counter", "Requests that a volume's device failed.",
		render_volume, .io = io_tell_errors, .exact_alone = true},
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
