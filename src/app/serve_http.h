/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP address of `ringvol serve`: health and metrics beside CSI, never in its way. */
#ifndef RINGVOL_SERVE_HTTP_H
#define RINGVOL_SERVE_HTTP_H

#include "base/err.h"
#include "rpc/server.h"

struct serve_http {
	struct ring *ring;
	struct server *server;
	const char *address;
	bool listening;
	struct ring_timer retry;
};

/* Listens, or says that the address is in use and goes on trying: two drivers share a host's
 * network while one replaces the other, and neither may fail for that. Other errors are the
 * caller's. */
int serve_http_start(struct serve_http *http, struct ring *ring, struct server *server,
	const char *address, struct err *err);
/* Before the server drains or closes. */
void serve_http_stop(struct serve_http *http);

#endif
