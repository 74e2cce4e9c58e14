/* SPDX-License-Identifier: Apache-2.0 */
#ifndef RINGVOL_APP_SERVE_OWN_MOUNTS_H
#define RINGVOL_APP_SERVE_OWN_MOUNTS_H

#include "app/serve_options.h"

/* For an option whose volumes are mounted in a directory of its own: that becomes one of the roots,
 * where there are any. 0, or ERR_INVALID naming the option. */
int serve_own_mounts(struct serve_options *options, const char *option, const char *mounts_option,
	const char *mounts, struct err *err);

#endif
