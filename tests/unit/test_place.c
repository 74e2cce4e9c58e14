/* SPDX-License-Identifier: Apache-2.0 */
/* Where a volume is made, and where ids and names are at home, by what the store has. */
#include "base/arena.h"
#include "controller/home.h"
#include "controller/place.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#define GIB (1ULL << 30)
#define KEY "topology.ringvol.dev/node"

static struct store *store;
static struct arena *arena; /* of topologies */

static void setup(void)
{
	cr_assert_eq(store_open(&store), 0);
	store_settle(store);
	arena = arena_new(0);
}

static void teardown(void)
{
	store_close(store);
	arena_unref(arena);
}

TestSuite(place, .init = setup, .fini = teardown);
TestSuite(home, .init = setup, .fini = teardown);

/* Its uuid begins with n, 8 times. */
static struct store_pool *add_pool(struct store_node *node, char n, const char *name,
	enum store_pool_state state, uint64_t available)
{
	struct err err = {0};
	struct store_pool *pool;
	char uuid[33] = "";
	memset(uuid, n, 32);
	cr_assert_eq(store_pool_set(
			     store, node, uuid, name, state, "of its why", available, &pool, &err),
		0, "%s", err.message);
	return pool;
}

static struct store_node *join(const char *id, const char *zone)
{
	struct err err = {0};
	struct store_node *node;
	struct store_segment segments[] = {{KEY, id}, {"zone", zone}};
	cr_assert_eq(store_join(store, id, id, "10.0.0.1:1", "1", segments, zone != NULL ? 2 : 1,
			     &node, &err),
		0, "%s", err.message);
	return node;
}

/* Present, with a pool "default" of that much room. */
static struct store_node *add_node(const char *id, const char *zone, char n, uint64_t available)
{
	struct store_node *node = join(id, zone);
	add_pool(node, n, "default", STORE_POOL_READY, available);
	store_synced(store, node);
	node->seen_unix = 1800000000;
	return node;
}

/* ---- topology from text: "node=a zone=x,node=b": terms, with segments ---- */

static Csi__V1__StringPair *segment_of(char *text)
{
	Csi__V1__StringPair *pair = arena_alloc(arena, sizeof(*pair));
	csi__v1__string_pair__init(pair);
	char *value = strchr(text, '=');
	*value++ = '\0';
	const char *key = strcmp(text, "node") == 0 ? KEY : text;
	pair->key = (ProtobufCBinaryData){strlen(key), (uint8_t *)arena_strdup(arena, key)};
	pair->value = (ProtobufCBinaryData){strlen(value), (uint8_t *)arena_strdup(arena, value)};
	return pair;
}

static size_t terms_of(const char *text, Csi__V1__Topology ***ret)
{
	size_t n = 0;
	*ret = arena_alloc(arena, 16 * sizeof(**ret));
	if (text == NULL)
		return 0;
	char *copy = arena_strdup(arena, text), *rest = copy, *term;
	while ((term = strsep(&rest, ",")) != NULL) {
		Csi__V1__Topology *topology = arena_alloc(arena, sizeof(*topology));
		csi__v1__topology__init(topology);
		topology->segments = arena_alloc(arena, 4 * sizeof(*topology->segments));
		char *segment;
		while ((segment = strsep(&term, " ")) != NULL)
			if (*segment != '\0')
				topology->segments[topology->n_segments++] = segment_of(segment);
		(*ret)[n++] = topology;
	}
	return n;
}

static const char *placed(const struct place *from, const char *requisite, const char *preferred)
{
	static char text[sizeof(((struct err *)NULL)->message) + 8];
	Csi__V1__TopologyRequirement topology = CSI__V1__TOPOLOGY_REQUIREMENT__INIT;
	struct place place = *from;
	struct store_node *node = NULL;
	struct err err = {0};
	topology.n_requisite = terms_of(requisite, &topology.requisite);
	topology.n_preferred = terms_of(preferred, &topology.preferred);
	place.topology = requisite != NULL || preferred != NULL ? &topology : NULL;
	place.pool = from->pool != NULL ? from->pool : "default";
	int r = place_choose(store, &place, &node, &err);
	if (r == 0)
		return node->id;
	snprintf(text, sizeof(text), "%s: %s", err_code_name(err.code), err.message);
	return text;
}

#define assert_placed(node, requisite, preferred, ...)                                             \
	cr_assert_str_eq(placed(&(struct place){__VA_ARGS__}, requisite, preferred), node)
/* Refused, with these words. */
#define assert_refused(words, requisite, ...)                                                      \
	do {                                                                                       \
		const char *said = placed(&(struct place){__VA_ARGS__}, requisite, NULL);          \
		cr_assert(strstr(said, words) != NULL, "%s", said);                                \
	} while (0)

Test(place, most_room_where_nothing_else_says)
{
	add_node("a", NULL, 'a', 10 * GIB);
	struct store_node *b = add_node("b", NULL, 'b', 30 * GIB);
	add_node("c", NULL, 'c', 20 * GIB);
	assert_placed("b", NULL, NULL);
	assert_placed("b", "node=a,node=b,node=c", NULL);
	assert_placed("c", "node=a,node=c", NULL);
	/* Room of another pool does not count, nor does that of one that is not ready. */
	add_pool(b, 'd', "fast", STORE_POOL_READY, 90 * GIB);
	struct store_node *c = store_node(store, "c");
	add_pool(c, 'e', "fast", STORE_POOL_SICK, 900 * GIB);
	assert_placed("b", NULL, NULL, .pool = "fast");
	assert_placed("c", "node=a,node=c", NULL);
	/* Equal room: always the same. */
	add_node("bb", NULL, '1', 30 * GIB);
	assert_placed("b", NULL, NULL);
}

Test(place, the_first_preferred_term_that_matches)
{
	add_node("a", "x", 'a', 10 * GIB);
	add_node("b", "y", 'b', 30 * GIB);
	add_node("c", "x", 'c', 20 * GIB);
	assert_placed("a", "node=a,node=b,node=c", "node=a,node=b");
	assert_placed("b", "node=a,node=b,node=c", "node=z,node=b,node=a");
	assert_placed("c", NULL, "zone=x,zone=y");
	assert_placed("b", NULL, "zone=y,zone=x");
	assert_placed("a", NULL, "zone=x node=a");
	/* A preferred one that is not requisite is none. */
	assert_placed("a", "node=a", "node=b,node=a");
	assert_placed("c", "zone=x", "zone=y");
	/* Nobody is preferred: requisite decides. */
	assert_placed("c", "zone=x", "zone=z,node=z");
	/* A term without segments is everywhere. */
	assert_placed("b", "", NULL);
	assert_placed("b", "node=nowhere,", NULL);
}

Test(place, every_segment_has_to_match)
{
	add_node("a", "x", 'a', 10 * GIB);
	add_node("b", "y", 'b', 30 * GIB);
	add_node("c", NULL, 'c', 50 * GIB);
	assert_placed("a", "zone=x node=a", NULL);
	assert_refused("no node matches", "zone=x node=b");
	assert_refused("no node matches", "zone=x node=c");
	assert_refused("no node matches", "rack=1");
	assert_placed("b", "zone=x node=b,zone=y", NULL);
}

Test(place, the_sources_own_node_among_equals)
{
	struct store_node *a = add_node("a", "x", 'a', 10 * GIB);
	add_node("b", "x", 'b', 30 * GIB);
	struct store_node *c = add_node("c", "y", 'c', 20 * GIB);
	assert_placed("a", NULL, NULL, .source = a);
	assert_placed("a", "zone=x", NULL, .source = a);
	assert_placed("b", "zone=x", NULL, .source = c);
	/* Who is preferred is not equal, and a source without room does not help. */
	assert_placed("c", NULL, "node=c,node=a", .source = a);
	assert_placed("b", NULL, NULL, .source = a, .size_bytes = 15 * GIB);
}

static void add_snapshot(struct store_node *node, const char *id, const char *of)
{
	struct err err = {0};
	cr_assert_eq(store_object_set(store, node, STORE_SNAPSHOT, id, NULL, 0, NULL, 0, of, &err),
		0, "%s", err.message);
}

Test(place, a_node_with_the_image_among_equals)
{
	struct store_node *a = add_node("a", "x", 'a', 10 * GIB);
	struct store_node *b = add_node("b", "x", 'b', 30 * GIB);
	add_node("c", "y", 'c', 20 * GIB);
	add_snapshot(a, "aaaaaaaa.root.01234567", "aaaaaaaa.import.root.0123abcd.01234567");
	add_snapshot(b, "bbbbbbbb.root.01234567", "bbbbbbbb.pvc.01234567");
	assert_placed("b", NULL, NULL);
	assert_placed("a", NULL, NULL, .image = "root");
	assert_placed("b", NULL, NULL, .image = "other");
	assert_placed("c", "zone=y", NULL, .image = "root");
	add_snapshot(b, "bbbbbbbb.root.01234567", "bbbbbbbb.import.root.0123abcd.fs.01234567");
	assert_placed("b", NULL, NULL, .image = "root");
	store_leave(store, b);
	assert_placed("a", NULL, NULL, .image = "root");
}

/* What a node told a second ago may be over: nobody is refused for it. */
Test(place, without_room_the_largest_is_asked)
{
	add_node("a", "x", 'a', 10 * GIB);
	add_node("b", "x", 'b', 30 * GIB);
	add_node("c", "y", 'c', 0);
	assert_placed("b", NULL, "node=a", .size_bytes = 11 * GIB);
	assert_placed("a", NULL, "node=a", .size_bytes = 10 * GIB);
	assert_placed("b", NULL, "node=a", .size_bytes = 31 * GIB);
	assert_placed("c", "node=c", NULL);
	assert_placed("a", "zone=y,node=a", "zone=y");
}

Test(place, who_is_away_makes_nothing)
{
	struct store_node *a = add_node("a", "x", 'a', 10 * GIB);
	assert_refused("has a pool none", NULL, .pool = "none");
	add_node("b", "y", 'b', 5 * GIB);
	store_leave(store, a);
	assert_placed("b", NULL, "node=a,node=b");
	assert_refused("node a was last heard of at 2027-01-15T08:00:00Z", "node=a");
	assert_refused("node a was last heard of at 2027-01-15T08:00:00Z", "zone=x");
	/* One that has not told everything may have the name. */
	struct store_node *c = join("c", "z");
	add_pool(c, 'c', "default", STORE_POOL_READY, 90 * GIB);
	assert_placed("b", NULL, NULL);
	assert_refused("no node that matches", "node=c");
}

Test(place, refusals_say_what_is_missing)
{
	struct err err = {0};
	struct store_node *node = NULL;
	struct place place = {.pool = "default"};
	cr_assert_lt(place_choose(store, &place, &node, &err), 0);
	cr_assert_eq(err.code, ERR_UNAVAILABLE);
	struct store_node *a = join("a", NULL);
	store_synced(store, a);
	err_clear(&err);
	cr_assert_lt(place_choose(store, &place, &node, &err), 0);
	cr_assert_eq(err.code, ERR_NO_ROOM);
	cr_assert_str_eq(
		err.message, "no node that matches accessibility_requirements has a pool default");
	add_pool(a, 'a', "default", STORE_POOL_MISSING, 0);
	err_clear(&err);
	cr_assert_lt(place_choose(store, &place, &node, &err), 0);
	cr_assert_eq(err.code, ERR_NO_ROOM);
	cr_assert(strstr(err.message, "a ready pool default; that of node a: of its why") != NULL,
		"%s", err.message);
	cr_assert_null(node);
}

/* ---- homes ---- */

#define ID_A "aaaaaaaa.vol.01234567"

static void tell(struct store_node *node, const char *id)
{
	struct err err = {0};
	cr_assert_eq(store_object_set(store, node, STORE_VOLUME, id, (const uint8_t *)"", 0, NULL,
			     0, "", &err),
		0, "%s", err.message);
}

static const char *home_of(const char *id)
{
	static char text[sizeof(((struct err *)NULL)->message) + 8];
	struct store_node *node;
	struct err err = {0};
	if (home_of_id(store, id, &node, &err) == 0)
		return node != NULL ? node->id : "";
	snprintf(text, sizeof(text), "%s: %s", err_code_name(err.code), err.message);
	return text;
}

static const char *name_home(const char *name)
{
	static char text[sizeof(((struct err *)NULL)->message) + 8];
	struct store_node *node;
	struct err err = {0};
	if (home_of_name(store, STORE_VOLUME, name, name, &node, &err) == 0)
		return node != NULL ? node->id : "";
	snprintf(text, sizeof(text), "%s: %s", err_code_name(err.code), err.message);
	return text;
}

#define assert_says(text, ...)                                                                     \
	do {                                                                                       \
		const char *const words[] = {__VA_ARGS__};                                         \
		const char *said = text;                                                           \
		for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)                      \
			cr_assert(strstr(said, words[i]) != NULL, "%s", said);                     \
	} while (0)

Test(home, an_id_is_where_its_pool_is)
{
	struct store_node *a = add_node("a", NULL, 'a', GIB);
	cr_assert_str_eq(home_of(ID_A), "a");
	/* None of ours: anybody knows that. */
	cr_assert_str_eq(home_of(""), "");
	cr_assert_str_eq(home_of("vol"), "");
	cr_assert_str_eq(home_of("aaaaaaaa.vol.0123456"), "");
	assert_says(home_of("bbbbbbbb.vol.01234567"), "unavailable", "bbbbbbbb",
		"--forget-pool bbbbbbbb");
	store_leave(store, a);
	assert_says(home_of(ID_A), "unavailable", "aaaaaaaa", "node a",
		"last heard of at 2027-01-15T08:00:00Z", "when it is back");
	/* It is back, and its pool is not there yet. */
	join("a", NULL);
	assert_says(home_of(ID_A), "unavailable", "aaaaaaaa", "node a");
}

Test(home, what_was_never_seen_and_what_is_gone_for_good)
{
	const char *pools[] = {"bbbbbbbb"};
	add_node("a", NULL, 'a', GIB);
	cr_assert_eq(store_roster(store, "b", pools, 1), 0);
	assert_says(home_of("bbbbbbbb.vol.01234567"), "unavailable", "node b", "has not joined");
	cr_assert_eq(store_forget(store, "bbbbbbbb"), 0);
	assert_says(home_of("bbbbbbbb.vol.01234567"), "not_found", "bbbbbbbb", "--forget-pool");
	cr_assert_eq(store_forget(store, "cccccccc"), 0);
	assert_says(home_of("cccccccc.vol.01234567"), "not_found", "cccccccc");
}

Test(home, a_name_is_where_it_was_begun)
{
	struct err err = {0};
	struct store_node *a = add_node("a", NULL, 'a', GIB), *other;
	cr_assert_str_eq(name_home("vol"), "");
	cr_assert_eq(store_name_claim(store, STORE_VOLUME, "vol", a, &other, &err), 0);
	cr_assert_str_eq(name_home("vol"), "a");
	tell(a, ID_A);
	cr_assert_str_eq(name_home("vol"), "a");
	store_leave(store, a);
	assert_says(name_home("vol"), "unavailable", "volume vol", "node a", "last heard of",
		"--forget-pool aaaaaaaa");
	/* Another name is not a's, as far as anybody knows. */
	add_node("b", NULL, 'b', GIB);
	cr_assert_str_eq(name_home("other"), "");
}

Test(home, a_name_that_somebody_unseen_may_have)
{
	assert_says(name_home("vol"), "unavailable");
	add_node("a", NULL, 'a', GIB);
	cr_assert_str_eq(name_home("vol"), "");
	const char *pools[] = {"bbbbbbbb"};
	cr_assert_eq(store_roster(store, "b", pools, 1), 0);
	assert_says(name_home("vol"), "unavailable", "b");
	/* It has told nothing yet. */
	struct store_node *b = join("b", NULL);
	add_pool(b, 'b', "default", STORE_POOL_READY, GIB);
	assert_says(name_home("vol"), "unavailable", "b");
	store_synced(store, b);
	cr_assert_str_eq(name_home("vol"), "");
}

Test(home, statuses_after_which_a_name_is_free)
{
	static const bool is_free[] = {
		[GRPC_INVALID_ARGUMENT] = true,
		[GRPC_NOT_FOUND] = true,
		[GRPC_ALREADY_EXISTS] = true,
		[GRPC_PERMISSION_DENIED] = true,
		[GRPC_RESOURCE_EXHAUSTED] = true,
		[GRPC_FAILED_PRECONDITION] = true,
		[GRPC_OUT_OF_RANGE] = true,
		[GRPC_UNIMPLEMENTED] = true,
		[GRPC_INTERNAL] = true,
		[GRPC_DATA_LOSS] = true,
		[GRPC_UNAUTHENTICATED] = true,
	};
	for (unsigned i = GRPC_OK; i <= GRPC_UNAUTHENTICATED; i++)
		cr_assert_eq(home_name_is_free((enum grpc_status)i), is_free[i], "%u", i);
}

Test(home, anywhere_is_where_somebody_is)
{
	cr_assert_null(home_anywhere(store));
	struct store_node *a = add_node("a", NULL, 'a', GIB);
	struct store_node *b = add_node("b", NULL, 'b', GIB);
	store_leave(store, a);
	cr_assert_eq(home_anywhere(store), b);
	store_leave(store, b);
	cr_assert_null(home_anywhere(store));
}
