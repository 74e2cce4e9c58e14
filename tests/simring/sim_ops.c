/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a simulated ring does for an SQE: the system call its opcode stands for, without blocking.
 * Files are taken as always ready, everything else is polled first. Results are those of a CQE.
 * Opcodes nobody here uses answer -EINVAL, as an old kernel would.
 */
#include "simring/private.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/xattr.h>

/* ---- provided buffers: a stack of free ids for each group ---- */

struct id_stack {
	unsigned count;
	uint16_t ids[];
};

int sim_bufs_open(struct ring_bufs *bufs)
{
	struct id_stack *stack = malloc(sizeof(*stack) + bufs->count * sizeof(stack->ids[0]));
	if (stack == NULL)
		return -ENOMEM;
	stack->count = 0;
	bufs->engine_state = stack;
	return 0;
}

void sim_bufs_give(struct ring_bufs *bufs, unsigned id)
{
	struct id_stack *stack = bufs->engine_state;
	assert(stack->count < bufs->count);
	stack->ids[stack->count++] = (uint16_t)id;
}

void sim_bufs_close(struct ring_bufs *bufs)
{
	free(bufs->engine_state);
}

static struct ring_bufs *find_bufs(struct ring *ring, unsigned group)
{
	list_for_each (pos, &ring->bufs) {
		struct ring_bufs *bufs = container_of(pos, struct ring_bufs, link);
		if ((unsigned)bufs->group == group)
			return bufs;
	}
	return NULL;
}

uint8_t *sim_bufs_take(struct ring *ring, unsigned group, unsigned *ret_size, uint32_t *ret_flags)
{
	struct ring_bufs *bufs = find_bufs(ring, group);
	struct id_stack *stack = bufs == NULL ? NULL : bufs->engine_state;
	if (stack == NULL || stack->count == 0)
		return NULL;
	unsigned id = stack->ids[--stack->count];
	*ret_size = bufs->size_bytes;
	*ret_flags = IORING_CQE_F_BUFFER | id << IORING_CQE_BUFFER_SHIFT;
	return bufs->data + (size_t)id * bufs->size_bytes;
}

void sim_bufs_untake(struct ring *ring, unsigned group, uint32_t flags)
{
	sim_bufs_give(find_bufs(ring, group), flags >> IORING_CQE_BUFFER_SHIFT);
}

/* ---- requests ---- */

static void *ptr(uint64_t address)
{
	return (void *)(uintptr_t)address;
}

static int result(long r)
{
	return r < 0 ? -errno : (int)r;
}

/* ---- readiness ---- */

static short wanted_events(const struct io_uring_sqe *sqe)
{
	switch (sqe->opcode) {
	case IORING_OP_READ:
	case IORING_OP_READ_FIXED:
	case IORING_OP_READV:
	case IORING_OP_RECV:
	case IORING_OP_RECVMSG:
	case IORING_OP_ACCEPT:
		return POLLIN;
	case IORING_OP_WRITE:
	case IORING_OP_WRITE_FIXED:
	case IORING_OP_WRITEV:
	case IORING_OP_SEND:
	case IORING_OP_SENDMSG:
		return POLLOUT;
	case IORING_OP_POLL_ADD:
		return (short)sqe->poll32_events;
	default:
		return 0;
	}
}

static int poll_now(const struct io_uring_sqe *sqe)
{
	if (sqe->fd < 0)
		return -EBADF; /* poll() would ignore it */
	struct pollfd pfd = {.fd = sqe->fd, .events = wanted_events(sqe)};
	int r = poll(&pfd, 1, 0);
	if (r < 0)
		return -errno;
	return pfd.revents & POLLNVAL ? -EBADF : pfd.revents;
}

bool sim_ready(const struct io_uring_sqe *sqe)
{
	if (wanted_events(sqe) == 0 && sqe->opcode != IORING_OP_POLL_ADD)
		return true;
	int r = poll_now(sqe);
	return r != 0 && r != -EINTR;
}

uint32_t sim_short_unit(const struct io_uring_sqe *sqe)
{
	struct stat st;
	int type;
	socklen_t len = sizeof(type);
	switch (sqe->opcode) {
	case IORING_OP_READ:
	case IORING_OP_READ_FIXED:
	case IORING_OP_WRITE:
	case IORING_OP_WRITE_FIXED:
		/* An eventfd or pidfd takes whole records, and direct I/O whole blocks. */
		if (fstat(sqe->fd, &st) < 0 || !(S_ISREG(st.st_mode) || S_ISFIFO(st.st_mode)))
			return 0;
		return (fcntl(sqe->fd, F_GETFL) & O_DIRECT) != 0 ? 4096 : 1;
	case IORING_OP_SEND:
	case IORING_OP_RECV:
		return !(sqe->msg_flags & MSG_WAITALL) &&
				       getsockopt(sqe->fd, SOL_SOCKET, SO_TYPE, &type, &len) == 0 &&
				       type == SOCK_STREAM
			       ? 1
			       : 0;
	default:
		return 0;
	}
}

/* ---- data ---- */

/* As the kernel's ring does: the offset is ignored on what cannot seek, -1 is the file's own. */
static int transfer(const struct io_uring_sqe *sqe, uint32_t len_max)
{
	bool vector = sqe->opcode == IORING_OP_READV || sqe->opcode == IORING_OP_WRITEV;
	bool write = sqe->opcode == IORING_OP_WRITE || sqe->opcode == IORING_OP_WRITE_FIXED ||
		     sqe->opcode == IORING_OP_WRITEV;
	struct iovec one = {ptr(sqe->addr), sqe->len < len_max ? sqe->len : len_max};
	const struct iovec *iov = vector ? ptr(sqe->addr) : &one;
	int count = vector ? (int)sqe->len : 1;
	/* What cannot seek refuses an offset, and nothing was transferred then. */
	off_t offset = (off_t)sqe->off;
	for (;; offset = -1) {
		int r = result(write ? pwritev2(sqe->fd, iov, count, offset, sqe->rw_flags)
				     : preadv2(sqe->fd, iov, count, offset, sqe->rw_flags));
		if (r != -ESPIPE || offset == -1)
			return r;
	}
}

static int receive(
	struct ring *ring, const struct io_uring_sqe *sqe, uint32_t len_max, uint32_t *ret_flags)
{
	void *data = ptr(sqe->addr);
	unsigned len = sqe->len;
	bool provided = sqe->flags & IOSQE_BUFFER_SELECT;
	uint32_t taken = 0;
	if (provided) {
		unsigned size_bytes;
		data = sim_bufs_take(ring, sqe->buf_group, &size_bytes, &taken);
		if (data == NULL)
			return -ENOBUFS;
		len = len == 0 || size_bytes < len ? size_bytes : len;
	}
	len = len < len_max ? len : len_max;
	int r = result(recv(sqe->fd, data, len, (int)sqe->msg_flags | MSG_DONTWAIT));
	if (provided && r > 0)
		*ret_flags |= taken;
	else if (provided)
		sim_bufs_untake(ring, sqe->buf_group, taken);
	return r;
}

static int accept_one(const struct io_uring_sqe *sqe)
{
	struct sockaddr *addr = ptr(sqe->addr);
	socklen_t *addr_len = ptr(sqe->addr2);
	return result(accept4(sqe->fd, addr, addr_len, (int)sqe->accept_flags));
}

/* ---- names ---- */

static int set_xattr(const struct io_uring_sqe *sqe)
{
	const char *name = ptr(sqe->addr);
	const void *value = ptr(sqe->addr2);
	int flags = (int)sqe->xattr_flags;
	if (sqe->opcode == IORING_OP_FSETXATTR)
		return result(fsetxattr(sqe->fd, name, value, sqe->len, flags));
	return result(setxattr(ptr(sqe->addr3), name, value, sqe->len, flags));
}

static int get_xattr(const struct io_uring_sqe *sqe)
{
	const char *name = ptr(sqe->addr);
	void *value = ptr(sqe->addr2);
	if (sqe->opcode == IORING_OP_FGETXATTR)
		return result(fgetxattr(sqe->fd, name, value, sqe->len));
	return result(getxattr(ptr(sqe->addr3), name, value, sqe->len));
}

static int sync_file(const struct io_uring_sqe *sqe)
{
	return result(
		sqe->fsync_flags & IORING_FSYNC_DATASYNC ? fdatasync(sqe->fd) : fsync(sqe->fd));
}

static int execute_name(const struct io_uring_sqe *sqe)
{
	switch (sqe->opcode) {
	case IORING_OP_OPENAT:
		return result(openat(sqe->fd, ptr(sqe->addr), (int)sqe->open_flags, sqe->len));
	case IORING_OP_OPENAT2:
		return result(syscall(
			SYS_openat2, sqe->fd, ptr(sqe->addr), ptr(sqe->addr2), (size_t)sqe->len));
	case IORING_OP_STATX:
		return result(statx(
			sqe->fd, ptr(sqe->addr), (int)sqe->statx_flags, sqe->len, ptr(sqe->addr2)));
	case IORING_OP_RENAMEAT:
		return result(renameat2(sqe->fd, ptr(sqe->addr), (int)sqe->len, ptr(sqe->addr2),
			sqe->rename_flags));
	case IORING_OP_UNLINKAT:
		return result(unlinkat(sqe->fd, ptr(sqe->addr), (int)sqe->unlink_flags));
	case IORING_OP_MKDIRAT:
		return result(mkdirat(sqe->fd, ptr(sqe->addr), sqe->len));
	case IORING_OP_LINKAT:
		return result(linkat(sqe->fd, ptr(sqe->addr), (int)sqe->len, ptr(sqe->addr2),
			(int)sqe->hardlink_flags));
	case IORING_OP_SYMLINKAT:
		return result(symlinkat(ptr(sqe->addr), sqe->fd, ptr(sqe->addr2)));
	case IORING_OP_FSETXATTR:
	case IORING_OP_SETXATTR:
		return set_xattr(sqe);
	case IORING_OP_FGETXATTR:
	case IORING_OP_GETXATTR:
		return get_xattr(sqe);
	default:
		return -EINVAL;
	}
}

int sim_execute(
	struct ring *ring, const struct io_uring_sqe *sqe, uint32_t len_max, uint32_t *ret_flags)
{
	switch (sqe->opcode) {
	case IORING_OP_NOP:
		return 0;
	case IORING_OP_READ:
	case IORING_OP_READ_FIXED:
	case IORING_OP_READV:
	case IORING_OP_WRITE:
	case IORING_OP_WRITE_FIXED:
	case IORING_OP_WRITEV:
		return transfer(sqe, len_max);
	case IORING_OP_SEND:
		return result(send(sqe->fd, ptr(sqe->addr), sqe->len < len_max ? sqe->len : len_max,
			(int)sqe->msg_flags | MSG_DONTWAIT | MSG_NOSIGNAL));
	case IORING_OP_RECV:
		return receive(ring, sqe, len_max, ret_flags);
	case IORING_OP_SENDMSG:
		return result(sendmsg(sqe->fd, ptr(sqe->addr),
			(int)sqe->msg_flags | MSG_DONTWAIT | MSG_NOSIGNAL));
	case IORING_OP_RECVMSG:
		return result(recvmsg(sqe->fd, ptr(sqe->addr), (int)sqe->msg_flags | MSG_DONTWAIT));
	case IORING_OP_ACCEPT:
		return accept_one(sqe);
	case IORING_OP_CONNECT:
		return result(connect(sqe->fd, ptr(sqe->addr), (socklen_t)sqe->off));
	case IORING_OP_SHUTDOWN:
		return result(shutdown(sqe->fd, (int)sqe->len));
	case IORING_OP_POLL_ADD:
		return poll_now(sqe);
	case IORING_OP_FSYNC:
		return sync_file(sqe);
	case IORING_OP_FALLOCATE:
		return result(fallocate(sqe->fd, (int)sqe->len, (off_t)sqe->off, (off_t)sqe->addr));
	case IORING_OP_CLOSE:
		return result(close(sqe->fd));
	default:
		return execute_name(sqe);
	}
}
