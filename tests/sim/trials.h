/* SPDX-License-Identifier: Apache-2.0 */
/* An operation of the world in csi_calls.h, failed once at every step: see test_csi.c. */
#ifndef RINGVOL_TESTS_TRIALS_H
#define RINGVOL_TESTS_TRIALS_H

#include "csi_calls.h"

struct trial {
	const char *name;
	enum grpc_status (*run)(void);
	enum grpc_status (*back)(void);
	bool all_or_nothing; /* a failure leaves the machine as it was, or the operation committed
			      */
};

/* What is made anew by each run has another random part each time, in its device's tag. */
extern bool masks_tags;

/* Fails run()'s n-th step for every n. Returns how many steps there were. */
unsigned fail_each_step(const struct trial *t);

#endif
