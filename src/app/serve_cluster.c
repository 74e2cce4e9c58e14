/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Happy path: certificates are read -> a server of its own listens on --listen, with nothing but
 * what controllers and nodes need -> the controllers are dialled. An address in use is waited for:
 * the process before this one may still be ending. A controller that is away makes nobody unready.
 *
 * It fails for an address that is not this host's, and for want of memory.
 */
#include "app/serve_cluster.h"

#include "base/log.h"
#include "base/process.h"
#include "csi/services.h"
#include "transfer/send.h"

#include <errno.h>

enum { LISTEN_RETRY_MS = 1000, TRIM_MS = 5000 };

int serve_cluster_open_keys(struct serve_cluster *c, const struct serve_options *options,
	struct reactor *reactor, struct err *err)
{
	c->options = options;
	c->ring = reactor->ring;
	if (options->controller_count == 0)
		return 0;
	int r = tls_keys_open(
		&c->keys, &options->tls, options->csi.node_id, reactor->ring, reactor->work);
	return r < 0 ? err_sys(err, r, "certificates cannot be watched") : 0;
}

/* ---- listening ---- */

static void log_listening(const struct serve_cluster *c)
{
	log_event(LOG_LEVEL_INFO, "serving controllers and nodes",
		log_fields({"listen", c->options->listen}, {"advertise", c->options->advertise}));
}

static void on_retry(struct ring_timer *timer)
{
	struct serve_cluster *c = container_of(timer, struct serve_cluster, retry);
	struct err err = {0};
	if (server_listen_tls(c->server, c->options->listen, c->keys.tls, &err) < 0) {
		ring_timer_arm(c->ring, timer, LISTEN_RETRY_MS);
		return;
	}
	c->listening = true;
	log_listening(c);
	member_start(c->member);
}

/* Handshakes are rare, and what they need of OpenSSL is most of this process. */
static void on_trim(struct ring_timer *timer)
{
	struct serve_cluster *c = container_of(timer, struct serve_cluster, trim);
	process_drop_text("libcrypto.so");
	process_drop_text("libssl.so");
	ring_timer_arm(c->ring, timer, TRIM_MS);
}

static int listen_and_join(struct serve_cluster *c, struct err *err)
{
	struct err why = {0};
	int r = server_listen_tls(c->server, c->options->listen, c->keys.tls, &why);
	if (r == -EADDRINUSE) {
		log_event(LOG_LEVEL_WARN,
			"the address for controllers is in use, trying again until it is free",
			log_fields({"listen", c->options->listen},
				{"remedy",
					"end the other process, or give --listen another port"}));
		c->retry.fn = on_retry;
		ring_timer_arm(c->ring, &c->retry, LISTEN_RETRY_MS);
		return 0;
	}
	if (r < 0)
		return err_set(
			err, ERR_PRECONDITION, "--listen %s: %s", c->options->listen, why.message);
	c->listening = true;
	log_listening(c);
	member_start(c->member);
	return 0;
}

static int open_server(struct serve_cluster *c, struct csi *csi, struct err *err)
{
	const struct server_config config = {
		.ring = c->ring,
		.registry = c->registry = grpc_registry_new(),
		.limits = server_limits_default,
		.tls_limits = server_tls_limits_default,
	};
	int r = c->registry == NULL ? -ENOMEM : csi_register_routed(csi, c->registry);
	if (r >= 0)
		r = csi_register_member(csi, c->registry, 1 << GRPC_PEER_CONTROLLER);
	if (r >= 0)
		r = transfer_register(csi->transfer, c->registry, 1 << GRPC_PEER_NODE);
	if (r >= 0)
		r = server_open(&c->server, &config);
	return r < 0 ? err_sys(err, r, "the server for controllers cannot be opened") : 0;
}

int serve_cluster_open(
	struct serve_cluster *c, struct csi *csi, struct metrics *metrics, struct err *err)
{
	const struct serve_options *o = c->options;
	if (o->controller_count == 0)
		return 0;
	struct member_config config = {
		.n_controllers = o->controller_count,
		.address = o->advertise,
		.version = RINGVOL_VERSION,
		.tls = c->keys.tls,
	};
	for (unsigned i = 0; i < o->controller_count; i++)
		config.controllers[i] = o->controllers[i];
	int r = open_server(c, csi, err);
	config.registry = c->registry;
	if (r == 0)
		r = member_open(&c->member, csi, &config, err);
	if (r < 0)
		return r;
	metrics_cluster(metrics, c->registry, c->member);
	metrics_tls(metrics, c->keys.tls);
	c->trim.fn = on_trim;
	ring_timer_arm(c->ring, &c->trim, TRIM_MS);
	return listen_and_join(c, err);
}

/* ---- the end ---- */

static void stop_timers(struct serve_cluster *c)
{
	if (c->ring == NULL)
		return;
	ring_timer_cancel(c->ring, &c->retry);
	ring_timer_cancel(c->ring, &c->trim);
}

void serve_cluster_drain(
	struct serve_cluster *c, uint64_t timeout_ms, void (*on_drained)(void *arg), void *arg)
{
	c->draining = true;
	stop_timers(c);
	member_drain(c->member);
	if (c->server != NULL)
		server_drain(c->server, timeout_ms, on_drained, arg);
	else
		on_drained(arg);
}

bool serve_cluster_idle(const struct serve_cluster *c)
{
	return member_idle(c->member) &&
	       (c->registry == NULL || grpc_registry_in_flight(c->registry) == 0);
}

void serve_cluster_close_server(struct serve_cluster *c)
{
	stop_timers(c);
	server_close(c->server);
	c->server = NULL;
}

void serve_cluster_close(struct serve_cluster *c)
{
	member_close(c->member);
	grpc_registry_free(c->registry);
	c->member = NULL;
	c->registry = NULL;
}

void serve_cluster_close_keys(struct serve_cluster *c)
{
	tls_keys_close(&c->keys);
}
