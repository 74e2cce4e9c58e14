/* SPDX-License-Identifier: Apache-2.0 */
/* An address and a port as people write them: "127.0.0.1:10", "[::1]:10". */
#ifndef RINGVOL_BASE_ADDRESS_H
#define RINGVOL_BASE_ADDRESS_H

#include <sys/socket.h>

/* 0 or -EINVAL: a name, no port, or port 0. */
int address_parse(const char *text, struct sockaddr_storage *ret, socklen_t *ret_len);

#endif
