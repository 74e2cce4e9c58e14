/* SPDX-License-Identifier: Apache-2.0 */
/* The data process's socket: takes requests of ublkd_proto.h and answers them. */
#ifndef RINGVOL_BACKENDS_UBLKD_SERVER_H
#define RINGVOL_BACKENDS_UBLKD_SERVER_H

#include "backends/ublk/ublk_devs.h"

struct ublkd_server;

/* Binds the socket (0600, its directory made as needed); a stale one is replaced, a live one is an
 * error. Blocking, before the loop starts. */
int ublkd_server_open(struct ublkd_server **ret, struct ring *ring, struct ublk_devs *devs,
	const char *path, struct err *err);
/* Begins to accept. */
void ublkd_server_start(struct ublkd_server *server);
/* With the devices idle. Removes the socket. NULL is legal. */
void ublkd_server_close(struct ublkd_server *server);

#endif
