/* SPDX-License-Identifier: Apache-2.0 */
/* The data process's socket: no descriptor that comes along stays open, whatever it came with. */
#include "backends/ublk/ublkd_server.h"
#include "ublk_dir.h"

#include "base/fd.h"
#include "reactor/ring_uring.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

struct world {
	struct reactor reactor;
	struct ublk_devs *devs;
	struct ublkd_server *server;
	char path[32], socket[64];
	int dir;
};

static void world_open(struct world *w)
{
	struct err err = {0};
	*w = (struct world){0};
	w->dir = temp_dir(w->path);
	snprintf(w->socket, sizeof(w->socket), "%s/s.sock", w->path);
	cr_assert_eq(ring_open(&w->reactor.ring, &(struct ring_config){0}), 0);
	const struct ublk_devs_config config = {
		.reactor = &w->reactor, .state_dirfd = w->dir, .devices_max = 1};
	cr_assert_eq(ublk_devs_open(&w->devs, &config), 0);
	cr_assert_eq(ublkd_server_open(&w->server, w->reactor.ring, w->devs, w->socket, &err), 0);
	ublkd_server_start(w->server);
}

static void world_close(struct world *w)
{
	ublkd_server_close(w->server);
	ublk_devs_close(w->devs);
	ring_close(w->reactor.ring);
	close(w->dir);
	remove_dir(w->path);
}

static int client_open(const struct world *w)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	strcpy(addr.sun_path, w->socket);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	cr_assert(fd >= 0 && connect(fd, (struct sockaddr *)&addr, sizeof(addr)) == 0);
	return fd;
}

/* Sends the first len bytes with `count` times the descriptor. */
static void client_send(int client, const void *data, size_t len, int fd, unsigned count)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))] = {0};
	struct iovec iov = {(void *)(uintptr_t)data, len};
	struct msghdr msg = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = CMSG_SPACE(count * sizeof(int))};
	struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
	cmsg->cmsg_level = SOL_SOCKET;
	cmsg->cmsg_type = SCM_RIGHTS;
	cmsg->cmsg_len = CMSG_LEN(count * sizeof(int));
	for (unsigned i = 0; i < count; i++)
		memcpy(CMSG_DATA(cmsg) + i * sizeof(int), &fd, sizeof(fd));
	cr_assert_eq(sendmsg(client, &msg, MSG_NOSIGNAL), (ssize_t)len);
}

/* Until it is answered or cut off. */
static ssize_t client_take(const struct world *w, int client, struct ublkd_reply *reply)
{
	ssize_t n;
	while ((n = recv(client, reply, sizeof(*reply), 0)) < 0 && errno == EAGAIN)
		cr_assert_eq(ring_turn(w->reactor.ring, true), 0);
	return n;
}

/* What is sent is a pipe's end for writing: its reader comes to the end when nobody has it. */
Test(ublkd_server, no_descriptor_that_came_along_stays_open)
{
	static const struct {
		const char *what;
		size_t len;
		uint32_t magic, type;
		unsigned count;
		bool answered;
	} packets[] = {
		{"with an empty packet", 0, UBLKD_MAGIC, UBLKD_HELLO, 2, false},
		{"with a packet cut short", 7, UBLKD_MAGIC, UBLKD_HELLO, 1, false},
		{"with another's packet", sizeof(struct ublkd_request), 1, UBLKD_HELLO, 1, false},
		{"unasked for", sizeof(struct ublkd_request), UBLKD_MAGIC, UBLKD_HELLO, 1, true},
		{"with a refused attach", sizeof(struct ublkd_request), UBLKD_MAGIC, UBLKD_ATTACH,
			1, true},
		{"in numbers", sizeof(struct ublkd_request), UBLKD_MAGIC, UBLKD_ATTACH, 7, true},
	};
	if (geteuid() != 0)
		cr_skip_test("the socket takes root's connections only");
	struct world w;
	world_open(&w);
	for (size_t i = 0; i < sizeof(packets) / sizeof(packets[0]); i++) {
		struct ublkd_request request = {
			.head = {.magic = packets[i].magic, .type = (uint16_t)packets[i].type}};
		struct ublkd_reply reply;
		int ends[2], client = client_open(&w);
		char byte;
		cr_assert_eq(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
		client_send(client, &request, packets[i].len, ends[1], packets[i].count);
		close(ends[1]);
		ssize_t n = client_take(&w, client, &reply);
		cr_expect_eq(n > 0, packets[i].answered, "%s: %zd", packets[i].what, n);
		cr_expect_eq(
			read(ends[0], &byte, 1), 0, "a descriptor %s stays open", packets[i].what);
		close(ends[0]);
		close(client);
	}
	world_close(&w);
}

/* Whether the server has hung up, after it had its turns. */
static bool client_cut(const struct world *w, int client)
{
	struct pollfd wait = {.fd = client, .events = POLLRDHUP};
	for (unsigned turn = 0; turn < 10; turn++)
		cr_assert_eq(ring_turn(w->reactor.ring, false), 0);
	return poll(&wait, 1, 0) == 1;
}

static bool client_hello(const struct world *w, int client)
{
	struct ublkd_request request = {.head = {.magic = UBLKD_MAGIC, .type = UBLKD_HELLO}};
	struct ublkd_reply reply;
	return send(client, &request, sizeof(request), MSG_NOSIGNAL) == sizeof(request) &&
	       client_take(w, client, &reply) > 0;
}

/* Another process that holds as many connections as there may be, each of which has said HELLO if
 * `asked`. It lets go when its end of the pipe is closed. */
static pid_t hoard(const struct world *w, bool asked, int *ret_end)
{
	int ends[2], up[2];
	char byte;
	cr_assert(pipe2(ends, O_CLOEXEC) == 0 && pipe2(up, O_CLOEXEC) == 0);
	pid_t pid = fork();
	cr_assert_geq(pid, 0);
	if (pid == 0) {
		const struct ublkd_request request = {
			.head = {.magic = UBLKD_MAGIC, .type = UBLKD_HELLO}};
		close(ends[1]);
		for (unsigned i = 0; i < UBLKD_SESSIONS_MAX; i++) {
			int fd = client_open(w);
			if (asked && send(fd, &request, sizeof(request), MSG_NOSIGNAL) < 0)
				_exit(1);
		}
		if (write(up[1], "", 1) == 1)
			(void)!read(ends[0], &byte, 1);
		_exit(0);
	}
	close(ends[0]);
	close(up[1]);
	cr_assert_eq(read(up[0], &byte, 1), 1);
	close(up[0]);
	*ret_end = ends[1];
	return pid;
}

/* Sixteen idle sessions, whatever they have said, shut nobody out, and it is not the driver's that
 * goes, however long it has been idle. */
Test(ublkd_server, idle_sessions_make_room)
{
	if (geteuid() != 0)
		cr_skip_test("the socket takes root's connections only");
	for (unsigned asked = 0; asked < 2; asked++) {
		struct world w;
		int end, status;
		world_open(&w);
		int driver = client_open(&w);
		cr_assert(client_hello(&w, driver));
		pid_t pid = hoard(&w, asked == 1, &end);
		cr_expect_not(client_cut(&w, driver), "the driver was shut out");
		for (unsigned i = 0; i < 3; i++) {
			int newcomer = client_open(&w);
			cr_expect(client_hello(&w, newcomer), "newcomer %u", i);
			close(newcomer);
		}
		cr_expect(client_hello(&w, driver));
		close(end);
		cr_assert_eq(waitpid(pid, &status, 0), pid);
		cr_expect_eq(status, 0);
		close(driver);
		world_close(&w);
	}
}

/* The one that asked longest ago. */
Test(ublkd_server, the_longest_idle_session_goes_first)
{
	if (geteuid() != 0)
		cr_skip_test("the socket takes root's connections only");
	struct world w;
	int clients[UBLKD_SESSIONS_MAX];
	world_open(&w);
	for (unsigned i = 0; i < UBLKD_SESSIONS_MAX; i++) {
		clients[i] = client_open(&w);
		cr_assert(client_hello(&w, clients[i]));
	}
	cr_assert(client_hello(&w, clients[0]));
	int newcomer = client_open(&w);
	cr_expect(client_hello(&w, newcomer));
	for (unsigned i = 0; i < UBLKD_SESSIONS_MAX; i++) {
		cr_expect_eq(client_cut(&w, clients[i]), i == 1, "%u", i);
		close(clients[i]);
	}
	close(newcomer);
	world_close(&w);
}
