/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registration with kubelet. Owns a server of its own with one service, and the timer that looks
 * after its socket.
 *
 * The happy path: a work job makes the socket -> the server listens on it -> kubelet finds it, asks
 * GetInfo, calls the CSI services and tells NotifyRegistrationStatus. From then on the timer looks
 * whether the socket file is still ours.
 * How it can fail: the socket cannot be made, kubelet refuses; both are logged when they begin and
 * tried again for ever, because nothing else would.
 */
#include "csi/registration.h"

#include "base/fd.h"
#include "base/log.h"
#include "csi/messages.h"
#include "pluginregistration.pb-c.h"
#include "rpc/listen.h"
#include "rpc/server.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum {
	CONNECTIONS_MAX = 8, /* kubelet needs one */
	WHY_MAX = 512,       /* bytes of kubelet's reason that are logged */
};

struct registration {
	struct registration_config config;
	struct reactor *reactor;
	struct grpc_service service;
	struct grpc_registry *registry;
	struct server *server;
	struct ring_timer timer;

	/* making the socket, on a work thread */
	struct work_job job;
	bool job_running;
	char endpoint[sizeof("unix://") + sizeof(((struct sockaddr_un *)0)->sun_path)];
	struct listen_socket socket;
	struct err err;

	bool listening, failing; /* failing: it has been logged */
	bool registered, stopped;
	unsigned again_ms; /* the pause after the last refusal; 0: there was none */
};

/* ---- what kubelet asks ---- */

static void get_info(struct grpc_call *call, const ProtobufCMessage *request)
{
	(void)request;
	const struct registration *r = grpc_call_context(call);
	/* node-driver-registrar says the same for every CSI 1.x: kubelet only looks at the major.
	 */
	ProtobufCBinaryData versions[] = {csi_bytes("1.0.0")};
	Pluginregistration__PluginInfo info = PLUGINREGISTRATION__PLUGIN_INFO__INIT;
	info.type = csi_bytes("CSIPlugin");
	info.name = csi_bytes(r->config.driver_name);
	info.endpoint = csi_bytes(r->config.endpoint);
	info.supported_versions = versions;
	info.n_supported_versions = 1;
	grpc_reply(call, &info.base);
}

static void announce_later(struct registration *r, uint64_t delay_ms)
{
	r->registered = false;
	server_unlisten(r->server);
	r->listening = false;
	ring_timer_arm(r->reactor->ring, &r->timer, delay_ms);
}

static void on_refused(struct registration *r, const ProtobufCBinaryData *why)
{
	char text[WHY_MAX + 1];
	snprintf(text, sizeof(text), "%.*s", (int)(why->len < WHY_MAX ? why->len : WHY_MAX),
		(const char *)why->data);
	r->again_ms = r->again_ms == 0 ? REGISTRATION_AGAIN_MIN_MS : r->again_ms * 2;
	if (r->again_ms > REGISTRATION_AGAIN_MAX_MS)
		r->again_ms = REGISTRATION_AGAIN_MAX_MS;
	char again[16];
	snprintf(again, sizeof(again), "%u", r->again_ms / 1000);
	log_event(LOG_LEVEL_ERROR, "kubelet does not register the driver",
		log_fields({"driver", r->config.driver_name}, {"why", text}, {"again_s", again}));
	announce_later(r, r->again_ms);
}

static void on_registered(struct registration *r)
{
	r->again_ms = 0;
	if (r->registered)
		return;
	r->registered = true;
	log_event(LOG_LEVEL_INFO, "registered with kubelet",
		log_fields({"driver", r->config.driver_name},
			{"socket", r->endpoint + strlen("unix://")},
			{"endpoint", r->config.endpoint}));
}

static void notify_status(struct grpc_call *call, const ProtobufCMessage *request)
{
	const Pluginregistration__RegistrationStatus *status = (const void *)request;
	struct registration *r = grpc_call_context(call);
	Pluginregistration__RegistrationStatusResponse response =
		PLUGINREGISTRATION__REGISTRATION_STATUS_RESPONSE__INIT;
	if (status->plugin_registered)
		on_registered(r);
	else if (!r->stopped)
		on_refused(r, &status->error);
	grpc_reply(call, &response.base); /* the request goes with it */
}

static const struct grpc_method methods[] = {
	{"GetInfo", get_info},
	{"NotifyRegistrationStatus", notify_status},
	{NULL},
};

/* ---- the socket ---- */

/* It waits for a moment where a socket is in the way that somebody may live behind. */
static int listen_run(struct work_job *job)
{
	struct registration *r = container_of(job, struct registration, job);
	err_clear(&r->err);
	return listen_open(r->endpoint, &r->socket, &r->err);
}

static void listen_on_end(struct work_job *job, int res)
{
	struct registration *r = container_of(job, struct registration, job);
	r->job_running = false;
	if (res == 0 && r->stopped) {
		listen_unlink(&r->socket);
		fd_close(&r->socket.fd);
	} else if (res == 0) {
		res = server_listen_on(r->server, &r->socket);
	}
	if (r->stopped)
		return;
	r->listening = res == 0;
	if (res < 0 && !r->failing)
		log_event(LOG_LEVEL_WARN, "cannot register with kubelet yet",
			log_fields({"socket", r->endpoint + strlen("unix://")},
				{"error", r->err.message[0] != '\0' ? r->err.message
								    : "out of memory"}));
	r->failing = res < 0;
	ring_timer_arm(r->reactor->ring, &r->timer,
		res < 0 ? REGISTRATION_RETRY_MS : REGISTRATION_CHECK_MS);
}

static void announce(struct registration *r)
{
	r->job = (struct work_job){.run = listen_run, .on_end = listen_on_end};
	r->job_running = work_submit(r->reactor->work, &r->job) == 0;
	if (!r->job_running)
		ring_timer_arm(r->reactor->ring, &r->timer, REGISTRATION_RETRY_MS);
}

static void on_timer(struct ring_timer *timer)
{
	struct registration *r = container_of(timer, struct registration, timer);
	struct stat st;
	if (!r->listening) {
		announce(r);
		return;
	}
	/* A name in a directory of this machine's: looking it up does not wait. */
	if (lstat(r->socket.path, &st) == 0 && st.st_dev == r->socket.dev &&
		st.st_ino == r->socket.ino) {
		ring_timer_arm(r->reactor->ring, &r->timer, REGISTRATION_CHECK_MS);
		return;
	}
	log_event(LOG_LEVEL_WARN, "the registration socket is gone and made again",
		log_fields({"socket", r->socket.path}));
	announce_later(r, 0);
}

int registration_open(struct registration **ret, struct reactor *reactor,
	const struct registration_config *config)
{
	struct registration *r = calloc(1, sizeof(*r));
	if (r == NULL)
		return -ENOMEM;
	r->config = *config;
	r->reactor = reactor;
	r->socket.fd = -1;
	r->timer.fn = on_timer;
	r->service = (struct grpc_service){
		.descriptor = &pluginregistration__registration__descriptor,
		.methods = methods,
		.context = r,
	};
	struct server_config server = {.ring = reactor->ring, .limits = server_limits_default};
	server.limits.connections = CONNECTIONS_MAX;
	int len = snprintf(r->endpoint, sizeof(r->endpoint), "unix://%s/%s-reg.sock", config->dir,
		config->driver_name);
	int res = len >= (int)sizeof(r->endpoint) ? -ENAMETOOLONG : 0;
	if (res == 0) {
		r->registry = grpc_registry_new();
		res = r->registry == NULL ? -ENOMEM
					  : grpc_registry_add(r->registry, &r->service, NULL);
	}
	server.registry = r->registry;
	if (res == 0)
		res = server_open(&r->server, &server);
	if (res < 0) {
		grpc_registry_free(r->registry);
		free(r);
		return res;
	}
	announce(r);
	*ret = r;
	return 0;
}

void registration_drain(
	struct registration *r, uint64_t timeout_ms, void (*on_drained)(void *arg), void *arg)
{
	r->stopped = true;
	ring_timer_cancel(r->reactor->ring, &r->timer);
	server_drain(r->server, timeout_ms, on_drained, arg);
}

void registration_close(struct registration *r)
{
	if (r == NULL)
		return;
	r->stopped = true;
	ring_timer_cancel(r->reactor->ring, &r->timer);
	while (r->job_running)
		if (ring_turn(r->reactor->ring, true) < 0)
			return; /* a thread may still write to this memory */
	server_close(r->server);
	grpc_registry_free(r->registry);
	free(r);
}
