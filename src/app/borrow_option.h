/* SPDX-License-Identifier: Apache-2.0 */
/* --owner-timeout and --owner-fail-after: how long the I/O of a volume of another node waits for
 * it. */
#ifndef RINGVOL_BORROW_OPTION_H
#define RINGVOL_BORROW_OPTION_H

#include "attach/fabrics.h"
#include "base/err.h"

enum { BORROW_OPTION_MAX_S = 86400 };

/* 0, or -EINVAL with what is wrong. */
int borrow_option_loss(struct fabrics_waits *ret, const char *value, struct err *err);
int borrow_option_fail(struct fabrics_waits *ret, const char *value, struct err *err);

#endif
