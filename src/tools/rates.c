/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rates. Each volume keeps its last counters; a new answer is subtracted, and the volumes that were
 * not in it go. Both the table and the answer are in the order of ids while they are merged. It
 * fails for want of memory only, and then keeps what it had.
 */
#include "tools/rates.h"

#include "base/buf.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const rates_op_names[RATES_OPS] = {"read", "write", "flush", "discard"};

/* ---- one volume ---- */

static void hist_of(const Ringvol__V1__Histogram *from, struct hist *ret)
{
	memset(ret, 0, sizeof(*ret));
	if (from == NULL)
		return;
	for (size_t i = 0; i < from->n_bucket && i < from->n_count; i++)
		if (from->bucket[i] < HIST_BUCKETS)
			ret->count[from->bucket[i]] = from->count[i];
}

static const Ringvol__V1__IoOp *io_op(const Ringvol__V1__Io *io, unsigned op)
{
	for (size_t i = 0; io != NULL && i < io->n_ops; i++)
		if (strcmp(inventory_str(io->ops[i]->op), rates_op_names[op]) == 0)
			return io->ops[i];
	return NULL;
}

/* What is smaller than it was has begun anew. */
static uint64_t since(uint64_t now, uint64_t then)
{
	return now >= then ? now - then : now;
}

static void set_quantiles(struct rates_op *op, const struct hist *hist)
{
	op->timed = hist_total(hist) != 0;
	op->p50_ns = hist_quantile_ns(hist, 0.50);
	op->p99_ns = hist_quantile_ns(hist, 0.99);
}

static void sum(struct rates_volume *v, const struct hist *all)
{
	v->all = (struct rates_op){0};
	for (unsigned i = 0; i < RATES_OPS; i++) {
		v->all.ops += v->op[i].ops;
		v->all.bytes += v->op[i].bytes;
		v->all.errors += v->op[i].errors;
		v->all.errors_total += v->op[i].errors_total;
		v->all.in_flight += v->op[i].in_flight;
	}
	set_quantiles(&v->all, all);
	memmove(v->history, v->history + 1, sizeof(v->history) - sizeof(v->history[0]));
	v->history[RATES_HISTORY - 1] = v->all.p99_ns;
}

/* Discards of bytes are not what a disk's bandwidth is asked for. */
static bool moves_data(unsigned op)
{
	return op < 2;
}

static void subtract(struct rates_volume *v, const Ringvol__V1__Io *io)
{
	struct hist all = {0};
	for (unsigned i = 0; i < RATES_OPS; i++) {
		const Ringvol__V1__IoOp *now = io_op(io, i);
		struct rates_op *op = &v->op[i];
		struct hist latency, between;
		*op = (struct rates_op){0};
		if (now == NULL)
			continue;
		op->ops = since(now->ops, v->ops[i]);
		op->bytes = moves_data(i) ? since(now->bytes, v->bytes[i]) : 0;
		op->errors = since(now->errors, v->errors[i]);
		op->errors_total = now->errors;
		op->in_flight = now->in_flight;
		hist_of(now->latency, &latency);
		hist_since(&latency, &v->latency[i], &between);
		set_quantiles(op, &between);
		for (unsigned b = 0; b < HIST_BUCKETS; b++)
			all.count[b] += between.count[b];
		v->ops[i] = now->ops;
		v->bytes[i] = now->bytes;
		v->errors[i] = now->errors;
		v->latency[i] = latency;
	}
	sum(v, &all);
}

static void forget_counters(struct rates_volume *v)
{
	memset(v->ops, 0, sizeof(v->ops));
	memset(v->bytes, 0, sizeof(v->bytes));
	memset(v->errors, 0, sizeof(v->errors));
	memset(v->latency, 0, sizeof(v->latency));
}

/* known: it was in the answer before this one, `seconds` ago. */
static void take_volume(
	struct rates_volume *v, const Ringvol__V1__Volume *from, bool known, double seconds)
{
	const Ringvol__V1__Device *device = from->device;
	const char *path = device != NULL ? inventory_str(device->path) : "";
	/* Attached anew to the same device, its counters are smaller (Io.since is no help: it moves
	 * when somebody sets the clock). */
	if (known && strcmp(v->device, path) != 0)
		forget_counters(v);
	snprintf(v->device, sizeof(v->device), "%s", path);
	v->exact = from->io != NULL && from->io->exact;
	v->abnormal = from->n_conditions != 0;
	v->seconds = seconds;
	v->seen = true;
	subtract(v, from->io);
	/* What was counted before anybody looked is not this interval's. */
	v->counted = known && from->io != NULL;
	if (!known) {
		for (unsigned i = 0; i < RATES_OPS; i++) {
			v->op[i].ops = v->op[i].bytes = v->op[i].errors = 0;
			v->op[i].timed = false;
		}
		v->all.ops = v->all.bytes = v->all.errors = 0;
		v->all.timed = false;
		memset(v->history, 0, sizeof(v->history));
	}
}

/* ---- all of them ---- */

static int compare_id(const void *a, const void *b)
{
	return strcmp(((const struct rates_volume *)a)->id, ((const struct rates_volume *)b)->id);
}

static struct rates_volume *find(struct rates *rates, size_t known, const char *id)
{
	struct rates_volume *at = rates->at;
	size_t low = 0, high = known;
	while (low < high) {
		size_t mid = low + (high - low) / 2;
		int order = strcmp(at[mid].id, id);
		if (order == 0)
			return &at[mid];
		if (order < 0)
			low = mid + 1;
		else
			high = mid;
	}
	return NULL;
}

static struct rates_volume *add(struct rates *rates, const Ringvol__V1__Volume *from)
{
	if (array_grow(&rates->at, &rates->cap, rates->count, sizeof(*rates->at)) < 0)
		return NULL;
	struct rates_volume *v = &rates->at[rates->count];
	memset(v, 0, sizeof(*v));
	snprintf(v->id, sizeof(v->id), "%s", inventory_str(from->id));
	v->name = strdup(inventory_str(from->name));
	v->pool = strdup(inventory_str(from->pool));
	v->node = strdup(inventory_str(from->node));
	rates->count++; /* half-made ones are freed like the others */
	return v->name == NULL || v->pool == NULL || v->node == NULL ? NULL : v;
}

static void drop_unseen(struct rates *rates)
{
	size_t kept = 0;
	for (size_t i = 0; i < rates->count; i++) {
		if (rates->at[i].seen) {
			rates->at[kept++] = rates->at[i];
			continue;
		}
		free(rates->at[i].name);
		free(rates->at[i].pool);
		free(rates->at[i].node);
	}
	rates->count = kept;
}

/* One of another node as if it were of a pool, by the name of its owner. Until its id is known its
 * tag is in the place of that. -ENOMEM. */
static int as_volume(const struct inventory *inv, const Ringvol__V1__Borrowed *from,
	char key[RECORD_KEY_MAX], Ringvol__V1__Volume *ret)
{
	const char *name = inventory_borrowed_name(from, key), *owner = inventory_str(from->owner);
	const char *pool =
		*owner == '\0' ? "of another node" : arena_printf(inv->arena, "of %s", owner);
	if (pool == NULL)
		return -ENOMEM;
	ringvol__v1__volume__init(ret);
	ret->id = from->id.len != 0 ? from->id : from->tag;
	ret->name = (ProtobufCBinaryData){.len = strlen(name), .data = (uint8_t *)name};
	ret->pool = (ProtobufCBinaryData){.len = strlen(pool), .data = (uint8_t *)pool};
	ret->node = from->node;
	ret->device = from->device;
	ret->io = from->io;
	return 0;
}

/* known: how many the answer before had. */
static int take_one(
	struct rates *rates, const Ringvol__V1__Volume *from, size_t known, double seconds)
{
	struct rates_volume *v = find(rates, known, inventory_str(from->id));
	bool was_known = v != NULL;
	if (v == NULL)
		v = add(rates, from);
	if (v == NULL)
		return -ENOMEM;
	take_volume(v, from, was_known, seconds);
	return 0;
}

int rates_take(struct rates *rates, const struct inventory *inv, uint64_t monotonic_ns)
{
	double seconds = rates->last_ns == 0 ? 0 : (double)(monotonic_ns - rates->last_ns) / 1e9;
	size_t known = rates->count;
	int r = 0;
	for (size_t i = 0; i < known; i++)
		rates->at[i].seen = false;
	for (size_t i = 0; r == 0 && i < inv->volumes.count; i++)
		r = take_one(rates, (const void *)inv->volumes.at[i], known, seconds);
	for (size_t i = 0; r == 0 && i < inv->borrowed.count; i++) {
		Ringvol__V1__Volume volume;
		char key[RECORD_KEY_MAX];
		r = as_volume(inv, (const void *)inv->borrowed.at[i], key, &volume);
		if (r == 0)
			r = take_one(rates, &volume, known, seconds);
	}
	drop_unseen(rates);
	if (rates->count > 0)
		qsort(rates->at, rates->count, sizeof(*rates->at), compare_id);
	rates->last_ns = monotonic_ns;
	return r;
}

void rates_free(struct rates *rates)
{
	for (size_t i = 0; i < rates->count; i++)
		rates->at[i].seen = false;
	drop_unseen(rates);
	free(rates->at);
	*rates = (struct rates){0};
}

/* ---- order ---- */

static uint64_t value_of(const struct rates_volume *v, enum rates_key key)
{
	switch (key) {
	case RATES_BY_IOPS:
		return v->all.ops;
	case RATES_BY_READ:
		return v->op[0].ops;
	case RATES_BY_WRITE:
		return v->op[1].ops;
	case RATES_BY_BYTES:
		return v->all.bytes;
	case RATES_BY_P50:
		return v->all.p50_ns;
	case RATES_BY_P99:
		return v->all.p99_ns;
	case RATES_BY_IN_FLIGHT:
		return v->all.in_flight;
	case RATES_BY_ERRORS:
		return v->all.errors_total;
	case RATES_BY_NAME:
	case RATES_KEYS:
		break;
	}
	return 0;
}

struct order {
	enum rates_key key;
	bool reverse;
};

static int compare_by(const void *a, const void *b, void *arg)
{
	const struct rates_volume *x = *(const struct rates_volume *const *)a;
	const struct rates_volume *y = *(const struct rates_volume *const *)b;
	const struct order *order = arg;
	uint64_t v = value_of(x, order->key), w = value_of(y, order->key);
	int by_name = strcmp(x->name, y->name), by_id = strcmp(x->id, y->id);
	int names = by_name != 0 ? by_name : by_id;
	int result = v != w ? (v > w ? -1 : 1) : order->key == RATES_BY_NAME ? names : 0;
	if (order->reverse)
		result = -result;
	return result != 0 ? result : names;
}

const struct rates_volume **rates_sort(const struct rates *rates, enum rates_key key, bool reverse)
{
	if (rates->count == 0)
		return NULL;
	const struct rates_volume **all = calloc(rates->count, sizeof(const struct rates_volume *));
	if (all == NULL)
		return NULL;
	for (size_t i = 0; i < rates->count; i++)
		all[i] = &rates->at[i];
	struct order order = {key, reverse};
	qsort_r(all, rates->count, sizeof(const struct rates_volume *), compare_by, &order);
	return all;
}
