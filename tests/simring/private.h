/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the simulated ring share. */
#ifndef RINGVOL_TESTS_SIM_PRIVATE_H
#define RINGVOL_TESTS_SIM_PRIVATE_H

#include "reactor/ring_engine.h"
#include "simring/sim.h"

/* sim_ops.c: whether the request can be carried out without blocking. */
bool sim_ready(const struct io_uring_sqe *sqe);
/* Carries it out; *flags are the completion's. len_max bounds a transfer (UINT32_MAX: no bound). */
int sim_execute(
	struct ring *ring, const struct io_uring_sqe *sqe, uint32_t len_max, uint32_t *ret_flags);
/* A transfer of it that is cut short ends at a multiple of so many bytes; 0: none is cut short. */
uint32_t sim_short_unit(const struct io_uring_sqe *sqe);

/* Provided buffers are a stack of free ids. A simulated receive takes one; NULL: none
 * is left, or there is no such group. */
uint8_t *sim_bufs_take(struct ring *ring, unsigned group, unsigned *ret_size, uint32_t *ret_flags);
void sim_bufs_untake(struct ring *ring, unsigned group, uint32_t flags);
int sim_bufs_open(struct ring_bufs *bufs);
void sim_bufs_give(struct ring_bufs *bufs, unsigned id);
void sim_bufs_close(struct ring_bufs *bufs);

#endif
