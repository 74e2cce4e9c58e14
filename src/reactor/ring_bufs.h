/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that a ring knows beforehand: buffers to receive into, and buffers for direct I/O. */
#ifndef RINGVOL_REACTOR_RING_BUFS_H
#define RINGVOL_REACTOR_RING_BUFS_H

#include <stddef.h>
#include <stdint.h>

struct ring;

/* ---- provided buffers: one group, for receiving ---- */

struct ring_bufs;
/* count: a power of two. 0 or -errno. */
int ring_bufs_open(struct ring *ring, unsigned count, unsigned size_bytes, struct ring_bufs **ret);
/* The same for users that share them, because they hold a buffer only while they look at it: one
 * group of each size and number. The last to close them frees them. */
int ring_bufs_share(struct ring *ring, unsigned count, unsigned size_bytes, struct ring_bufs **ret);
void ring_bufs_close(struct ring_bufs *bufs); /* NULL is legal */
/* The group id for sqe->buf_group, together with IOSQE_BUFFER_SELECT. */
int ring_bufs_group(const struct ring_bufs *bufs);
/* The buffer a completion's flags name (IORING_CQE_F_BUFFER set); its length is the CQE's res. */
uint8_t *ring_bufs_at(struct ring_bufs *bufs, uint32_t cqe_flags);
/* Gives that buffer back to the kernel. */
void ring_bufs_put(struct ring_bufs *bufs, uint32_t cqe_flags);

/* ---- registered buffers: for direct I/O with IORING_OP_READ_FIXED and _WRITE_FIXED ---- */

enum { RING_FIXED_MAX = 64 };
/* Pins [mem, mem + len) and returns its index (sqe->buf_index), or -errno: then the plain opcodes
 * do as well. The memory must stay until ring_fixed_remove(). */
int ring_fixed_add(struct ring *ring, void *mem, size_t len);
/* No transfer may use it any more. A negative index is left alone. */
void ring_fixed_remove(struct ring *ring, int index);

#endif
