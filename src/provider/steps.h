/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of the provider's jobs (job.h). */
#ifndef RINGVOL_PROVIDER_STEPS_H
#define RINGVOL_PROVIDER_STEPS_H

#include "reactor/op.h"

extern const struct op_step provider_acquire_steps[], provider_release_steps[];

#endif
