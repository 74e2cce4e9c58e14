/* SPDX-License-Identifier: Apache-2.0 */
#include "base/uuid.h"

#include <stdio.h>
#include <sys/random.h>

bool uuid_valid(const char *uuid)
{
	for (unsigned i = 0; i < UUID_BYTES - 1; i++) {
		bool dash = i == 8 || i == 13 || i == 18 || i == 23;
		if (dash ? uuid[i] != '-'
			 : !((uuid[i] >= '0' && uuid[i] <= '9') ||
				   (uuid[i] >= 'a' && uuid[i] <= 'f')))
			return false;
	}
	return uuid[UUID_BYTES - 1] == '\0';
}

void uuid_draw(char ret[UUID_BYTES])
{
	unsigned char u[16];
	/* So few bytes never come short once the kernel's generator is seeded. */
	while (getrandom(u, sizeof(u), 0) != sizeof(u))
		;
	u[6] = (u[6] & 0x0f) | 0x40; /* version 4, variant 1 */
	u[8] = (u[8] & 0x3f) | 0x80;
	snprintf(ret, UUID_BYTES,
		"%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1],
		u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14],
		u[15]);
}
