/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One image file: its size, its extents, its lock. Synchronous calls for work jobs. Offsets and
 * sizes are bytes. All return 0 or -errno unless they say otherwise.
 */
#ifndef RINGVOL_BLOCKIO_IMAGE_H
#define RINGVOL_BLOCKIO_IMAGE_H

#include <stdbool.h>
#include <stdint.h>

/* Sets the size; with thick, allocates [0, size) for good (zeroed on read). -EOPNOTSUPP where the
 * file system has no fallocate. Never shrinks: -EINVAL if the file is larger. */
int image_resize(int fd, uint64_t size, bool thick);
/* Makes dst (an empty file) share all extents of src: FICLONE. -EOPNOTSUPP or -EXDEV where the
 * file system cannot. */
int image_reflink(int src_fd, int dst_fd);
/* Asks the file system to keep extents of this many bytes together (XFS extent size hint), so that
 * later reflinks stay cheap. Where there is no such thing, nothing happens: 0. */
int image_hint_extent_size(int fd, uint32_t extent_bytes);
/* The same, as long as suits an image of that size. */
int image_hint_for_size(int fd, uint64_t size);
/* Gives back the blocks of a file that were allocated ahead and not written to; what reads as zeros
 * reads so afterwards. Nobody writes to it meanwhile. */
int image_punch_unwritten(int fd, uint64_t size);
/* Allocated bytes (st_blocks * 512) and size. */
int image_usage(int fd, uint64_t *ret_allocated, uint64_t *ret_size);

/* Takes the image's lock, flock(LOCK_EX), and looks for users that do not know of the lock (a loop
 * device or a copy made by hand). fd is open read-write. 0: locked, and open nowhere else; 1:
 * locked, but somebody has it open; -EWOULDBLOCK: somebody has the lock. The lock lives as long as
 * fd. SIGIO must be ignored: an open at the wrong moment sends one. */
int image_lock(int fd);

/* Alignment direct I/O on this file needs, in bytes; 0 when it has none or nobody can tell. */
uint32_t image_dio_align(int fd);

#endif
