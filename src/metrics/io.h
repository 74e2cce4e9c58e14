/* SPDX-License-Identifier: Apache-2.0 */
/* What the probes have counted of a device, as samples. */
#ifndef RINGVOL_METRICS_IO_H
#define RINGVOL_METRICS_IO_H

#include "metrics/private.h"
#include "probes/probes.h"

/* f->io of a device, unless nothing counts it. Counts as work of the scrape. */
void io_tell(struct scrape *s, const struct family *f, struct text *t, struct probes *probes,
	uint32_t dev_major, uint32_t dev_minor, const char *labels);

/* ---- for f->io ---- */

/* From issue to completion: read, write, flush. */
void io_tell_seconds(
	struct text *t, const char *name, const char *labels, const struct probe_counters *c);
/* Read, written, discarded. */
void io_tell_bytes(
	struct text *t, const char *name, const char *labels, const struct probe_counters *c);
/* Of exact counters: without BPF errors are not known, and 0 would be a lie. */
void io_tell_errors(
	struct text *t, const char *name, const char *labels, const struct probe_counters *c);

#endif
