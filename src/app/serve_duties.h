/* SPDX-License-Identifier: Apache-2.0 */
/* What a driver does with its volumes by itself. */
#ifndef RINGVOL_SERVE_DUTIES_H
#define RINGVOL_SERVE_DUTIES_H

#include "app/serve_options.h"

/* 0 or -errno. node_close() ends them. */
int serve_duties_open(struct node *node, const struct serve_options *options);

#endif
