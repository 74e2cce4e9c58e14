/* SPDX-License-Identifier: Apache-2.0 */
#include "inspect_lines.h"

#include "base/clock.h"
#include "pool/private.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* ---- what the probes and the trash say ---- */

struct counted counted;

int __wrap_probes_read(
	struct probes *probes, uint32_t major, uint32_t minor, struct probe_counters *ret);
enum probes_state __wrap_probes_state(const struct probes *probes);
const char *__wrap_probes_why(const struct probes *probes);
bool __wrap_pool_erasing(const struct pool *pool, uint64_t *ret_done, uint64_t *ret_total);
uint64_t __wrap_clock_of_monotonic(uint64_t monotonic_ns);

int __wrap_probes_read(
	struct probes *probes, uint32_t major, uint32_t minor, struct probe_counters *ret)
{
	cr_assert_eq((void *)probes, (void *)&counted);
	if (!counted.there || major != counted.major || minor != counted.minor)
		return -ENOENT;
	*ret = counted.counters;
	return 0;
}

enum probes_state __wrap_probes_state(const struct probes *probes)
{
	(void)probes;
	return counted.state;
}

const char *__wrap_probes_why(const struct probes *probes)
{
	(void)probes;
	return counted.state == PROBES_SYSFS ? "no BPF here" : "";
}

uint64_t erasing_total;

bool __wrap_pool_erasing(const struct pool *pool, uint64_t *ret_done, uint64_t *ret_total)
{
	(void)pool;
	*ret_done = 5;
	*ret_total = erasing_total;
	return erasing_total != 0;
}

/* Of 1970, so that a line can have it in full. */
uint64_t __wrap_clock_of_monotonic(uint64_t monotonic_ns)
{
	return monotonic_ns;
}

/* ---- the stream ---- */

struct got got;

static void on_message(struct grpc_local *local, const uint8_t *data, size_t len)
{
	(void)local;
	int n = snprintf(got.lines + got.len, sizeof(got.lines) - got.len, "%s%s",
		got.len > 0 ? "\n" : "",
		line_of(&ringvol__v1__list_response__descriptor, data, len));
	got.len += (size_t)n;
	cr_assert_lt(got.len, sizeof(got.lines));
	got.messages++;
}

static void on_end(struct grpc_local *local, enum grpc_status status, const char *message)
{
	(void)local;
	(void)message;
	got.ends++;
	got.status = status;
}

void begin_list(const Ringvol__V1__ListRequest *req, bool slowly)
{
	uint8_t packed[128];
	cr_assert_leq(protobuf_c_message_get_packed_size(&req->base), sizeof(packed));
	size_t len = protobuf_c_message_pack(&req->base, packed);
	memset(&got, 0, sizeof(got));
	got.local = (struct grpc_local){.on_message = on_message, .on_end = on_end, .full = slowly};
	grpc_dispatch_local(w->registry, "/ringvol.v1.Inspect/List", packed, len, &got.local);
}

void turn(void)
{
	cr_assert_eq(ring_turn(w->reactor.ring, true), 0);
}

const char *list_with(Ringvol__V1__ListRequest__Kind kind, bool attached_only, bool histograms)
{
	Ringvol__V1__ListRequest req = RINGVOL__V1__LIST_REQUEST__INIT;
	req.n_kinds = kind != KIND(ALL);
	req.kinds = &kind;
	req.attached_only = attached_only;
	req.histograms = histograms;
	begin_list(&req, false);
	for (unsigned i = 0; i < 100000 && got.ends == 0; i++)
		turn();
	cr_assert_eq(got.ends, 1);
	cr_assert_eq(got.status, GRPC_OK);
	return got.lines;
}

const char *list(Ringvol__V1__ListRequest__Kind kind)
{
	return list_with(kind, false, false);
}

/* ---- objects ---- */

struct pool_object *insert(enum record_kind kind, const char *name)
{
	struct pool_found found = {
		.rec = plain_record(kind, name, "0123abcd", 16 * MIB), .kind = kind};
	found.rec->fs = kind == RECORD_VOLUME ? FSIMG_NONE : FSIMG_EXT4;
	strcpy(found.key, found.rec->key);
	struct pool_object *object = pool_index_insert(pools_at(w->pools, 0), &found);
	cr_assert_not_null(object);
	return object;
}

struct pool_object *insert_damaged(
	unsigned pool, enum record_kind kind, const char *key, const char *why)
{
	struct pool_found found = {.why = why, .kind = kind};
	strcpy(found.key, key);
	struct pool_object *o = pool_index_insert(pools_at(w->pools, pool), &found);
	cr_assert_not_null(o);
	return o;
}

void take_out(struct pool_object *object)
{
	pool_index_remove(object);
	pool_object_free(object);
}
