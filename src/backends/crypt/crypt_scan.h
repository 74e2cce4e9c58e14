/* SPDX-License-Identifier: Apache-2.0 */
/* Looking at what is there: all devices of a backend, each with the dm-crypt device over it, or the
 * dm-crypt device over one. Blocking. */
#ifndef RINGVOL_BACKENDS_CRYPT_SCAN_H
#define RINGVOL_BACKENDS_CRYPT_SCAN_H

#include "backends/backend.h"
#include "backends/crypt/crypt_dev.h"

/* dm_open(), or a test's. */
typedef int crypt_open_dm(struct dm *ret, const char *control_path);

/* The scan of `backend`, the one below, with what stands over its devices. 0, what the scan below
 * answers, or -errno of the device mapper. */
int crypt_scan_devices(const struct backend *backend, crypt_open_dm *open,
	void (*each)(void *arg, const struct backend_dev *dev), void *arg, struct err *err);
/* The dm-crypt device now; -ENXIO: it has gone, or is another. */
int crypt_scan_one(crypt_open_dm *open, const struct backend_dev *dev, struct crypt_dev *ret);

#endif
