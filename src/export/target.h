/* SPDX-License-Identifier: Apache-2.0 */
/* What exports, as a table of functions: the kernel's nvmet, or what a test has in its place. */
#ifndef RINGVOL_EXPORT_TARGET_H
#define RINGVOL_EXPORT_TARGET_H

#include "export/nvmet.h"

/* As those of nvmet.h: blocking, on work threads. */
struct export_target {
	int (*check)(bool auth, bool tls, struct err *err);
	int (*make)(const struct nvmet_export *e, struct err *err);
	bool (*is_open)(const char *address);
	int (*open)(const char *address, bool tls, const struct export_names *names, size_t count,
		struct err *err);
	int (*end)(const struct nvmet_export *e, struct err *err);
	int (*resize)(const struct nvmet_export *e, struct err *err);
	int (*each)(int (*each)(void *arg, const char *subsystem), void *arg);
};

extern const struct export_target export_nvmet; /* the kernel's */

#endif
