/* SPDX-License-Identifier: Apache-2.0 */
/* The samples of one device. Owns nothing, and cannot fail. */
#include "metrics/io.h"

enum { SYSFS_WORK = 10, BPF_WORK = 2 }; /* of one probes_read() */

/* Ends of buckets of base/hist.h, so that the counts are exact: powers of four from 16 us to 1 s.
 */
static const struct text_scale io_scale = {
	.count = 9,
	.bounds_ns = {1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28,
		1 << 30},
	.le = {"0.000016384", "0.000065536", "0.000262144", "0.001048576", "0.004194304",
		"0.016777216", "0.067108864", "0.268435456", "1.073741824"},
};

static const char *const op_labels[PROBE_OPS] = {
	[PROBE_READ] = "op=\"read\"",
	[PROBE_WRITE] = "op=\"write\"",
	[PROBE_FLUSH] = "op=\"flush\"",
	[PROBE_DISCARD] = "op=\"discard\"",
};

void io_tell(struct scrape *s, const struct family *f, struct text *t, struct probes *probes,
	uint32_t dev_major, uint32_t dev_minor, const char *labels)
{
	struct probe_counters c;
	if (probes == NULL || (f->exact_alone && probes_state(probes) != PROBES_BPF) ||
		probes_read(probes, dev_major, dev_minor, &c) < 0)
		return;
	s->work += c.exact ? BPF_WORK : SYSFS_WORK;
	if (c.exact || !f->exact_alone)
		f->io(t, f->name, labels, &c);
}

void io_tell_seconds(
	struct text *t, const char *name, const char *labels, const struct probe_counters *c)
{
	uint64_t counts[TEXT_BOUNDS_MAX + 1];
	for (unsigned op = 0; op < PROBE_DISCARD; op++) {
		const struct probe_op_counters *o = &c->op[op];
		if (c->exact)
			text_scale_regroup(&io_scale, &o->latency, counts);
		text_histogram(t, name, labels, op_labels[op], c->exact ? &io_scale : NULL,
			c->exact ? counts : &o->ops, o->busy_ns);
	}
}

void io_tell_bytes(
	struct text *t, const char *name, const char *labels, const struct probe_counters *c)
{
	for (unsigned op = 0; op < PROBE_OPS; op++)
		if (op != PROBE_FLUSH) /* it carries none */
			text_u64(t, name, labels, op_labels[op], c->op[op].bytes);
}

void io_tell_errors(
	struct text *t, const char *name, const char *labels, const struct probe_counters *c)
{
	for (unsigned op = 0; op < PROBE_OPS; op++)
		text_u64(t, name, labels, op_labels[op], c->op[op].errors);
}
