/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parameters of io.systemd.StorageProvider's methods: JSON from outside becomes a request that
 * was checked. Names become parts of paths, so they are letters, digits and ".-_", a letter or
 * digit first.
 */
#ifndef RINGVOL_PROVIDER_REQUEST_H
#define RINGVOL_PROVIDER_REQUEST_H

#include "base/arena.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum { PROVIDER_NAME_MAX = 119 }; /* bytes of a volume's name; ringvol's has a prefix */

/* What a volume is handed over as. */
enum provider_type { PROVIDER_TYPE_ANY, PROVIDER_BLK, PROVIDER_REG, PROVIDER_DIR };
enum provider_create { PROVIDER_CREATE_ANY, PROVIDER_CREATE_NEW, PROVIDER_CREATE_OPEN };
enum provider_writes { PROVIDER_AS_CAN_BE, PROVIDER_WRITABLE, PROVIDER_READ_ONLY };

struct provider_acquire {
	const char *name, *template; /* "": none is named */
	enum provider_create create;
	enum provider_writes writes;
	enum provider_type type;
	uint64_t size_bytes; /* 0: none is named */
};

/* "blk", "reg", "dir". */
const char *provider_type_name(enum provider_type type);
/* Strings of *ret lie in the arena. NULL, or the name of the parameter that is wrong, unknown or
 * missing: of the request or static. "" for want of memory. */
const char *provider_acquire_parse(
	const json_t *parameters, struct arena *arena, struct provider_acquire *ret);
/* Of ListVolumes and ListTemplates: a shell's pattern, in the arena; NULL: all. Returns as above.
 */
const char *provider_list_parse(
	const json_t *parameters, struct arena *arena, const char **ret_pattern);

#endif
