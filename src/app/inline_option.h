/* SPDX-License-Identifier: Apache-2.0 */
/* The value of --inline: what pods may have of inline volumes. */
#ifndef RINGVOL_INLINE_OPTION_H
#define RINGVOL_INLINE_OPTION_H

#include "base/arena.h"
#include "csi/csi.h"

/* "off", or "pools=A:B,namespaces=N:M,..."; what is kept lies in the arena. 0, or -EINVAL with what
 * is wrong. */
int inline_option_parse(
	struct csi_inline_policy *ret, struct arena *arena, const char *value, struct err *err);

#endif
