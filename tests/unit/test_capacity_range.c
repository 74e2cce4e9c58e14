/* SPDX-License-Identifier: Apache-2.0 */
/* Capacity ranges and topology: no size wraps, every refusal names the field. */
#include "csi/messages.h"
#include "csi/request.h"

#include <criterion/criterion.h>

#define MIB (1ULL << 20)

struct wanted {
	int64_t required, limit;
	uint64_t default_bytes, min_bytes;
	enum err_code code;
	uint64_t size;
};

static void check(const struct wanted *w)
{
	Csi__V1__CapacityRange range = CSI__V1__CAPACITY_RANGE__INIT;
	range.required_bytes = w->required;
	range.limit_bytes = w->limit;
	uint64_t size = 1, limit = 1;
	struct err err = {0};
	int r = csi_capacity(&range, w->default_bytes, w->min_bytes, &size, &limit, &err);
	cr_expect_eq(err.code, w->code, "required %lld limit %lld: %s", (long long)w->required,
		(long long)w->limit, err.message);
	if (w->code != ERR_OK) {
		cr_expect_lt(r, 0);
		cr_expect(strncmp(err.message, "capacity_range: ", 16) == 0, "%s", err.message);
		cr_expect(size == 1 && limit == 1, "outputs are untouched on failure");
		return;
	}
	cr_expect_eq(r, 0);
	cr_expect_eq(size, w->size, "required %lld limit %lld: %llu", (long long)w->required,
		(long long)w->limit, (unsigned long long)size);
	cr_expect_eq(limit, (uint64_t)w->limit);
}

Test(capacity_range, table)
{
	static const struct wanted table[] = {
		/* nothing asked for: the default; or what the limit leaves of it */
		{0, 0, 1024 * MIB, 16 * MIB, ERR_OK, 1024 * MIB},
		{0, 100 * (int64_t)MIB, 1024 * MIB, 16 * MIB, ERR_OK, 100 * MIB},
		{0, 100 * (int64_t)MIB + 1, 1024 * MIB, 16 * MIB, ERR_OK, 100 * MIB},
		{0, 2048 * (int64_t)MIB, 1024 * MIB, 16 * MIB, ERR_OK, 1024 * MIB},
		{0, 15 * (int64_t)MIB, 1024 * MIB, 16 * MIB, ERR_RANGE, 0},
		/* rounded up to 1 MiB, and to the least */
		{1, 0, 1024 * MIB, 16 * MIB, ERR_OK, 16 * MIB},
		{20 * (int64_t)MIB, 0, 1024 * MIB, 16 * MIB, ERR_OK, 20 * MIB},
		{20 * (int64_t)MIB + 1, 0, 1024 * MIB, 16 * MIB, ERR_OK, 21 * MIB},
		{20 * (int64_t)MIB, 20 * (int64_t)MIB, 1024 * MIB, 16 * MIB, ERR_OK, 20 * MIB},
		/* no multiple of 1 MiB lies between */
		{20 * (int64_t)MIB + 1, 20 * (int64_t)MIB + 2, 0, 16 * MIB, ERR_RANGE, 0},
		{20 * (int64_t)MIB, 20 * (int64_t)MIB - 1, 0, 16 * MIB, ERR_RANGE, 0},
		/* the least is more than the limit (xfs) */
		{20 * (int64_t)MIB, 200 * (int64_t)MIB, 0, 300 * MIB, ERR_RANGE, 0},
		{20 * (int64_t)MIB, 300 * (int64_t)MIB, 0, 300 * MIB, ERR_OK, 300 * MIB},
		/* expansion: default and least are the volume's size */
		{0, 400 * (int64_t)MIB, 300 * MIB, 300 * MIB, ERR_OK, 300 * MIB},
		{0, 200 * (int64_t)MIB, 300 * MIB, 300 * MIB, ERR_RANGE, 0},
		{100 * (int64_t)MIB, 0, 300 * MIB, 300 * MIB, ERR_OK, 300 * MIB},
		/* nonsense */
		{-1, 0, MIB, MIB, ERR_INVALID, 0},
		{0, -1, MIB, MIB, ERR_INVALID, 0},
		{INT64_MIN, INT64_MIN, MIB, MIB, ERR_INVALID, 0},
		{INT64_MAX, 0, MIB, MIB, ERR_RANGE, 0},
		{INT64_MAX, INT64_MAX, MIB, MIB, ERR_RANGE, 0},
		{(int64_t)CSI_SIZE_MAX, INT64_MAX, MIB, MIB, ERR_OK, CSI_SIZE_MAX},
		{(int64_t)CSI_SIZE_MAX + 1, 0, MIB, MIB, ERR_RANGE, 0},
	};
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
		check(&table[i]);
}

Test(capacity_range, missing)
{
	uint64_t size, limit;
	struct err err = {0};
	cr_assert_eq(csi_capacity(NULL, 64 * MIB, 16 * MIB, &size, &limit, &err), 0);
	cr_expect_eq(size, 64 * MIB);
	cr_expect_eq(limit, 0);
}

/* ---- topology ---- */

static const char *const here = "node-1";

static bool met(const Csi__V1__TopologyRequirement *req)
{
	struct err err = {0};
	int r = csi_check_topology(req, here, &err);
	cr_expect_eq(err.code, r == 0 ? ERR_OK : ERR_NO_ROOM);
	return r == 0;
}

static void make(Csi__V1__Topology *topology, Csi__V1__StringPair *pair,
	Csi__V1__StringPair **pairs, const char *key, const char *value)
{
	csi__v1__topology__init(topology);
	csi__v1__string_pair__init(pair);
	pair->key = csi_bytes(key);
	pair->value = csi_bytes(value);
	pairs[0] = pair;
	topology->segments = pairs;
	topology->n_segments = 1;
}

Test(topology, is_here)
{
	Csi__V1__Topology topology = CSI__V1__TOPOLOGY__INIT;
	Csi__V1__StringPair pair, *pairs[1];
	cr_expect(csi_topology_is_here(NULL, here));
	cr_expect(csi_topology_is_here(&topology, here));
	make(&topology, &pair, pairs, CSI_TOPOLOGY_KEY, "node-1");
	cr_expect(csi_topology_is_here(&topology, here));
	make(&topology, &pair, pairs, CSI_TOPOLOGY_KEY, "node-2");
	cr_expect_not(csi_topology_is_here(&topology, here));
	make(&topology, &pair, pairs, "topology.kubernetes.io/zone", "node-1");
	cr_expect_not(csi_topology_is_here(&topology, here));
}

Test(topology, met)
{
	Csi__V1__TopologyRequirement req = CSI__V1__TOPOLOGY_REQUIREMENT__INIT;
	Csi__V1__Topology a, b, *list[2] = {&a, &b};
	Csi__V1__StringPair pair_a, pair_b, *pairs_a[1], *pairs_b[1];
	make(&a, &pair_a, pairs_a, CSI_TOPOLOGY_KEY, "node-2");
	make(&b, &pair_b, pairs_b, CSI_TOPOLOGY_KEY, "node-1");
	cr_expect(met(NULL));
	cr_expect(met(&req));
	req.preferred = list;
	req.n_preferred = 1;
	cr_expect(met(&req), "preferred alone is a wish");
	req.requisite = list;
	req.n_requisite = 1;
	cr_expect_not(met(&req));
	req.n_requisite = 2;
	cr_expect(met(&req), "any of requisite");
}

Test(topology, message)
{
	struct arena *arena = arena_new(0);
	const struct csi csi = {.config = {.node_id = here}};
	Csi__V1__Topology *topology = csi_topology_message(arena, &csi);
	cr_assert_not_null(topology);
	cr_expect(csi_topology_is_here(topology, here));
	cr_expect_eq(topology->n_segments, 1);
	arena_unref(arena);
}
