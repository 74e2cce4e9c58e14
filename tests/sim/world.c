/* SPDX-License-Identifier: Apache-2.0 */
#include "world.h"

#include "backends/loop/lodev.h"
#include "backends/loop/loop.h"
#include "base/fd.h"
#include "base/log.h"
#include "blockio/boot_mark.h"
#include "csi/services.h"
#include "mount/mnt.h"
#include "mount/mnt_scan.h"
#include "node/limits.h"
#include "pool/pools.h"
#include "transfer/send.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TURNS_MAX = 200000 };

static int fault_hook(void *arg, const char *op_name, const char *step_name)
{
	struct world *w = arg;
	if (w->on_step != NULL)
		w->on_step(op_name, step_name);
	if (w->scan_faults > 0 && strcmp(op_name, "adopt") == 0 && strcmp(step_name, "scan") == 0) {
		w->scan_faults--;
		return -EIO;
	}
	if (w->fault_after < 0 || w->fault_after-- != 0)
		return 0;
	w->fault_hit = true;
	snprintf(w->fault_at, sizeof(w->fault_at), "%s/%s", op_name, step_name);
	return -EIO;
}

static int job_hook(void *arg, const char *op_name, const char *step_name)
{
	struct world *w = arg;
	if (w->work_fault_after < 0 || w->work_fault_after-- != 0)
		return 0;
	w->fault_hit = true;
	snprintf(w->fault_at, sizeof(w->fault_at), "job of %s/%s", op_name, step_name);
	return -EIO;
}

static int request_hook(void *arg, uint64_t nth, const struct io_uring_sqe *sqe)
{
	struct world *w = arg;
	(void)nth;
	if (w->work_fault_after < 0 || w->work_fault_after-- != 0)
		return 0;
	w->fault_hit = true;
	snprintf(w->fault_at, sizeof(w->fault_at), "request %d", sqe->opcode);
	return -EIO;
}

static int shell(const char *fmt, const char *arg)
{
	char command[512];
	snprintf(command, sizeof(command), fmt, arg);
	return system(command);
}

bool world_mount_xfs(const char *options, const char *path)
{
	struct statvfs memory;
	const char *dir = statvfs("/dev/shm", &memory) == 0 &&
					  memory.f_bavail * memory.f_frsize >= 4 * WORLD_DISK_BYTES
				  ? "/dev/shm"
				  : "/tmp";
	char command[512];
	snprintf(command, sizeof(command),
		"disk=$(mktemp %s/ringvol-disk-XXXXXX) && truncate -s %llu $disk && "
		"mkfs.xfs -q %s $disk && mount -o loop $disk %s; r=$?; rm -f $disk; exit $r",
		dir, (unsigned long long)WORLD_DISK_BYTES, options, path);
	return system(command) == 0;
}

static void loaded(void *arg)
{
	*(bool *)arg = true;
}

static void turn_until(struct world *w, const bool *flag)
{
	for (unsigned i = 0; i < TURNS_MAX && !*flag; i++)
		assert(ring_turn(w->reactor.ring, true) == 0);
	assert(*flag);
}

static void up(struct world *w)
{
	assert(ring_sim_open(&w->reactor.ring, &w->sim) == 0);
	assert(work_open(&w->reactor.work, w->reactor.ring, WORK_THREADS) == 0);
	attach_calls_fill(w->calls);
	assert(helpers_open(&w->reactor.helpers, w->reactor.ring, w->calls, ATTACH_CALLS) == 0);
	struct pool_config pool = {.name = "default",
		.path = w->pool_path,
		.overcommit = 1.0,
		.reserve_pct = 5,
		.init = true};
	struct pool_config both[2] = {pool, pool};
	char other[96];
	snprintf(other, sizeof(other), "%s/other", w->dir);
	both[1].name = "other";
	both[1].path = other;
	if (w->two_pools)
		assert(mkdir(other, 0700) == 0 || errno == EEXIST);
	assert(pools_open(&w->pools, &w->reactor, both, w->two_pools ? 2 : 1) == 0);
	bool done = false;
	pools_start(w->pools, loaded, NULL, &done);
	turn_until(w, &done);
	struct csi_config csi = {
		.driver_name = "csi.ringvol.dev",
		.node_id = "node-1",
		.services = CSI_IDENTITY | CSI_CONTROLLER | CSI_NODE | CSI_GROUP |
			    CSI_SNAPSHOT_METADATA,
		.controller_expand = true,
		.staging = true,
		.attach = w->attach,
		.health = CSI_HEALTH_1_12,
	};
	assert(csi_open(&w->csi, &csi, &w->reactor, w->pools) == 0);
	const struct transfer_config transfer = {.node_id = csi.node_id};
	assert(transfer_open(&w->transfer, &w->reactor, w->pools, w->csi->node, &transfer) == 0);
	w->csi->transfer = w->transfer;
	if (w->cgroup_root != NULL)
		assert(node_limits_open(w->csi->node, w->cgroup_root) == 0);
	if (w->attach && w->exports.target != NULL)
		assert(node_exports_open(w->csi->node, &w->exports) == 0);
	world_adopt(w);
	w->registry = grpc_registry_new();
	assert(csi_register(w->csi, w->registry) == 0);
	assert(csi_register_member(
		       w->csi, w->registry, 1 << GRPC_PEER_LOCAL | 1 << GRPC_PEER_CONTROLLER) == 0);
	assert(transfer_register(w->transfer, w->registry, 0) == 0);
	w->fault_after = w->work_fault_after = -1;
	w->observer = (struct op_observer){.before = fault_hook, .before_call = job_hook, .arg = w};
	w->sim.fault = request_hook;
	w->sim.fault_arg = w;
	w->reactor.observer = &w->observer;
}

void world_adopt(struct world *w)
{
	w->adopted = false;
	node_adopt(w->csi->node, loaded, &w->adopted);
	turn_until(w, &w->adopted);
}

static void down(struct world *w)
{
	transfer_drain(w->transfer);
	node_adopt_no_more(w->csi->node);
	for (unsigned i = 0; i < TURNS_MAX && node_adopting(w->csi->node); i++)
		assert(ring_turn(w->reactor.ring, true) == 0);
	w->csi->node->draining = true;
	for (unsigned i = 0; i < TURNS_MAX && !node_exports_idle(w->csi->node->exports); i++)
		assert(ring_turn(w->reactor.ring, true) == 0);
	pools_drain(w->pools);
	for (unsigned i = 0; i < TURNS_MAX && !pools_idle(w->pools); i++)
		assert(ring_turn(w->reactor.ring, true) == 0);
	grpc_registry_free(w->registry);
	transfer_close(w->transfer);
	csi_close(w->csi);
	pools_close(w->pools);
	helpers_close(w->reactor.helpers);
	work_close(w->reactor.work);
	ring_close(w->reactor.ring);
}

struct world *world_open(enum world_fs fs, uint64_t seed, const char **why)
{
	if (geteuid() != 0) {
		*why = "needs root for mounts and loop devices";
		return NULL;
	}
	if (access("/dev/loop-control", R_OK | W_OK) != 0) {
		*why = "no /dev/loop-control";
		return NULL;
	}
	/* Raw block volumes go without a guard where the kernel cannot make one. */
	backend_loop_configure(&(struct backend_loop_config){
		.block_on_loop = access("/sys/class/misc/device-mapper", F_OK) != 0});
	log_open(LOG_LEVEL_ERROR, LOG_FORMAT_LOGFMT);
	signal(SIGIO, SIG_IGN);
	struct world *w = calloc(1, sizeof(*w));
	assert(w != NULL);
	snprintf(w->dir, sizeof(w->dir), "/tmp/ringvol-world-XXXXXX");
	assert(mkdtemp(w->dir) != NULL);
	snprintf(w->pool_path, sizeof(w->pool_path), "%s/pool", w->dir);
	assert(mkdir(w->pool_path, 0700) == 0);
	if (fs == WORLD_XFS) {
		w->mounted = world_mount_xfs("", w->pool_path);
		if (!w->mounted) {
			*why = "an XFS image cannot be made or mounted here";
			shell("rm -rf %s", w->dir);
			free(w);
			return NULL;
		}
	}
	char sub[96];
	snprintf(sub, sizeof(sub), "%s/stage", w->dir);
	assert(mkdir(sub, 0700) == 0);
	w->sim = (struct ring_sim){.seed = seed, .short_every = 7, .eintr_every = 11};
	up(w);
	return w;
}

void world_restart(struct world *w)
{
	world_settle(w);
	down(w);
	up(w);
}

void world_close(struct world *w)
{
	w->fault_after = w->work_fault_after = -1;
	world_settle(w);
	down(w);
	if (w->mounted)
		shell("umount %s/pool", w->dir);
	shell("rm -rf --one-file-system %s", w->dir);
	free(w);
}

/* ---- calls ---- */

static void answer_message(struct grpc_local *local, const uint8_t *data, size_t len)
{
	struct world_answer *answer = container_of(local, struct world_answer, local);
	free(answer->data); /* of a stream the last one is kept */
	answer->messages++;
	answer->data = malloc(len + 1);
	assert(answer->data != NULL);
	if (len != 0)
		memcpy(answer->data, data, len);
	answer->len = len;
}

static void answer_end(struct grpc_local *local, enum grpc_status status, const char *message)
{
	struct world_answer *answer = container_of(local, struct world_answer, local);
	answer->status = status;
	snprintf(answer->message, sizeof(answer->message), "%s", message ? message : "");
	answer->ended = true;
}

void world_send(struct world *w, const char *method, const ProtobufCMessage *request,
	struct world_answer *answer)
{
	*answer = (struct world_answer){.local = {answer_message, answer_end, w->peer}};
	size_t len = protobuf_c_message_get_packed_size(request);
	uint8_t *packed = malloc(len + 1);
	assert(packed != NULL);
	protobuf_c_message_pack(request, packed);
	char path[128];
	snprintf(path, sizeof(path), "%s%s", method[0] == '/' ? "" : "/csi.v1.", method);
	grpc_dispatch_local(w->registry, path, packed, len, &answer->local);
	free(packed);
}

void world_wait(struct world *w, struct world_answer *answer)
{
	turn_until(w, &answer->ended);
}

enum grpc_status world_call(struct world *w, const char *method, const ProtobufCMessage *request,
	struct world_answer *answer)
{
	world_send(w, method, request, answer);
	world_wait(w, answer);
	return answer->status;
}

void world_answer_free(struct world_answer *answer)
{
	free(answer->data);
	answer->data = NULL;
}

void world_settle(struct world *w)
{
	ring_sim_settle(w->reactor.ring, POOL_CHECK_MS + POOL_CHECK_MS / 2);
}

/* ---- inventory ---- */

struct inventory {
	struct world *world;
	char *text;
	size_t cap, len;
};

static void put(struct inventory *inv, const char *kind, const char *name)
{
	int n = snprintf(inv->text + inv->len, inv->cap - inv->len, "%s %s\n", kind, name);
	assert(n > 0 && (size_t)n < inv->cap - inv->len);
	inv->len += (size_t)n;
}

static void put_size(struct inventory *inv, const char *kind, const char *name, int64_t size)
{
	char text[320];
	snprintf(text, sizeof(text), "%s %+" PRId64, name, size - inv->world->size_zero);
	put(inv, kind, text);
}

static int not_hidden(const struct dirent *entry)
{
	return entry->d_name[0] != '.';
}

static void put_directory(struct inventory *inv, const char *kind)
{
	char path[512];
	struct dirent **names = NULL;
	snprintf(path, sizeof(path), "%s/%s", inv->world->pool_path, kind);
	int n = scandir(path, &names, not_hidden, alphasort);
	for (int i = 0; i < n; i++) {
		struct stat st = {0};
		snprintf(path, sizeof(path), "%s/%s/%s", inv->world->pool_path, kind,
			names[i]->d_name);
		assert(lstat(path, &st) == 0);
		put_size(inv, kind, names[i]->d_name, st.st_size);
		free(names[i]);
	}
	free(names);
}

static void put_frozen(struct inventory *inv)
{
	char path[512];
	struct dirent **names = NULL;
	snprintf(path, sizeof(path), "%s/volumes", inv->world->pool_path);
	int n = scandir(path, &names, not_hidden, alphasort);
	for (int i = 0; i < n; i++) {
		snprintf(path, sizeof(path), "%s/volumes/%s", inv->world->pool_path,
			names[i]->d_name);
		_cleanup_fd_ int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
		if (fd >= 0 && boot_mark_get(fd, BOOT_MARK_FROZEN, NULL))
			put(inv, "frozen", names[i]->d_name);
		free(names[i]);
	}
	free(names);
}

static void put_device(void *arg, const struct lodev *dev)
{
	struct inventory *inv = arg;
	const char *uuid8 = pool_uuid8(pools_at(inv->world->pools, 0));
	if (strncmp(dev->tag + strlen("ringvol:"), uuid8, 8) == 0)
		put(inv, dev->going_away ? WORLD_LINGERS : "device", dev->tag);
}

static void put_mount(void *arg, const struct mnt_entry *entry)
{
	struct inventory *inv = arg;
	size_t len = strlen(inv->world->dir);
	if (strncmp(entry->path, inv->world->dir, len) == 0 &&
		strcmp(entry->path, inv->world->pool_path) != 0)
		put(inv, "mount", entry->path);
}

void world_inventory(struct world *w, char *text, size_t cap)
{
	struct inventory inv = {.world = w, .text = text, .cap = cap};
	put_directory(&inv, "volumes");
	put_directory(&inv, "snapshots");
	put_directory(&inv, "groups");
	put_directory(&inv, "trash");
	put_directory(&inv, "copies");
	assert(lodev_scan(put_device, &inv) == 0);
	assert(mnt_scan(put_mount, &inv) == 0);
	struct dirent **names = NULL;
	int fds = scandir("/proc/self/fd", &names, not_hidden, NULL);
	for (int i = 0; i < fds; i++)
		free(names[i]);
	free(names);
	char number[16];
	snprintf(number, sizeof(number), "%d", fds);
	put(&inv, "descriptors", number);
	put_frozen(&inv);
}
