/* SPDX-License-Identifier: Apache-2.0 */
/* Endpoints: from "unix:///run/x.sock" to a listening socket. Blocking, before the loop starts. */
#ifndef RINGVOL_RPC_LISTEN_H
#define RINGVOL_RPC_LISTEN_H

#include "base/err.h"

#include <stdbool.h>
#include <sys/types.h>
#include <sys/un.h>

struct listen_socket {
	int fd;
	bool is_unix;
	char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
	/* The socket file as it was made, so that another's is not unlinked. */
	dev_t dev;
	ino_t ino;
};

/* 0 or a negative errno with `err` filled; see server_listen(). */
int listen_open(const char *endpoint, struct listen_socket *ret, struct err *err);
/* Unlinks the socket file, so that no client finds it any more; the fd stays open. */
void listen_unlink(struct listen_socket *socket);

#endif
