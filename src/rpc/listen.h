/* SPDX-License-Identifier: Apache-2.0 */
/* Endpoints: from "unix:///run/x.sock" to an address, and to a listening socket. */
#ifndef RINGVOL_RPC_LISTEN_H
#define RINGVOL_RPC_LISTEN_H

#include "base/err.h"

#include <stdbool.h>
#include <sys/socket.h>
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

struct endpoint {
	struct sockaddr_storage address; /* a struct sockaddr_un, _in or _in6 */
	socklen_t len;
};

/* unix:///PATH, unix:PATH, tcp://127.0.0.1:PORT or tcp://[::1]:PORT. 0, or -EINVAL with what is
 * wrong. */
int listen_parse_endpoint(const char *text, struct endpoint *ret, struct err *err);
/* 0 or a negative errno with `err` filled; see server_listen(). Blocking, before the loop starts.
 */
int listen_open(const char *endpoint, struct listen_socket *ret, struct err *err);
/* ADDR:PORT, any address: for what guards itself. Does not block. */
int listen_open_any(const char *address, struct listen_socket *ret, struct err *err);
/* Unlinks the socket file, so that no client finds it any more; the fd stays open. */
void listen_unlink(struct listen_socket *socket);

#endif
