/* SPDX-License-Identifier: Apache-2.0 */
/* A channel to our own server on real sockets: calls of each kind, and how connections come and go.
 */
#include "base/utf8.h"
#include "channel_env.h"

#include "rpc/registry.h"

TestSuite(channel, .init = setup, .fini = teardown);

static struct channel *channel;
static struct asked a, b;

static void serve(void)
{
	struct err err = {0};
	struct server_config config = {
		.ring = ring, .registry = registry, .limits = server_limits_default};
	cr_assert_eq(server_open(&server, &config), 0);
	cr_assert_eq(server_listen(server, endpoint, &err), 0, "%s", err.message);
}

static void dial(void)
{
	struct err err = {0};
	struct channel_config config = {.ring = ring, .address = endpoint, .registry = registry};
	cr_assert_eq(channel_open(&channel, &config, &err), 0, "%s", err.message);
}

static void finish(void)
{
	channel_close(channel);
	channel = NULL;
	cr_assert_not(channel_call_active(&a.call));
	cr_assert_not(channel_call_active(&b.call));
	buf_free(&a.got);
	buf_free(&b.got);
}

Test(channel, unary)
{
	serve();
	dial();
	cr_assert_eq(channel_state(channel), CHANNEL_IDLE);
	for (unsigned i = 0; i < 3; i++) {
		ask(channel, &a, "/test.v1.Test/Echo", "hello");
		turn_until(a.ends == 1);
		assert_asked_text(&a, "hello");
		cr_assert(a.sent);
		cr_assert_eq(channel_state(channel), CHANNEL_UP);
	}
	cr_assert_eq(server_stats(server)->accepted, 1);
	finish();
}
