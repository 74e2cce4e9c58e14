/* SPDX-License-Identifier: Apache-2.0 */
/* The backends of `ringvol serve`, and encryption over each. */
#ifndef RINGVOL_SERVE_BACKENDS_H
#define RINGVOL_SERVE_BACKENDS_H

#include "app/serve_options.h"
#include "backends/backend.h"

struct crypt;

struct serve_backends {
	struct crypt *crypts[BACKEND_TYPES]; /* over each backend that there is */
};

/* Zeroed *b; before the services are opened. on_ublkd_returned: the data process is there again. 0,
 * or -errno with err; close it then, too. */
int serve_backends_open(struct serve_backends *b, struct serve_options *options,
	struct reactor *reactor, void (*on_ublkd_returned)(void *arg), void *arg, struct err *err);
/* After the services were closed. */
void serve_backends_close(struct serve_backends *b);

#endif
