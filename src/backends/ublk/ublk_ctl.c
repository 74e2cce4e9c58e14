/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control ring: owns /dev/ublk-control, a ring with long SQEs, and the slots, which hold all
 * memory the kernel may still write to.
 *
 * The happy path of a command: take a slot, copy the caller's buffer in, submit; the kernel finds
 * that it may sleep and moves it to a thread; its completion makes the ring readable, which the
 * reactor's poll sees; the buffer is copied back and the call ends.
 *
 * It fails for want of the module, of a slot, or of an answer in time. A late answer frees the
 * slot, and what waited for it is submitted: a device has one command in the kernel at most, so
 * that one that hangs takes one thread, however often its end is tried again.
 */
#include "backends/ublk/ublk_ctl.h"

#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum {
	CTL_ENTRIES = UBLK_CTL_SLOTS,
	OP_URING_CMD = 46,     /* IORING_OP_URING_CMD, Linux 5.19 */
	KERNEL_ENOTSUPP = 524, /* what ublk says to commands it does not know, up to 6.11 */
};

#define NO_DEVICE UINT32_MAX /* of a command about no device: GET_FEATURES */

struct ublk_ctl_slot {
	struct ublk_ctl *ctl;
	struct ublk_ctl_call *call; /* NULL: its bound is over */
	struct list link;           /* on ctl->free or ctl->busy */
	uint32_t command, dev_id;
	uint64_t data;
	union {
		struct ublk_abi_info info;
		struct ublk_abi_params params;
		uint64_t features;
	};
};

struct ublk_ctl {
	struct ring *ring;
	struct ublk_ctl_fake *fake;
	const char *path;
	uint64_t bound_ms;
	int control_fd;
	bool ring_open;
	struct io_uring uring;
	struct ring_req poll;
	struct list free, busy; /* ublk_ctl_slot.link */
	struct list waiting;    /* ublk_ctl_call.link: their devices have a slot that is busy */
	unsigned hanging;
	struct ublk_ctl_slot slots[UBLK_CTL_SLOTS];
};

static const struct {
	uint32_t command;
	const char *name;
	uint16_t len; /* of the buffer; 0: it has none */
} commands[] = {
	{UBLK_ABI_ADD_DEV, "ADD_DEV", sizeof(struct ublk_abi_info)},
	{UBLK_ABI_DEL_DEV, "DEL_DEV", 0},
	{UBLK_ABI_DEL_ASYNC, "DEL_DEV_ASYNC", 0},
	{UBLK_ABI_START_DEV, "START_DEV", 0},
	{UBLK_ABI_STOP_DEV, "STOP_DEV", 0},
	{UBLK_ABI_SET_PARAMS, "SET_PARAMS", sizeof(struct ublk_abi_params)},
	{UBLK_ABI_START_RECOVERY, "START_USER_RECOVERY", 0},
	{UBLK_ABI_END_RECOVERY, "END_USER_RECOVERY", 0},
	{UBLK_ABI_GET_INFO, "GET_DEV_INFO", sizeof(struct ublk_abi_info)},
	{UBLK_ABI_GET_FEATURES, "GET_FEATURES", sizeof(uint64_t)},
	{UBLK_ABI_UPDATE_SIZE, "UPDATE_SIZE", 0},
};

static int command_find(uint32_t command)
{
	int i = 0;
	while (commands[i].command != command)
		i++; /* every command we send is in the table */
	return i;
}

const char *ublk_ctl_name(uint32_t command)
{
	return commands[command_find(command)].name;
}

/* ---- the kernel's side ---- */

static void slot_submit(struct ublk_ctl_slot *slot)
{
	struct ublk_ctl *ctl = slot->ctl;
	if (ctl->fake != NULL) {
		ctl->fake->submit(
			ctl->fake, slot, slot->command, slot->dev_id, (void *)&slot->info);
		return;
	}
	uint16_t len = commands[command_find(slot->command)].len;
	const struct ublk_abi_ctrl cmd = {
		.dev_id = slot->dev_id,
		.queue_id = UINT16_MAX,
		.len = len,
		.addr = len != 0 ? (uintptr_t)&slot->info : 0,
		.data = slot->data,
	};
	struct io_uring_sqe *sqe = io_uring_get_sqe(&ctl->uring);
	if (sqe == NULL) {
		/* Each is submitted at once: that many were refused. */
		(void)io_uring_submit(&ctl->uring);
		ublk_ctl_answer(slot, -EBUSY);
		return;
	}
	memset(sqe, 0, 2 * sizeof(*sqe));
	sqe->opcode = OP_URING_CMD;
	/* It will sleep anyhow; and Linux before 6.14 reads the entry of a command that it only
	 * then moves to a thread once more there, when it may hold another command already. */
	sqe->flags = IOSQE_ASYNC;
	sqe->fd = ctl->control_fd;
	sqe->cmd_op = slot->command;
	sqe->user_data = (uintptr_t)slot;
	memcpy(&sqe->addr3, &cmd, sizeof(cmd));
	int r;
	do
		r = io_uring_submit(&ctl->uring);
	while (r == -EINTR);
	if (r < 0) {
		/* The kernel has not taken the entry, and would with the next one. */
		io_uring_prep_nop(sqe);
		io_uring_sqe_set_data(sqe, NULL);
		ublk_ctl_answer(slot, r);
	}
}

static void poll_arm(struct ublk_ctl *ctl);

static void on_poll(struct ring_req *req, int res, uint32_t flags)
{
	struct ublk_ctl *ctl = container_of(req, struct ublk_ctl, poll);
	struct io_uring_cqe *cqe;
	(void)flags;
	while (io_uring_peek_cqe(&ctl->uring, &cqe) == 0) {
		struct ublk_ctl_slot *slot = io_uring_cqe_get_data(cqe);
		int answer = cqe->res;
		io_uring_cqe_seen(&ctl->uring, cqe);
		if (slot != NULL)
			ublk_ctl_answer(slot, answer);
	}
	if (res >= 0)
		poll_arm(ctl);
}

static void poll_arm(struct ublk_ctl *ctl)
{
	ctl->poll.fn = on_poll;
	io_uring_prep_poll_add(&ctl->poll.sqe, ctl->uring.ring_fd, POLLIN);
	ring_submit(ctl->ring, &ctl->poll);
}

/* ---- slots ---- */

static void slot_free(struct ublk_ctl_slot *slot)
{
	list_remove(&slot->link);
	list_push(&slot->ctl->free, &slot->link);
}

static struct ublk_ctl_slot *slot_take(struct ublk_ctl *ctl, uint32_t command, uint32_t dev_id)
{
	struct list *node = list_pop(&ctl->free);
	if (node == NULL)
		return NULL;
	struct ublk_ctl_slot *slot = container_of(node, struct ublk_ctl_slot, link);
	list_push(&ctl->busy, node);
	slot->command = command;
	slot->dev_id = dev_id;
	slot->data = 0;
	slot->call = NULL;
	memset(&slot->params, 0, sizeof(slot->params));
	return slot;
}

/* ---- calls ---- */

static void on_refused(struct ring_req *req, int res, uint32_t flags)
{
	struct ublk_ctl_call *call = container_of(req, struct ublk_ctl_call, turn);
	(void)flags;
	call->on_end(call, res);
}

static void call_refuse(struct ublk_ctl_call *call, int res)
{
	call->turn = (struct ring_req){.fn = on_refused};
	ring_post(call->ctl->ring, &call->turn, res);
}

static void call_send(struct ublk_ctl_call *call)
{
	struct ublk_ctl_slot *slot = slot_take(call->ctl, call->command, call->dev_id);
	if (slot == NULL) {
		ring_timer_cancel(call->ctl->ring, &call->timer);
		call_refuse(call, -EBUSY);
		return;
	}
	slot->data = call->data;
	memcpy(&slot->params, &call->params, sizeof(slot->params));
	slot->call = call;
	call->slot = slot;
	slot_submit(slot);
}

bool ublk_ctl_busy(const struct ublk_ctl *ctl, uint32_t dev_id)
{
	list_for_each (node, &ctl->busy)
		if (container_of(node, struct ublk_ctl_slot, link)->dev_id == dev_id)
			return dev_id != NO_DEVICE;
	return false;
}

static struct ublk_ctl_call *waiting_next(struct ublk_ctl *ctl)
{
	list_for_each (node, &ctl->waiting) {
		struct ublk_ctl_call *call = container_of(node, struct ublk_ctl_call, link);
		if (!ublk_ctl_busy(ctl, call->dev_id))
			return call;
	}
	return NULL;
}

/* A call that is answered at once may end others or begin some: looked at from the start again. */
static void waiting_send(struct ublk_ctl *ctl)
{
	struct ublk_ctl_call *call;
	while ((call = waiting_next(ctl)) != NULL) {
		list_remove(&call->link);
		call_send(call);
	}
}

/* Nobody waits for it any more. */
static void answer_late(struct ublk_ctl_slot *slot, int res)
{
	struct ublk_ctl *ctl = slot->ctl;
	bool added = slot->command == UBLK_ABI_ADD_DEV && res >= 0;
	uint32_t dev_id = slot->dev_id;
	ctl->hanging--;
	slot_free(slot);
	if (added) {
		/* The slot just freed is there for it. */
		struct ublk_ctl_slot *undo = slot_take(ctl, UBLK_ABI_DEL_ASYNC, dev_id);
		ctl->hanging++;
		slot_submit(undo);
	}
	waiting_send(ctl);
}

void ublk_ctl_answer(struct ublk_ctl_slot *slot, int res)
{
	struct ublk_ctl_call *call = slot->call;
	if (slot->command == UBLK_ABI_DEL_ASYNC &&
		(res == -EOPNOTSUPP || res == -KERNEL_ENOTSUPP)) {
		slot->command = UBLK_ABI_DEL_DEV;
		slot_submit(slot);
		return;
	}
	if (call == NULL) {
		answer_late(slot, res);
		return;
	}
	ring_timer_cancel(slot->ctl->ring, &call->timer);
	static_assert(sizeof(call->params) >= sizeof(call->info), "params is the largest");
	memcpy(&call->params, &slot->params, sizeof(call->params));
	slot_free(slot);
	waiting_send(call->ctl);
	call->on_end(call, res);
}

static void on_bound(struct ring_timer *timer)
{
	struct ublk_ctl_call *call = container_of(timer, struct ublk_ctl_call, timer);
	if (call->slot != NULL) {
		call->slot->call = NULL;
		call->ctl->hanging++;
	} else {
		list_remove(&call->link);
	}
	call->on_end(call, -ETIMEDOUT);
}

/* ---- entry points ---- */

static int ring_setup(struct ublk_ctl *ctl)
{
	if (ctl->ring_open)
		return 0;
	struct io_uring_params params = {
		.flags = IORING_SETUP_SQE128 | IORING_SETUP_CQSIZE,
		.cq_entries = UBLK_CTL_SLOTS,
	};
	int r = io_uring_queue_init_params(CTL_ENTRIES, &ctl->uring, &params);
	if (r < 0)
		return r;
	ctl->ring_open = true;
	/* Each command that hangs keeps one of the kernel's threads. */
	ring_add_threads(ctl->ring, UBLK_CTL_SLOTS);
	poll_arm(ctl);
	return 0;
}

int ublk_ctl_ready(struct ublk_ctl *ctl, struct err *err)
{
	if (ctl->control_fd >= 0)
		return 0;
	int fd = ctl->fake == NULL ? open(ctl->path, O_RDWR | O_CLOEXEC) : -1;
	int r = ctl->fake != NULL ? ctl->fake->missing : fd < 0 ? -errno : 0;
	if (r == -ENOENT || r == -ENXIO || r == -ENODEV)
		return err_set(err, ERR_PRECONDITION,
			"this node has no ublk (/dev/ublk-control is missing): load the module "
			"with 'modprobe ublk_drv', on Linux 6.5 or newer");
	if (r < 0)
		return err_sys(err, r, "opening /dev/ublk-control");
	if (ctl->fake != NULL)
		return 0;
	r = ring_setup(ctl);
	if (r < 0) {
		close(fd);
		return err_sys(err, r, "setting up a ring for ublk's control commands");
	}
	ctl->control_fd = fd;
	return 0;
}

void ublk_ctl_submit(struct ublk_ctl *ctl, struct ublk_ctl_call *call)
{
	struct err err = {0};
	call->ctl = ctl;
	call->slot = NULL;
	if (call->command == UBLK_ABI_GET_FEATURES)
		call->dev_id = NO_DEVICE;
	int r = ublk_ctl_ready(ctl, &err);
	if (r < 0) {
		call_refuse(call, r);
		return;
	}
	call->timer = (struct ring_timer){.fn = on_bound};
	ring_timer_arm(ctl->ring, &call->timer, ctl->bound_ms);
	if (ublk_ctl_busy(ctl, call->dev_id))
		list_push(&ctl->waiting, &call->link);
	else
		call_send(call);
}

unsigned ublk_ctl_hanging(const struct ublk_ctl *ctl)
{
	return ctl->hanging;
}

int ublk_ctl_open(struct ublk_ctl **ret, const struct ublk_ctl_config *config)
{
	struct ublk_ctl *ctl = calloc(1, sizeof(*ctl));
	if (ctl == NULL)
		return -ENOMEM;
	ctl->ring = config->ring;
	ctl->fake = config->fake;
	ctl->path = config->path != NULL ? config->path : "/dev/ublk-control";
	ctl->bound_ms = config->bound_ms != 0 ? config->bound_ms : UBLK_CTL_BOUND_MS;
	ctl->control_fd = -1;
	list_init(&ctl->free);
	list_init(&ctl->busy);
	list_init(&ctl->waiting);
	for (unsigned i = 0; i < UBLK_CTL_SLOTS; i++) {
		ctl->slots[i].ctl = ctl;
		list_push(&ctl->free, &ctl->slots[i].link);
	}
	*ret = ctl;
	return 0;
}

void ublk_ctl_close(struct ublk_ctl *ctl)
{
	if (ctl == NULL)
		return;
	ring_cancel(ctl->ring, &ctl->poll);
	while (ctl->poll.armed)
		if (ring_turn(ctl->ring, true) < 0)
			return;
	fd_close(&ctl->control_fd);
	if (ctl->ring_open)
		io_uring_queue_exit(&ctl->uring);
	/* What hangs may still be written to. */
	if (ctl->hanging == 0)
		free(ctl);
}
