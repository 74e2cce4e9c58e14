/* SPDX-License-Identifier: Apache-2.0 */
/* Where `ringvol serve` is called, and what kubelet is told of that. */
#ifndef RINGVOL_SERVE_ENDPOINT_H
#define RINGVOL_SERVE_ENDPOINT_H

#include "app/serve_options.h"

/* Looks the options over, when all are there, and fills in what follows from others. */
int serve_endpoint_complete(struct serve_options *options, struct err *err);

#endif
