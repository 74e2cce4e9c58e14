/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The watch: owns a timer, the socket of uevents, and the few checkups under way.
 *
 * Happy path, every NODE_WATCH_MS: two reads say that nothing has failed and that nothing was bound
 * or unbound. Each volume in use has its turn once in NODE_CHECKUP_MS, together with the others
 * that are due in the same NODE_ROUND_MS: their checkups share a call to a helper process. What is
 * found wrong goes to node_health, which health.h tells. How it can fail: there is no socket (said
 * once; devices are then looked at in turn), there is no BPF (nobody knows of I/O errors), events
 * are lost for want of room (all devices are looked at).
 *
 * I/O errors end when none has come for a while *and* I/O has succeeded since. The while is short
 * at first, so that a volume that is well again is soon called well. It doubles with each relapse,
 * so that one error a minute does not flap for ever.
 */
#include "node/watch.h"

#include "base/fd.h"
#include "base/log.h"
#include "node/checkup.h"
#include "node/health.h"
#include "node/node.h"

#include <assert.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/netlink.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum {
	NS_PER_MS = 1000000,
	/* Of one tick; what is left is for one that follows soon. A first check costs 25 us, an
	 * event 1 us. */
	CHECKS_MAX = 32,
	UEVENTS_MAX = 512,
	SOON_MS = 10,
	UEVENT_BYTES = 2048,
	UEVENTS_ROOM = 512 << 10,
};

struct node_watch {
	struct node *node;
	struct ring_timer timer;
	int uevents; /* -1: none */
	struct list wanted;
	uint64_t round_ns; /* what was due then is checked */
	unsigned busy;     /* slots */
	struct watch_slot {
		struct node_watch *watch;
		struct node_checkup checkup;
		bool busy;
	} slots[NODE_CHECKUPS_MAX];
};

static void want_checkup(struct node_watch *watch, struct node_volume *nv)
{
	if (list_empty(&nv->wanted))
		list_push(&watch->wanted, &nv->wanted);
}

/* ---- I/O errors ---- */

static void begin_episode(struct node_health *health, uint64_t now_ns)
{
	uint64_t quiet_ns = NODE_ERRORS_QUIET_MS * (uint64_t)NS_PER_MS;
	uint64_t most_ns = NODE_ERRORS_QUIET_MAX_MS * (uint64_t)NS_PER_MS;
	if (health->well_ns != 0 &&
		now_ns - health->well_ns < NODE_ERRORS_RELAPSE_MS * (uint64_t)NS_PER_MS)
		quiet_ns = health->quiet_ns * 2;
	health->quiet_ns = quiet_ns < most_ns ? quiet_ns : most_ns;
}

/* Whether there are errors that were not seen before; counts them. */
static bool count_errors(struct node_health *health, const struct probe_counters *now)
{
	bool news = false;
	for (unsigned op = 0; op < PROBE_OPS; op++) {
		const struct probe_op_counters *c = &now->op[op];
		/* Counting may have begun anew. */
		uint64_t seen = c->errors < health->seen_errors[op] ? 0 : health->seen_errors[op];
		health->errors[op] += c->errors - seen;
		news |= c->errors != seen;
		health->seen_errors[op] = c->errors;
		if (c->last_error_ns > health->last_error_ns) {
			health->last_error_ns = c->last_error_ns;
			health->last_errno = c->last_errno;
		}
	}
	return news;
}

static uint64_t good_ops(const struct probe_counters *now)
{
	uint64_t good = 0;
	for (unsigned op = 0; op < PROBE_OPS; op++)
		if (now->op[op].ops > now->op[op].errors)
			good += now->op[op].ops - now->op[op].errors;
	return good;
}

static void errors_came(
	struct node_watch *watch, struct node_volume *nv, const struct probe_counters *now)
{
	struct node_health *health = &nv->health;
	if (health->since_ns[NODE_IO_ERRORS] == 0)
		begin_episode(health, ring_now_ns(watch->node->reactor->ring));
	node_note(watch->node, nv, NODE_IO_ERRORS, true);
	health->good_ops = good_ops(now);
	/* It may find out why: an image cut short, a device taken away, a file system that gave up.
	 */
	want_checkup(watch, nv);
}

static void errors_quiet(
	struct node_watch *watch, struct node_volume *nv, const struct probe_counters *now)
{
	struct node_health *health = &nv->health;
	uint64_t now_ns = ring_now_ns(watch->node->reactor->ring);
	uint64_t quiet_ns = now_ns < health->last_error_ns ? 0 : now_ns - health->last_error_ns;
	if (health->since_ns[NODE_IO_ERRORS] == 0 || quiet_ns < health->quiet_ns)
		return;
	if (good_ops(now) <= health->good_ops) {
		/* Nobody uses it, so the driver tries. */
		health->try_read = true;
		want_checkup(watch, nv);
		return;
	}
	node_note(watch->node, nv, NODE_IO_ERRORS, false);
	health->well_ns = now_ns;
	health->try_read = false;
}

static bool read_counters(
	struct node_watch *watch, struct node_volume *nv, struct probe_counters *ret)
{
	struct probes *probes = watch->node->probes;
	uint32_t major, minor;
	backend_dev_below(&nv->dev, &major, &minor);
	return probes != NULL && probes_read(probes, major, minor, ret) == 0 && ret->exact;
}

static void judge_errors(struct node_watch *watch, struct node_volume *nv)
{
	struct probe_counters now;
	if (!read_counters(watch, nv, &now))
		return;
	if (nv->health.since_ns[NODE_IO_ERRORS] == 0)
		memset(nv->health.errors, 0, sizeof(nv->health.errors));
	if (count_errors(&nv->health, &now))
		errors_came(watch, nv, &now);
	else
		errors_quiet(watch, nv, &now);
}

/* The volume that the probes know from volume.c; NULL: another's device, which nobody watches. */
static struct node_volume *volume_of(const void *probed)
{
	struct probe_owner *owner = (struct probe_owner *)(uintptr_t)probed;
	return owner == NULL || owner->other ? NULL
					     : container_of(owner, struct node_volume, probed);
}

static void on_failed(void *arg, const void *owner)
{
	struct node_volume *nv = volume_of(owner);
	if (nv != NULL)
		judge_errors(arg, nv);
}

/* ---- latency ---- */

/* Reads and writes; flushes wait for the disk's cache and are slow by nature. */
static void judge_latency(struct node_watch *watch, struct node_volume *nv)
{
	struct node_health *health = &nv->health;
	struct probe_counters now;
	struct hist minute = {0};
	/* What waits in the data process for a limit is no slow disk, and looks like one. */
	if (io_limits_any(&nv->dev.limits) || !read_counters(watch, nv, &now))
		return;
	const uint32_t from = hist_bucket(NODE_SLOW_MS * (uint64_t)NS_PER_MS);
	assert(HIST_BUCKETS - from <= NODE_SLOW_BUCKETS);
	uint64_t sums[NODE_SLOW_BUCKETS + 1] = {0};
	for (unsigned i = 0; i < HIST_BUCKETS; i++)
		sums[i < from ? 0 : i - from + 1] +=
			now.op[PROBE_READ].latency.count[i] + now.op[PROBE_WRITE].latency.count[i];
	for (unsigned i = 0; i <= HIST_BUCKETS - from; i++) {
		/* Counting may have begun anew. */
		uint32_t sum = (uint32_t)sums[i];
		uint32_t before = sum < health->latency[i] ? 0 : health->latency[i];
		minute.count[i == 0 ? 0 : from + i - 1] = sum - before;
		health->latency[i] = sum;
	}
	uint64_t ops = hist_total(&minute), p99_ns = hist_quantile_ns(&minute, 0.99);
	bool slow = ops >= NODE_SLOW_OPS_MIN && p99_ns >= NODE_SLOW_MS * (uint64_t)NS_PER_MS;
	health->slow_ops = ops;
	health->slow_p99_ns = p99_ns;
	node_note(watch->node, nv, NODE_SLOW, slow);
}

/* ---- uevents ---- */

/* "change@/devices/virtual/block/loop7" and "remove@..." of loop, ublk and device-mapper devices;
 * what else happens on the node does not wake anybody and takes no room. */
static int uevents_open(void)
{
	static const struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 23),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x2f626c6f /* "/blo" */, 0, 5),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 30),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x6c6f6f70 /* "loop" */, 4, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x75626c6b /* "ublk" */, 3, 0),
		BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xffffff00),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0x646d2d00 /* "dm-" */, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, 0),
		BPF_STMT(BPF_RET | BPF_K, UINT32_MAX),
	};
	const struct sock_fprog filter = {
		.len = sizeof(code) / sizeof(code[0]),
		.filter = (struct sock_filter *)(uintptr_t)code,
	};
	const struct sockaddr_nl kernel = {.nl_family = AF_NETLINK, .nl_groups = 1};
	const int room = UEVENTS_ROOM;
	_cleanup_fd_ int fd = socket(
		AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, NETLINK_KOBJECT_UEVENT);
	if (fd < 0)
		return -errno;
	/* Less room only means that all devices are looked at sooner. */
	(void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof(room));
	if (setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter)) < 0 ||
		bind(fd, (const struct sockaddr *)&kernel, sizeof(kernel)) < 0)
		return -errno;
	int taken = fd;
	fd = -1;
	return taken;
}

/* The value of "KEY=value" among the event's strings. */
static bool uevent_number(const char *text, size_t len, const char *key, uint32_t *ret)
{
	size_t key_len = strlen(key);
	for (const char *p = text; p < text + len; p += strlen(p) + 1) {
		if (strncmp(p, key, key_len) == 0) {
			*ret = (uint32_t)strtoul(p + key_len, NULL, 10);
			return true;
		}
	}
	return false;
}

/* To be checked in this tick or one of the next. */
static void check_first(struct node_watch *watch, struct node_volume *nv)
{
	list_remove(&nv->attached);
	list_push_front(&watch->node->attached, &nv->attached);
	nv->health.checked_ns = 0;
	nv->health.device_due = true;
}

/* The volume in use that has the device. */
static struct node_volume *owner_of(struct node_watch *watch, uint32_t major, uint32_t minor)
{
	return volume_of(probes_owner(watch->node->probes, major, minor));
}

static void read_uevent(struct node_watch *watch, const char *text, size_t len)
{
	uint32_t major, minor;
	struct node_volume *nv = NULL;
	if (uevent_number(text, len, "MAJOR=", &major) &&
		uevent_number(text, len, "MINOR=", &minor))
		nv = owner_of(watch, major, minor);
	if (nv != NULL)
		check_first(watch, nv);
}

/* True when there may be more. */
static bool follow_uevents(struct node_watch *watch)
{
	char text[UEVENT_BYTES + 1];
	bool lost = false;
	unsigned count = 0;
	for (; watch->uevents >= 0 && count < UEVENTS_MAX; count++) {
		ssize_t n = recv(watch->uevents, text, UEVENT_BYTES, MSG_DONTWAIT);
		if (n < 0 && errno == ENOBUFS) {
			lost = true;
			continue;
		}
		if (n <= 0)
			break;
		text[n] = '\0';
		read_uevent(watch, text, (size_t)n);
	}
	if (lost)
		list_for_each_safe (link, &watch->node->attached)
			check_first(watch, container_of(link, struct node_volume, attached));
	return count == UEVENTS_MAX;
}

/* ---- checkups ---- */

static void checkup_finished(struct op *op)
{
	struct node_checkup *checkup = container_of(op, struct node_checkup, op);
	struct watch_slot *slot = container_of(checkup, struct watch_slot, checkup);
	struct node_watch *watch = slot->watch;
	slot->busy = false;
	watch->busy--;
	/* The next ones together, when the others of this turn have ended as well. */
	if (!watch->node->draining && !list_empty(&watch->wanted))
		ring_timer_arm(watch->node->reactor->ring, &watch->timer, SOON_MS);
	node_tell_quiet(watch->node);
}

static void start_checkups(struct node_watch *watch)
{
	for (unsigned i = 0; i < NODE_CHECKUPS_MAX && !list_empty(&watch->wanted); i++) {
		struct watch_slot *slot = &watch->slots[i];
		if (slot->busy)
			continue;
		struct node_volume *nv =
			container_of(list_pop(&watch->wanted), struct node_volume, wanted);
		slot->busy = true;
		slot->watch = watch;
		watch->busy++;
		node_checkup_init(&slot->checkup, watch->node, nv->volume);
		slot->checkup.op.on_end = checkup_finished;
		op_start(&slot->checkup.op);
	}
}

/* ---- the tick ---- */

static void check(struct node_watch *watch, struct node_volume *nv, uint64_t now_ns)
{
	struct node_health *health = &nv->health;
	const uint64_t period_ns = NODE_CHECKUP_MS * (uint64_t)NS_PER_MS;
	if (health->device_due || watch->uevents < 0 || health->seq == 0)
		node_check_device(watch->node, nv);
	if (health->device_due && !nv->detaching)
		want_checkup(watch, nv);
	health->device_due = false;
	if (now_ns - health->judged_ns >= period_ns) {
		judge_latency(watch, nv);
		health->judged_ns = now_ns;
	}
	/* kubelet asks once a minute, which tells as much. */
	if (now_ns - health->looked_ns >= 2 * period_ns)
		want_checkup(watch, nv);
	health->checked_ns = now_ns;
	list_remove(&nv->attached);
	list_push(&watch->node->attached, &nv->attached);
}

/* True when there may be more. */
static bool check_due(struct node_watch *watch)
{
	uint64_t now_ns = ring_now_ns(watch->node->reactor->ring);
	if (now_ns - watch->round_ns >= NODE_ROUND_MS * (uint64_t)NS_PER_MS)
		watch->round_ns = now_ns;
	for (unsigned i = 0; i < CHECKS_MAX; i++) {
		if (list_empty(&watch->node->attached))
			return false;
		struct node_volume *nv =
			container_of(watch->node->attached.next, struct node_volume, attached);
		uint64_t checked_ns = nv->health.checked_ns;
		if (checked_ns != 0 &&
			checked_ns + NODE_CHECKUP_MS * (uint64_t)NS_PER_MS > watch->round_ns)
			return false;
		check(watch, nv, now_ns);
	}
	return true;
}

/* What is over by itself, without anybody telling. */
static void follow_troubled(struct node_watch *watch)
{
	uint64_t now_ns = ring_now_ns(watch->node->reactor->ring);
	list_for_each_safe (link, &watch->node->troubled) {
		struct node_volume *nv = container_of(link, struct node_volume, troubled);
		struct node_health *health = &nv->health;
		if (health->since_ns[NODE_IO_ERRORS] != 0)
			judge_errors(watch, nv);
		if (health->since_ns[NODE_HANGING] != 0 && nv->dev.attached &&
			now_ns - health->looked_ns >= NODE_HUNG_CHECKUP_MS * (uint64_t)NS_PER_MS)
			want_checkup(watch, nv);
		if (health->since_ns[NODE_IO_ERRORS] == 0 && health->since_ns[NODE_HANGING] == 0)
			list_remove(link);
	}
}

static void on_tick(struct ring_timer *timer)
{
	struct node_watch *watch = container_of(timer, struct node_watch, timer);
	struct node *node = watch->node;
	if (node->draining)
		return;
	node_follow_clock(node);
	if (node->probes != NULL)
		probes_each_failed(node->probes, on_failed, watch);
	follow_troubled(watch);
	bool more = follow_uevents(watch);
	more |= check_due(watch);
	start_checkups(watch);
	ring_timer_arm(node->reactor->ring, timer, more ? SOON_MS : NODE_WATCH_MS);
}

bool node_watch_idle(const struct node_watch *watch)
{
	return watch == NULL || watch->busy == 0;
}

int node_watch_open(struct node *node)
{
	struct node_watch *watch = calloc(1, sizeof(*watch));
	if (watch == NULL)
		return -ENOMEM;
	watch->node = node;
	watch->timer.fn = on_tick;
	list_init(&watch->wanted);
	watch->uevents = uevents_open();
	if (watch->uevents < 0)
		log_event(LOG_LEVEL_WARN, "devices are looked at in turn, as there are no uevents",
			log_fields({"error", strerrordesc_np(-watch->uevents)}));
	node->watch = watch;
	ring_timer_arm(node->reactor->ring, &watch->timer, NODE_WATCH_MS);
	return 0;
}

void node_watch_close(struct node *node)
{
	struct node_watch *watch = node->watch;
	if (watch == NULL)
		return;
	ring_timer_cancel(node->reactor->ring, &watch->timer);
	for (struct list *l; (l = list_pop(&watch->wanted)) != NULL;)
		continue;
	fd_close(&watch->uevents);
	free(watch);
	node->watch = NULL;
}
