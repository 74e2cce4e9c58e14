/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes an address, at once or when its present owner lets go. It fails on an address that is not
 * this host's or not allowed: then the option is wrong.
 */
#include "app/serve_address.h"

#include "base/log.h"

#include <errno.h>
#include <stdio.h>

enum { RETRY_MS = 1000 };

static int try_once(struct serve_address *a, struct err *err)
{
	int r = a->tls != NULL ? server_listen_tls(a->server, a->address, a->tls, err)
			       : server_listen_http(a->server, a->address, err);
	if (r < 0)
		return r;
	a->listening = true;
	if (a->on_listening != NULL)
		a->on_listening(a);
	return 0;
}

static void on_retry(struct ring_timer *timer)
{
	struct serve_address *a = container_of(timer, struct serve_address, retry);
	struct err err = {0};
	if (try_once(a, &err) < 0)
		ring_timer_arm(a->ring, timer, RETRY_MS);
	else
		log_event(LOG_LEVEL_INFO, "the address is free and taken",
			log_fields({"flag", a->flag}, {"address", a->address}));
}

int serve_address_start(struct serve_address *a, struct err *err)
{
	struct err why = {0};
	char remedy[96];
	int r = try_once(a, &why);
	if (r == -EADDRINUSE) {
		snprintf(remedy, sizeof(remedy), "end the other process, or give %s another port",
			a->flag);
		log_event(LOG_LEVEL_WARN, "the address is in use, trying again until it is free",
			log_fields({"flag", a->flag}, {"address", a->address}, {"remedy", remedy}));
		a->retry.fn = on_retry;
		ring_timer_arm(a->ring, &a->retry, RETRY_MS);
		return 0;
	}
	return r < 0 ? err_set(err, ERR_PRECONDITION, "%s %s: %s", a->flag, a->address, why.message)
		     : 0;
}

void serve_address_stop(struct serve_address *a)
{
	if (a->ring != NULL)
		ring_timer_cancel(a->ring, &a->retry);
}
