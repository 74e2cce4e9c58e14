/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The remote ends that have connections, each with their number, in a list: there are never more of
 * them than connections, and it is walked when one is accepted. Adding fails for want of memory
 * only.
 */
#include "rpc/remote.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

struct remote_key remote_key_of_address(const struct sockaddr_storage *address)
{
	struct remote_key key = {.family = AF_INET};
	if (address->ss_family == AF_INET) {
		memcpy(key.bytes, &((const struct sockaddr_in *)address)->sin_addr, 4);
		return key;
	}
	const struct in6_addr *in6 = &((const struct sockaddr_in6 *)address)->sin6_addr;
	if (IN6_IS_ADDR_V4MAPPED(in6)) {
		memcpy(key.bytes, in6->s6_addr + 12, 4);
		return key;
	}
	key.family = AF_INET6;
	memcpy(key.bytes, in6->s6_addr, sizeof(key.bytes));
	return key;
}

struct remote_key remote_key_of_process(pid_t pid)
{
	struct remote_key key = {.family = AF_UNIX};
	memcpy(key.bytes, &pid, sizeof(pid));
	return key;
}

struct remote *remote_find(const struct list *remotes, const struct remote_key *key)
{
	list_for_each (node, remotes) {
		struct remote *remote = container_of(node, struct remote, link);
		if (remote->key.family == key->family &&
			memcmp(remote->key.bytes, key->bytes, sizeof(key->bytes)) == 0)
			return remote;
	}
	return NULL;
}

struct remote *remote_add(struct list *remotes, const struct remote_key *key)
{
	struct remote *remote = remote_find(remotes, key);
	if (remote == NULL) {
		remote = calloc(1, sizeof(*remote));
		if (remote == NULL)
			return NULL;
		remote->key = *key;
		list_push(remotes, &remote->link);
	}
	remote->connections++;
	return remote;
}

void remote_drop(struct remote *remote)
{
	if (--remote->connections > 0)
		return;
	list_remove(&remote->link);
	free(remote);
}
