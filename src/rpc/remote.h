/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The other end of a connection, as it counts for its share of the connections: an IPv4 address,
 * the first 64 bits of an IPv6 address (one host has all addresses below them), or the process on a
 * unix socket.
 */
#ifndef RINGVOL_RPC_REMOTE_H
#define RINGVOL_RPC_REMOTE_H

#include "base/list.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct remote_key {
	sa_family_t family; /* AF_INET, AF_INET6 or AF_UNIX */
	uint8_t bytes[8];
};

struct remote {
	struct list link;
	struct remote_key key;
	unsigned connections; /* at least one */
};

/* address: as getpeername() has it. An IPv4 address inside an IPv6 one counts as the former. */
struct remote_key remote_key_of_address(const struct sockaddr_storage *address);
struct remote_key remote_key_of_process(pid_t pid);

/* NULL: it has no connection. */
struct remote *remote_find(const struct list *remotes, const struct remote_key *key);
/* One connection more. NULL: out of memory. */
struct remote *remote_add(struct list *remotes, const struct remote_key *key);
/* One connection less; frees the remote with its last. */
void remote_drop(struct remote *remote);

#endif
