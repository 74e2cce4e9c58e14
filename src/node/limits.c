/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looks at the limits of volumes in use: owns a timer, and what is known of each limited volume.
 *
 * Happy path of a look: (ublk: the data process is told) -> from the mounts in memory, the pods ->
 * one trip to a thread: each pod's cgroup is opened, and its line written unless it says so already
 * -> what came of it is noted. A pod that was known and is not among them loses its line. How it
 * can fail: a pod has no cgroup yet (looked for again soon, and a condition later), a mount is in
 * no pod's directory, there is no cgroup v2, the data process is too old. All of that is noted, and
 * looked at again; no operation fails for it.
 *
 * The volume may go while a look is under way, so the look knows it by its id. An operation that
 * lets a device go has a look of its own before, which waits for the timer's: no line is written
 * for a number that may be another volume's.
 */
#include "node/limits.h"

#include "base/fd.h"
#include "node/cgroup.h"
#include "node/limit.h"
#include "node/node.h"
#include "node/volume.h"
#include "pool/index.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NS_PER_MS = 1000000 };

struct node_limits {
	struct node *node;
	const char *root;
	struct ring_timer timer;
	struct list all;   /* node_limit.link, looked at longest ago first */
	struct list looks; /* the timer's, under way */
	unsigned look_count;
};

/* A pod, and what its line is to be. */
struct node_limits_pod {
	char uid[CGROUP_POD_BYTES];
	bool published;
	struct io_limits limits;
	int res;
};

/* ---- what there is to do ---- */

static const struct io_limits *wanted_of(const struct node_volume *nv)
{
	return &nv->volume->rec->limits;
}

static const struct backend *backend_of(const struct node_volume *nv)
{
	return backend_get(nv->volume->rec->device);
}

static bool limits_device(const struct node_volume *nv)
{
	const struct backend *backend = backend_of(nv);
	return backend != NULL && backend->limit != NULL;
}

bool node_limits_matter(const struct node_volume *nv)
{
	return nv->limit != NULL || io_limits_any(wanted_of(nv)) ||
	       (limits_device(nv) && io_limits_any(&nv->dev.limits));
}

static uint64_t now_of(const struct node *node)
{
	return ring_now_ns(node->reactor->ring);
}

static void arm(struct node_limits *limits, uint64_t ms)
{
	if (limits->node->draining || list_empty(&limits->all))
		return;
	uint64_t due_ns = now_of(limits->node) + ms * NS_PER_MS;
	if (!ring_timer_armed(&limits->timer) || limits->timer.due_ns > due_ns)
		ring_timer_arm(limits->node->reactor->ring, &limits->timer, ms);
}

static struct node_limit *limit_get(struct node *node, struct node_volume *nv)
{
	if (nv->limit != NULL || node->limits == NULL)
		return nv->limit;
	struct node_limit *limit = calloc(1, sizeof(*limit));
	if (limit == NULL)
		return NULL;
	limit->nv = nv;
	list_push_front(&node->limits->all, &limit->link);
	nv->limit = limit;
	return limit;
}

void node_limits_follow(struct node *node, struct node_volume *nv)
{
	struct node_limit *limit = limit_get(node, nv);
	if (limit == NULL)
		return;
	limit->looked_ns = 0;
	list_remove(&limit->link);
	list_push_front(&node->limits->all, &limit->link);
	arm(node->limits, 0);
}

/* ---- a look ---- */

static const struct io_limits none;

static struct node_limits_look *look_of(struct op *op)
{
	return container_of(op, struct node_limits_look, op);
}

/* NULL: the volume or its device has gone. */
static struct node_volume *volume_of(const struct node_limits_look *look)
{
	return node_volume_by_id(look->node, look->id);
}

static struct node_limit *limit_of(const struct node_limits_look *look)
{
	const struct node_volume *nv = volume_of(look);
	return nv != NULL ? nv->limit : NULL;
}

/* What this look puts in force. */
static const struct io_limits *wanted_by(
	const struct node_limits_look *look, const struct node_volume *nv)
{
	return look->lift ? &none : wanted_of(nv);
}

static int hold_run(struct op *op)
{
	struct node_limits_look *look = look_of(op);
	if (look->holds)
		return 0;
	struct node_volume *nv = volume_of(look);
	struct node_limit *limit = nv != NULL ? limit_get(look->node, nv) : NULL;
	look->holds = true;
	if (limit != NULL && limit->busy) {
		limit->waiting = op;
		return op_wait(op);
	}
	if (limit != NULL)
		limit->busy = true;
	return 0;
}

/* To the one that waits, if there is one. */
static void let_go(struct node_limits_look *look, struct node_limit *limit)
{
	struct op *waiting = limit->waiting;
	look->holds = false;
	limit->waiting = NULL;
	limit->busy = waiting != NULL;
	if (waiting != NULL)
		op_complete(waiting, 0);
}

static int hold_undo(struct op *op)
{
	struct node_limits_look *look = look_of(op);
	struct node_limit *limit = limit_of(look);
	if (limit != NULL)
		let_go(look, limit);
	free(look->pods);
	look->pods = NULL;
	return 0;
}

/* ---- the device ---- */

/* Also where nothing is to be changed: the answer has what was held up. */
static bool device_done(struct op *op)
{
	const struct node_volume *nv = volume_of(look_of(op));
	return nv == NULL || !limits_device(nv) || nv->detaching;
}

static int device_run(struct op *op)
{
	struct node_limits_look *look = look_of(op);
	const struct node_volume *nv = volume_of(look);
	look->backend = backend_of(nv);
	node_volume_request(nv->volume, &look->req);
	look->req.limits = *wanted_by(look, nv);
	return look->backend->limit(look->backend, op, &look->req);
}

static int device_end(struct op *op, int res)
{
	struct node_limits_look *look = look_of(op);
	struct node_volume *nv = volume_of(look);
	int r = backend_end(op, &look->req, res);
	if (r < 0) {
		look->device_err = op->err;
		err_clear(&op->err);
	} else if (nv != NULL && nv->dev.major == look->req.dev.major &&
		   nv->dev.minor == look->req.dev.minor) {
		nv->dev.limits = look->req.dev.limits;
		nv->dev.throttled = look->req.dev.throttled;
	}
	return 0;
}

/* ---- pods ---- */

static bool pods_done(struct op *op)
{
	const struct node_volume *nv = volume_of(look_of(op));
	return nv == NULL || nv->limit == NULL || limits_device(nv) ||
	       (nv->limit->pod_count == 0 && list_empty(&nv->mounts));
}

static struct node_limits_pod *pod_add(struct node_limits_look *look, const char *uid)
{
	for (unsigned i = 0; i < look->pod_count; i++)
		if (strcmp(look->pods[i].uid, uid) == 0)
			return &look->pods[i];
	if (look->pod_count == NODE_LIMITS_PODS_MAX)
		return NULL;
	struct node_limits_pod *pod = &look->pods[look->pod_count++];
	snprintf(pod->uid, sizeof(pod->uid), "%s", uid);
	return pod;
}

/* A part of a limit is still one. */
static uint64_t share(uint64_t limit, unsigned among)
{
	return limit == 0 ? 0 : limit / among != 0 ? limit / among : 1;
}

static void divide(struct node_limits_look *look, const struct io_limits *all, unsigned among)
{
	for (unsigned i = 0; i < look->pod_count; i++)
		if (look->pods[i].published)
			look->pods[i].limits = (struct io_limits){
				.read_iops = share(all->read_iops, among),
				.write_iops = share(all->write_iops, among),
				.read_bandwidth = share(all->read_bandwidth, among),
				.write_bandwidth = share(all->write_bandwidth, among),
			};
}

/* The staging path is nobody's, but adoption does not know which one that is. */
static void gather(struct node_limits_look *look, const struct node_volume *nv)
{
	unsigned published = 0;
	char uid[CGROUP_POD_BYTES];
	list_for_each (link, &nv->mounts) {
		const struct node_mount *mount = container_of(link, struct node_mount, link);
		struct node_limits_pod *pod = NULL;
		if (cgroup_pod_of(mount->path, uid))
			pod = pod_add(look, uid);
		else if (!mount->staging && (!mount->first || nv->whole))
			look->unnamed++;
		published += pod != NULL && !pod->published;
		if (pod != NULL)
			pod->published = true;
	}
	for (unsigned i = 0; i < nv->limit->pod_count; i++)
		(void)pod_add(look, nv->limit->pods[i]);
	if (published != 0)
		divide(look, wanted_by(look, nv), published);
}

static int pods_job(void *arg)
{
	struct node_limits_look *look = arg;
	_cleanup_fd_ int root = cgroup_open_root(look->node->limits->root, &look->root_err);
	for (unsigned i = 0; root >= 0 && i < look->pod_count; i++) {
		struct node_limits_pod *pod = &look->pods[i];
		_cleanup_fd_ int fd = cgroup_open_pod(root, pod->uid);
		pod->res =
			fd < 0 ? fd : cgroup_set_limits(fd, look->major, look->minor, &pod->limits);
	}
	return 0;
}

static int pods_run(struct op *op)
{
	struct node_limits_look *look = look_of(op);
	const struct node_volume *nv = volume_of(look);
	look->pods = calloc(NODE_LIMITS_PODS_MAX, sizeof(*look->pods));
	if (look->pods == NULL)
		return op_fail(op, ERR_NO_ROOM, "out of memory");
	gather(look, nv);
	/* What a pod does goes to the device above, and on from there for the same pod: a line for
	 * each would count it twice. */
	look->major = nv->dev.major;
	look->minor = nv->dev.minor;
	if (look->node->limits->root == NULL)
		(void)err_set(&look->root_err, ERR_PRECONDITION,
			"cgroups are not used here (--cgroup-root off)");
	else if (look->pod_count != 0)
		return op_work(op, pods_job, look);
	return 0;
}

/* ---- what came of it ---- */

static void say_why(struct node_limit *limit, const char *text)
{
	snprintf(limit->why, sizeof(limit->why), "%s", text);
}

static void judge_pod(struct node *node, struct node_limit *limit,
	const struct node_limits_pod *pod, bool *missing)
{
	if (pod->res == -ENOENT) {
		*missing = true;
		if (limit->missing_ns == 0)
			limit->missing_ns = now_of(node);
		if (now_of(node) - limit->missing_ns >= NODE_LIMITS_GRACE_MS * (uint64_t)NS_PER_MS)
			snprintf(limit->why, sizeof(limit->why),
				"pod %s has no cgroup below %s: --cgroup-root has to name the node's cgroup v2 hierarchy, with kubelet's kubepods in it",
				pod->uid, node->limits->root);
		return;
	}
	if (pod->res == -EOPNOTSUPP)
		snprintf(limit->why, sizeof(limit->why),
			"the cgroup of pod %s has no io.max: the io controller is off in it; enable it for kubepods (systemd: IOAccounting=yes in kubepods.slice)",
			pod->uid);
	else if (pod->res < 0)
		snprintf(limit->why, sizeof(limit->why),
			"writing io.max in the cgroup of pod %s failed (%s): the driver needs the node's cgroups writable",
			pod->uid, strerrordesc_np(-pod->res));
}

/* Only pods that may have a line are to be asked again. */
static void keep_pods(struct node_limit *limit, const struct node_limits_look *look)
{
	char(*pods)[CGROUP_POD_BYTES] = calloc(look->pod_count + 1, sizeof(*pods));
	unsigned count = 0;
	if (pods == NULL)
		return;
	for (unsigned i = 0; i < look->pod_count; i++) {
		const struct node_limits_pod *pod = &look->pods[i];
		bool gone = !pod->published && (pod->res == 0 || pod->res == -ENOENT);
		bool cleared = pod->published && pod->res == 0 && !io_limits_any(&pod->limits);
		if (!gone && !cleared)
			memcpy(pods[count++], pod->uid, sizeof(*pods));
	}
	free(limit->pods);
	limit->pods = pods;
	limit->pod_count = count;
}

static void judge_pods(struct node_limits_look *look, struct node_limit *limit)
{
	bool missing = false;
	bool wanted = io_limits_any(wanted_by(look, limit->nv));
	unsigned published = 0;
	for (unsigned i = 0; i < look->pod_count; i++)
		published += look->pods[i].published;
	if (wanted && published + look->unnamed != 0 && look->root_err.code != ERR_OK)
		say_why(limit, look->root_err.message);
	for (unsigned i = 0; wanted && look->root_err.code == ERR_OK && i < look->pod_count; i++)
		if (look->pods[i].published)
			judge_pod(look->node, limit, &look->pods[i], &missing);
	if (wanted && look->unnamed != 0 && limit->why[0] == '\0')
		say_why(limit,
			"it is published at a path that names no pod (kubelet's pods/UID), so it is not known whom to limit; device ublk needs no pod");
	if (!missing)
		limit->missing_ns = 0;
	if (look->root_err.code == ERR_OK)
		keep_pods(limit, look);
}

/* One that is away keeps what was in force, and is a condition by itself. */
static void judge_device(const struct node_limits_look *look, struct node_limit *limit)
{
	const struct err *err = &look->device_err;
	bool wanted = io_limits_any(wanted_of(limit->nv));
	if (err->code == ERR_UNIMPLEMENTED && wanted)
		say_why(limit,
			"the data process is of an older version, which has no limits: end it and start it again (ringvol ublkd), which its devices survive");
	else if (err->code != ERR_OK && err->code != ERR_UNIMPLEMENTED &&
		 err->code != ERR_UNAVAILABLE)
		say_why(limit, err->message);
}

static void note(struct node_limits_look *look, struct node_volume *nv)
{
	struct node_limits *limits = look->node->limits;
	struct node_limit *limit = nv->limit;
	limit->why[0] = '\0';
	limit->looked_ns = now_of(look->node);
	list_remove(&limit->link);
	list_push(&limits->all, &limit->link);
	if (limits_device(nv))
		judge_device(look, limit);
	else if (look->pods != NULL)
		judge_pods(look, limit);
	node_note(look->node, nv, NODE_LIMIT_NOT_ENFORCED, limit->why[0] != '\0');
	bool waited_for = limit->waiting != NULL;
	bool over = limit->pod_count == 0 && !io_limits_any(wanted_of(nv));
	uint64_t ms = limit->missing_ns != 0 ? NODE_LIMITS_SOON_MS : NODE_LIMITS_MS;
	let_go(look, limit);
	if (over && !waited_for && limit->why[0] == '\0') {
		node_limit_free(limit);
		nv->limit = NULL;
	} else {
		arm(limits, ms);
	}
}

static int note_run(struct op *op)
{
	struct node_limits_look *look = look_of(op);
	struct node_volume *nv = volume_of(look);
	if (nv != NULL && nv->limit != NULL)
		note(look, nv);
	free(look->pods);
	look->pods = NULL;
	return 0;
}

static const struct op_step steps[] = {
	{"hold", .run = hold_run, .undo = hold_undo},
	{"limit device", .done = device_done, .run = device_run, .end = device_end},
	{"limit pods", .done = pods_done, .run = pods_run},
	{"note", .run = note_run},
	{NULL},
};

void node_limits_look_init(
	struct node_limits_look *look, struct node *node, const struct pool_object *volume)
{
	*look = (struct node_limits_look){.node = node};
	pool_object_id(volume, look->id);
	list_init(&look->link);
	op_init(&look->op, node->reactor, "limits", steps, NULL);
}

/* ---- by the timer ---- */

static void look_finished(struct op *op)
{
	struct node_limits_look *look = look_of(op);
	struct node *node = look->node;
	struct node_limit *limit = limit_of(look);
	if (look->holds && limit != NULL) /* it did not begin */
		let_go(look, limit);
	list_remove(&look->link);
	node->limits->look_count--;
	free(look->pods);
	free(look);
	arm(node->limits, 0); /* for those that had to wait for it */
	node_tell_quiet(node);
}

/* Soon while a cgroup is waited for, and once when that has taken too long. */
static uint64_t due_ns(const struct node_limit *limit)
{
	const uint64_t grace_ns = NODE_LIMITS_GRACE_MS * (uint64_t)NS_PER_MS;
	bool soon = limit->missing_ns != 0 && limit->looked_ns < limit->missing_ns + grace_ns;
	uint64_t ms = soon ? NODE_LIMITS_SOON_MS : NODE_LIMITS_MS;
	return limit->looked_ns == 0 ? 0 : limit->looked_ns + ms * NS_PER_MS;
}

/* Who serves its device does not answer; the backend sees to that. */
static bool is_away(const struct node_volume *nv)
{
	const struct backend *backend = backend_of(nv);
	return backend == NULL ||
	       (backend->away_since_ns != NULL && backend->away_since_ns(backend) != 0);
}

/* False: for want of memory. */
static bool start_look(struct node_limits *limits, struct node_limit *limit)
{
	struct node_limits_look *look = malloc(sizeof(*look));
	if (look == NULL)
		return false;
	node_limits_look_init(look, limits->node, limit->nv->volume);
	look->op.on_end = look_finished;
	look->holds = limit->busy = true;
	list_push(&limits->looks, &look->link);
	limits->look_count++;
	op_start(&look->op);
	return true;
}

static void on_tick(struct ring_timer *timer)
{
	struct node_limits *limits = container_of(timer, struct node_limits, timer);
	uint64_t now_ns = now_of(limits->node);
	uint64_t next_ns = now_ns + NODE_LIMITS_MS * (uint64_t)NS_PER_MS;
	if (limits->node->draining)
		return;
	list_for_each_safe (link, &limits->all) {
		struct node_limit *limit = container_of(link, struct node_limit, link);
		if (limit->busy || limit->nv->detaching || is_away(limit->nv))
			continue;
		if (due_ns(limit) > now_ns)
			next_ns = due_ns(limit) < next_ns ? due_ns(limit) : next_ns;
		else if (limits->look_count == NODE_LIMITS_LOOKS_MAX || !start_look(limits, limit))
			break; /* the end of a look goes on */
	}
	arm(limits, (next_ns - now_ns + NS_PER_MS - 1) / NS_PER_MS);
}

/* ---- life ---- */

int node_limits_open(struct node *node, const char *root)
{
	struct node_limits *limits = calloc(1, sizeof(*limits));
	if (limits == NULL)
		return -ENOMEM;
	limits->node = node;
	limits->root = root;
	limits->timer.fn = on_tick;
	list_init(&limits->all);
	list_init(&limits->looks);
	node->limits = limits;
	return 0;
}

void node_limits_close(struct node *node)
{
	if (node->limits == NULL)
		return;
	ring_timer_cancel(node->reactor->ring, &node->limits->timer);
	free(node->limits);
	node->limits = NULL;
}

bool node_limits_idle(const struct node *node)
{
	return node->limits == NULL || node->limits->look_count == 0;
}
