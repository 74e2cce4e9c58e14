/* SPDX-License-Identifier: Apache-2.0 */
/* The value of --export-address, and what goes with it. */
#ifndef RINGVOL_APP_EXPORT_OPTION_H
#define RINGVOL_APP_EXPORT_OPTION_H

#include "app/serve_options.h"

/* 0, or -EINVAL: not one address and port of this node. */
int value_export_address(const char *value, struct err *err);
/* 0, or -EINVAL: an option is missing that another one needs. */
int export_option_check(const struct serve_options *options, struct err *err);

#endif
