/* SPDX-License-Identifier: Apache-2.0 */
#include "app/serve_backends.h"

#include "backends/crypt/crypt.h"
#include "backends/disk/disk_backend.h"

#include <errno.h>

/* Over all that were added before. */
static int open_crypts(struct serve_backends *b)
{
	for (unsigned i = 0; i < BACKEND_TYPES; i++) {
		const struct backend *below = backend_get((enum backend_type)i);
		if (below == NULL)
			continue;
		b->crypts[i] = crypt_open(below, NULL);
		if (b->crypts[i] == NULL)
			return -ENOMEM;
	}
	return 0;
}

int serve_backends_open(struct serve_backends *b, struct serve_options *options,
	struct reactor *reactor, void (*on_ublkd_returned)(void *arg), void *arg, struct err *err)
{
	int r = 0;
	backend_loop_configure(&options->loop);
	backend_disk_open();
	if (options->ublk != SERVE_UBLKD_OFF) {
		options->ublkd.on_returned = on_ublkd_returned;
		options->ublkd.arg = arg;
		r = backend_ublk_open(reactor, &options->ublkd);
	}
	if (r < 0)
		return err_sys(err, r, "ublk volumes cannot be served");
	r = open_crypts(b);
	return r < 0 ? err_sys(err, r, "encrypted volumes cannot be served") : 0;
}

void serve_backends_close(struct serve_backends *b)
{
	for (unsigned i = 0; i < BACKEND_TYPES; i++)
		crypt_close(b->crypts[i]);
	backend_ublk_close();
	backend_disk_close();
}
