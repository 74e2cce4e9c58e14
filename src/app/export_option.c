/* SPDX-License-Identifier: Apache-2.0 */
/* Other nodes are told the address as it is given, so it is one that they can reach. */
#include "app/export_option.h"

#include "export/nvmet.h"

#include <string.h>

int value_export_address(const char *value, struct err *err)
{
	char ip[48], port[8];
	bool v6;
	if (nvmet_split_address(value, ip, port, &v6) < 0)
		return err_set(
			err, ERR_INVALID, "not IP:PORT, as 192.0.2.1:4420 or [2001:db8::1]:4420");
	if (strcmp(ip, v6 ? "::" : "0.0.0.0") == 0)
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
	return 0;
}
