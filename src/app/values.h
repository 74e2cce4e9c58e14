/* SPDX-License-Identifier: Apache-2.0 */
/* Values that more than one command takes. 0, or -EINVAL with what is wrong; the flag and the value
 * need not be said. */
#ifndef RINGVOL_APP_VALUES_H
#define RINGVOL_APP_VALUES_H

#include "base/err.h"

#include <stdint.h>

enum { DRIVER_NAME_MAX = 63 /* bytes; the specification's */ };

/* Where CSI is served: unix:///PATH, or a loopback's tcp://. */
int value_endpoint(const char *value, struct err *err);
/* A domain name as in RFC 1035, upper case allowed: what CSI asks of a driver's name. */
int value_driver_name(const char *value, struct err *err);
/* ADDR:PORT of this host; example: for the message. */
int value_address(const char *value, const char *example, struct err *err);

/* A number with a unit, s, m, h or d, from a second to max_s. */
int value_duration(const char *value, uint64_t max_s, uint64_t *ret_s, struct err *err);

#endif
