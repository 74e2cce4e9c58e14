/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counting: the hooks that calls, steps and turns run through, and the measures of pools that a
 * scrape asks for. Out of memory an observation is lost, never a call.
 *
 * A measure runs beside the scrapes, one a pool at most, and however many wait for it. One that
 * takes long (a sick disk) is waited for once and METRICS_WAIT_MS; until it ends, scrapes tell what
 * was measured before.
 */
#include "metrics/private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

const struct text_scale metrics_rpc_scale = {
	.count = 12,
	.bounds_ns = {100000, 250000, 1000000, 2500000, 10000000, 25000000, 100000000, 250000000,
		1000000000, 2500000000, 10000000000, 60000000000},
	.le = {"0.0001", "0.00025", "0.001", "0.0025", "0.01", "0.025", "0.1", "0.25", "1", "2.5",
		"10", "60"},
};

const struct text_scale metrics_step_scale = {
	.count = 6,
	.bounds_ns = {100000, 1000000, 10000000, 100000000, 1000000000, 10000000000},
	.le = {"0.0001", "0.001", "0.01", "0.1", "1", "10"},
};

static void add(struct metrics_histogram *h, const struct text_scale *scale, uint64_t ns)
{
	h->counts[text_scale_bucket(scale, ns)]++;
	h->sum_ns += ns;
}

/* ---- calls ---- */

/* Paths are the registry's, so their addresses tell them apart. */
static struct metrics_method *method_of(struct metrics *m, const char *path)
{
	for (unsigned i = 0; i < m->method_count; i++)
		if (m->methods[i].path == path)
			return &m->methods[i];
	if (m->method_count == METRICS_METHODS_MAX)
		return NULL;
	m->methods[m->method_count].path = path;
	return &m->methods[m->method_count++];
}

static void on_call(void *arg, const char *path, enum grpc_status status, uint64_t ns)
{
	struct metrics_method *method = method_of(arg, path);
	if (method == NULL || (unsigned)status >= METRICS_CODES)
		return;
	struct metrics_histogram **h = &method->codes[status];
	if (*h == NULL)
		*h = calloc(1, sizeof(**h));
	if (*h != NULL)
		add(*h, &metrics_rpc_scale, ns);
}

/* ---- steps ---- */

static struct metrics_step *step_by_name(struct metrics *m, const char *operation, const char *step)
{
	for (unsigned i = 0; i < m->step_count; i++)
		if (strcmp(m->steps[i]->operation, operation) == 0 &&
			strcmp(m->steps[i]->step, step) == 0)
			return m->steps[i];
	struct metrics_step *new =
		m->step_count < METRICS_STEPS_MAX ? calloc(1, sizeof(*new)) : NULL;
	if (new == NULL)
		return &m->other;
	new->operation = operation;
	new->step = step;
	m->steps[m->step_count++] = new;
	return new;
}

static struct metrics_step *step_of(struct metrics *m, const char *operation, const char *step)
{
	uintptr_t hash = ((uintptr_t)operation * 31 + (uintptr_t)step) * 0x9e3779b97f4a7c15ULL;
	unsigned at = (unsigned)(hash >> 40) % METRICS_STEP_SLOTS;
	struct metrics_step_slot *slot;
	for (; (slot = &m->slots[at])->to != NULL; at = (at + 1) % METRICS_STEP_SLOTS)
		if (slot->operation == operation && slot->step == step)
			return slot->to;
	struct metrics_step *to = step_by_name(m, operation, step);
	/* The slots are a shortcut; half of them stay empty, so that a search ends soon. */
	if (to != &m->other && m->slots_used < METRICS_STEP_SLOTS / 2) {
		*slot = (struct metrics_step_slot){operation, step, to};
		m->slots_used++;
	}
	return to;
}

static void on_step(void *arg, const char *operation, const char *step, uint64_t ns)
{
	add(&step_of(arg, operation, step)->histogram, &metrics_step_scale, ns);
}

/* ---- measures ---- */

static void wake_all(struct metrics *m)
{
	for (struct list *l; (l = list_pop(&m->waiting)) != NULL;)
		http1_source_wake(&container_of(l, struct scrape, waiting)->source);
}

static void on_measured(struct op *op)
{
	struct metrics_measure *measure = container_of(op, struct metrics_measure, measure.op);
	struct metrics *m = measure->metrics;
	measure->running = false;
	if (--m->measuring > 0)
		return;
	m->impatient = false;
	ring_timer_cancel(m->reactor->ring, &m->patience);
	wake_all(m);
}

static void on_patience(struct ring_timer *timer)
{
	struct metrics *m = container_of(timer, struct metrics, patience);
	m->impatient = true;
	wake_all(m);
}

bool metrics_measure(struct scrape *s)
{
	struct metrics *m = s->metrics;
	struct pool *pool;
	bool was_idle = m->measuring == 0;
	for (unsigned i = 0; (pool = pools_at(m->csi->pools, i)) != NULL && !m->draining; i++) {
		struct metrics_measure *measure = &m->measures[i];
		if (measure->running || pool_state(pool) != POOL_READY)
			continue;
		measure->metrics = m;
		measure->running = true;
		m->measuring++;
		pool_measure_init(&measure->measure, m->reactor, pool, METRICS_MEASURE_MS);
		measure->measure.op.on_end = on_measured;
		op_start(&measure->measure.op);
	}
	if (m->measuring == 0 || m->impatient)
		return false;
	if (was_idle)
		ring_timer_arm(m->reactor->ring, &m->patience, METRICS_WAIT_MS);
	list_push(&m->waiting, &s->waiting);
	return true;
}

/* ---- life ---- */

static void name_features(struct metrics *m)
{
	const struct ring_features *f = ring_features(m->reactor->ring);
	const struct {
		bool there;
		const char *name;
	} features[] = {
		{f->defer_taskrun, "defer_taskrun"},
		{f->multishot_accept, "multishot_accept"},
		{f->multishot_recv, "multishot_recv"},
		{f->buf_ring, "buf_ring"},
		{f->ftruncate, "ftruncate"},
	};
	size_t len = 0;
	for (unsigned i = 0; i < sizeof(features) / sizeof(features[0]); i++)
		if (features[i].there)
			len += (size_t)snprintf(m->features + len, sizeof(m->features) - len,
				"%s%s", len > 0 ? "," : "", features[i].name);
	struct utsname uts;
	if (uname(&uts) == 0)
		strcpy(m->kernel, uts.release);
}

int metrics_open(struct metrics **ret, struct reactor *reactor, struct csi *csi,
	struct grpc_registry *registry)
{
	struct metrics *m = calloc(1, sizeof(*m));
	if (m == NULL)
		return -ENOMEM;
	m->reactor = reactor;
	m->csi = csi;
	m->registry = registry;
	m->other.operation = m->other.step = "other";
	m->patience.fn = on_patience;
	list_init(&m->waiting);
	name_features(m);
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	m->start_ns = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
	grpc_registry_observe(registry, on_call, m);
	reactor->op_step_timed = on_step;
	reactor->op_step_timed_arg = m;
	*ret = m;
	return 0;
}

void metrics_drain(struct metrics *m)
{
	m->draining = true;
}

bool metrics_idle(const struct metrics *m)
{
	return m == NULL || m->measuring == 0;
}

void metrics_close(struct metrics *m)
{
	if (m == NULL)
		return;
	grpc_registry_observe(m->registry, NULL, NULL);
	m->reactor->op_step_timed = NULL;
	ring_timer_cancel(m->reactor->ring, &m->patience);
	for (unsigned i = 0; i < m->method_count; i++)
		for (unsigned code = 0; code < METRICS_CODES; code++)
			free(m->methods[i].codes[code]);
	for (unsigned i = 0; i < m->step_count; i++)
		free(m->steps[i]);
	free(m);
}
