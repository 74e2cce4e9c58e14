/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys of a process of a cluster: read at the start, watched from then on, and what happens to them
 * logged. The files fail nothing but connections.
 */
#include "app/tls_options.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/process.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { SAY_NS = 1000000000, TRIM_MS = 5000 };

int tls_options_check(const struct tls_files *files, const char *who, struct err *err)
{
	const char *missing = files->cert == NULL  ? "--tls-cert"
			      : files->key == NULL ? "--tls-key"
			      : files->ca == NULL  ? "--tls-ca"
						   : NULL;
	if (missing == NULL)
		return 0;
	return err_set(err, ERR_INVALID,
		"%s needs %s: processes of a cluster know each other by certificates "
		"(docs/cluster.md)",
		who, missing);
}

static bool names_us(const struct tls_keys *keys, const struct grpc_peer *self)
{
	if (keys->node_id == NULL)
		return self->role == GRPC_PEER_CONTROLLER;
	return self->role == GRPC_PEER_NODE &&
	       (strcmp(self->node_id, "*") == 0 || strcmp(self->node_id, keys->node_id) == 0);
}

static void log_good(const struct tls_keys *keys)
{
	const struct grpc_peer *self = tls_self(keys->tls);
	char identity[TLS_IDENTITY_MAX];
	tls_identity_print(self, identity);
	if (names_us(keys, self))
		log_event(LOG_LEVEL_INFO, "certificates are in force",
			log_fields({"identity", identity}));
	else
		log_event(LOG_LEVEL_WARN,
			"the certificate is another process's, peers will refuse this one",
			log_fields({"identity", identity},
				{"remedy",
					keys->node_id == NULL
						? "give a controller one with the name ringvol://controller"
						: "give a node one with the name ringvol://node/ and its --node-id"}));
}

static void on_event(void *arg, const struct err *err, bool in_force)
{
	const struct tls_keys *keys = arg;
	if (err == NULL)
		log_good(keys);
	else if (in_force)
		log_event(LOG_LEVEL_WARN, "peers may refuse this process",
			log_fields({"why", err->message}));
	else if (tls_self(keys->tls) != NULL)
		log_event(LOG_LEVEL_WARN,
			"new certificates cannot be used, those read before stay in force",
			log_fields({"why", err->message}));
	else
		log_event(LOG_LEVEL_ERROR, "certificates cannot be used, nobody can connect",
			log_fields({"why", err->message}));
}

/* Whoever reaches the port can have himself refused as often as he likes: a line a second. */
static void on_refused(void *arg, const char *from, const char *why)
{
	struct tls_keys *keys = arg;
	uint64_t now = clock_monotonic_ns();
	char unsaid[16];
	if (keys->said_ns != 0 && now - keys->said_ns < SAY_NS) {
		keys->unsaid++;
		return;
	}
	snprintf(unsaid, sizeof(unsaid), "%u", keys->unsaid);
	log_event(LOG_LEVEL_WARN, "a peer is refused",
		log_fields({"from", from}, {"why", why},
			{"others", keys->unsaid > 0 ? unsaid : NULL}));
	keys->said_ns = now;
	keys->unsaid = 0;
}

/* Handshakes are rare, and what they need of OpenSSL's code is some megabytes. */
static void on_trim(struct ring_timer *timer)
{
	struct tls_keys *keys = container_of(timer, struct tls_keys, trim);
	process_drop_text("libcrypto.so");
	process_drop_text("libssl.so");
	ring_timer_arm(keys->ring, timer, TRIM_MS);
}

int tls_keys_open(struct tls_keys *keys, const struct tls_files *files, const char *node_id,
	struct ring *ring, struct work *work)
{
	struct err err = {0};
	*keys = (struct tls_keys){.node_id = node_id, .ring = ring, .trim.fn = on_trim};
	if (tls_open(&keys->tls, files, &err) < 0)
		keys->tls = tls_open_empty(err.message);
	if (keys->tls == NULL)
		return -ENOMEM;
	tls_on_refused(keys->tls, on_refused, keys);
	if (err.code != ERR_OK)
		on_event(keys, &err, false);
	else
		log_good(keys);
	const struct tls_watch_config config = {
		.ring = ring,
		.work = work,
		.tls = keys->tls,
		.files = *files,
		.on_event = on_event,
		.arg = keys,
	};
	int res = tls_watch_open(&keys->watch, &config);
	if (res < 0)
		tls_keys_close(keys);
	else
		ring_timer_arm(ring, &keys->trim, TRIM_MS);
	return res;
}

void tls_keys_close(struct tls_keys *keys)
{
	if (keys->ring != NULL)
		ring_timer_cancel(keys->ring, &keys->trim);
	tls_watch_close(keys->watch);
	tls_free(keys->tls);
	*keys = (struct tls_keys){0};
}
