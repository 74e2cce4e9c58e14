/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver, its pools, volumes and what it does, as messages. All of it is in memory; the only
 * failure is want of it. Text that comes from outside (paths) may not be UTF-8, which gRPC clients
 * refuse: such bytes become '?'.
 */
#include "csi/inspect_items.h"

#include "csi/messages.h"

#include "base/clock.h"
#include "base/utf8.h"
#include "node/health.h"
#include "node/volume.h"
#include "pool/index.h"
#include "pool/trash.h"
#include "probes/probes.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { STEP_BYTES = 160 };

static const char *const kind_names[] = {
	[RECORD_VOLUME] = "volume",
	[RECORD_SNAPSHOT] = "snapshot",
};

/* ---- small things ---- */

/* A copy in the arena; "" (not set) when memory is short: the message then fails elsewhere. */
static ProtobufCBinaryData text(struct arena *arena, const char *s)
{
	size_t len = strlen(s);
	uint8_t *copy = arena_alloc(arena, len + 1);
	if (copy == NULL)
		return (ProtobufCBinaryData){0};
	memcpy(copy, s, len);
	for (size_t at = 0; at < len;) {
		size_t n = utf8_char(copy + at, len - at, NULL);
		if (n == 0)
			copy[at] = '?';
		at += n == 0 ? 1 : n;
	}
	return (ProtobufCBinaryData){.len = len, .data = copy};
}

static ProtobufCBinaryData time_text(struct arena *arena, uint64_t realtime_ns)
{
	char when[CLOCK_BYTES];
	clock_print(realtime_ns, when);
	return text(arena, when);
}

static Ringvol__V1__Progress *progress_new(struct arena *arena, uint64_t done, uint64_t total)
{
	Ringvol__V1__Progress *progress =
		csi_message_new(arena, &ringvol__v1__progress__descriptor);
	if (progress == NULL)
		return NULL;
	progress->done_bytes = done;
	progress->total_bytes = total;
	return progress;
}

/* ---- the driver ---- */

Ringvol__V1__Driver *inspect_driver(struct arena *arena, const struct csi *csi)
{
	static const Ringvol__V1__Driver__Probes states[] = {
		[PROBES_LOADING] = RINGVOL__V1__DRIVER__PROBES__LOADING,
		[PROBES_BPF] = RINGVOL__V1__DRIVER__PROBES__BPF,
		[PROBES_SYSFS] = RINGVOL__V1__DRIVER__PROBES__SYSFS,
	};
	const struct ring *ring = csi->reactor->ring;
	Ringvol__V1__Driver *driver = csi_message_new(arena, &ringvol__v1__driver__descriptor);
	if (driver == NULL)
		return NULL;
	driver->version = csi_bytes(RINGVOL_VERSION);
	driver->driver_name = csi_bytes(csi->config.driver_name);
	driver->node_id = text(arena, csi->config.node_id);
	driver->pid = (uint32_t)getpid();
	driver->uptime_seconds = (double)(ring_now_ns(ring) - csi->start_ns) / 1e9;
	driver->longest_turn_ns = ring_stats(ring)->longest_turn_ns;
	driver->probes = RINGVOL__V1__DRIVER__PROBES__NONE;
	if (csi->node->probes != NULL) {
		driver->probes = states[probes_state(csi->node->probes)];
		driver->probes_why = text(arena, probes_why(csi->node->probes));
	}
	driver->adopted = node_adopted(csi->node, NULL);
	driver->draining = csi->node->draining;
	return driver;
}

/* ---- pools ---- */

static Ringvol__V1__PoolRoom *room_new(struct arena *arena, const struct pool *pool)
{
	struct pool_room room;
	Ringvol__V1__PoolRoom *message =
		csi_message_new(arena, &ringvol__v1__pool_room__descriptor);
	if (message == NULL)
		return NULL;
	pool_room(pool, &room);
	message->capacity_bytes = room.capacity_bytes;
	message->free_bytes = room.free_bytes;
	message->provisioned_bytes = room.provisioned_bytes;
	message->allocated_bytes = room.allocated_bytes;
	message->available_bytes = room.available_bytes;
	message->available_thick_bytes = room.available_thick_bytes;
	return message;
}

static Ringvol__V1__PoolFeatures *features_new(struct arena *arena, const struct pool *pool)
{
	const struct fs_features *f = pool_features(pool);
	Ringvol__V1__PoolFeatures *message =
		csi_message_new(arena, &ringvol__v1__pool_features__descriptor);
	if (message == NULL)
		return NULL;
	const char *fs = fs_type_name(f->fs_type);
	char number[32];
	snprintf(number, sizeof(number), "0x%" PRIx64, f->fs_type);
	message->fs = text(arena, fs != NULL ? fs : number);
	message->reflink = f->reflink;
	message->direct_io = f->direct_io;
	message->direct_io_align_bytes = f->dio_align;
	message->thick = f->fallocate && !f->nocow_lies;
	return message;
}

Ringvol__V1__Pool *inspect_pool(struct arena *arena, const struct csi *csi, const struct pool *pool)
{
	static const Ringvol__V1__Pool__State states[] = {
		[POOL_LOADING] = RINGVOL__V1__POOL__STATE__LOADING,
		[POOL_READY] = RINGVOL__V1__POOL__STATE__READY,
		[POOL_MISSING] = RINGVOL__V1__POOL__STATE__MISSING,
		[POOL_SICK] = RINGVOL__V1__POOL__STATE__SICK,
	};
	(void)csi;
	Ringvol__V1__Pool *message = csi_message_new(arena, &ringvol__v1__pool__descriptor);
	if (message == NULL)
		return NULL;
	message->name = text(arena, pool_name(pool));
	message->path = text(arena, pool_path(pool));
	message->uuid8 = csi_bytes(pool_uuid8(pool));
	message->state = states[pool_state(pool)];
	message->why = text(arena, pool_why(pool));
	message->volumes = pool_count(pool, RECORD_VOLUME);
	message->snapshots = pool_count(pool, RECORD_SNAPSHOT);
	message->room = room_new(arena, pool);
	message->features = features_new(arena, pool);
	uint64_t done, total;
	if (pool_erasing(pool, &done, &total))
		message->erasing = progress_new(arena, done, total);
	return message->room == NULL || message->features == NULL ? NULL : message;
}

/* ---- operations ---- */

Ringvol__V1__Operation *inspect_operation(struct arena *arena, const struct csi_task *task)
{
	char step[STEP_BYTES];
	Ringvol__V1__Operation *message =
		csi_message_new(arena, &ringvol__v1__operation__descriptor);
	if (message == NULL)
		return NULL;
	op_print_step(&task->op, step, sizeof(step));
	message->number = task->number;
	message->method = csi_bytes(task->method);
	message->subject = text(arena, task->subject);
	message->step = text(arena, step);
	message->started = time_text(arena, clock_of_monotonic(task->start_ns));
	message->seconds = (double)(ring_now_ns(task->csi->reactor->ring) - task->start_ns) / 1e9;
	message->waiters = task->waiter_count;
	uint64_t done, total;
	if (csi_task_progress(task, &done, &total))
		message->progress = progress_new(arena, done, total);
	return message;
}

/* ---- volumes ---- */

static Ringvol__V1__Source *source_new(struct arena *arena, const struct record *rec)
{
	Ringvol__V1__Source *source = csi_message_new(arena, &ringvol__v1__source__descriptor);
	if (source == NULL)
		return NULL;
	source->kind = csi_bytes(kind_names[rec->source == RECORD_SOURCE_SNAPSHOT ? RECORD_SNAPSHOT
										  : RECORD_VOLUME]);
	source->id = text(arena, rec->source_id);
	return source;
}

static Ringvol__V1__Device *device_new(
	struct arena *arena, const struct record *rec, const struct backend_dev *dev)
{
	const struct backend *backend = backend_get(rec->device);
	Ringvol__V1__Device *device = csi_message_new(arena, &ringvol__v1__device__descriptor);
	if (device == NULL)
		return NULL;
	device->type = csi_bytes(backend != NULL ? backend->name : "");
	device->path = text(arena, dev->path);
	device->major = dev->major;
	device->minor = dev->minor;
	device->direct_io = dev->direct_io;
	device->read_only = dev->read_only;
	device->below_major = dev->below_major;
	device->below_minor = dev->below_minor;
	return device;
}

static bool add_mounts(
	struct arena *arena, Ringvol__V1__Volume *message, const struct node_volume *node)
{
	size_t count = 0;
	list_for_each (link, &node->mounts)
		count++;
	message->mounts = arena_alloc(arena, count * sizeof(*message->mounts));
	Ringvol__V1__Mount *mounts = arena_alloc(arena, count * sizeof(*mounts));
	if (message->mounts == NULL || mounts == NULL)
		return false;
	list_for_each (link, &node->mounts) {
		const struct node_mount *from = container_of(link, struct node_mount, link);
		Ringvol__V1__Mount *mount = &mounts[message->n_mounts];
		ringvol__v1__mount__init(mount);
		mount->path = text(arena, from->path);
		mount->read_only = from->read_only;
		message->mounts[message->n_mounts++] = mount;
	}
	return true;
}

static bool add_conditions(struct arena *arena, Ringvol__V1__Volume *message, const struct csi *csi,
	const struct pool_object *volume)
{
	struct node_condition found[NODE_CONDITION_KINDS];
	unsigned count = node_volume_conditions(arena, csi->node, volume, found);
	message->conditions = arena_alloc(arena, count * sizeof(*message->conditions));
	Ringvol__V1__Condition *conditions = arena_alloc(arena, count * sizeof(*conditions));
	if (message->conditions == NULL || conditions == NULL)
		return false;
	for (unsigned i = 0; i < count; i++) {
		ringvol__v1__condition__init(&conditions[i]);
		conditions[i].kind = csi_bytes(node_condition_names[found[i].kind]);
		conditions[i].message = text(arena, found[i].reason);
		conditions[i].since = time_text(arena, (uint64_t)found[i].since_unix * 1000000000u);
		message->conditions[message->n_conditions++] = &conditions[i];
	}
	return true;
}

/* Only what is not empty. NULL when out of memory. */
static Ringvol__V1__Histogram *histogram_new(struct arena *arena, const struct hist *hist)
{
	size_t count = 0;
	for (uint32_t i = 0; i < HIST_BUCKETS; i++)
		count += hist->count[i] != 0;
	Ringvol__V1__Histogram *message =
		csi_message_new(arena, &ringvol__v1__histogram__descriptor);
	uint32_t *buckets = arena_alloc(arena, count * sizeof(*buckets));
	uint64_t *counts = arena_alloc(arena, count * sizeof(*counts));
	if (message == NULL || buckets == NULL || counts == NULL)
		return NULL;
	message->bucket = buckets;
	message->count = counts;
	for (uint32_t i = 0; i < HIST_BUCKETS; i++) {
		if (hist->count[i] == 0)
			continue;
		buckets[message->n_bucket++] = i;
		counts[message->n_count++] = hist->count[i];
	}
	return message;
}

static bool fill_io_op(struct arena *arena, Ringvol__V1__IoOp *message,
	const struct probe_op_counters *from, bool histograms)
{
	message->ops = from->ops;
	message->bytes = from->bytes;
	message->errors = from->errors;
	message->busy_ns = from->busy_ns;
	message->in_flight = from->in_flight;
	message->last_errno = from->last_errno > 0 ? (uint32_t)from->last_errno : 0;
	message->last_error = time_text(arena, clock_of_monotonic(from->last_error_ns));
	if (!histograms)
		return true;
	message->latency = histogram_new(arena, &from->latency);
	message->queue = histogram_new(arena, &from->queue);
	return message->latency != NULL && message->queue != NULL;
}

/* *ret stays NULL where nothing counts. */
static bool io_new(struct arena *arena, Ringvol__V1__Io **ret, struct probes *probes,
	uint32_t major, uint32_t minor, bool histograms)
{
	struct probe_counters counters;
	if (probes == NULL || probes_read(probes, major, minor, &counters) < 0)
		return true;
	Ringvol__V1__Io *io = csi_message_new(arena, &ringvol__v1__io__descriptor);
	Ringvol__V1__IoOp *ops = arena_alloc(arena, PROBE_OPS * sizeof(*ops));
	Ringvol__V1__IoOp **list = arena_alloc(arena, PROBE_OPS * sizeof(*list));
	if (io == NULL || ops == NULL || list == NULL)
		return false;
	io->exact = counters.exact;
	io->since = time_text(arena, clock_of_monotonic(counters.since_ns));
	io->ops = list;
	for (; io->n_ops < PROBE_OPS; io->n_ops++) {
		list[io->n_ops] = &ops[io->n_ops];
		ringvol__v1__io_op__init(list[io->n_ops]);
		list[io->n_ops]->op = csi_bytes(probe_op_names[io->n_ops]);
		if (!fill_io_op(arena, list[io->n_ops], &counters.op[io->n_ops],
			    histograms && counters.exact))
			return false;
	}
	*ret = io;
	return true;
}

static bool add_node(struct arena *arena, Ringvol__V1__Volume *message, const struct csi *csi,
	const struct pool_object *volume, bool histograms)
{
	const struct node_volume *node = node_volume_find(volume);
	if (node == NULL)
		return true;
	if (node->dev.attached) {
		uint32_t major, minor;
		backend_dev_below(&node->dev, &major, &minor);
		message->device = device_new(arena, volume->rec, &node->dev);
		if (message->device == NULL ||
			!io_new(arena, &message->io, csi->node->probes, major, minor, histograms))
			return false;
	}
	return add_mounts(arena, message, node);
}

static bool add_attachments(
	struct arena *arena, Ringvol__V1__Volume *message, const struct attachments *from)
{
	size_t count = from != NULL ? from->count : 0;
	message->attachments = arena_alloc(arena, count * sizeof(*message->attachments));
	Ringvol__V1__Attachment *all = arena_alloc(arena, count * sizeof(*all));
	if (message->attachments == NULL || all == NULL)
		return false;
	for (size_t i = 0; i < count; i++) {
		ringvol__v1__attachment__init(&all[i]);
		all[i].node_id = text(arena, from->at[i].node);
		all[i].read_only = from->at[i].read_only;
		all[i].exported = from->at[i].export[0] != '\0';
		message->attachments[message->n_attachments++] = &all[i];
	}
	return true;
}

static bool add_limits(
	struct arena *arena, Ringvol__V1__Volume *message, const struct io_limits *limits)
{
	if (!io_limits_any(limits))
		return true;
	message->limits = csi_message_new(arena, &ringvol__v1__io_limits__descriptor);
	if (message->limits == NULL)
		return false;
	message->limits->read_iops = limits->read_iops;
	message->limits->write_iops = limits->write_iops;
	message->limits->read_bandwidth = limits->read_bandwidth;
	message->limits->write_bandwidth = limits->write_bandwidth;
	return true;
}

Ringvol__V1__Volume *inspect_volume(struct arena *arena, const struct csi *csi,
	const struct pool_object *volume, bool histograms)
{
	const struct record *rec = volume->rec;
	char id[RECORD_ID_MAX];
	Ringvol__V1__Volume *message = csi_message_new(arena, &ringvol__v1__volume__descriptor);
	if (message == NULL)
		return NULL;
	pool_object_id(volume, id);
	message->id = text(arena, id);
	message->name = text(arena, rec->name);
	message->pool = text(arena, pool_name(volume->pool));
	message->access_type = csi_bytes(node_volume_has_fs(volume) ? "mount" : "block");
	message->claim = text(arena, rec->claim);
	message->fs = csi_bytes(fsimg_name(rec->fs));
	message->provisioning = csi_bytes(rec->thick ? "thick" : "thin");
	message->size_bytes = rec->size_bytes;
	message->allocated_bytes = volume->allocated_bytes;
	message->block_size = rec->block_size;
	message->created = time_text(arena, rec->created_ns);
	message->shares_extents = volume->shared;
	if (rec->source != RECORD_SOURCE_NONE) {
		message->source = source_new(arena, rec);
		if (message->source == NULL)
			return NULL;
	}
	if (!add_limits(arena, message, &rec->limits) ||
		!add_attachments(arena, message, volume->attachments) ||
		!add_node(arena, message, csi, volume, histograms) ||
		!add_conditions(arena, message, csi, volume))
		return NULL;
	return message;
}

/* ---- volumes of other nodes ---- */

static bool add_staging(
	struct arena *arena, Ringvol__V1__Borrowed *message, const struct borrowed *from)
{
	if (from->staging == NULL)
		return true;
	message->mounts = arena_alloc(arena, sizeof(*message->mounts));
	Ringvol__V1__Mount *mount = csi_message_new(arena, &ringvol__v1__mount__descriptor);
	if (message->mounts == NULL || mount == NULL)
		return false;
	mount->path = text(arena, from->staging);
	mount->read_only = from->read_only;
	message->mounts[message->n_mounts++] = mount;
	return true;
}

Ringvol__V1__Borrowed *inspect_borrowed(
	struct arena *arena, const struct csi *csi, const struct borrowed *from, bool histograms)
{
	Ringvol__V1__Borrowed *message = csi_message_new(arena, &ringvol__v1__borrowed__descriptor);
	Ringvol__V1__Device *device = csi_message_new(arena, &ringvol__v1__device__descriptor);
	if (message == NULL || device == NULL)
		return NULL;
	message->id = text(arena, from->id);
	message->tag = text(arena, from->tag);
	message->owner = text(arena, from->node);
	/* Who was told of the owner was told of this. */
	message->access_type = csi_bytes(from->node[0] == '\0' ? ""
					 : from->block         ? "block"
							       : "mount");
	message->size_bytes = from->size_bytes;
	message->suspended = from->suspended;
	device->type = csi_bytes("nvme-tcp");
	device->path = text(arena, from->path);
	device->major = from->major;
	device->minor = from->minor;
	device->read_only = from->read_only;
	message->device = device;
	return add_staging(arena, message, from) &&
			       io_new(arena, &message->io, csi->borrows->probes, from->major,
				       from->minor, histograms)
		       ? message
		       : NULL;
}

/* ---- snapshots and what is quarantined ---- */

Ringvol__V1__Snapshot *inspect_snapshot(struct arena *arena, const struct pool_object *snapshot)
{
	const struct record *rec = snapshot->rec;
	char id[RECORD_ID_MAX];
	Ringvol__V1__Snapshot *message = csi_message_new(arena, &ringvol__v1__snapshot__descriptor);
	if (message == NULL)
		return NULL;
	pool_object_id(snapshot, id);
	message->id = text(arena, id);
	message->name = text(arena, rec->name);
	message->pool = text(arena, pool_name(snapshot->pool));
	message->claim = text(arena, rec->claim);
	message->source_volume_id = text(arena, rec->source_id);
	message->size_bytes = rec->size_bytes;
	message->allocated_bytes = snapshot->allocated_bytes;
	message->created = time_text(arena, rec->created_ns);
	message->shares_extents = snapshot->shared;
	message->group = text(arena, rec->group);
	return message;
}

Ringvol__V1__Quarantined *inspect_quarantined(struct arena *arena, const struct pool_object *object)
{
	Ringvol__V1__Quarantined *message =
		csi_message_new(arena, &ringvol__v1__quarantined__descriptor);
	if (message == NULL)
		return NULL;
	message->pool = text(arena, pool_name(object->pool));
	message->kind = csi_bytes(kind_names[object->kind]);
	message->key = text(arena, object->key);
	message->why = text(arena, object->why != NULL ? object->why : "damaged");
	return message;
}
