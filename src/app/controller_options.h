/* SPDX-License-Identifier: Apache-2.0 */
/* What `ringvol controller` can be told, by flag or environment. */
#ifndef RINGVOL_CONTROLLER_OPTIONS_H
#define RINGVOL_CONTROLLER_OPTIONS_H

#include "app/tls_options.h"
#include "base/arena.h"
#include "base/log.h"
#include "base/options.h"

#include <stdbool.h>

enum {
	CONTROLLER_ENDPOINTS_MAX = 8,
	CONTROLLER_FORGET_MAX = 256,
};

struct controller_options {
	struct arena *arena; /* what setters keep; other strings are the command line's own */
	const char *endpoints[CONTROLLER_ENDPOINTS_MAX];
	unsigned endpoint_count;
	const char *listen; /* ADDR:PORT for nodes; NULL: only with node */
	const char *node;   /* unix:///PATH of the one process that is all of it; NULL: a cluster */
	const char *http;   /* ADDR:PORT; NULL: off */
	struct tls_files tls;
	const char *forget[CONTROLLER_FORGET_MAX]; /* pools' uuids, 8 digits */
	unsigned forget_count;
	const char *driver_name;
	bool controller_expand, attach;
	unsigned health; /* enum csi_health */
	enum log_level log_level;
	enum log_format log_format;
};

extern const struct command controller_command;

/* Zeroed *ret is filled; with result.help nothing in it counts. 0, or a negative errno with one
 * line in *err. Free it in every case. */
int controller_options_parse(struct controller_options *ret, struct options_result *ret_result,
	int argc, char *const *argv, struct err *err);
void controller_options_free(struct controller_options *options);

#endif
