/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counting: the hooks that calls, steps and turns run through. Out of memory an observation is
 * lost, never a call.
 */
#include "metrics/metrics.h"

#include "base/clock.h"
#include "metrics/private.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

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

/* Paths are the registries', so their addresses tell them apart; what both serve is one method. */
static struct metrics_method *method_of(struct metrics *m, const char *path)
{
	for (unsigned i = 0; i < m->method_count; i++)
		if (m->methods[i].path == path || m->methods[i].other == path)
			return &m->methods[i];
	for (unsigned i = 0; m->routed != NULL && i < m->method_count; i++)
		if (m->methods[i].other == NULL && strcmp(m->methods[i].path, path) == 0) {
			m->methods[i].other = path;
			return &m->methods[i];
		}
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
		{f->direct_writes, "direct_writes"},
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
	struct controller *controller, struct grpc_registry *registry)
{
	struct metrics *m = calloc(1, sizeof(*m));
	if (m == NULL)
		return -ENOMEM;
	m->csi = csi;
	m->controller = controller;
	m->other.operation = m->other.step = "other";
	m->start_ns = clock_now_ns();
	m->registry = registry;
	grpc_registry_observe(registry, on_call, m);
	m->reactor = reactor;
	name_features(m);
	m->observer = (struct op_observer){.after = on_step, .arg = m};
	reactor->observer = &m->observer;
	*ret = m;
	return 0;
}

void metrics_cluster(struct metrics *m, struct grpc_registry *routed, const struct member *member)
{
	m->routed = routed;
	m->member = member;
	grpc_registry_observe(routed, on_call, m);
}

void metrics_tls(struct metrics *m, const struct tls *tls)
{
	m->tls = tls;
}

void metrics_close(struct metrics *m)
{
	if (m == NULL)
		return;
	if (m->routed != NULL)
		grpc_registry_observe(m->routed, NULL, NULL);
	grpc_registry_observe(m->registry, NULL, NULL);
	m->reactor->observer = NULL;
	for (unsigned i = 0; i < m->method_count; i++)
		for (unsigned code = 0; code < METRICS_CODES; code++)
			free(m->methods[i].codes[code]);
	for (unsigned i = 0; i < m->step_count; i++)
		free(m->steps[i]);
	free(m);
}
