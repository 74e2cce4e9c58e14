/* SPDX-License-Identifier: Apache-2.0 */
/* Which connections count as one remote end's. */
#include "rpc/remote.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <netinet/in.h>
#include <string.h>

static struct remote_key key_of(const char *text)
{
	struct sockaddr_storage address = {0};
	struct sockaddr_in *in = (struct sockaddr_in *)&address;
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&address;
	address.ss_family = strchr(text, ':') != NULL ? AF_INET6 : AF_INET;
	void *to = address.ss_family == AF_INET ? (void *)&in->sin_addr : &in6->sin6_addr;
	cr_assert_eq(inet_pton(address.ss_family, text, to), 1);
	return remote_key_of_address(&address);
}

Test(remote, an_address_or_a_network_of_64_bits)
{
	static const struct {
		const char *a, *b;
		bool same;
	} pairs[] = {
		{"10.0.0.1", "10.0.0.1", true},
		{"10.0.0.1", "10.0.0.2", false},
		{"10.0.0.1", "::ffff:10.0.0.1", true}, /* a socket for both families */
		{"::ffff:10.0.0.1", "::ffff:10.0.0.2", false},
		{"2001:db8:0:1::1", "2001:db8:0:1:ffff::2", true},
		{"2001:db8:0:1::1", "2001:db8:0:2::1", false},
		{"a00:1::", "10.0.0.1", false},
	};
	struct list remotes;
	list_init(&remotes);
	for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
		struct remote_key a = key_of(pairs[i].a), b = key_of(pairs[i].b);
		struct remote *first = remote_add(&remotes, &a), *second = remote_add(&remotes, &b);
		cr_expect_eq(first == second, pairs[i].same, "%s %s", pairs[i].a, pairs[i].b);
		cr_expect_eq(first->connections, pairs[i].same ? 2 : 1);
		remote_drop(first);
		cr_expect_eq(remote_find(&remotes, &b), second);
		remote_drop(second);
		cr_assert(list_empty(&remotes));
	}
}

Test(remote, a_process_is_no_address)
{
	struct remote_key process = remote_key_of_process((pid_t)htonl(0x0a000001)),
			  other = remote_key_of_process(1), address = key_of("10.0.0.1");
	struct list remotes;
	list_init(&remotes);
	struct remote *remote = remote_add(&remotes, &process);
	cr_expect_eq(remote_find(&remotes, &process), remote);
	cr_expect_null(remote_find(&remotes, &other));
	cr_expect_null(remote_find(&remotes, &address));
	remote_drop(remote);
}
