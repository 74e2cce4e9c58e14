/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of values: pure, before anything is opened. */
#include "app/values.h"

#include "base/options.h"
#include "rpc/listen.h"

#include <stdbool.h>
#include <string.h>

int value_endpoint(const char *value, struct err *err)
{
	struct endpoint endpoint;
	int r = listen_parse_endpoint(value, &endpoint, err);
	if (r == 0 && endpoint.address.ss_family == AF_UNIX)
		r = options_socket(
			((const struct sockaddr_un *)&endpoint.address)->sun_path, false, err);
	return r;
}

static bool is_alnum(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

int value_driver_name(const char *value, struct err *err)
{
	size_t len = strlen(value);
	if (len == 0 || len > DRIVER_NAME_MAX)
		return err_set(
			err, ERR_INVALID, "a driver's name has 1 to %d bytes", DRIVER_NAME_MAX);
	for (size_t i = 0; i < len; i++) {
		bool edge = i == 0 || i + 1 == len || value[i - 1] == '.' || value[i + 1] == '.';
		if (is_alnum(value[i]) || (!edge && (value[i] == '-' || value[i] == '.')))
			continue;
		return err_set(err, ERR_INVALID,
			"a driver's name is a domain name: letters, digits, '-' and '.', each part "
			"beginning and ending with a letter or digit");
	}
	return 0;
}

int value_address(const char *value, const char *example, struct err *err)
{
	struct sockaddr_storage address;
	socklen_t len;
	if (listen_parse_address(value, &address, &len) < 0)
		return err_set(err, ERR_INVALID, "not ADDR:PORT (%s)", example);
	return 0;
}
