/* SPDX-License-Identifier: Apache-2.0 */
/* A server on real sockets, in a directory of its own: for test_server.c and test_server_http.c. */
#ifndef RINGVOL_TESTS_WIRE_SERVER_ENV_H
#define RINGVOL_TESTS_WIRE_SERVER_ENV_H

#include "peer.h"
#include "rpc/server.h"

#include <stdio.h>
#include <unistd.h>

static struct ring *ring;
static struct grpc_registry *registry;
static struct server *server;
static char dir[] = "/tmp/ringvol-wire-XXXXXX";
static char path[64], endpoint[80];

static inline void setup_with(struct ring_sim *sim)
{
	cr_assert_not_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/sub/csi.sock", dir);
	snprintf(endpoint, sizeof(endpoint), "unix://%s", path);
	cr_assert_eq(ring_sim_open(&ring, sim), 0);
	registry = test_registry();
}

static inline void setup(void)
{
	setup_with(NULL);
}

static inline void teardown(void)
{
	server_close(server);
	grpc_registry_free(registry);
	ring_close(ring);
	unlink(path);
	char sub[64];
	snprintf(sub, sizeof(sub), "%s/sub", dir);
	rmdir(sub);
	rmdir(dir);
}

/* Turns the server's ring until `done` or, when it never comes, the test's own timeout. */
#define turn_until(done)                                                                           \
	do {                                                                                       \
		while (!(done)) {                                                                  \
			cr_assert_eq(ring_turn(ring, false), 0);                                   \
			usleep(50);                                                                \
		}                                                                                  \
	} while (0)

static inline void on_drained(void *arg)
{
	(*(unsigned *)arg)++;
}

#endif
