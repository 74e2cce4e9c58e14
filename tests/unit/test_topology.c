/* SPDX-License-Identifier: Apache-2.0 */
/* Topology: which segments a node may have, what it tells of them, and which requirements it meets.
 */
#include "csi/messages.h"
#include "csi/topology.h"

#include <criterion/criterion.h>
#include <stdio.h>

static const struct csi_config alone = {.node_id = "node-1"};
static struct csi_config zoned = {.node_id = "node-1"};

#define ZONE "topology.kubernetes.io/zone"
#define RACK "example.com/rack"

static void zone_it(void)
{
	struct err err = {0};
	cr_assert_eq(csi_topology_add(&zoned, ZONE, "z1", &err), 0, "%s", err.message);
	cr_assert_eq(csi_topology_add(&zoned, RACK, "r.2", &err), 0, "%s", err.message);
}

/* ---- what may be given ---- */

static const char *refusal(const char *key, const char *value)
{
	static struct err err;
	struct csi_config config = {.node_id = "node-1"};
	err = (struct err){0};
	int r = csi_topology_add(&config, key, value, &err);
	cr_expect_eq(r == 0, err.code == ERR_OK);
	cr_expect_eq(config.n_topology, r == 0 ? 1 : 0);
	return r == 0 ? "" : err.message;
}

#define TAKEN(key, value)         cr_expect_str_eq(refusal(key, value), "")
#define REFUSED(key, value, part) cr_expect_not_null(strstr(refusal(key, value), part))

Test(topology, labels)
{
	char long_name[65], long_domain[260] = "";
	memset(long_name, 'a', 64);
	long_name[64] = '\0';
	for (unsigned i = 0; i < 64; i++)
		strcat(long_domain, i == 0 ? "a" : ".aaa"); /* 253 bytes */
	strcat(long_domain, "/k");
	TAKEN("zone", "a");
	TAKEN("Zone_1.x", "A-b_c.9");
	TAKEN(ZONE, "eu-1");
	TAKEN(long_domain, "a");
	TAKEN(long_name + 1, long_name + 1);
	memmove(long_domain + 1, long_domain, strlen(long_domain) + 1);
	REFUSED(long_domain, "a", "no label's");
	REFUSED(long_name, "a", "63");
	REFUSED("a", long_name, "63");
	static const char *const bad[] = {"", "/", "a/", "/a", "a/b/c", "-a", "a-", "a b", "a\x80",
		"A.b/c", "a..b/c", ".a/c", "a./c", "a_b/c", "-a.b/c"};
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		cr_expect_not_null(
			strstr(refusal(bad[i], "v"), "the key is no label's"), "%s", bad[i]);
	static const char *const bad_values[] = {"", "-a", "a-", "a/b", "a b", "\xc3\xa4"};
	for (unsigned i = 0; i < sizeof(bad_values) / sizeof(bad_values[0]); i++)
		cr_expect_not_null(strstr(refusal("k", bad_values[i]), "the value is no label's"),
			"%s", bad_values[i]);
	REFUSED(CSI_TOPOLOGY_KEY, "node-1", "--node-id");
	REFUSED("topology.ringvol.dev/NODE", "node-1", "--node-id");
}

Test(topology, given_twice_and_too_many)
{
	struct csi_config config = {.node_id = "node-1"};
	struct err err = {0};
	char keys[CSI_SEGMENTS_MAX + 1][16];
	for (unsigned i = 0; i <= CSI_SEGMENTS_MAX; i++)
		snprintf(keys[i], sizeof(keys[i]), "key-%u", i);
	cr_expect_eq(csi_topology_add(&config, keys[0], "a", &err), 0);
	cr_expect_lt(csi_topology_add(&config, "KEY-0", "a", &err), 0);
	cr_expect_str_eq(err.message, "the key is given twice");
	for (unsigned i = 1; i < CSI_SEGMENTS_MAX; i++)
		cr_expect_eq(csi_topology_add(&config, keys[i], "a", &err), 0);
	err = (struct err){0};
	cr_expect_lt(csi_topology_add(&config, keys[CSI_SEGMENTS_MAX], "a", &err), 0);
	cr_expect_not_null(strstr(err.message, "more than 16 segments"));
}

/* A client may keep at most 4 KiB of them. */
Test(topology, too_large)
{
	struct csi_config config = {.node_id = "node-1"};
	struct err err = {0};
	static char keys[CSI_SEGMENTS_MAX][260];
	unsigned count = 0;
	for (; count < CSI_SEGMENTS_MAX; count++) {
		keys[count][0] = '\0';
		for (unsigned i = 0; i < 62; i++)
			strcat(keys[count], i == 0 ? "a" : ".aaa");
		snprintf(keys[count] + strlen(keys[count]), 8, "/k%u", count);
		if (csi_topology_add(&config, keys[count], "a", &err) < 0)
			break;
	}
	cr_expect(count > 10 && count < CSI_SEGMENTS_MAX, "%u", count);
	cr_expect_not_null(strstr(err.message, "4096 bytes in all"));
}

/* The node's own segment counts as the longest that there may be. */
Test(topology, as_large_as_may_be)
{
	enum { OWN = sizeof(CSI_TOPOLOGY_KEY) - 1 + 256, EACH = 300 };
	static char keys[CSI_SEGMENTS_MAX][316];
	for (unsigned more = 0; more <= 1; more++) {
		struct csi_config config = {.node_id = "node-1"};
		struct err err = {0};
		unsigned left = 4096 - OWN + more, i = 0;
		for (; left > 0; i++) {
			/* The last two share what is left, so that each has a domain and a name. */
			unsigned bytes = left <= EACH ? left : left < 2 * EACH ? left / 2 : EACH;
			cr_assert(i < CSI_SEGMENTS_MAX && bytes > 241);
			memset(keys[i], 'a', sizeof(keys[i]));
			for (unsigned dot = 3; dot < 239; dot += 4)
				keys[i][dot] = '.';
			keys[i][239] = '/';
			keys[i][bytes - 1] = '\0'; /* the value has a byte as well */
			keys[i][bytes - 2] = (char)('a' + i);
			left -= bytes;
			int r = csi_topology_add(&config, keys[i], "v", &err);
			cr_expect_eq(r == 0, left > 0 || more == 0, "%u: %s", i, err.message);
		}
		cr_expect_eq(config.n_topology, i - more);
	}
}

/* ---- what is asked for ---- */

static bool met(const Csi__V1__TopologyRequirement *req, const struct csi_config *config)
{
	struct err err = {0};
	int r = csi_check_topology(req, config, &err);
	cr_expect_eq(err.code, r == 0 ? ERR_OK : ERR_NO_ROOM);
	return r == 0;
}

/* Up to two segments; a NULL key ends them. */
static Csi__V1__Topology *term(
	const char *key1, const char *value1, const char *key2, const char *value2)
{
	static Csi__V1__Topology terms[16];
	static Csi__V1__StringPair pairs[32], *lists[16][2];
	static unsigned used;
	unsigned at = used++ % 16;
	const char *const words[2][2] = {{key1, value1}, {key2, value2}};
	csi__v1__topology__init(&terms[at]);
	for (unsigned i = 0; i < 2 && words[i][0] != NULL; i++) {
		Csi__V1__StringPair *pair = lists[at][i] = &pairs[2 * at + i];
		csi__v1__string_pair__init(pair);
		pair->key = csi_bytes(words[i][0]);
		pair->value = csi_bytes(words[i][1]);
		terms[at].n_segments++;
	}
	terms[at].segments = lists[at];
	return &terms[at];
}

#define TERM1(k, v)         term(k, v, NULL, NULL)
#define TERM2(k, v, k2, v2) term(k, v, k2, v2)

Test(topology, is_here)
{
	zone_it();
	cr_expect(csi_topology_is_here(NULL, &alone));
	cr_expect(csi_topology_is_here(term(NULL, NULL, NULL, NULL), &alone));
	cr_expect(csi_topology_is_here(TERM1(CSI_TOPOLOGY_KEY, "node-1"), &alone));
	cr_expect_not(csi_topology_is_here(TERM1(CSI_TOPOLOGY_KEY, "node-2"), &alone));
	cr_expect_not(
		csi_topology_is_here(TERM1(ZONE, "z1"), &alone), "a key that it does not have");
	cr_expect(csi_topology_is_here(TERM1(ZONE, "z1"), &zoned));
	cr_expect_not(csi_topology_is_here(TERM1(ZONE, "z2"), &zoned));
	cr_expect_not(csi_topology_is_here(TERM1(ZONE, ""), &zoned));
	cr_expect(csi_topology_is_here(TERM2(ZONE, "z1", RACK, "r.2"), &zoned));
	cr_expect_not(
		csi_topology_is_here(TERM2(ZONE, "z1", RACK, "r.3"), &zoned), "every segment");
	cr_expect_not(csi_topology_is_here(TERM2(CSI_TOPOLOGY_KEY, "node-2", ZONE, "z1"), &zoned));
	cr_expect(csi_topology_is_here(TERM2(CSI_TOPOLOGY_KEY, "node-1", ZONE, "z1"), &zoned));
}

Test(topology, met)
{
	zone_it();
	Csi__V1__TopologyRequirement req = CSI__V1__TOPOLOGY_REQUIREMENT__INIT;
	Csi__V1__Topology *list[] = {TERM1(CSI_TOPOLOGY_KEY, "node-2"), TERM1(ZONE, "z2"),
		TERM2(ZONE, "z1", RACK, "r.2"), TERM1(CSI_TOPOLOGY_KEY, "node-1")};
	cr_expect(met(NULL, &alone));
	cr_expect(met(&req, &alone));
	req.preferred = list;
	req.n_preferred = 1;
	cr_expect(met(&req, &alone), "preferred alone is a wish");
	req.requisite = list;
	req.n_requisite = 2;
	cr_expect_not(met(&req, &zoned));
	req.n_requisite = 3;
	cr_expect(met(&req, &zoned), "any of requisite");
	cr_expect_not(met(&req, &alone));
	req.n_requisite = 4;
	cr_expect(met(&req, &alone));
}

Test(topology, refusal_names_all)
{
	zone_it();
	Csi__V1__TopologyRequirement req = CSI__V1__TOPOLOGY_REQUIREMENT__INIT;
	Csi__V1__Topology *list[] = {TERM1(ZONE, "z2")};
	struct err err = {0};
	req.requisite = list;
	req.n_requisite = 1;
	cr_expect_lt(csi_check_topology(&req, &zoned, &err), 0);
	cr_expect_str_eq(err.message,
		"accessibility_requirements: none of requisite is this node "
		"(topology.ringvol.dev/node=node-1, topology.kubernetes.io/zone=z1, example.com/rack=r.2)");
}

/* ---- what is told ---- */

Test(topology, message)
{
	zone_it();
	struct arena *arena = arena_new(0), *none = arena_new(1);
	const struct csi csi = {.config = zoned}, unzoned = {.config = alone};
	Csi__V1__Topology *topology = csi_topology_message(arena, &csi);
	cr_assert_not_null(topology);
	cr_expect_eq(topology->n_segments, 3);
	cr_expect(csi_topology_is_here(topology, &zoned));
	cr_expect_not(csi_topology_is_here(topology, &alone));
	topology = csi_topology_message(arena, &unzoned);
	cr_expect_eq(topology->n_segments, 1);
	cr_expect(csi_topology_is_here(topology, &alone));
	cr_expect_null(csi_topology_message(none, &csi));
	arena_unref(arena);
	arena_unref(none);
}
