/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A submission queue whose entries have lives of their own.
 *
 * io_uring may be told by index which entry comes next. So some entries are lent out for good: the
 * memory of such a one belongs to one command at a time and is not written to before that command
 * has completed. Linux before 6.14 needs that of a command that is linked behind other I/O: it
 * reads the entry when its turn comes, and not, as for all else, when it is submitted. It also
 * saves filling in what never changes. The other entries are used in turn, as usual.
 */
#ifndef RINGVOL_BACKENDS_UBLK_SQ_H
#define RINGVOL_BACKENDS_UBLK_SQ_H

#include <liburing.h>

enum {
	UBLK_SQ_ENTRIES = 8192,
	UBLK_SQ_TURN = 256, /* entries used in turn, and submitted by one system call at most */
	UBLK_SQ_LENT = UBLK_SQ_ENTRIES - UBLK_SQ_TURN,
};

struct ublk_sq {
	struct io_uring uring; /* for completions and registrations, never for submission */
	int enter_fd;
	unsigned enter_flags;
	unsigned tail; /* entries queued so far; the kernel's copy is behind until it is entered */
	unsigned turn;
};

/* For the calling thread alone. 0 or -errno. */
int ublk_sq_open(struct ublk_sq *sq);
void ublk_sq_close(struct ublk_sq *sq);
/* Submits what is queued and waits for so many completions; both may fall short, so it is called in
 * a loop. Ends the process when the ring is broken, or when a link was cut in two: the next process
 * recovers the devices. */
void ublk_sq_enter(struct ublk_sq *sq, unsigned wait);
/* Likewise, and waits for so long at most. */
void ublk_sq_enter_until(struct ublk_sq *sq, unsigned wait, uint64_t timeout_ns);

static inline unsigned ublk_sq_pending(const struct ublk_sq *sq)
{
	return sq->tail - __atomic_load_n(sq->uring.sq.khead, __ATOMIC_ACQUIRE);
}

/* Makes room for `count` entries in a row. */
static inline void ublk_sq_room(struct ublk_sq *sq, unsigned count)
{
	while (ublk_sq_pending(sq) + count > UBLK_SQ_TURN)
		ublk_sq_enter(sq, 0);
}

static inline void ublk_sq_push(struct ublk_sq *sq, unsigned index)
{
	sq->uring.sq.array[sq->tail++ & (UBLK_SQ_ENTRIES - 1)] = index;
}

/* The next entry of those used in turn, queued, with undefined contents. There is room. */
static inline struct io_uring_sqe *ublk_sq_next(struct ublk_sq *sq)
{
	unsigned index = UBLK_SQ_LENT + (sq->turn++ & (UBLK_SQ_TURN - 1));
	ublk_sq_push(sq, index);
	return &sq->uring.sq.sqes[index];
}

/* One that is lent; it is queued by ublk_sq_push(). */
static inline struct io_uring_sqe *ublk_sq_lent(struct ublk_sq *sq, unsigned index)
{
	return &sq->uring.sq.sqes[index];
}

#endif
