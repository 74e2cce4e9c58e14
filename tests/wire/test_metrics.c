/* SPDX-License-Identifier: Apache-2.0 */
/* The text of metrics, what bounds them, and a scrape in slices, without pools or devices. */
#include "metrics/private.h"

#include "metrics/metrics.h"
#include "rpc/grpc_local.h"

#include <criterion/criterion.h>

#define http_must(condition) cr_assert(condition)
#include "http1_peer.h"
#include "pool/pools.h"

/* ---- text ---- */

static const struct text_scale scale = {
	.count = 2, .bounds_ns = {1000, 2000000}, .le = {"0.000001", "0.002"}};

Test(metrics, text)
{
	struct buf b = {0};
	struct text t = {.out = &b};
	char labels[TEXT_LABELS_MAX];
	text_family(&t, "a_total", "counter", "What it is.");
	text_u64(&t, "a_total", NULL, NULL, 0);
	text_label(labels, false, "x", "quote\" back\\ line\nend");
	text_u64(&t, "a_total", labels, NULL, UINT64_MAX);
	text_label(labels, true, "y", "");
	text_seconds(&t, "a_total", labels, "z=\"1\"", 1234567890123);
	text_seconds(&t, "a_total", NULL, "z=\"1\"", 5);
	const uint64_t counts[] = {1, 0, 2};
	text_histogram(&t, "h", NULL, NULL, &scale, counts, 3000000001);
	text_histogram(&t, "h", "v=\"w\"", NULL, NULL, counts, 0);
	cr_assert_not(t.failed);
	buf_append(&b, "", 1);
	cr_assert_str_eq((char *)b.data,
		"# HELP a_total What it is.\n# TYPE a_total counter\n"
		"a_total 0\n"
		"a_total{x=\"quote\\\" back\\\\ line\\nend\"} 18446744073709551615\n"
		"a_total{x=\"quote\\\" back\\\\ line\\nend\",y=\"\",z=\"1\"} 1234.567890123\n"
		"a_total{z=\"1\"} 0.000000005\n"
		"h_bucket{le=\"0.000001\"} 1\nh_bucket{le=\"0.002\"} 1\nh_bucket{le=\"+Inf\"} 3\n"
		"h_sum 3.000000001\nh_count 3\n"
		"h_bucket{v=\"w\",le=\"+Inf\"} 1\nh_sum{v=\"w\"} 0.000000000\nh_count{v=\"w\"} 1\n");
	buf_free(&b);
}

/* The longest value that CSI allows, all of it to be escaped, fits; what does not is cut between
 * characters of ours, never past the end. */
Test(metrics, labels_have_room)
{
	char value[TEXT_LABELS_MAX * 2], labels[TEXT_LABELS_MAX];
	memset(value, '"', sizeof(value) - 1);
	value[RECORD_NAME_MAX] = '\0';
	text_label(labels, false, "volume", value);
	cr_assert_eq(strlen(labels), strlen("volume=\"\"") + 2 * RECORD_NAME_MAX);
	memset(value, '"', sizeof(value) - 1);
	value[sizeof(value) - 1] = '\0';
	text_label(labels, false, "volume", value);
	cr_assert_lt(strlen(labels), sizeof(labels));
	cr_assert_str_eq(labels + strlen(labels) - 3, "\\\"\"");
}

Test(metrics, bounds_are_inclusive)
{
	cr_assert_eq(text_scale_bucket(&scale, 0), 0);
	cr_assert_eq(text_scale_bucket(&scale, 1000), 0);
	cr_assert_eq(text_scale_bucket(&scale, 1001), 1);
	cr_assert_eq(text_scale_bucket(&scale, UINT64_MAX), 2);
	const struct text_scale *const scales[] = {&metrics_rpc_scale, &metrics_step_scale};
	for (unsigned k = 0; k < 2; k++)
		for (unsigned i = 0; i < scales[k]->count; i++) {
			cr_assert_eq((uint64_t)(strtod(scales[k]->le[i], NULL) * 1e9 + 0.5),
				scales[k]->bounds_ns[i]);
			cr_assert(i == 0 || scales[k]->bounds_ns[i] > scales[k]->bounds_ns[i - 1]);
		}
}

/* A hist's buckets end at the bounds of the scale or not at all. */
Test(metrics, regrouped_counts_are_exact)
{
	static const struct text_scale powers = {
		.count = 2, .bounds_ns = {1 << 14, 1 << 20}, .le = {"a", "b"}};
	struct hist hist = {0};
	uint64_t counts[3];
	const uint64_t values[] = {
		0, 512, (1 << 14) - 1, 1 << 14, (1 << 20) - 1, 1 << 20, 1ULL << 50};
	for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++)
		hist.count[hist_bucket(values[i])]++;
	text_scale_regroup(&powers, &hist, counts);
	cr_assert_eq(counts[0], 3);
	cr_assert_eq(counts[1], 2);
	cr_assert_eq(counts[2], 2);
}

/* ---- a driver without pools ---- */

static struct http_peer *p;
static struct reactor reactor;
static struct pools *pools;
static struct csi *csi;
static struct grpc_registry *registry;
static struct metrics *metrics;
static struct endpoints endpoints;

static void step_took(const char *op_name, const char *step_name, uint64_t ns)
{
	reactor.observer->after(reactor.observer->arg, op_name, step_name, ns);
}

static void setup(void)
{
	static const struct csi_config config = {.driver_name = "d", .node_id = "n"};
	p = http_peer_new();
	reactor.ring = p->ring;
	cr_assert_eq(work_open(&reactor.work, p->ring, 1), 0);
	cr_assert_eq(pools_open(&pools, &reactor, NULL, 0), 0);
	cr_assert_eq(csi_open(&csi, &config, &reactor, pools), 0);
	registry = grpc_registry_new();
	cr_assert_eq(metrics_open(&metrics, &reactor, csi, NULL, registry), 0);
	endpoints_init(&endpoints, csi, NULL, metrics);
	cr_assert_eq(http1_new(&p->http1, p->ring, &p->limits, endpoints.routes), 0);
	cr_assert_eq(http_peer_connect(p), 0);
}

static void teardown(void)
{
	struct ring *ring = p->ring;
	http_peer_disconnect(p);
	metrics_close(metrics);
	grpc_registry_free(registry);
	csi_close(csi);
	pools_close(pools);
	work_close(reactor.work);
	while (!http1_idle(p->http1))
		cr_assert_eq(ring_turn(ring, false), 0);
	http1_free(p->http1);
	ring_close(ring);
	free(p);
}

TestSuite(scrapes, .init = setup, .fini = teardown);

static char body[4 << 20];

static unsigned get(const char *path)
{
	char request[128];
	snprintf(request, sizeof(request), "GET %s HTTP/1.0\r\n\r\n", path);
	http_peer_feed(p, request, strlen(request));
	http_peer_settle(p);
	struct http_answer a;
	cr_assert(http_answer_parse(&a, p->out.data, p->out.len, false));
	const char *start = (const char *)memmem(p->out.data, p->out.len, "\r\n\r\n", 4) + 4;
	size_t len = p->out.len - (size_t)(start - (const char *)p->out.data);
	cr_assert_lt(len, sizeof(body));
	memcpy(body, start, len);
	body[len] = '\0';
	http_peer_disconnect(p);
	cr_assert_eq(http_peer_connect(p), 0);
	return a.status;
}

#define HAS(line)   cr_assert_not_null(strstr(body, "\n" line "\n"), "%s is not in\n%s", line, body)
#define LACKS(text) cr_assert_null(strstr(body, text))

static void on_end(struct grpc_local *local, enum grpc_status status, const char *message)
{
	(void)local;
	(void)message;
	cr_assert_eq(status, GRPC_UNIMPLEMENTED);
}

Test(scrapes, calls)
{
	struct grpc_local local = {.on_end = on_end};
	for (unsigned i = 0; i < 3; i++)
		grpc_dispatch_local(registry, "/none.v1.Such/Method", NULL, 0, &local);
	step_took("Stage", "mount", 5000000);
	step_took("Stage", "mount", 500000000);
	static char same[] = "Stage"; /* another address, the same name */
	step_took(same, "mount", 1);
	cr_assert_eq(get("/metrics"), 200);
	HAS("ringvol_operation_step_seconds_bucket{operation=\"Stage\",step=\"mount\",le=\"0.0001\"} 1");
	HAS("ringvol_operation_step_seconds_bucket{operation=\"Stage\",step=\"mount\",le=\"0.01\"} 2");
	HAS("ringvol_operation_step_seconds_bucket{operation=\"Stage\",step=\"mount\",le=\"+Inf\"} 3");
	HAS("ringvol_operation_step_seconds_sum{operation=\"Stage\",step=\"mount\"} 0.505000001");
	HAS("ringvol_rpc_duration_seconds_count{method=\"unknown\",code=\"UNIMPLEMENTED\"} 3");
	HAS("ringvol_rpc_duration_seconds_bucket{method=\"unknown\",code=\"UNIMPLEMENTED\",le="
	    "\"+Inf\"} 3");
	HAS("ringvol_rpc_in_flight 0");
	LACKS("\"other\"");
	LACKS("volume=");
	LACKS("pool=");
}

/* Past METRICS_STEPS_MAX pairs the rest is told of together, and what was there goes on. */
Test(scrapes, steps_are_bounded)
{
	static char names[METRICS_STEPS_MAX + 10][8];
	for (unsigned round = 0; round < 2; round++)
		for (unsigned i = 0; i < METRICS_STEPS_MAX + 10; i++) {
			snprintf(names[i], sizeof(names[i]), "s%u", i);
			step_took("Op", names[i], 1000);
		}
	cr_assert_eq(get("/metrics"), 200);
	HAS("ringvol_operation_step_seconds_count{operation=\"Op\",step=\"s0\"} 2");
	HAS("ringvol_operation_step_seconds_count{operation=\"Op\",step=\"s511\"} 2");
	HAS("ringvol_operation_step_seconds_count{operation=\"other\",step=\"other\"} 20");
	LACKS("s512");
	/* 4,600 lines came in pieces, none lost at a seam. */
	unsigned lines = 0;
	for (const char *at = body;
		(at = strstr(at, "ringvol_operation_step_seconds_bucket{")) != NULL; at++)
		lines++;
	cr_assert_eq(lines, (METRICS_STEPS_MAX + 1) * (metrics_step_scale.count + 1));
}

/* A measure of a pool that does not end is waited for once and not for long. */
Test(scrapes, a_measure_that_hangs)
{
	static const char request[] = "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";
	struct node_measure hangs = {.node = csi->node, .start_ns = ring_now_ns(p->ring)};
	list_push(&csi->node->measures, &hangs.link);
	http_peer_feed(p, request, strlen(request));
	http_peer_settle(p);
	struct http_answer a;
	cr_assert_not(http_answer_parse(&a, p->out.data, p->out.len, false), "it did not wait");
	http_peer_advance(p, METRICS_WAIT_MS + 1);
	http_peer_settle(p);
	cr_assert(http_answer_parse(&a, p->out.data, p->out.len, false));
	http_peer_disconnect(p);
	cr_assert_eq(http_peer_connect(p), 0);
	cr_assert(hangs.overdue);
	cr_assert_eq(get("/metrics"), 200); /* at once */

	/* Who came later waits for a measure that began later, and for that alone. */
	struct node_measure begun = {
		.node = csi->node, .start_ns = ring_now_ns(p->ring) + 100000000};
	list_push(&csi->node->measures, &begun.link);
	http_peer_feed(p, request, strlen(request));
	http_peer_settle(p);
	cr_assert_not(list_empty(&csi->node->refreshes));
	http_peer_advance(p, METRICS_WAIT_MS + 1);
	http_peer_settle(p);
	cr_assert(list_empty(&csi->node->refreshes));
	cr_assert_not(begun.overdue, "the first who waited has not waited for all of it");

	/* A client that leaves while it waits is forgotten. */
	http_peer_disconnect(p);
	cr_assert_eq(http_peer_connect(p), 0);
	http_peer_feed(p, request, strlen(request));
	http_peer_settle(p);
	cr_assert_not(list_empty(&csi->node->refreshes));
	http_peer_disconnect(p);
	cr_assert(list_empty(&csi->node->refreshes));
	cr_assert_eq(http_peer_connect(p), 0);
	list_remove(&begun.link);
	list_remove(&hangs.link);
}

Test(scrapes, readiness)
{
	cr_assert_eq(get("/healthz"), 200);
	cr_assert_eq(get("/readyz"), 503);
	cr_assert_not_null(strstr(body, "still looked for"), "%s", body);
	csi->node->adoption[BACKEND_LOOP].known_scan = 1;
	cr_assert_eq(get("/readyz"), 200);
	csi->node->draining = true;
	cr_assert_eq(get("/readyz"), 503);
	cr_assert_eq(get("/healthz"), 200);
}
