/* SPDX-License-Identifier: Apache-2.0 */
/* Addresses as text, and sockets that are connected or not. */
#include "full_queue.h"
#include "server_env.h"
#include "unit/refused.h"

#include "reactor/work.h"
#include "rpc/dial.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/un.h>

static struct work *work;
static struct dial_target target;
static struct dial *dialling;
static unsigned ended;
static int got;
static char said[512];

/* ---- the calls ---- */

enum { NOTHING, SETSOCKOPT };

int __real_setsockopt(int fd, int level, int name, const void *value, socklen_t len);
int __wrap_setsockopt(int fd, int level, int name, const void *value, socklen_t len);
int __wrap_setsockopt(int fd, int level, int name, const void *value, socklen_t len)
{
	return refuses(SETSOCKOPT) ? -1 : __real_setsockopt(fd, level, name, value, len);
}

/* What any name is resolved to, if there is something; while resolver_waits has bytes to come, it
 * hangs. */
static struct sockaddr_in resolved[16];
static struct addrinfo resolved_list[16];
static int resolver_waits = -1;

int __real_getaddrinfo(
	const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **ret);
int __wrap_getaddrinfo(
	const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **ret);
int __wrap_getaddrinfo(
	const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **ret)
{
	char byte;
	if (resolver_waits >= 0)
		cr_assert_eq(read(resolver_waits, &byte, 1), 0, "until it is closed");
	if (resolved_list[0].ai_addr == NULL)
		return __real_getaddrinfo(host, port, hints, ret);
	*ret = resolved_list;
	return 0;
}

void __real_freeaddrinfo(struct addrinfo *list);
void __wrap_freeaddrinfo(struct addrinfo *list);
void __wrap_freeaddrinfo(struct addrinfo *list)
{
	if (list != resolved_list)
		__real_freeaddrinfo(list);
}

/* The nth address of any name: a port of the loopback. */
static void resolve_to(unsigned nth, const char *address)
{
	resolved[nth] = (struct sockaddr_in){.sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
		.sin_port = htons((uint16_t)atoi(strchr(address, ':') + 1))};
	resolved_list[nth] = (struct addrinfo){.ai_family = AF_INET,
		.ai_addr = (struct sockaddr *)&resolved[nth],
		.ai_addrlen = sizeof(resolved[nth])};
	if (nth > 0)
		resolved_list[nth - 1].ai_next = &resolved_list[nth];
}

/* ---- dialling ---- */

static void dial_setup(void)
{
	setup();
	cr_assert_eq(work_open(&work, ring, 2), 0);
}

static void dial_teardown(void)
{
	work_close(work);
	teardown();
}

TestSuite(dial, .init = dial_setup, .fini = dial_teardown);

static void on_end(void *arg, int fd, const char *why)
{
	cr_assert_eq(arg, &target);
	ended++;
	got = fd;
	dialling = NULL;
	snprintf(said, sizeof(said), "%s", why);
}

static void begin(const char *text, struct work *by, uint64_t timeout_ms)
{
	struct err err = {0};
	cr_assert_eq(dial_parse(text, &target, &err), 0, "%s", err.message);
	const struct dial_config config = {.ring = ring,
		.work = by,
		.target = &target,
		.timeout_ms = timeout_ms,
		.on_end = on_end,
		.arg = &target};
	ended = 0;
	got = -1;
	cr_assert_eq(dial_start(&dialling, &config), 0);
	cr_assert_eq(ended, 0, "on_end() inside dial_start()");
}

/* A socket that listens on a free port of the loopback. */
static int listen_tcp(int family, char *text, size_t cap, int backlog)
{
	struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	struct sockaddr_in6 in6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
	struct sockaddr *at = family == AF_INET ? (struct sockaddr *)&in : (struct sockaddr *)&in6;
	socklen_t len = family == AF_INET ? sizeof(in) : sizeof(in6);
	int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || bind(fd, at, len) < 0)
		return -1;
	cr_assert_eq(listen(fd, backlog), 0);
	cr_assert_eq(getsockname(fd, at, &len), 0);
	if (family == AF_INET)
		snprintf(text, cap, "127.0.0.1:%u", ntohs(in.sin_port));
	else
		snprintf(text, cap, "[::1]:%u", ntohs(in6.sin6_port));
	return fd;
}

static void assert_connected_to(int listener)
{
	int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	cr_assert_geq(fd, 0);
	cr_assert_eq(write(got, "x", 1), 1);
	char byte;
	cr_assert_eq(read(fd, &byte, 1), 1);
	close(fd);
	close(got);
}

Test(dial, numbers)
{
	static const int families[] = {AF_INET, AF_INET6};
	for (unsigned i = 0; i < 2; i++) {
		char text[64];
		int listener = listen_tcp(families[i], text, sizeof(text), 8);
		if (listener < 0)
			continue; /* a machine without IPv6 */
		begin(text, NULL, 1000);
		turn_until(ended == 1);
		cr_assert_geq(got, 0, "%s", said);
		cr_assert(dial_is_loopback(&target));
		assert_connected_to(listener);
		close(listener);
	}
}

Test(dial, a_name)
{
	char text[64], name[64];
	int listener = listen_tcp(AF_INET, text, sizeof(text), 8);
	/* localhost may be ::1 first, where nobody listens: the next address is tried. */
	snprintf(name, sizeof(name), "localhost%s", strchr(text, ':'));
	begin(name, work, 5000);
	cr_assert_not(dial_is_loopback(&target));
	turn_until(ended == 1);
	cr_assert_geq(got, 0, "%s", said);
	assert_connected_to(listener);
	close(listener);
}

Test(dial, a_name_that_is_none)
{
	begin("no-such-host.invalid:1", work, 20000);
	turn_until(ended == 1);
	cr_assert_lt(got, 0);
	cr_assert_not_null(strstr(said, "cannot connect to no-such-host.invalid:1: "));
	begin("localhost:1", NULL, 1000); /* nobody resolves */
	turn_until(ended == 1);
	cr_assert_lt(got, 0);
	cr_assert_not_null(strstr(said, "nobody here resolves names"));
}

/* The job of a dial that was given up ends by itself. */
Test(dial, given_up_while_a_name_is_resolved)
{
	begin("localhost:1", work, 1000);
	cr_assert_eq(work_queue_depth(work), 1);
	dial_cancel(dialling);
	turn_until(work_queue_depth(work) == 0);
	cr_assert_eq(ended, 0);
	dial_cancel(NULL);
}

/* Nor is on_end() called of one that has failed already, and was to say so in the next turn. */
Test(dial, given_up_before_it_says_why)
{
	begin("localhost:1", NULL, 1000);
	dial_cancel(dialling);
	for (unsigned i = 0; i < 3; i++)
		cr_assert_eq(ring_turn(ring, false), 0);
	cr_assert_eq(ended, 0);
}

Test(dial, refused)
{
	char text[64];
	close(listen_tcp(AF_INET, text, sizeof(text), 8));
	begin(text, NULL, 1000);
	turn_until(ended == 1);
	cr_assert_eq(got, -ECONNREFUSED);
	cr_assert_not_null(strstr(said, text));
	cr_assert_not_null(strstr(said, "refused"));
}

/* A socket whose queue is full does not answer. */
static int listen_full(char *text, size_t cap, int *filler)
{
	int listener = listen_tcp(AF_INET, text, cap, 0);
	struct sockaddr_storage at;
	socklen_t len = sizeof(at);
	cr_assert_eq(getsockname(listener, (struct sockaddr *)&at, &len), 0);
	for (unsigned i = 0; i < 2; i++) {
		filler[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		(void)connect(filler[i], (struct sockaddr *)&at, len);
	}
	return listener;
}

Test(dial, no_answer)
{
	char text[64];
	int filler[2], listener = listen_full(text, sizeof(text), filler);
	begin(text, NULL, 100);
	turn_until(ended == 1);
	cr_assert_eq(got, -ETIMEDOUT, "%d", got);
	cr_assert_not_null(strstr(said, "timed out"));
	begin(text, NULL, 60000);
	for (unsigned i = 0; i < 10; i++)
		ring_turn(ring, false);
	dial_cancel(dialling);
	cr_assert_eq(ended, 0);
	close(listener);
	close(filler[0]);
	close(filler[1]);
}

/* The same of a unix socket, where connect() waits in a thread of the kernel's. */
Test(dial, no_answer_on_a_unix_socket)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	char text[128];
	int fillers[4];
	snprintf(at.sun_path, sizeof(at.sun_path), "%s/full.sock", dir);
	snprintf(text, sizeof(text), "unix://%s", at.sun_path);
	int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	cr_assert_eq(bind(listener, (struct sockaddr *)&at, sizeof(at)), 0);
	cr_assert_eq(listen(listener, 0), 0);
	for (unsigned i = 0; i < 4; i++) {
		fillers[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		(void)connect(fillers[i], (struct sockaddr *)&at, sizeof(at));
	}
	begin(text, NULL, 100);
	turn_until(ended == 1);
	cr_assert_eq(got, -ETIMEDOUT, "%d", got);
	begin(text, NULL, 60000);
	for (unsigned i = 0; i < 10; i++)
		ring_turn(ring, false);
	dial_cancel(dialling);
	cr_assert_eq(ended, 0);
	for (unsigned i = 0; i < 4; i++)
		close(fillers[i]);
	close(listener);
	unlink(at.sun_path);
}

Test(dial, no_descriptors)
{
	char text[64];
	int listener = listen_tcp(AF_INET, text, sizeof(text), 8);
	int taken[65536], count = 0;
	struct rlimit limit = {256, 256};
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
	while ((taken[count] = dup(listener)) >= 0)
		count++;
	begin(text, NULL, 1000);
	turn_until(ended == 1);
	cr_assert_eq(got, -EMFILE);
	cr_assert_not_null(strstr(said, "open files"));
	while (count > 0)
		close(taken[--count]);
	close(listener);
}

Test(dial, an_address_that_is_too_long)
{
	char text[400];
	struct err err = {0};
	memset(text, 'x', sizeof(text));
	text[320] = '\0';
	cr_assert_eq(dial_parse(text, &target, &err), -EINVAL);
	cr_assert_eq(
		strncmp(err.message, "the address is too long: \"xxx", 29), 0, "%s", err.message);
	err_clear(&err);
	text[319] = '\0';
	cr_assert_eq(dial_parse(text, &target, &err), -EINVAL, "but not for that");
	cr_assert_null(strstr(err.message, "too long"), "%s", err.message);
}

/* ---- names of several addresses ---- */

/* They are tried in turn: nobody listens at the first one, nor at the second one. */
Test(dial, the_next_address)
{
	char nobody[64], text[64];
	int listener = listen_tcp(AF_INET, text, sizeof(text), 8);
	close(listen_tcp(AF_INET, nobody, sizeof(nobody), 8));
	resolve_to(0, nobody);
	resolve_to(1, nobody);
	resolve_to(2, text);
	int fds = open_fds();
	begin("two.example:1", work, 5000);
	turn_until(ended == 1);
	cr_assert_geq(got, 0, "%s", said);
	assert_connected_to(listener);
	cr_assert_eq(open_fds(), fds);
	close(listener);
	/* And now at none of them. */
	begin("two.example:1", work, 5000);
	turn_until(ended == 1);
	cr_assert_eq(got, -ECONNREFUSED);
	cr_assert_str_eq(said, "cannot connect to two.example:1: Connection refused");
	cr_assert_eq(open_fds(), fds - 1);
}

/* Each has its share of the time: the first one does not answer. */
Test(dial, the_next_address_after_one_that_does_not_answer)
{
	char full[64], text[64];
	int filler[2], mute = listen_full(full, sizeof(full), filler);
	int listener = listen_tcp(AF_INET, text, sizeof(text), 8);
	resolve_to(0, full);
	resolve_to(1, text);
	begin("two.example:1", work, 400);
	turn_until(ended == 1);
	cr_assert_geq(got, 0, "%s", said);
	assert_connected_to(listener);
	close(listener);
	close(mute);
	close(filler[0]);
	close(filler[1]);
}

/* More than are tried, after one of a kind that is not known here. */
Test(dial, many_addresses)
{
	char nobody[64], text[64];
	int listener = listen_tcp(AF_INET, text, sizeof(text), 8);
	close(listen_tcp(AF_INET, nobody, sizeof(nobody), 8));
	for (unsigned last = DIAL_ADDRESSES_MAX; last <= DIAL_ADDRESSES_MAX + 1; last++) {
		for (unsigned i = 0; i <= last; i++)
			resolve_to(i, i == last ? text : nobody);
		resolved_list[0].ai_addrlen = sizeof(struct sockaddr_storage) + 1;
		begin("many.example:1", work, 5000);
		turn_until(ended == 1);
		if (last == DIAL_ADDRESSES_MAX) {
			cr_assert_geq(got, 0, "%s", said);
			assert_connected_to(listener);
		} else {
			cr_assert_eq(got, -ECONNREFUSED, "it is one too many");
		}
	}
	close(listener);
}

Test(dial, a_name_without_an_address_of_ours)
{
	resolve_to(0, "127.0.0.1:1");
	resolved_list[0].ai_addrlen = sizeof(struct sockaddr_storage) + 1;
	begin("none.example:1", work, 5000);
	turn_until(ended == 1);
	cr_assert_eq(got, -ENOENT);
	cr_assert_str_eq(said, "cannot connect to none.example:1: the name has no address");
}

/* A socket that cannot be set up: with numbers, and with the addresses of a name. */
Test(dial, sockets_that_cannot_be_set_up)
{
	char text[64];
	int listener = listen_tcp(AF_INET, text, sizeof(text), 8);
	int fds = open_fds(), on = 0;
	socklen_t len = sizeof(on);
	refuse(SETSOCKOPT, 0, 1, EIO);
	begin(text, NULL, 1000);
	turn_until(ended == 1);
	cr_assert_eq(got, -EIO);
	cr_assert_not_null(strstr(said, strerror(EIO)), "%s", said);
	cr_assert_eq(open_fds(), fds);

	resolve_to(0, text);
	resolve_to(1, text);
	refuse(SETSOCKOPT, 0, 1, EIO);
	begin("two.example:1", work, 5000);
	turn_until(ended == 1);
	cr_assert_geq(got, 0, "%s", said);
	cr_assert_eq(getsockopt(got, IPPROTO_TCP, TCP_NODELAY, &on, &len), 0);
	cr_assert_eq(on, 1);
	assert_connected_to(listener);
	cr_assert_eq(open_fds(), fds);
	refuse(SETSOCKOPT, 0, 2, EIO);
	begin("two.example:1", work, 5000);
	turn_until(ended == 1);
	cr_assert_eq(got, -EIO);
	cr_assert_str_eq(said, "cannot connect to two.example:1: Input/output error");
	cr_assert_eq(open_fds(), fds);
	close(listener);
}

/* ---- names that take long ---- */

/* The answer that comes later is nobody's. */
Test(dial, a_name_that_is_not_resolved_in_time)
{
	int ends[2];
	cr_assert_eq(pipe(ends), 0);
	resolver_waits = ends[0];
	resolve_to(0, "127.0.0.1:1");
	begin("slow.example:1", work, 50);
	turn_until(ended == 1);
	cr_assert_eq(got, -ETIMEDOUT);
	cr_assert_str_eq(
		said, "cannot connect to slow.example:1: the name was not resolved in time");
	cr_assert_eq(work_queue_depth(work), 1);
	close(ends[1]);
	turn_until(work_queue_depth(work) == 0);
	cr_assert_eq(ended, 1);
	close(ends[0]);
}

/* No thread is left for it; the next one is resolved. */
Test(dial, too_many_names)
{
	char text[64];
	int listener = listen_tcp(AF_INET, text, sizeof(text), 8);
	cr_assert_eq(fill_queue(work), WORK_QUEUE_MAX);
	resolve_to(0, text);
	begin("busy.example:1", work, 5000);
	turn_until(ended == 1);
	cr_assert_eq(got, -EAGAIN);
	cr_assert_str_eq(
		said, "cannot connect to busy.example:1: too many names are being resolved");
	turn_until(queue_jobs_ended == WORK_QUEUE_MAX);
	begin("busy.example:1", work, 5000);
	turn_until(ended == 1);
	cr_assert_geq(got, 0, "%s", said);
	assert_connected_to(listener);
	close(listener);
}
