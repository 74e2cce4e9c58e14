/* SPDX-License-Identifier: Apache-2.0 */
/* Faults of a simulated pool: the nth step of an operation, or the nth request or job from now on,
 * fails. For one test program: what is armed is its own. */
#ifndef RINGVOL_TESTS_SIM_FAULTS_H
#define RINGVOL_TESTS_SIM_FAULTS_H

#include "reactor/ring.h"

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static struct {
	const char *name;
	int step_left;     /* -1: none */
	long request_left; /* -1: none */
	bool hit;
	char what[96];
} fault;

static int step_fault(void *arg, const char *op_name, const char *step_name)
{
	(void)arg;
	if (fault.step_left < 0 || strcmp(op_name, fault.name) != 0 || fault.step_left-- > 0)
		return 0;
	fault.hit = true;
	snprintf(fault.what, sizeof(fault.what), "step %s of %s", step_name, op_name);
	return -EIO;
}

static int job_fault(void *arg, const char *op_name, const char *step_name)
{
	(void)arg;
	if (fault.request_left < 0 || fault.request_left-- > 0)
		return 0;
	fault.hit = true;
	snprintf(fault.what, sizeof(fault.what), "job of %s %s", op_name, step_name);
	return -EIO;
}

static int request_fault(void *arg, uint64_t nth, const struct io_uring_sqe *sqe)
{
	(void)arg;
	(void)nth;
	if (fault.request_left < 0 || fault.request_left-- > 0)
		return 0;
	fault.hit = true;
	snprintf(fault.what, sizeof(fault.what), "request opcode %d", sqe->opcode);
	return -EIO;
}

/* With requests: the nth of them, or of jobs; else the nth step of the operations of that name. */
static inline void arm(const char *name, bool requests, int n)
{
	fault.name = name;
	fault.hit = false;
	fault.step_left = requests ? -1 : n;
	fault.request_left = requests ? n : -1;
}

/* Whether it was met. */
static inline bool disarm(void)
{
	bool hit = fault.hit;
	fault.hit = false;
	fault.step_left = -1;
	fault.request_left = -1;
	return hit;
}

#endif
