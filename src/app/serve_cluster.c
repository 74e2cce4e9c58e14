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
#include "csi/services.h"
#include "transfer/send.h"

#include <errno.h>

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

/* Until then nothing is joined: a controller would call us here. */
static void on_listening(struct serve_address *listen)
{
	const struct serve_cluster *c = container_of(listen, struct serve_cluster, listen);
	log_event(LOG_LEVEL_INFO, "serving controllers and nodes",
		log_fields({"listen", c->options->listen}, {"advertise", c->options->advertise}));
	member_start(c->member);
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
	csi_arrivals_open(&c->arrivals, csi, c->registry);
	csi_cover_watch_open(&c->covers, csi);
	metrics_cluster(metrics, c->registry, c->member);
	metrics_tls(metrics, c->keys.tls);
	c->listen = (struct serve_address){.ring = c->ring,
		.server = c->server,
		.flag = "--listen",
		.address = o->listen,
		.tls = c->keys.tls,
		.on_listening = on_listening};
	return serve_address_start(&c->listen, err);
}

/* ---- the end ---- */

void serve_cluster_drain(
	struct serve_cluster *c, uint64_t timeout_ms, void (*on_drained)(void *arg), void *arg)
{
	c->draining = true;
	serve_address_stop(&c->listen);
	csi_arrivals_close(&c->arrivals);
	csi_cover_watch_close(&c->covers);
	member_drain(c->member);
	if (c->server != NULL)
		server_drain(c->server, timeout_ms, on_drained, arg);
	else
		on_drained(arg);
}

bool serve_cluster_idle(const struct serve_cluster *c)
{
	return member_idle(c->member) && csi_cover_watch_idle(&c->covers) &&
	       (c->registry == NULL || grpc_registry_in_flight(c->registry) == 0);
}

void serve_cluster_close_server(struct serve_cluster *c)
{
	serve_address_stop(&c->listen);
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
