/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The names of an export, and its key. An export is what gives one volume's device to one other
 * node: a subsystem of the kernel's NVMe target with one namespace, for one host. Its names are
 * made of the pool's uuid8 and of a UUID that is drawn for it: the namespace's.
 */
#ifndef RINGVOL_EXPORT_NAMES_H
#define RINGVOL_EXPORT_NAMES_H

#include "attach/context.h"
#include "base/uuid.h"

#include <stdbool.h>

struct export_names {
	char subsystem[ATTACH_NQN_BYTES];
	char host[ATTACH_NQN_BYTES];
	char host_id[UUID_BYTES]; /* the kernel's client takes no two hosts of one id */
};

void export_names_of(const char *pool_uuid8, const char *uuid, struct export_names *ret);
/* Takes a subsystem's name apart. False: it is not one of ours. */
bool export_names_split(const char *subsystem, char ret_pool_uuid8[9], char ret_uuid[UUID_BYTES]);
/* A random secret of 32 bytes for DH-HMAC-CHAP, as the kernel and nvme-cli write it:
 * "DHHC-1:00:BASE64:". */
void export_key_draw(char ret[ATTACH_KEY_BYTES]);

#endif
