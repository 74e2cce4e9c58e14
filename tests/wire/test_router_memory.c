/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of a controller of which an allocation fails, each once: they end, with the whole answer or
 * with an error that asks for a retry, and the next one is answered as before. */
#include "failing_arena.h"
#include "router_env.h"

#define PATH(name)  "/csi.v1.Controller/" name
#define GROUP(name) "/csi.v1.GroupController/" name
#define ID_A        "aaaaaaaa.vol.01234567"

/* ---- the allocation that fails ---- */

void *__wrap_calloc(size_t count, size_t size);
void *__real_calloc(size_t count, size_t size);

void *__wrap_calloc(size_t count, size_t size)
{
	return fails() ? NULL : __real_calloc(count, size);
}

/* ---- calls ---- */

static struct asked q;

static void setup(void)
{
	env_open();
	serve(NULL);
	join(&a, "a", 'a', GIB);
	join(&b, "b", 'b', GIB);
}

static void teardown(void)
{
	buf_free(&q.got);
	env_close();
}

TestSuite(router_memory, .init = setup, .fini = teardown, .timeout = 120);

struct question {
	const char *path;
	uint8_t data[64];
	size_t len;
};

/* Its field 1 is this, and its field 2, if that is given. */
static struct question question(const char *path, const char *first, const char *second)
{
	struct question ret = {.path = path};
	const char *const fields[] = {first, second};
	for (unsigned i = 0; i < 2 && fields[i] != NULL; i++) {
		ret.data[ret.len++] = (uint8_t)((i + 1) << 3 | 2);
		ret.data[ret.len++] = (uint8_t)strlen(fields[i]);
		memcpy(ret.data + ret.len, fields[i], strlen(fields[i]));
		ret.len += strlen(fields[i]);
	}
	return ret;
}

static void asks(const struct question *what)
{
	start_bytes(&q, what->path, what->data, what->len, 0);
	turn_until(q.ends == 1);
}

/* It asks for a retry; or a server had no memory for the call itself, and resets it. */
static bool is_passing(void)
{
	return q.status == GRPC_RESOURCE_EXHAUSTED || q.status == GRPC_UNAVAILABLE ||
	       (q.status == GRPC_INTERNAL && strstr(q.why, "has reset the call") != NULL);
}

enum { ALLOCATIONS_MAX = 300 };

/* How often it says that there is no memory. tolerant: an answer may tell less. */
static unsigned runs_out(const struct question *what, bool tolerant)
{
	struct buf whole = {0};
	unsigned refused = 0, before = a.calls;
	asks(what);
	unsigned calls = a.calls - before;
	cr_assert_eq(q.status, GRPC_OK, "%s: %s", what->path, q.why);
	cr_assert_eq(buf_append(&whole, q.got.data, q.got.len), 0);
	for (int n = 0;; n++) {
		failed = false;
		fails_after = n;
		before = a.calls;
		asks(what);
		fails_after = -1;
		if (!failed)
			break;
		refused += q.status == GRPC_RESOURCE_EXHAUSTED;
		if (q.status == GRPC_OK)
			cr_expect(tolerant ||
					  (a.calls - before == calls && q.got.len == whole.len &&
						  (whole.len == 0 || memcmp(q.got.data, whole.data,
									     whole.len) == 0)),
				"%s, allocation %d: another answer", what->path, n);
		else
			cr_expect(is_passing(), "%s, allocation %d: %d: %s", what->path, n,
				q.status, q.why);
		cr_expect(list_empty(&controller->forwards), "%s, allocation %d", what->path, n);
		cr_assert_lt(n, ALLOCATIONS_MAX, "%s", what->path);
		asks(what);
		cr_assert_eq(
			q.status, GRPC_OK, "%s, after allocation %d: %s", what->path, n, q.why);
		cr_expect_eq(q.got.len, whole.len);
	}
	buf_free(&whole);
	return refused;
}

Test(router_memory, of_what_exists)
{
	const struct question all[] = {
		question(PATH("DeleteVolume"), ID_A, NULL),
		question(PATH("ControllerGetVolume"), ID_A, NULL),
		question(PATH("ControllerExpandVolume"), ID_A, NULL),
		question(PATH("ValidateVolumeCapabilities"), ID_A, NULL),
		question(PATH("DeleteSnapshot"), ID_A, NULL),
		question(GROUP("DeleteVolumeGroupSnapshot"), ID_A, NULL),
		question(PATH("ListVolumes"), NULL, NULL),
		question(PATH("ListSnapshots"), NULL, NULL),
		question(PATH("GetCapacity"), NULL, NULL),
	};
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		cr_expect_gt(runs_out(&all[i], false), 0, "%s", all[i].path);
}

Test(router_memory, of_what_is_made)
{
	const struct question volume = question(PATH("CreateVolume"), "vol", NULL);
	answers_volume(&a, ID_A, 1 << 30);
	cr_expect_gt(runs_out(&volume, false), 0);
}

/* What cannot be said of a node is left out, and a node that cannot be asked is told of. */
Test(router_memory, of_a_list)
{
	const struct question all = question("/ringvol.v1.Inspect/List", NULL, NULL);
	cr_expect_gt(runs_out(&all, true), 0);
}

static void has_left(const char *pool)
{
	Ringvol__V1__GetDepartureResponse response = RINGVOL__V1__GET_DEPARTURE_RESPONSE__INIT;
	response.pool = text(pool);
	response.node_id = text("b");
	pack_into(&a.departed, &response.base);
}

/* The notes of its moves are followed; without one the refusal is passed on, with words. Between
 * two of them nothing fails: what was connected is so again. */
Test(router_memory, of_a_deleted_volume_that_had_moved)
{
	const struct question volume = question(PATH("DeleteVolume"), ID_A, NULL);
	a.status = GRPC_UNAVAILABLE;
	a.why = "it has left";
	for (unsigned lost = 0; lost < 2; lost++) {
		failed = true;
		for (int n = 0; failed; n++) {
			cr_assert_lt(n, ALLOCATIONS_MAX);
			has_left(lost ? "" : "bbbbbbbb");
			asks(&volume);
			cr_assert_eq(q.status, lost ? GRPC_UNAVAILABLE : GRPC_OK, "%s", q.why);
			has_left(lost ? "" : "bbbbbbbb");
			unsigned before = b.calls;
			failed = false;
			fails_after = n;
			asks(&volume);
			fails_after = -1;
			cr_expect(q.status == GRPC_OK || (is_passing() && q.why[0] != '\0' &&
								 strstr(q.why, "(null)") == NULL),
				"allocation %d: %d: %s", n, q.status, q.why);
			cr_expect(q.status != GRPC_OK || (!lost && b.calls > before),
				"allocation %d", n);
			cr_expect(list_empty(&controller->forwards), "allocation %d", n);
		}
	}
}
