/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The happy path: a name becomes addresses on a work thread, the ring connects a socket to the
 * first of them, and its owner gets the socket. An address that does not answer has its share of
 * the time that is left, then the next is tried.
 *
 * It fails when the name has no address or the resolver overstays, when no address answers in time,
 * and by what connect() says of the last one. The resolver cannot be stopped: a job that is not
 * waited for any more frees itself when it ends.
 */
#include "rpc/dial.h"

#include "base/address.h"
#include "base/fd.h"
#include "base/options.h"
#include "reactor/work.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

/* What a work thread does. It outlives a dial that was given up. */
struct resolve {
	struct work_job job;
	struct dial *dial; /* NULL: nobody waits */
	char host[256], port[6];
	int error; /* getaddrinfo()'s */
	int count;
	struct dial_address found[DIAL_ADDRESSES_MAX];
};

struct dial {
	struct dial_config config;
	struct resolve *resolve; /* under way */
	struct dial_address addresses[DIAL_ADDRESSES_MAX];
	int count, at;
	int fd;
	struct ring_req connect, failed; /* failed: before anything was begun */
	struct ring_timer timer;
	uint64_t end_ns;
	char why[512];
};

/* ---- addresses as text ---- */

static int parse_host(const char *text, struct dial_target *t, struct err *err)
{
	const char *colon = strrchr(text, ':');
	size_t len = colon != NULL ? (size_t)(colon - text) : 0;
	if (len == 0 || len >= sizeof(t->host) || strlen(colon + 1) >= sizeof(t->port))
		return err_set(err, ERR_INVALID, "\"%.64s\" is not HOST:PORT", text);
	char *end;
	unsigned long port = strtoul(colon + 1, &end, 10);
	if (colon[1] < '0' || colon[1] > '9' || *end != '\0' || port == 0 || port > 65535)
		return err_set(err, ERR_INVALID, "\"%.64s\" has no port from 1 to 65535", text);
	memcpy(t->host, text, len);
	strcpy(t->port, colon + 1);
	if (address_parse(text, &t->known.address, &t->known.len) == 0)
		return 0;
	t->known.len = 0;
	for (size_t i = 0; i < len; i++) {
		char c = t->host[i];
		if ((c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') &&
			c != '-' && c != '.' && c != '_')
			return err_set(err, ERR_INVALID,
				"\"%.64s\" is neither a host name nor an address", text);
	}
	return 0;
}

int dial_parse(const char *text, struct dial_target *ret, struct err *err)
{
	struct dial_target t = {0};
	if (strlen(text) >= sizeof(t.text))
		return err_set(err, ERR_INVALID, "the address is too long: \"%.64s...\"", text);
	strcpy(t.text, text);
	if (strncmp(text, "unix:", 5) == 0) {
		struct sockaddr_un *un = (struct sockaddr_un *)&t.known.address;
		const char *path = text + (strncmp(text, "unix://", 7) == 0 ? 7 : 5);
		int r = options_socket(path, true, err);
		if (r < 0)
			return r;
		un->sun_family = AF_UNIX;
		strcpy(un->sun_path, path);
		t.known.len = sizeof(*un);
		t.is_unix = true;
	} else {
		int r = parse_host(text, &t, err);
		if (r < 0)
			return r;
	}
	*ret = t;
	return 0;
}

bool dial_is_loopback(const struct dial_target *target)
{
	const struct sockaddr_storage *a = &target->known.address;
	if (target->known.len == 0)
		return false;
	if (a->ss_family == AF_INET)
		return ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr) >> 24 ==
		       IN_LOOPBACKNET;
	return a->ss_family == AF_INET6 &&
	       IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)a)->sin6_addr);
}

/* ---- how it ends ---- */

static void dial_free(struct dial *d)
{
	ring_timer_cancel(d->config.ring, &d->timer);
	ring_discard(d->config.ring, &d->connect);
	ring_discard(d->config.ring, &d->failed);
	fd_close(&d->fd);
	if (d->resolve != NULL)
		d->resolve->dial = NULL;
	free(d);
}

/* fd: the socket, which is on_end's from here on, or -errno. */
static void dial_end(struct dial *d, int fd)
{
	struct dial_config config = d->config;
	char why[sizeof(d->why)];
	memcpy(why, d->why, sizeof(why));
	if (fd >= 0)
		d->fd = -1;
	dial_free(d);
	config.on_end(config.arg, fd, fd >= 0 ? "" : why);
}

void dial_cancel(struct dial *d)
{
	if (d != NULL)
		dial_free(d);
}

/* ---- connecting ---- */

static void set_why(struct dial *d, int error)
{
	snprintf(d->why, sizeof(d->why), "cannot connect to %s: %s", d->config.target->text,
		strerror(-error));
}

static int connect_begin(struct dial *d)
{
	struct dial_address *to = &d->addresses[d->at];
	int family = to->address.ss_family, one = 1;
	d->fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (d->fd < 0)
		return -errno;
	if (family != AF_UNIX && setsockopt(d->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) < 0)
		return -errno;
	io_uring_prep_connect(&d->connect.sqe, d->fd, (struct sockaddr *)&to->address, to->len);
	ring_submit(d->config.ring, &d->connect);
	uint64_t now = ring_now_ns(d->config.ring);
	uint64_t left = d->end_ns > now ? d->end_ns - now : 0;
	ring_timer_arm(d->config.ring, &d->timer, left / 1000000 / (unsigned)(d->count - d->at));
	return 0;
}

/* Tries addresses from d->at on, and ends the dial when none is left. */
static void connect_next(struct dial *d)
{
	int error = -ENOENT;
	for (; d->at < d->count; d->at++) {
		error = connect_begin(d);
		if (error == 0)
			return;
		set_why(d, error);
		fd_close(&d->fd);
	}
	dial_end(d, error);
}

/* The address at hand does not do. */
static void address_failed(struct dial *d, int error)
{
	ring_discard(d->config.ring, &d->connect);
	fd_close(&d->fd);
	set_why(d, error);
	if (++d->at < d->count)
		connect_next(d);
	else
		dial_end(d, error);
}

static void on_connect(struct ring_req *req, int res, uint32_t flags)
{
	(void)flags;
	struct dial *d = container_of(req, struct dial, connect);
	if (res < 0)
		address_failed(d, res);
	else
		dial_end(d, d->fd);
}

static void on_timer(struct ring_timer *timer)
{
	struct dial *d = container_of(timer, struct dial, timer);
	if (d->resolve == NULL) {
		address_failed(d, -ETIMEDOUT);
		return;
	}
	snprintf(d->why, sizeof(d->why), "cannot connect to %s: the name was not resolved in time",
		d->config.target->text);
	dial_end(d, -ETIMEDOUT);
}

/* ---- names ---- */

/* On a work thread. */
static int resolve_run(struct work_job *job)
{
	struct resolve *r = container_of(job, struct resolve, job);
	/* Without AI_ADDRCONFIG, for which a host with the loopback alone has no address at all. */
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
	struct addrinfo *list = NULL;
	r->error = getaddrinfo(r->host, r->port, &hints, &list);
	if (r->error != 0)
		return 0;
	for (const struct addrinfo *a = list; a != NULL && r->count < DIAL_ADDRESSES_MAX;
		a = a->ai_next) {
		struct dial_address *to = &r->found[r->count];
		if (a->ai_addrlen > sizeof(to->address))
			continue;
		memcpy(&to->address, a->ai_addr, a->ai_addrlen);
		to->len = a->ai_addrlen;
		r->count++;
	}
	freeaddrinfo(list);
	return 0;
}

static void resolve_on_end(struct work_job *job, int res)
{
	(void)res;
	struct resolve *r = container_of(job, struct resolve, job);
	struct dial *d = r->dial;
	if (d == NULL) {
		free(r);
		return;
	}
	d->resolve = NULL;
	d->count = r->count;
	memcpy(d->addresses, r->found, sizeof(r->found));
	snprintf(d->why, sizeof(d->why), "cannot connect to %s: %s", d->config.target->text,
		r->error != 0 ? gai_strerror(r->error) : "the name has no address");
	free(r);
	connect_next(d);
}

/* NULL, or why it cannot be begun. */
static const char *resolve_begin(struct dial *d)
{
	const struct dial_target *target = d->config.target;
	if (d->config.work == NULL)
		return "it is a name, and nobody here resolves names";
	struct resolve *r = calloc(1, sizeof(*r));
	if (r == NULL)
		return "out of memory";
	r->job.run = resolve_run;
	r->job.on_end = resolve_on_end;
	r->job.lane = d->config.lane;
	r->dial = d;
	memcpy(r->host, target->host, sizeof(r->host));
	memcpy(r->port, target->port, sizeof(r->port));
	if (work_submit(d->config.work, &r->job) < 0) {
		free(r);
		return "too many names are being resolved";
	}
	d->resolve = r;
	return NULL;
}

/* ---- the beginning ---- */

static void on_failed(struct ring_req *req, int res, uint32_t flags)
{
	(void)flags;
	dial_end(container_of(req, struct dial, failed), res);
}

int dial_start(struct dial **ret, const struct dial_config *config)
{
	struct dial *d = calloc(1, sizeof(*d));
	if (d == NULL)
		return -ENOMEM;
	struct ring *ring = config->ring;
	d->config = *config;
	d->fd = -1;
	d->connect.fn = on_connect;
	d->failed.fn = on_failed;
	d->timer.fn = on_timer;
	d->end_ns = ring_now_ns(ring) + config->timeout_ms * 1000000;
	int error = 0;
	const char *why = NULL;
	if (config->target->known.len > 0) {
		d->addresses[0] = config->target->known;
		d->count = 1;
		error = connect_begin(d);
		set_why(d, error);
	} else {
		ring_timer_arm(ring, &d->timer, config->timeout_ms);
		why = resolve_begin(d);
	}
	if (why != NULL)
		snprintf(d->why, sizeof(d->why), "cannot connect to %s: %s", config->target->text,
			why);
	if (why != NULL || error < 0)
		ring_post(ring, &d->failed, error < 0 ? error : -EAGAIN);
	*ret = d;
	return 0;
}
