/* SPDX-License-Identifier: Apache-2.0 */
/* What exports, as a table of functions: the kernel's nvmet, or what a test has in its place. */
#ifndef RINGVOL_EXPORT_TARGET_H
#define RINGVOL_EXPORT_TARGET_H

#include "export/nvmet.h"

/* As those of nvmet.h: blocking, on work threads. */
struct export_target {
	int (*check)(bool auth, struct err *err);
	int (*make)(const struct nvmet_export *e, struct err *err);
	bool (*is_open)(const char *address);
	int (*open)(const char *address, const struct export_names *names, size_t count,
		struct err *err);
	int (*end)(const struct nvmet_export *e, struct err *err);
	int (*resize)(const struct nvmet_export *e, struct err *err);
	int (*each)(int (*each)(void *arg, const char *subsystem), void *arg);
};

static const struct export_target export_nvmet = {nvmet_check, nvmet_export_make, nvmet_is_open,
	nvmet_open, nvmet_export_end, nvmet_export_resize, nvmet_each};

#endif
