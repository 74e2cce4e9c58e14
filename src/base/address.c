/* SPDX-License-Identifier: Apache-2.0 */
#include "base/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

int address_parse(const char *text, struct sockaddr_storage *ret, socklen_t *ret_len)
{
	char host[64];
	const char *colon = strrchr(text, ':');
	if (colon == NULL || colon == text || (size_t)(colon - text) >= sizeof(host))
		return -EINVAL;
	memcpy(host, text, (size_t)(colon - text));
	host[colon - text] = '\0';
	char *end;
	errno = 0;
	unsigned long port = strtoul(colon + 1, &end, 10);
	if (colon[1] < '0' || colon[1] > '9' || *end != '\0' || errno != 0 || port == 0 ||
		port > 65535)
		return -EINVAL;

	struct sockaddr_storage address = {0};
	size_t len = strlen(host);
	if (host[0] == '[' && host[len - 1] == ']') {
		struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&address;
		host[len - 1] = '\0';
		in6->sin6_family = AF_INET6;
		in6->sin6_port = htons((uint16_t)port);
		if (inet_pton(AF_INET6, host + 1, &in6->sin6_addr) != 1)
			return -EINVAL;
		*ret_len = sizeof(*in6);
	} else {
		struct sockaddr_in *in = (struct sockaddr_in *)&address;
		in->sin_family = AF_INET;
		in->sin_port = htons((uint16_t)port);
		if (inet_pton(AF_INET, host, &in->sin_addr) != 1)
			return -EINVAL;
		*ret_len = sizeof(*in);
	}
	*ret = address;
	return 0;
}
