/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The child's start and end. Owns the pipe's read end while the child runs.
 *
 * Happy path: the order goes into a pipe, whose write end is closed before the child starts, so
 * that it finds all of it and the end. It fails for want of descriptors or memory, and as the child
 * does.
 */
#include "backends/crypt/luks_child.h"

#include "base/fd.h"
#include "reactor/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/uio.h>

/* The read end, with all of the order in it. A pipe of this size never waits; one that the kernel
 * has made smaller, for want of room, does not take it. */
static int order_pipe(const struct luks_order *order)
{
	uint8_t head[LUKS_HEAD_BYTES];
	int fds[2];
	if (pipe2(fds, O_CLOEXEC | O_NONBLOCK) < 0)
		return -errno;
	luks_order_print(order, head);
	const struct iovec parts[] = {
		{head, sizeof(head)},
		{(void *)(uintptr_t)order->key, order->key_len},
	};
	ssize_t n = writev(fds[1], parts, order->key_len != 0 ? 2 : 1);
	int r = n < 0 ? -errno : (size_t)n == sizeof(head) + order->key_len ? 0 : -ENOBUFS;
	fd_close(&fds[1]);
	if (r < 0)
		fd_close(&fds[0]);
	return r < 0 ? r : fds[0];
}

static void close_files(struct luks_child *child)
{
	fd_close(&child->order_fd);
	fd_close(&child->device_fd);
	fd_close(&child->lock_fd);
}

/* The order, the device if there is one, the lock if there is one. */
static void give_files(struct luks_child *child)
{
	struct proc *proc = &child->proc;
	const int files[] = {child->order_fd, child->device_fd, child->lock_fd};
	_Static_assert(PROC_FILE == 3 && LUKS_DEVICE_FD == PROC_FILE + 1, "the child's numbers");
	_Static_assert(sizeof(files) == sizeof(proc->files), "all of them fit");
	for (unsigned i = 0; i < PROC_FILES_MAX; i++)
		if (files[i] >= 0)
			proc->files[proc->file_count++] = files[i];
}

int luks_child_run(struct op *op, struct luks_child *child, const struct luks_order *order,
	int device_fd, int lock_fd)
{
	child->device_fd = device_fd;
	/* A pool that goes meanwhile closes its own. */
	child->lock_fd = lock_fd > 0 ? fcntl(lock_fd, F_DUPFD_CLOEXEC, 0) : -1;
	int r = lock_fd > 0 && child->lock_fd < 0 ? -errno : 0;
	child->order_fd = r < 0 ? r : order_pipe(order);
	if (child->order_fd < 0) {
		r = child->order_fd;
		close_files(child);
		return op_fail_sys(op, r, "telling 'ringvol luks' what to do");
	}
	child->proc = (struct proc){
		.argv = {spawn_self_exe, "luks", "3", NULL},
		.timeout_ms = LUKS_TIMEOUT_MS,
		.memory_bytes = LUKS_MEMORY_BYTES,
	};
	give_files(child);
	r = op_proc(op, &child->proc);
	if (r < 0)
		close_files(child);
	return r;
}

/* Its last line; what libraries say comes before. */
static const char *message_of(struct luks_child *child)
{
	const char *says = NULL;
	for (const char *at = child->proc.output; (at = strstr(at, LUKS_SAYS)) != NULL;)
		says = at = at + strlen(LUKS_SAYS);
	if (says == NULL)
		return "it said nothing";
	child->proc.output[child->proc.output_len] = '\0';
	((char *)(uintptr_t)says)[strcspn(says, "\n")] = '\0';
	return says;
}

int luks_child_end(struct op *op, struct luks_child *child, const char *image, int res)
{
	close_files(child);
	if (res == LUKS_OK)
		return 0;
	if (res == -ETIMEDOUT)
		return op_fail(op, ERR_TIMEOUT,
			"the encrypted image %s was not opened within %d s: see the kernel log, and try again",
			image, LUKS_TIMEOUT_MS / 1000);
	if (res < 0)
		return op_fail_sys(
			op, res, "opening the encrypted image %s ('ringvol luks')", image);
	const char *says = message_of(child);
	switch ((enum luks_code)res) {
	case LUKS_WRONG_KEY:
		return op_fail(op, ERR_KEY,
			"the key in the node-stage secret is not one of the encrypted image %s: %s",
			image, says);
	case LUKS_NO_HEADER:
		return op_fail(op, ERR_DATA_LOSS,
			"the encrypted image %s has lost its header: %s; restore it from a snapshot or copy",
			image, says);
	case LUKS_NO_LIBRARY:
	case LUKS_NO_DM_CRYPT:
	case LUKS_OTHER_SHAPE:
	case LUKS_LAST_KEY:
		return op_fail(op, ERR_PRECONDITION, "the encrypted image %s: %s", image, says);
	case LUKS_NO_MEMORY:
		return op_fail(op, ERR_NO_ROOM, "the encrypted image %s: %s", image, says);
	case LUKS_BUSY:
		return op_fail(op, ERR_UNAVAILABLE, "the encrypted image %s: %s", image, says);
	case LUKS_OK:
	case LUKS_FAILED:
	case LUKS_CODES_END:
		break;
	}
	return op_fail(op, ERR_INTERNAL, "the encrypted image %s cannot be opened (exit %d): %s",
		image, res, says);
}
