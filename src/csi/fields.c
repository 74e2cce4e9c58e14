/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Capacity ranges and topology, as several requests carry them. Pure functions; what a range can
 * be wrong in is named, and no sum here can wrap.
 */
#include "csi/fields.h"

#include <inttypes.h>

static uint64_t round_up(uint64_t size_bytes)
{
	return (size_bytes + POOL_SIZE_ALIGN - 1) / POOL_SIZE_ALIGN * POOL_SIZE_ALIGN;
}

static uint64_t round_down(uint64_t size_bytes)
{
	return size_bytes / POOL_SIZE_ALIGN * POOL_SIZE_ALIGN;
}

/* What to aim for, before the least size and the rounding. */
static uint64_t wanted_size(uint64_t required, uint64_t limit, uint64_t default_bytes)
{
	if (required != 0)
		return required;
	return limit != 0 && limit < default_bytes ? round_down(limit) : default_bytes;
}

int csi_capacity(const Csi__V1__CapacityRange *range, uint64_t default_bytes, uint64_t min_bytes,
	uint64_t *ret_size, uint64_t *ret_limit, struct err *err)
{
	if (range != NULL && (range->required_bytes < 0 || range->limit_bytes < 0))
		return err_set(err, ERR_INVALID, "capacity_range: %s is negative",
			range->required_bytes < 0 ? "required_bytes" : "limit_bytes");
	uint64_t required = range == NULL ? 0 : (uint64_t)range->required_bytes;
	uint64_t limit = range == NULL ? 0 : (uint64_t)range->limit_bytes;
	if (limit != 0 && limit < required)
		return err_set(err, ERR_RANGE,
			"capacity_range: limit_bytes (%" PRIu64
			") is below required_bytes (%" PRIu64 ")",
			limit, required);
	if (required > CSI_SIZE_MAX)
		return err_set(err, ERR_RANGE,
			"capacity_range: required_bytes (%" PRIu64
			") is over the largest volume, %llu bytes",
			required, CSI_SIZE_MAX);
	uint64_t size = wanted_size(required, limit, default_bytes);
	size = round_up(size < min_bytes ? min_bytes : size);
	if (limit != 0 && size > limit)
		return err_set(err, ERR_RANGE,
			"capacity_range: limit_bytes (%" PRIu64
			") is too small, the least that serves is %" PRIu64
			" bytes (sizes are multiples of 1 MiB)",
			limit, size);
	*ret_size = size;
	*ret_limit = limit;
	return 0;
}

/* ---- topology ---- */

static bool is(const ProtobufCBinaryData *field, const char *s)
{
	return strcmp(csi_str(*field), s) == 0;
}

bool csi_topology_is_here(const Csi__V1__Topology *topology, const struct csi *csi)
{
	if (topology == NULL)
		return true;
	for (size_t i = 0; i < topology->n_segments; i++) {
		const Csi__V1__StringPair *segment = topology->segments[i];
		if (!is(&segment->key, CSI_TOPOLOGY_KEY) ||
			!is(&segment->value, csi->config.node_id))
			return false;
	}
	return true;
}

bool csi_topology_met(const Csi__V1__TopologyRequirement *req, const struct csi *csi)
{
	/* `preferred` alone is a wish. */
	if (req == NULL || req->n_requisite == 0)
		return true;
	for (size_t i = 0; i < req->n_requisite; i++)
		if (csi_topology_is_here(req->requisite[i], csi))
			return true;
	return false;
}

Csi__V1__Topology *csi_topology_message(struct arena *arena, const struct csi *csi)
{
	Csi__V1__Topology *topology = arena_new_of(arena, Csi__V1__Topology);
	Csi__V1__StringPair *segment = arena_new_of(arena, Csi__V1__StringPair);
	Csi__V1__StringPair **segments = arena_alloc(arena, sizeof(*segments));
	if (topology == NULL || segment == NULL || segments == NULL)
		return NULL;
	csi__v1__topology__init(topology);
	csi__v1__string_pair__init(segment);
	segment->key = csi_bytes(CSI_TOPOLOGY_KEY);
	segment->value = csi_bytes(csi->config.node_id);
	segments[0] = segment;
	topology->segments = segments;
	topology->n_segments = 1;
	return topology;
}
