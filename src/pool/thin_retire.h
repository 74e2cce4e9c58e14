/* SPDX-License-Identifier: Apache-2.0 */
/* The last steps of the operation that keeps a thin pool: templates go, and the thin pool after
 * them. For thin_steps.c. */
#ifndef RINGVOL_POOL_THIN_RETIRE_H
#define RINGVOL_POOL_THIN_RETIRE_H

#include "pool/thin_steps.h"

bool thin_templates_done(struct op *op);
int thin_templates_run(struct op *op);
int thin_templates_end(struct op *op, int res);

bool thin_retire_done(struct op *op);
int thin_retire_run(struct op *op);
int thin_retire_end(struct op *op, int res);

#endif
