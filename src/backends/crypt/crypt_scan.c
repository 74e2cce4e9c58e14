/* SPDX-License-Identifier: Apache-2.0 */
/* Nothing is owned: a scan reads all dm-crypt devices once, before the devices below are told. */
#include "backends/crypt/crypt_scan.h"

#include "backends/crypt/crypt_stack.h"
#include "base/buf.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct scan {
	void (*each)(void *arg, const struct backend_dev *dev);
	void *arg;
	struct crypt_dev *at;
	size_t count, cap;
	int res;
	int unknown_res; /* why it cannot be known which there are; 0: it is known */
};

static void scan_on_crypt(void *arg, const struct crypt_dev *dev)
{
	struct scan *scan = arg;
	if (dev->foreign)
		return;
	if (array_grow(&scan->at, &scan->cap, scan->count, sizeof(*scan->at)) < 0)
		scan->res = -ENOMEM;
	else
		scan->at[scan->count++] = *dev;
}

/* One over the device itself stands for it. Of one without a table only the mark is left: whoever
 * detaches the device takes it away as well. */
static void scan_on_device(void *arg, const struct backend_dev *below)
{
	struct scan *scan = arg;
	struct backend_dev dev = *below;
	for (size_t i = 0; i < scan->count && !dev.crypt; i++) {
		const struct crypt_dev *c = &scan->at[i];
		if (!crypt_add(c, &dev) && c->half && c->image_ino == dev.image_ino &&
			strcmp(c->tag, dev.tag) == 0)
			dev.crypt = true;
	}
	if (scan->unknown_res < 0 && dm_stands_on(dev.major, dev.minor, CRYPT_UUID_PREFIX))
		scan->res = scan->unknown_res;
	scan->each(scan->arg, &dev);
}

/* As of now. Where the device mapper may not be used, what others have is no reason to fail. */
static int read_crypts(crypt_open_dm *open, struct scan *scan)
{
	_cleanup_dm_ struct dm dm = {.fd = -1};
	/* Opening the node would load the module. */
	if (open == dm_open && !dm_is_loaded())
		return 0;
	int r = open(&dm, DM_CONTROL_PATH);
	scan->unknown_res = r == 0 || dm_is_absent(r) ? 0 : r;
	if (r < 0)
		return 0;
	r = crypt_dev_each(&dm, scan_on_crypt, scan);
	return r < 0 ? r : scan->res;
}

int crypt_scan_devices(const struct backend *backend, crypt_open_dm *open,
	void (*each)(void *arg, const struct backend_dev *dev), void *arg, struct err *err)
{
	struct scan scan = {.each = each, .arg = arg};
	int r = read_crypts(open, &scan), res = 0;
	if (r == 0)
		res = backend->scan(backend, scan_on_device, &scan, err);
	free(scan.at);
	r = r < 0 ? r : scan.res;
	return res == 0 && r < 0 ? err_sys(err, r, "looking through the dm-crypt devices: using %s",
					   DM_CONTROL_PATH)
				 : res;
}

int crypt_scan_one(crypt_open_dm *open, const struct backend_dev *dev, struct crypt_dev *ret)
{
	_cleanup_dm_ struct dm dm = {.fd = -1};
	int r = open(&dm, DM_CONTROL_PATH);
	if (r == 0)
		r = crypt_dev_look(&dm, dev->tag, dev->image_ino, ret);
	if (r < 0)
		return dm_is_absent(r) || r == -EEXIST ? -ENXIO : r;
	return ret->major == dev->major && ret->minor == dev->minor &&
			       ret->below_major == dev->below_major &&
			       ret->below_minor == dev->below_minor
		       ? 0
		       : -ENXIO;
}
