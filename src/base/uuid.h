/* SPDX-License-Identifier: Apache-2.0 */
/* UUIDs as text: 8-4-4-4-12 lower-case hex digits. */
#ifndef RINGVOL_BASE_UUID_H
#define RINGVOL_BASE_UUID_H

#include <stdbool.h>

enum { UUID_BYTES = 37 }; /* its NUL among them */

bool uuid_valid(const char *uuid);
/* A random one. */
void uuid_draw(char ret[UUID_BYTES]);

#endif
