/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a request. llhttp parses; it is fed one request at a time, and starts anew with each.
 *
 * What cannot be served has a status: too long a target (414) or header (431), another method than
 * the path's (405), a body where none is taken or too long a one (413), another version (505), no
 * single Host or anything malformed (400).
 */
#include "rpc/http1_request.h"

#include <string.h>

static int refuse(struct http1_request *r, unsigned status)
{
	r->refuse = status;
	return HPE_USER;
}

static int on_url(llhttp_t *parser, const char *at, size_t len)
{
	struct http1_request *r = parser->data;
	if (len > HTTP1_TARGET_MAX - r->target_len)
		return refuse(r, 414);
	memcpy(r->target + r->target_len, at, len);
	r->target_len += len;
	return 0;
}

static int on_header_field(llhttp_t *parser, const char *at, size_t len)
{
	struct http1_request *r = parser->data;
	for (size_t i = 0; i < len && r->field_len < sizeof(r->field); i++)
		r->field[r->field_len++] = at[i];
	return 0;
}

static int on_header_field_complete(llhttp_t *parser)
{
	struct http1_request *r = parser->data;
	r->hosts += r->field_len == 4 && strncasecmp(r->field, "host", 4) == 0;
	r->field_len = 0;
	return 0;
}

/* Of the target that has come. */
static void find_route(struct http1_request *r)
{
	const char *path = http1_request_path(r);
	for (const struct http1_route *route = r->routes; route->path != NULL; route++)
		if (strcmp(route->path, path) == 0)
			r->body_max = route->body_max;
	r->takes_body = r->body_max > 0;
}

static int check_method(struct http1_request *r, uint8_t method)
{
	if (r->takes_body)
		return method == HTTP_POST ? 0 : refuse(r, 405);
	return method == HTTP_GET || method == HTTP_HEAD ? 0 : refuse(r, 405);
}

static int on_headers_complete(llhttp_t *parser)
{
	struct http1_request *r = parser->data;
	uint8_t minor = llhttp_get_http_minor(parser);
	bool coded = (parser->flags & (F_CHUNKED | F_TRANSFER_ENCODING)) != 0;
	find_route(r);
	if (llhttp_get_http_major(parser) != 1)
		return refuse(r, 505);
	int res = check_method(r, llhttp_get_method(parser));
	if (res != 0)
		return res;
	if (r->takes_body ? parser->content_length > r->body_max
			  : parser->content_length > 0 || coded)
		return refuse(r, 413);
	if (r->hosts > 1 || (minor >= 1 && r->hosts == 0))
		return refuse(r, 400);
	/* Other protocols are offered to us in vain, as RFC 9110 allows. */
	parser->upgrade = 0;
	if (!llhttp_should_keep_alive(parser))
		r->last = true;
	return 0;
}

static int on_body(llhttp_t *parser, const char *at, size_t len)
{
	struct http1_request *r = parser->data;
	if (len > r->body_max - r->body.len)
		return refuse(r, 413);
	return buf_append(&r->body, at, len) < 0 ? refuse(r, 503) : 0;
}

static int on_message_complete(llhttp_t *parser)
{
	(void)parser;
	return HPE_PAUSED;
}

static const llhttp_settings_t settings = {
	.on_url = on_url,
	.on_header_field = on_header_field,
	.on_header_field_complete = on_header_field_complete,
	.on_headers_complete = on_headers_complete,
	.on_body = on_body,
	.on_message_complete = on_message_complete,
};

void http1_request_begin(struct http1_request *r, const struct http1_route *routes)
{
	r->routes = routes;
	r->takes_body = false;
	r->body_max = 0;
	buf_free(&r->body);
	llhttp_init(&r->parser, HTTP_REQUEST, &settings);
	r->parser.data = r;
	r->bytes = r->target_len = r->field_len = 0;
	r->hosts = r->refuse = 0;
	r->last = false;
}

void http1_request_free(struct http1_request *r)
{
	buf_free(&r->body);
}

static unsigned status_of(const struct http1_request *r, llhttp_errno_t error, size_t bytes_max)
{
	if (r->refuse != 0)
		return r->refuse;
	if (error == HPE_INVALID_VERSION || error == HPE_PAUSED_H2_UPGRADE)
		return 505;
	if (error != HPE_OK && error != HPE_PAUSED)
		return 400;
	if (r->bytes - r->body.len > bytes_max)
		return 431;
	return error == HPE_PAUSED ? 200 : 0;
}

size_t http1_request_parse(struct http1_request *r, const uint8_t *data, size_t len,
	size_t bytes_max, unsigned *ret_status)
{
	const char *text = (const char *)data;
	llhttp_errno_t error = llhttp_execute(&r->parser, text, len);
	const char *stop = error != HPE_OK ? llhttp_get_error_pos(&r->parser) : NULL;
	size_t used = stop >= text && stop <= text + len ? (size_t)(stop - text) : len;
	r->bytes += used;
	*ret_status = status_of(r, error, bytes_max);
	return used;
}

const char *http1_request_path(struct http1_request *r)
{
	char *path = r->target;
	path[r->target_len] = '\0';
	path[strcspn(path, "?#")] = '\0';
	if (strncasecmp(path, "http://", 7) != 0)
		return path;
	path = strchr(path + 7, '/');
	return path != NULL ? path : "/";
}

bool http1_request_is_head(const struct http1_request *r)
{
	return llhttp_get_method((llhttp_t *)&r->parser) == HTTP_HEAD;
}

bool http1_request_is_old(const struct http1_request *r)
{
	return llhttp_get_http_minor((llhttp_t *)&r->parser) == 0;
}

/* ---- statuses ---- */

static const struct status {
	unsigned number;
	const char *name;
	const char *refusal; /* why a request is answered with it */
} statuses[] = {
	{200, "OK"},
	{404, "Not Found"},
	{405, "Method Not Allowed", "the path is served with other methods: see Allow"},
	{408, "Request Timeout", "the request was not complete in time"},
	{413, "Content Too Large", "the request's body is too long, or the path takes none"},
	{414, "URI Too Long", "the request's target is too long"},
	{431, "Request Header Fields Too Large", "the request's header fields are too long"},
	{500, "Internal Server Error"},
	{503, "Service Unavailable", "out of memory"},
	{505, "HTTP Version Not Supported", "HTTP/1.0 and HTTP/1.1 are served"},
	{400, "Bad Request", "the request is malformed"},
};

static const struct status *find_status(unsigned number)
{
	const struct status *s = statuses;
	while (s->number != number && s->number != 400)
		s++;
	return s;
}

const char *http1_status_name(unsigned status)
{
	return find_status(status)->name;
}

const char *http1_request_refusal(const struct http1_request *r, unsigned status)
{
	return status == 400 && r->refuse != 0 ? "one Host field is needed"
					       : find_status(status)->refusal;
}
