/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes the HTTP address, at once or when its present owner lets go. It fails on an address that is
 * not this host's or not allowed: then the option is wrong.
 */
#include "app/serve_http.h"

#include "base/log.h"

#include <errno.h>

enum { HTTP_RETRY_MS = 5000 };

static void on_retry(struct ring_timer *timer)
{
	struct serve_http *http = container_of(timer, struct serve_http, retry);
	struct err err = {0};
	if (server_listen_http(http->server, http->address, &err) < 0)
		ring_timer_arm(http->ring, timer, HTTP_RETRY_MS);
	else
		log_event(LOG_LEVEL_INFO, "serving HTTP", log_fields({"http", http->address}));
}

int serve_http_start(struct serve_http *http, struct ring *ring, struct server *server,
	const char *address, struct err *err)
{
	*http = (struct serve_http){
		.ring = ring, .server = server, .address = address, .retry.fn = on_retry};
	struct err why = {0};
	int r = server_listen_http(server, address, &why);
	if (r == -EADDRINUSE) {
		log_event(LOG_LEVEL_WARN,
			"the HTTP address is in use, trying again until it is free",
			log_fields({"http", address},
				{"remedy", "end the other process, or give --http another port"}));
		ring_timer_arm(ring, &http->retry, HTTP_RETRY_MS);
		return 0;
	}
	http->listening = r == 0;
	return r < 0 ? err_set(err, ERR_PRECONDITION, "--http %s: %s", address, why.message) : 0;
}

void serve_http_stop(struct serve_http *http)
{
	if (http->ring != NULL)
		ring_timer_cancel(http->ring, &http->retry);
}
