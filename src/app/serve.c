/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's life: owns the reactor, the pools, the services and the server, and wires them.
 *
 * The happy path: options, log, signals, limits; then the ring, work threads and helpers; the
 * pools load and the devices and mounts of earlier runs are adopted, each for START_WAIT_MS at
 * most; sockets, READY=1, the probes, and turns of the ring until SIGTERM. The drain: health says
 * not serving, no new operations, connections end, background work stops between two steps; when
 * all of it is idle everything is closed and the status is 0. What has not ended after DRAIN_MS, or
 * at a second SIGTERM, is cut off: every commit is durable or has not happened, so that is a crash
 * like any other, and the status is 0 as well.
 *
 * It fails to start for want of io_uring, memory or an endpoint. Pools do not matter: one that is
 * missing, sick or slow is waited for while the driver serves, and health says so.
 */
#include "app/serve.h"

#include "app/serve_address.h"
#include "app/serve_backends.h"
#include "app/serve_cluster.h"
#include "app/serve_docker.h"
#include "app/serve_duties.h"
#include "app/serve_options.h"
#include "app/serve_pools.h"
#include "app/serve_provider.h"
#include "attach/borrowed.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/process.h"
#include "csi/csi.h"
#include "csi/registration.h"
#include "csi/services.h"
#include "csi/task.h"
#include "descriptor_set.h"
#include "metrics/metrics.h"
#include "mount/mnt.h"
#include "pool/pool.h"
#include "probes/probes.h"
#include "reactor/op.h"
#include "reactor/ring_uring.h"
#include "rpc/health.h"
#include "rpc/reflection.h"
#include "rpc/server.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>

enum {
	START_WAIT_MS = 2500, /* for the pools, then for adoption; kubelet waits for the socket */
	DRAIN_MS = 9000,      /* the contract allows 10 s */
	DRAIN_TICK_MS = 10,   /* how often a drain looks whether all is idle */
};

/* A process only moves downwards here. */
enum serve_state {
	SERVE_STARTING,
	SERVE_SERVING,
	SERVE_DRAINING, /* also from STARTING, when some of it is not there yet */
	SERVE_CUT_OFF,  /* the ring stops, whatever still runs */
};

/* What a drain waits for: bits of struct serve's drained. */
enum {
	DRAINED_CSI = 1 << 0,
	DRAINED_SERVER = 1 << 1,
	DRAINED_REGISTRATION = 1 << 2,
	DRAINED_CLUSTER = 1 << 3,
	DRAINED_DOCKER = 1 << 4,
	DRAINED_PROVIDER = 1 << 5,
	DRAINED_ALL = (1 << 6) - 1,
};

struct serve {
	enum serve_state state;
	struct serve_options options;
	uint64_t start_ns; /* CLOCK_MONOTONIC */
	struct reactor reactor;
	helper_fn *calls[ATTACH_CALLS]; /* of helper processes */
	struct pools *pools;
	struct probes *probes;
	struct serve_backends backends;
	struct csi *csi;
	struct transfer *transfer;
	struct grpc_registry *registry;
	struct health *health;
	struct reflection *reflection;
	struct metrics *metrics;
	struct endpoints endpoints;
	struct server *server;
	struct registration *registration; /* NULL: not asked for */
	struct docker *docker;             /* NULL: not asked for */
	struct provider *provider;         /* NULL: not asked for */
	struct serve_address http;
	struct serve_cluster cluster;

	int signal_fd;
	struct ring_req signal_req;
	struct ring_timer timer; /* start: patience is over; drain: the next look */
	uint64_t drain_end_ns;
	bool waited_enough;
	bool pools_loaded, adopted;
	bool no_journal_said[POOLS_MAX];
	unsigned drained; /* bits; what was never opened counts as drained */
};

static void to_state(struct serve *s, enum serve_state state)
{
	assert(state > s->state);
	s->state = state;
}

/* ---- health ---- */

static void update_health(struct serve *s)
{
	struct err why = {0};
	health_set(s->health, s->state == SERVE_SERVING && csi_check_ready(s->csi, &why) == 0);
}

/* ---- adoption ---- */

static void on_adopted(void *arg)
{
	struct serve *s = arg;
	s->adopted = true;
	if (s->state == SERVE_SERVING)
		update_health(s);
}

static bool adopting(const struct serve *s)
{
	return s->csi != NULL && node_adopting(s->csi->node);
}

static void on_pools_loaded(void *arg)
{
	struct serve *s = arg;
	s->pools_loaded = true;
}

static void on_pool_changed(void *arg, struct pool *pool)
{
	struct serve *s = arg;
	if (s->state >= SERVE_DRAINING)
		return;
	if (s->csi != NULL && pool_state(pool) == POOL_READY)
		node_adopt(s->csi->node, on_adopted, s);
	if (s->state == SERVE_STARTING)
		return; /* the start says how all of them are */
	serve_pool_log(pool);
	serve_pool_log_no_journal(s->pools, pool, s->no_journal_said);
	update_health(s);
	member_pool_changed(s->cluster.member);
}

/* ---- drain ---- */

static void log_cut_off(struct serve *s, const char *why)
{
	char calls[16], connections[16];
	snprintf(calls, sizeof(calls), "%u",
		s->registry != NULL ? grpc_registry_in_flight(s->registry) : 0);
	snprintf(connections, sizeof(connections), "%u",
		s->server != NULL ? server_stats(s->server)->connections : 0);
	log_event(LOG_LEVEL_WARN, "stopped before all was idle",
		log_fields({"why", why}, {"calls", calls}, {"connections", connections},
			{"pools", pools_idle(s->pools) ? "idle" : "busy"},
			{"adoption", adopting(s) ? "running" : "idle"}));
	if (s->csi == NULL)
		return;
	list_for_each (node, &s->csi->tasks) {
		const struct csi_task *task = container_of(node, struct csi_task, link);
		log_event(LOG_LEVEL_WARN, "operation cut off",
			log_fields({"op", task->method}, {"volume", task->subject},
				{"step", task->op.steps[task->op.at].name}));
	}
}

static void cut_off(struct serve *s, const char *why)
{
	if (s->state == SERVE_CUT_OFF)
		return;
	log_cut_off(s, why);
	to_state(s, SERVE_CUT_OFF);
	ring_stop(s->reactor.ring);
}

static void on_csi_idle(void *arg)
{
	((struct serve *)arg)->drained |= DRAINED_CSI;
}

static void on_server_drained(void *arg)
{
	struct serve *s = arg;
	char count[16];
	s->drained |= DRAINED_SERVER;
	snprintf(count, sizeof(count), "%u", server_stats(s->server)->drain_cut);
	if (server_stats(s->server)->drain_cut != 0)
		log_event(LOG_LEVEL_WARN, "connections cut off",
			log_fields(
				{"why", "the time for draining is over"}, {"connections", count}));
}

static void on_registration_drained(void *arg)
{
	((struct serve *)arg)->drained |= DRAINED_REGISTRATION;
}

static void on_cluster_drained(void *arg)
{
	((struct serve *)arg)->drained |= DRAINED_CLUSTER;
}

static void on_docker_drained(void *arg)
{
	((struct serve *)arg)->drained |= DRAINED_DOCKER;
}

static void on_provider_drained(void *arg)
{
	((struct serve *)arg)->drained |= DRAINED_PROVIDER;
}

static void on_drain_tick(struct ring_timer *timer)
{
	struct serve *s = container_of(timer, struct serve, timer);
	/* A call whose client went away is in flight until its method ends it. */
	bool calls_over = (s->registry == NULL || grpc_registry_in_flight(s->registry) == 0) &&
			  serve_cluster_idle(&s->cluster) && docker_idle(s->docker) &&
			  provider_idle(s->provider) && transfer_idle(s->transfer);
	if (calls_over && s->drained == DRAINED_ALL && !adopting(s) && pools_idle(s->pools))
		ring_stop(s->reactor.ring);
	else if (ring_now_ns(s->reactor.ring) >= s->drain_end_ns)
		cut_off(s, "the time for draining is over");
	else
		ring_timer_arm(s->reactor.ring, timer, DRAIN_TICK_MS);
}

static void drain(struct serve *s, const char *why)
{
	to_state(s, SERVE_DRAINING);
	log_event(LOG_LEVEL_INFO, "draining", log_fields({"why", why}));
	(void)process_notify("STOPPING=1");
	s->drain_end_ns = ring_now_ns(s->reactor.ring) + DRAIN_MS * UINT64_C(1000000);
	s->drained = (s->csi == NULL ? DRAINED_CSI : 0) | (s->server == NULL ? DRAINED_SERVER : 0) |
		     (s->registration == NULL ? DRAINED_REGISTRATION : 0) |
		     (s->docker == NULL ? DRAINED_DOCKER : 0) |
		     (s->provider == NULL ? DRAINED_PROVIDER : 0);
	if (s->health != NULL)
		health_set(s->health, false);
	/* Kubelet first: it must not call a driver that is about to go. */
	if (s->registration != NULL)
		registration_drain(s->registration, DRAIN_MS, on_registration_drained, s);
	if (s->docker != NULL)
		docker_drain(s->docker, DRAIN_MS, on_docker_drained, s);
	if (s->provider != NULL)
		provider_drain(s->provider, DRAIN_MS, on_provider_drained, s);
	serve_cluster_drain(&s->cluster, DRAIN_MS, on_cluster_drained, s);
	pools_drain(s->pools);
	probes_stop();
	if (s->transfer != NULL)
		transfer_drain(s->transfer);
	if (s->csi != NULL)
		csi_drain(s->csi, on_csi_idle, s);
	serve_address_stop(&s->http);
	if (s->server != NULL)
		server_drain(s->server, DRAIN_MS, on_server_drained, s);
	s->timer.fn = on_drain_tick;
	ring_timer_arm(s->reactor.ring, &s->timer, 0);
}

static void watch_signals(struct serve *s);

static void on_signal(struct ring_req *req, int res, uint32_t flags)
{
	struct serve *s = container_of(req, struct serve, signal_req);
	struct signalfd_siginfo info;
	(void)res; /* a failed poll finds nothing to read below */
	(void)flags;
	while (read(s->signal_fd, &info, sizeof(info)) == sizeof(info)) {
		const char *name = info.ssi_signo == SIGINT ? "SIGINT" : "SIGTERM";
		if (s->state < SERVE_DRAINING)
			drain(s, name);
		else
			cut_off(s, "a second signal");
	}
	watch_signals(s);
}

static void watch_signals(struct serve *s)
{
	s->signal_req.fn = on_signal;
	io_uring_prep_poll_add(&s->signal_req.sqe, s->signal_fd, POLLIN);
	ring_submit(s->reactor.ring, &s->signal_req);
}

/* ---- start ---- */

static int open_reactor(struct serve *s, struct err *err)
{
	int r = ring_open(&s->reactor.ring, &(struct ring_config){0});
	if (r < 0)
		return ring_open_why(r, err);
	watch_signals(s);
	r = work_open(&s->reactor.work, s->reactor.ring, WORK_THREADS);
	if (r < 0)
		return err_sys(err, r, "work threads cannot be started");
	const char *kept[POOLS_MAX];
	for (unsigned i = 0; i < s->options.pool_count; i++)
		kept[i] = s->options.pools[i].path;
	attach_calls_fill(s->calls);
	r = mnt_roots_set(
		s->options.target_roots, s->options.target_root_count, kept, s->options.pool_count);
	if (r < 0)
		return err_sys(err, r, "taking note of where targets may be");
	r = helpers_open(&s->reactor.helpers, s->reactor.ring, s->calls, ATTACH_CALLS);
	if (r < 0)
		return err_sys(err, r, "helper processes cannot be started");
	return serve_cluster_open_keys(&s->cluster, &s->options, &s->reactor, err);
}

static void on_waited_enough(struct ring_timer *timer)
{
	container_of(timer, struct serve, timer)->waited_enough = true;
}

/* Turns until *flag, for START_WAIT_MS at most, or until a signal asks for the end. */
static int wait_for(struct serve *s, const bool *flag, struct err *err)
{
	int r = 0;
	s->waited_enough = false;
	s->timer.fn = on_waited_enough;
	ring_timer_arm(s->reactor.ring, &s->timer, START_WAIT_MS);
	while (r == 0 && !*flag && !s->waited_enough && s->state < SERVE_DRAINING)
		r = ring_turn(s->reactor.ring, true);
	if (s->state < SERVE_DRAINING) /* else the timer is the drain's */
		ring_timer_cancel(s->reactor.ring, &s->timer);
	return r < 0 ? err_sys(err, r, "the ring is broken") : 0;
}

static int open_pools(struct serve *s, struct err *err)
{
	int r = pools_open(&s->pools, &s->reactor, s->options.pools, s->options.pool_count);
	if (r < 0)
		return err_sys(err, r, "the pools cannot be opened");
	pools_serve_as(s->pools, s->options.csi.node_id);
	pools_start(s->pools, on_pools_loaded, on_pool_changed, s);
	return wait_for(s, &s->pools_loaded, err);
}

static void on_ublkd_returned(void *arg)
{
	struct serve *s = arg;
	if (s->csi != NULL && s->state < SERVE_DRAINING)
		node_adopt(s->csi->node, on_adopted, s);
}

static int open_csi(struct serve *s, struct err *err)
{
	int r = serve_backends_open(
		&s->backends, &s->options, &s->reactor, on_ublkd_returned, s, err);
	if (r < 0)
		return r;
	r = probes_open(&s->probes, &s->reactor);
	if (r >= 0)
		r = csi_open(&s->csi, &s->options.csi, &s->reactor, s->pools);
	if (r < 0)
		return err_sys(err, r, "the services cannot be opened");
	s->csi->node->probes = s->probes;
	s->csi->borrows->probes = s->probes;
	s->csi->borrows->waits = s->options.borrow;
	serve_duties_borrow(s->csi, &s->options);
	s->options.transfer.node_id = s->options.csi.node_id;
	s->options.transfer.tls = s->cluster.keys.tls;
	r = transfer_open(&s->transfer, &s->reactor, s->pools, s->csi->node, &s->options.transfer);
	if (r < 0)
		return err_sys(err, r, "copies between nodes cannot be served");
	s->csi->transfer = s->transfer;
	r = serve_duties_open(s->csi->node, &s->options);
	if (r < 0)
		return err_sys(err, r, "the volumes in use cannot be watched");
	node_adopt(s->csi->node, on_adopted, s);
	return wait_for(s, &s->adopted, err);
}

static int open_server(struct serve *s, struct err *err)
{
	s->registry = grpc_registry_new();
	if (s->registry == NULL)
		return err_sys(err, -ENOMEM, "the services cannot be registered");
	int r = csi_register(s->csi, s->registry);
	if (r < 0)
		return err_sys(err, r, "the services cannot be registered");
	s->health = health_new(s->registry);
	s->reflection = reflection_new(s->registry, proto_descriptor_set, proto_descriptor_set_len);
	if (s->health == NULL || s->reflection == NULL)
		return err_sys(err, -ENOMEM, "the health and reflection services cannot be opened");
	const struct server_config config = {
		.ring = s->reactor.ring,
		.registry = s->registry,
		.limits = server_limits_default,
		.http_routes = s->endpoints.routes,
		.http_limits = server_http_limits_default,
	};
	r = metrics_open(&s->metrics, &s->reactor, s->csi, NULL, s->registry);
	if (r < 0)
		return err_sys(err, r, "metrics cannot be kept");
	endpoints_init(&s->endpoints, s->csi, NULL, s->metrics);
	r = server_open(&s->server, &config);
	if (r < 0)
		return err_sys(err, r, "the server cannot be opened");
	for (unsigned i = 0; i < s->options.endpoint_count; i++) {
		r = server_listen(s->server, s->options.endpoints[i], err);
		if (r < 0)
			return err_sys(err, r, "cannot listen on %s", s->options.endpoints[i]);
	}
	if (s->options.http == NULL)
		return 0;
	s->http = (struct serve_address){.ring = s->reactor.ring,
		.server = s->server,
		.flag = "--http",
		.address = s->options.http};
	return serve_address_start(&s->http, err);
}

static int open_registration(struct serve *s, struct err *err)
{
	if (s->options.kubelet_registration == NULL)
		return 0;
	const struct registration_config config = {
		.dir = s->options.kubelet_registration,
		.driver_name = s->options.csi.driver_name,
		.endpoint = s->options.kubelet_endpoint,
	};
	int r = registration_open(&s->registration, &s->reactor, &config);
	return r < 0 ? err_sys(err, r, "registration with kubelet") : 0;
}

static void on_probes_loaded(void *arg)
{
	struct serve *s = arg;
	if (s->state >= SERVE_DRAINING) /* which stopped it */
		return;
	if (probes_state(s->probes) == PROBES_SYSFS)
		log_event(LOG_LEVEL_WARN,
			"volumes are counted without BPF: no latency histograms, no I/O errors",
			log_fields({"why", probes_why(s->probes)}));
	else if (probes_bios_why(s->probes)[0] != '\0')
		log_event(LOG_LEVEL_WARN,
			"volumes of raw pools are counted without BPF: no latency histograms, no I/O "
			"errors",
			log_fields({"why", probes_bios_why(s->probes)}));
}

static void say_serving(struct serve *s)
{
	struct buf endpoints = {0}, pools = {0};
	char startup_ms[32];
	struct pool *pool;
	for (unsigned i = 0; i < s->options.endpoint_count; i++)
		buf_printf(&endpoints, "%s%s", i == 0 ? "" : ",", s->options.endpoints[i]);
	for (unsigned i = 0; (pool = pools_at(s->pools, i)) != NULL; i++) {
		buf_printf(&pools, "%s%s:%s", i == 0 ? "" : ",", pool_name(pool),
			serve_pool_state(pool));
		if (pool_state(pool) != POOL_READY)
			serve_pool_log(pool);
		serve_pool_log_no_journal(s->pools, pool, s->no_journal_said);
	}
	if (!s->adopted)
		log_event(LOG_LEVEL_WARN, "devices and mounts of earlier runs are still looked for",
			NULL);
	snprintf(startup_ms, sizeof(startup_ms), "%.1f",
		(double)(clock_monotonic_ns() - s->start_ns) / 1e6);
	log_event(LOG_LEVEL_INFO, "serving",
		log_fields({"version", RINGVOL_VERSION}, {"driver", s->options.csi.driver_name},
			{"node", s->options.csi.node_id}, {"endpoints", (char *)endpoints.data},
			{"http", s->http.listening ? s->http.address : NULL},
			{"pools", (char *)pools.data}, {"startup_ms", startup_ms}));
	buf_free(&endpoints);
	buf_free(&pools);
}

/* Ends early, with 0, when a signal came. */
static int start(struct serve *s, struct err *err)
{
	process_claim_resources();
	process_hide_memory();
	int r = process_take_signals(&s->signal_fd);
	if (r < 0)
		return err_sys(err, r, "signals cannot be taken");
	r = open_reactor(s, err);
	if (r >= 0)
		r = open_pools(s, err);
	if (r < 0 || s->state >= SERVE_DRAINING)
		return r;
	r = open_csi(s, err);
	if (r < 0 || s->state >= SERVE_DRAINING)
		return r;
	r = open_server(s, err);
	if (r < 0)
		return r;
	r = open_registration(s, err);
	if (r >= 0)
		r = serve_docker_open(&s->docker, &s->options, s->csi, s->registry, err);
	if (r >= 0)
		r = serve_provider_open(&s->provider, &s->options, s->csi, s->registry, err);
	if (r >= 0)
		r = serve_cluster_open(&s->cluster, s->csi, s->metrics, err);
	if (r < 0)
		return r;
	to_state(s, SERVE_SERVING);
	update_health(s);
	say_serving(s);
	r = process_notify("READY=1");
	if (r < 0)
		log_event(LOG_LEVEL_WARN, "the service manager cannot be told READY=1",
			log_fields({"error", strerrordesc_np(-r)}));
	/* Not before: it takes longer than all of the start. */
	probes_start(s->probes, true, on_probes_loaded, s);
	return 0;
}

/* Top down; half of it may be missing. */
static void stop(struct serve *s)
{
	registration_close(s->registration);
	docker_close(s->docker);
	provider_close(s->provider);
	serve_address_stop(&s->http);
	server_close(s->server);
	serve_cluster_close_server(&s->cluster);
	metrics_close(s->metrics);
	reflection_free(s->reflection);
	health_free(s->health);
	grpc_registry_free(s->registry);
	serve_cluster_close(&s->cluster);
	transfer_close(s->transfer);
	csi_close(s->csi);
	serve_backends_close(&s->backends);
	pools_close(s->pools);
	serve_cluster_close_keys(&s->cluster);
	helpers_close(s->reactor.helpers);
	work_close(s->reactor.work);
	probes_close(s->probes);
	ring_close(s->reactor.ring);
	fd_close(&s->signal_fd);
	serve_options_free(&s->options);
}

int serve_main(int argc, char *const *argv)
{
	struct serve s = {.signal_fd = -1, .start_ns = clock_monotonic_ns()};
	struct options_result result = {0};
	struct err err = {0};
	if (serve_options_parse(&s.options, &result, argc, argv, &err) < 0) {
		fprintf(stderr, "ringvol serve: %s\n", err.message);
		serve_options_free(&s.options);
		return 2;
	}
	if (result.help) {
		options_print_help(&serve_command, stdout);
		serve_options_free(&s.options);
		return 0;
	}
	log_open(s.options.log_level, s.options.log_format);
	int r = start(&s, &err);
	if (r >= 0) {
		r = ring_run(s.reactor.ring);
		if (r < 0)
			err_sys(&err, r, "the ring is broken");
	}
	if (r < 0)
		log_event(LOG_LEVEL_ERROR, "cannot serve", log_fields({"error", err.message}));
	/* What still runs uses memory that closing would free; a socket left by a start that failed
	 * half way is stale and replaced by the next. */
	if (s.state == SERVE_CUT_OFF || (r < 0 && s.pools != NULL)) {
		server_close(s.server);
		_exit(r < 0 ? 1 : 0);
	}
	stop(&s);
	if (r >= 0)
		log_event(LOG_LEVEL_INFO, "stopped", NULL);
	return r < 0 ? 1 : 0;
}
