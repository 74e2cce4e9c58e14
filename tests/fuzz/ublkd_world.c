/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Server, table of devices, operations, state files and ring are the real ones. The kernel's ublk
 * is made up, and so are queues (--wrap): a device is served as soon as it is asked for.
 *
 * Every whole packet of a connection that lives has one reply, whole, with its id and strings that
 * end. In the end every device can be taken away, and neither file nor kernel device is left.
 */
#include "ublkd_world.h"

#include "backends/ublk/ublkd_server.h"
#include "base/fd.h"
#include "base/log.h"
#include "reactor/ring_uring.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { FENCE = 1000 }; /* an id that no other request has */

static char top[] = "/dev/shm/fuzz-ublkd-XXXXXX"; /* memory: state files are synced */
static char socket_path[64];
char image_path[IMAGES][64];

static void remove_all(void)
{
	char command[64];
	snprintf(command, sizeof(command), "rm -rf %s", top);
	if (system(command) != 0)
		fprintf(stderr, "%s is left\n", top);
}

/* ---- in other functions' place ---- */

int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *len);
int __wrap_image_lock(int fd);
int __wrap_ublk_dev_open_run(struct op *op);
int __wrap_ublk_dev_serve_run(struct op *op);
int __wrap_ublk_dev_note_run(struct op *op);
void __wrap_ublk_io_throttles_changed(struct ublk_io *io);

/* Who connects is root: the fuzzer is not, and need not be. */
int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *len)
{
	(void)fd;
	must(level == SOL_SOCKET && name == SO_PEERCRED && *len == sizeof(struct ucred));
	*(struct ucred *)value = (struct ucred){.uid = 0};
	return 0;
}

/* Two state files may name one image, and then the second waits for its lock. */
int __wrap_image_lock(int fd)
{
	must(fd >= 0);
	return 0;
}

int __wrap_ublk_dev_open_run(struct op *op)
{
	must(ublk_dev_of(op)->image_fd >= 0);
	const struct ublk_record *record = &ublk_dev_of(op)->record;
	must(record->queues >= 1 && record->queues <= UBLKD_QUEUES_MAX);
	must(record->depth >= UBLKD_DEPTH_MIN);
	return 0;
}

int __wrap_ublk_dev_serve_run(struct op *op)
{
	(void)op;
	return 0;
}

int __wrap_ublk_dev_note_run(struct op *op)
{
	struct ublk_dev *dev = ublk_dev_of(op);
	dev->record.phase = UBLK_PHASE_LIVE;
	must(ublk_state_write(dev->devs->config.state_dirfd, &dev->record) == 0);
	return 0;
}

/* There are no queues, and so nothing waits in them for a limit. */
void __wrap_ublk_io_throttles_changed(struct ublk_io *io)
{
	must(io == NULL);
}

/* ---- the kernel ---- */

static void kernel_info(struct world *w, uint32_t dev_id, struct ublk_abi_info *info)
{
	uint8_t b = w->well ? 0 : fuzz_byte(&w->answers);
	*info = (struct ublk_abi_info){
		.dev_id = dev_id,
		.queues = (uint16_t)(1 + b % UBLKD_QUEUES_MAX),
		.depth = UBLKD_DEPTH_MIN,
		.state = b & 0x10   ? UBLK_ABI_DEAD
			 : b & 0x20 ? UBLK_ABI_LIVE
				    : UBLK_ABI_QUIESCED,
		.server_flags = b & 0x40 ? b : ublk_dev_server_flags(w->devs),
	};
}

static void kernel_submit(struct ublk_ctl_fake *fake, struct ublk_ctl_slot *slot, uint32_t command,
	uint32_t dev_id, void *buffer)
{
	static const int errors[] = {
		-EIO, -ENODEV, -EBUSY, -EINVAL, -ENOMEM, -EACCES, -EOPNOTSUPP, -EEXIST};
	struct world *w = container_of(fake, struct world, kernel);
	struct ublk_abi_info *info = buffer;
	uint8_t b = w->well ? 0 : fuzz_byte(&w->answers);
	if (b >= 0xf0 && command != UBLK_ABI_GET_FEATURES) {
		must(w->held_count < UBLK_CTL_SLOTS);
		w->held[w->held_count++] = slot;
		return;
	}
	if (b >= 0xc0 && command != UBLK_ABI_GET_FEATURES) {
		ublk_ctl_answer(slot, errors[b % (sizeof(errors) / sizeof(errors[0]))]);
		return;
	}
	if (command == UBLK_ABI_GET_FEATURES)
		*(uint64_t *)buffer = UBLK_ABI_F_RECOVERY | UBLK_ABI_F_RECOVERY_REISSUE |
				      (b & 1 ? UBLK_ABI_F_UPDATE_SIZE : 0);
	else if (command == UBLK_ABI_GET_INFO)
		kernel_info(w, dev_id, info);
	ublk_ctl_answer(slot, 0);
}

void kernel_answers(struct world *w)
{
	while (w->held_count > 0)
		ublk_ctl_answer(w->held[--w->held_count], -EIO);
}

/* ---- clients ---- */

void client_open(struct client *c)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	strcpy(addr.sun_path, socket_path);
	c->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	must(c->fd >= 0 && connect(c->fd, (struct sockaddr *)&addr, sizeof(addr)) == 0);
}

static bool ends(const char *text, size_t size)
{
	return memchr(text, '\0', size) != NULL;
}

static void check_reply(const struct ublkd_reply *r)
{
	must(r->head.magic == UBLKD_MAGIC && r->head.version == UBLKD_VERSION);
	must(ends(r->code, sizeof(r->code)) && ends(r->message, sizeof(r->message)));
	must((r->res < 0) == (r->code[0] != '\0') && (r->res < 0) == (r->message[0] != '\0'));
	must(ends(r->device.node, sizeof(r->device.node)));
	must(ends(r->device.tag, sizeof(r->device.tag)));
	must(ends(r->device.why, sizeof(r->device.why)));
}

/* Takes a reply; false when there is none now. A connection that was closed gets another. */
static bool client_take(struct client *c)
{
	struct ublkd_reply reply;
	ssize_t n = recv(c->fd, &reply, sizeof(reply), MSG_TRUNC);
	if (n < 0 && errno == EAGAIN)
		return false;
	if (n <= 0) {
		close(c->fd);
		client_open(c);
		c->settled = true;
		return true;
	}
	must((size_t)n == sizeof(reply));
	check_reply(&reply);
	c->settled |= reply.head.id == FENCE;
	return true;
}

bool client_send(struct client *c, const void *data, size_t len, const int *fds, unsigned count)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))] = {0};
	struct iovec iov = {(void *)(uintptr_t)data, len};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	if (count > 0) {
		msg.msg_control = control;
		msg.msg_controllen = CMSG_SPACE(count * sizeof(int));
		struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(count * sizeof(int));
		memcpy(CMSG_DATA(cmsg), fds, count * sizeof(int));
	}
	return sendmsg(c->fd, &msg, MSG_NOSIGNAL) >= 0;
}

static void turn(struct world *w, bool wait)
{
	must(ring_turn(w->reactor.ring, wait) == 0);
}

/* All that was sent has been taken: a question behind it is answered, or the connection closed. */
static void client_settle(struct world *w, struct client *c)
{
	struct ublkd_request fence = {.head = {.magic = UBLKD_MAGIC, .type = UBLKD_HELLO}};
	fence.head.id = FENCE;
	c->settled = false;
	while (!client_send(c, &fence, sizeof(fence.head), NULL, 0) && !c->settled) {
		turn(w, false);
		(void)client_take(c);
	}
	for (;;) {
		while (client_take(c))
			;
		if (c->settled)
			return;
		turn(w, true);
	}
}

static unsigned busy_count(const struct world *w)
{
	unsigned count = 0;
	list_for_each (node, &w->devs->all)
		count += ublk_dev_busy(container_of(node, struct ublk_dev, link));
	return count;
}

void world_settle(struct world *w)
{
	for (unsigned i = 0; i < CLIENTS; i++)
		client_settle(w, &w->client[i]);
	while (busy_count(w) > w->held_count)
		turn(w, true);
}

/* ---- beginning and end ---- */

static void on_event(void *arg, const struct ublk_dev *dev, const char *what, const struct err *err)
{
	(void)arg;
	(void)dev;
	must(what != NULL && (err == NULL || err->message[0] != '\0'));
}

void world_start(struct world *w)
{
	const struct ublk_devs_config config = {
		.reactor = &w->reactor,
		.ctl = w->ctl,
		.state_dirfd = w->state_dir,
		.devices_max = IDS + 2,
		.first_id = FIRST_ID,
		.on_event = on_event,
	};
	struct err err = {0};
	must(ublk_devs_open(&w->devs, &config) == 0);
	must(ublkd_server_open(&w->server, w->reactor.ring, w->devs, socket_path, &err) == 0);
	must(ublk_devs_adopt(w->devs, &err) == 0);
	ublkd_server_start(w->server);
	for (unsigned i = 0; i < CLIENTS; i++)
		client_open(&w->client[i]);
}

static void on_removed(struct ublk_wait *wait, const struct ublk_dev *dev, int res)
{
	(void)dev;
	(void)res;
	free(wait);
}

static void remove_devices(struct world *w)
{
	for (unsigned round = 0; w->devs->count > 0; round++) {
		must(round < 8);
		struct list *next;
		for (struct list *node = w->devs->all.next; node != &w->devs->all; node = next) {
			next = node->next;
			const struct ublk_dev *dev = container_of(node, struct ublk_dev, link);
			struct ublkd_request r = {.dev_id = dev->record.dev_id,
				.image_dev = dev->record.image_dev,
				.image_ino = dev->record.image_ino};
			memcpy(r.tag, dev->record.tag, sizeof(r.tag));
			struct ublk_wait *wait = calloc(1, sizeof(*wait));
			must(wait != NULL);
			wait->on_end = on_removed;
			ublk_devs_detach(w->devs, &r, wait);
		}
		while (busy_count(w) > 0)
			turn(w, true);
		turn(w, false);
	}
}

static void on_left(void *arg, uint32_t dev_id, const struct ublk_record *record)
{
	(void)arg;
	(void)dev_id;
	(void)record;
	must(!"a state file is left");
}

void world_end(struct world *w)
{
	w->well = true;
	kernel_answers(w);
	world_settle(w);
	remove_devices(w);
	for (unsigned i = 0; i < CLIENTS; i++)
		close(w->client[i].fd);
	ublkd_server_close(w->server);
	ublk_devs_close(w->devs);
	must(ublk_ctl_hanging(w->ctl) == 0);
	must(ublk_state_each(w->state_dir, on_left, NULL) == 0);
	w->well = false;
}

void world_open(struct world *w)
{
	log_open(LOG_LEVEL_ERROR, LOG_FORMAT_LOGFMT);
	must(mkdtemp(top) != NULL && atexit(remove_all) == 0);
	snprintf(socket_path, sizeof(socket_path), "%s/s.sock", top);
	for (unsigned i = 0; i < IMAGES; i++) {
		snprintf(image_path[i], sizeof(image_path[i]), "%s/image%u", top, i);
		_cleanup_fd_ int fd = open(image_path[i], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
		must(fd >= 0);
	}
	char state[64];
	snprintf(state, sizeof(state), "%s/state", top);
	w->state_dir = ublk_state_open_dir(state, true);
	must(w->state_dir >= 0);
	must(ring_open(&w->reactor.ring, &(struct ring_config){0}) == 0);
	must(work_open(&w->reactor.work, w->reactor.ring, 1) == 0);
	w->kernel.submit = kernel_submit;
	const struct ublk_ctl_config config = {
		.ring = w->reactor.ring, .bound_ms = 3600 * 1000, .fake = &w->kernel};
	must(ublk_ctl_open(&w->ctl, &config) == 0);
}
