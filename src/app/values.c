/* SPDX-License-Identifier: Apache-2.0 */
/* Checks of values: pure, before anything is opened. */
#include "app/values.h"

#include "base/address.h"
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
	if (address_parse(value, &address, &len) < 0)
		return err_set(err, ERR_INVALID, "not ADDR:PORT (%s)", example);
	return 0;
}

int value_duration(const char *value, uint64_t max_s, uint64_t *ret_s, struct err *err)
{
	static const struct {
		char unit;
		uint64_t seconds;
	} units[] = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}};
	char number[24];
	size_t digits = strspn(value, "0123456789");
	uint64_t count, each = 0;
	for (unsigned i = 0; i < sizeof(units) / sizeof(units[0]) && value[digits] != '\0'; i++)
		if (value[digits] == units[i].unit && value[digits + 1] == '\0')
			each = units[i].seconds;
	if (each == 0 || digits == 0 || digits >= sizeof(number))
		return err_set(err, ERR_INVALID,
			"not a number with a unit: s, m, h or d, as in 12h or 7d");
	memcpy(number, value, digits);
	number[digits] = '\0';
	if (!options_number(number, 1, max_s / each, &count))
		return err_set(err, ERR_INVALID,
			"it lasts a second at least, and %llu days at most",
			(unsigned long long)(max_s / 86400));
	*ret_s = count * each;
	return 0;
}
