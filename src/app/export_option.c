/* SPDX-License-Identifier: Apache-2.0 */
/* Other nodes are told the address as it is given, so it is one that they can reach. */
#include "app/export_option.h"

#include "base/address.h"

#include <netinet/in.h>

static bool is_any(const struct sockaddr_storage *address)
{
	const struct sockaddr_in *in = (const struct sockaddr_in *)address;
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)address;
	return address->ss_family == AF_INET6 ? IN6_IS_ADDR_UNSPECIFIED(&in6->sin6_addr)
					      : in->sin_addr.s_addr == INADDR_ANY;
}

int value_export_address(const char *value, struct err *err)
{
	struct sockaddr_storage address;
	socklen_t len;
	if (address_parse(value, &address, &len) < 0)
		return err_set(
			err, ERR_INVALID, "not IP:PORT, as 192.0.2.1:4420 or [2001:db8::1]:4420");
	if (is_any(&address))
		return err_set(err, ERR_INVALID,
			"it has to be the one address that other nodes reach this one at");
	return 0;
}

int export_option_check(const struct serve_options *options, struct err *err)
{
	if (options->export_address != NULL && !options->csi.attach)
		return err_set(err, ERR_INVALID, "--export-address goes with --attach");
	if (options->export_without_auth && options->export_address == NULL)
		return err_set(
			err, ERR_INVALID, "--export-without-auth goes with --export-address");
	if (options->export_tls && options->export_address == NULL)
		return err_set(err, ERR_INVALID, "--export-tls goes with --export-address");
	if (options->export_tls && options->export_without_auth)
		return err_set(err, ERR_INVALID,
			"--export-tls makes its keys of those that --export-without-auth leaves out: give one of the two");
	return 0;
}
