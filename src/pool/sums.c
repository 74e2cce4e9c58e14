/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sums over a pool's objects, kept up with every change of the index: what its volumes were
 * promised, what is allocated, and what of the promise is there already.
 */
#include "pool/private.h"

static uint64_t promised_size(struct pool_object *o)
{
	if (o->kind != RECORD_VOLUME)
		return 0;
	return o->rec != NULL ? o->rec->size_bytes : pool_entry(o)->image_bytes;
}

/* What the object has already got of its promise. Never more than the promise: an image may take a
 * little more than its size. */
static uint64_t own_bytes(struct pool_object *o)
{
	uint64_t promised = promised_size(o);
	return o->shared ? 0 : o->allocated_bytes < promised ? o->allocated_bytes : promised;
}

void pool_sums_add(struct pool_object *o)
{
	o->pool->sum_size += promised_size(o);
	o->pool->sum_allocated += o->allocated_bytes;
	o->pool->sum_own += own_bytes(o);
}

void pool_sums_sub(struct pool_object *o)
{
	o->pool->sum_size -= promised_size(o);
	o->pool->sum_allocated -= o->allocated_bytes;
	o->pool->sum_own -= own_bytes(o);
}
