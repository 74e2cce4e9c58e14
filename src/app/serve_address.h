/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A TCP address of a process: --http or --listen. If it is in use the process starts all the same
 * and takes it when its owner lets go: two drivers share a host's network while one replaces the
 * other, and of a process that was killed the kernel closes the sockets some time after its end.
 */
#ifndef RINGVOL_SERVE_ADDRESS_H
#define RINGVOL_SERVE_ADDRESS_H

#include "base/err.h"
#include "rpc/server.h"

struct serve_address {
	/* The owner's. */
	struct ring *ring;
	struct server *server;
	const char *flag, *address;
	struct tls *tls; /* NULL: HTTP */
	/* It listens, at once or later. NULL: nobody cares. */
	void (*on_listening)(struct serve_address *address);
	/* private */
	bool listening;
	struct ring_timer retry;
};

/* Listens, or says that the address is in use and goes on trying. Other errors are the caller's. */
int serve_address_start(struct serve_address *address, struct err *err);
/* Before the server drains or closes. Zeroed is legal. */
void serve_address_stop(struct serve_address *address);

#endif
