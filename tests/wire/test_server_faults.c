/* SPDX-License-Identifier: Apache-2.0 */
/* The server on real sockets and the simulated ring: faults, refusals, what is due and what is not.
 */
#include "server_client.h"

#include "reactor/ring_timer.h"

#include <sys/stat.h>

static struct ring_sim sim;
static unsigned accept_faults, recv_faults;

static int fault(void *arg, uint64_t nth, const struct io_uring_sqe *sqe)
{
	(void)arg;
	(void)nth;
	if (sqe->opcode == IORING_OP_ACCEPT && accept_faults > 0) {
		static const int errors[] = {-EMFILE, -ENFILE, -ENOBUFS, -ECONNABORTED, -ENOMEM};
		return errors[accept_faults-- % 5];
	}
	if (sqe->opcode == IORING_OP_RECV && recv_faults > 0) {
		recv_faults--;
		return -ENOBUFS;
	}
	return 0;
}

static void setup_sim(void)
{
	sim = (struct ring_sim){.seed = 7, .short_every = 3, .eintr_every = 5, .fault = fault};
	setup_with(&sim);
}

TestSuite(faults, .init = setup_sim, .fini = teardown);

/* Of virtual time. */
static void pass_ms(uint64_t ms)
{
	sim_pass_ms(ring, ms);
}

Test(faults, accept_and_recv_try_again)
{
	accept_faults = 12;
	recv_faults = 3;
	serve(&server_limits_default);
	struct peer *p = peer_new();
	int fd = dial();
	pass_ms(2000); /* accepting pauses after each fault */
	client_call(p, fd);
	cr_assert_eq(accept_faults, 0);
	cr_assert_eq(recv_faults, 0);
	cr_assert_lt(sim.served, 1000); /* nothing spins */
	close(fd);
	peer_free(p);
}

/* Memory that large calls have needed goes back to the system once, some time after them. */
Test(faults, memory_is_given_back_after_a_burst)
{
	enum { LARGE = 4000000 };
	struct buf b = {0};
	char *text = calloc(1, LARGE);
	memset(text, 'x', LARGE - 1);
	serve(&server_limits_default);
	struct peer *p = peer_new();
	int fd = dial();
	for (unsigned burst = 1; burst <= 2; burst++) {
		client_call(p, fd);
		pass_ms(1000);
		cr_assert_eq(server_stats(server)->trims, burst - 1, "after a small one");
		int32_t id = client_ask(p, "/test.v1.Test/Echo", &b, text);
		while (!answer_at(p, id)->closed)
			cr_assert(client_move(p, fd));
		assert_answer(p, id, GRPC_OK);
		cr_assert_eq(server_stats(server)->trims, burst - 1);
		pass_ms(2000);
		cr_assert_eq(server_stats(server)->trims, burst);
	}
	pass_ms(5000);
	cr_assert_eq(server_stats(server)->trims, 2);
	close(fd);
	peer_free(p);
	buf_free(&b);
	free(text);
}

/* ---- who is not let in ---- */

static void assert_refused(int fd, uint64_t refused, unsigned connections)
{
	pass_ms(10);
	cr_assert_eq(server_stats(server)->refused, refused);
	cr_assert_eq(server_stats(server)->connections, connections);
	cr_assert(client_closed(fd));
	close(fd);
}

/* Another user, whatever the modes of the path have come to; and one too many while all are busy.
 */
Test(faults, connections_that_are_refused)
{
	char sub[64];
	struct server_limits limits = server_limits_default;
	if (geteuid() != 0)
		cr_skip_test("only root can be somebody else");
	limits.connections = 1;
	serve(&limits);
	struct peer *p = peer_new();
	struct buf b = {0};
	int busy = dial();
	client_ask(p, "/test.v1.Test/Hold", &b, "");
	while (world.held == NULL)
		cr_assert(client_move(p, busy));
	assert_refused(dial(), 1, 1);
	close(busy);
	pass_ms(10);
	grpc_end(world.held, GRPC_OK, NULL);
	cr_assert_eq(server_stats(server)->connections, 0);

	snprintf(sub, sizeof(sub), "%s/sub", dir);
	cr_assert(chmod(dir, 0755) == 0 && chmod(sub, 0755) == 0 && chmod(path, 0666) == 0);
	cr_assert_eq(seteuid(65534), 0);
	int stranger = dial();
	cr_assert_eq(seteuid(0), 0);
	assert_refused(stranger, 2, 0);
	peer_free(p);
	buf_free(&b);
}

/* Nothing is due of a server that is gone: not while accepting pauses, nor in a drain, nor soon
 * after large calls. */
Test(faults, closing_leaves_no_timer)
{
	enum { LARGE = 4000000 };
	char *text = calloc(1, LARGE);
	memset(text, 'x', LARGE - 1);
	for (unsigned when = 0; when < 3; when++) {
		struct buf b = {0};
		unsigned drained = 0;
		accept_faults = when == 0 ? 3 : 0;
		serve(&server_limits_default);
		struct peer *p = peer_new();
		int fd = dial();
		if (when == 0) {
			for (unsigned i = 0; i < 5; i++)
				cr_assert_eq(ring_turn(ring, false), 0);
		} else {
			int32_t id = client_ask(p,
				when == 1 ? "/test.v1.Test/Hold" : "/test.v1.Test/Echo", &b, text);
			while (world.held == NULL && !answer_at(p, id)->closed)
				cr_assert(client_move(p, fd));
		}
		if (when == 1)
			server_drain(server, 60000, on_drained, &drained);
		cr_assert_lt(ring_timer_next_ns(ring), UINT64_MAX);
		server_close(server);
		server = NULL;
		if (world.held != NULL)
			grpc_end(world.held, GRPC_OK, NULL);
		world.held = NULL;
		cr_assert_eq(ring_timer_next_ns(ring), UINT64_MAX, "case %u", when);
		cr_assert_eq(drained, 0);
		close(fd);
		peer_free(p);
		buf_free(&b);
	}
	free(text);
}
