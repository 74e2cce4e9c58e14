/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel's NVMe target over TCP, by configfs. All of it blocks, and the end of an export waits
 * for the I/O that is in flight: for work threads. Every call can be repeated, and finds what is
 * there.
 *
 * Only what bears our names is touched (names.h): subsystems and hosts by their prefixes. Ports
 * have numbers alone; ours have one of NVMET_PORTS from NVMET_PORT_FIRST on, and our address. A
 * port stays, with an empty subsystem.
 */
#ifndef RINGVOL_EXPORT_NVMET_H
#define RINGVOL_EXPORT_NVMET_H

#include "base/err.h"
#include "export/names.h"

#include <stdbool.h>
#include <stddef.h>

#define NVMET_ROOT "/sys/kernel/config/nvmet"

#define NVMET_KEEPER_PREFIX "nqn.2026-11.dev.ringvol:keeper." /* and the port's number */

enum { NVMET_PORT_FIRST = 21078, NVMET_PORTS = 64 };

struct nvmet_export {
	struct export_names names;
	char uuid[UUID_BYTES]; /* the namespace's */
	const char *key;       /* "": no authentication */
	const char *device;    /* path of its node */
	const char *address;   /* IP:PORT, [IPv6]:PORT; NULL: it is opened later, with others */
	bool tls;              /* it is reached within TLS alone; with a key */
};

/* 0, or ERR_PRECONDITION naming what the kernel lacks. auth: exports are to have keys; tls: and are
 * to be reached within TLS alone. */
int nvmet_check(bool auth, bool tls, struct err *err);
/* When it ends well, the host can connect. When it fails, an export that the host might have been
 * connected to before is left to it; of any other nothing is left, as far as that could be ended.
 */
int nvmet_export_make(const struct nvmet_export *e, struct err *err);
/* Whether anything of ours can be reached at the address. */
bool nvmet_is_open(const char *address);
/* Has all of these reached at the address, from the moment that it is open. */
int nvmet_open(const char *address, bool tls, const struct export_names *names, size_t count,
	struct err *err);
/* When it ends well, no I/O of the host is in flight, none comes any more, and nothing is left. */
int nvmet_export_end(const struct nvmet_export *e, struct err *err);
/* The device has grown. */
int nvmet_export_resize(const struct nvmet_export *e, struct err *err);
/* The subsystems with our names. 0, each()'s answer other than 0, or -errno. */
int nvmet_each(int (*each)(void *arg, const char *subsystem), void *arg);

#endif
