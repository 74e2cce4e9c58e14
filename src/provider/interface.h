/* SPDX-License-Identifier: Apache-2.0 */
/* The interfaces as varlink describes them, for org.varlink.service. */
#ifndef RINGVOL_PROVIDER_INTERFACE_H
#define RINGVOL_PROVIDER_INTERFACE_H

#include <jansson.h>

#define PROVIDER_INTERFACE "io.systemd.StorageProvider"
#define VARLINK_INTERFACE  "org.varlink.service"

/* NULL: there is no such interface. */
const char *interface_description(const char *name);
/* What GetInfo answers; a reference, NULL: out of memory. */
json_t *interface_info(void);

#endif
