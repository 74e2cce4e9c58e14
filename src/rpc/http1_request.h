/* SPDX-License-Identifier: Apache-2.0 */
/* One request of HTTP/1, read as it comes in. */
#ifndef RINGVOL_RPC_HTTP1_REQUEST_H
#define RINGVOL_RPC_HTTP1_REQUEST_H

#include "rpc/http1.h"

#include <llhttp.h>

struct http1_request {
	llhttp_t parser;
	size_t bytes; /* parsed of it */
	char target[HTTP1_TARGET_MAX + 1];
	size_t target_len;
	char field[8]; /* a header's name, as much as tells "host" from others */
	size_t field_len;
	unsigned hosts;
	unsigned refuse; /* the status to answer with; 0: none yet */
	bool last;       /* the client wants no request after it */
	const struct http1_route *routes;
	bool takes_body; /* its route does */
	size_t body_max;
	struct buf body;
};

/* Zeroed before the first one. routes: what tells whether a body may come. */
void http1_request_begin(struct http1_request *r, const struct http1_route *routes);
void http1_request_free(struct http1_request *r);
/* Parses up to the end of the request at most; returns how many bytes it took. *ret_status: 0: more
 * of it is to come, 200: it is complete, else the status to refuse it with. */
size_t http1_request_parse(struct http1_request *r, const uint8_t *data, size_t len,
	size_t bytes_max, unsigned *ret_status);
/* Of a complete request: "/metrics?x=y" and "http://host/metrics" are "/metrics". */
const char *http1_request_path(struct http1_request *r);
bool http1_request_is_head(const struct http1_request *r);
/* What the client speaks: HTTP/1.0 when true. */
bool http1_request_is_old(const struct http1_request *r);
/* "Not Found"; of the statuses that are answered here. */
const char *http1_status_name(unsigned status);
/* Why it is refused with this status, for a person. */
const char *http1_request_refusal(const struct http1_request *r, unsigned status);

#endif
