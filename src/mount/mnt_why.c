/* SPDX-License-Identifier: Apache-2.0 */
/* What a call that fails says of it, in the answer's own room: the first who says something is
 * right. */
#include "mount/mnt_priv.h"

#include <stdarg.h>
#include <stdio.h>

int mnt_why(char *why, int res, const char *fmt, ...)
{
	if (why[0] != '\0')
		return res;
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(why, MNT_WHY_BYTES, fmt, ap);
	va_end(ap);
	return res;
}
