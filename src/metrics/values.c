/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What there is to tell beside the volumes: calls, steps, the loop, pools, the process. All is read
 * from memory, but for the resident size, which the kernel tells without waiting for anything.
 */
#include "metrics/private.h"

#include "base/fd.h"
#include "csi/task.h"
#include "node/trim.h"
#include "pool/index.h"
#include "pool/raw_thin.h"
#include "pool/trash.h"
#include "probes/probes.h"
#include "transfer/transfer.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* ---- calls and steps ---- */

static const char *const code_names[METRICS_CODES] = {"OK", "CANCELLED", "UNKNOWN",
	"INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED",
	"RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED",
	"INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"};

static bool render_rpc(struct scrape *s, const struct family *f, struct text *t)
{
	const struct metrics *m = s->metrics;
	char labels[TEXT_LABELS_MAX];
	if (s->at >= m->method_count)
		return true;
	const struct metrics_method *method = &m->methods[s->at++];
	for (unsigned code = 0; code < METRICS_CODES; code++) {
		const struct metrics_histogram *h = method->codes[code];
		if (h == NULL)
			continue;
		text_label(labels, false, "method", method->path);
		text_label(labels, true, "code", code_names[code]);
		text_histogram(t, f->name, labels, NULL, &metrics_rpc_scale, h->counts, h->sum_ns);
	}
	return false;
}

static uint64_t in_flight(const struct metrics *m)
{
	return grpc_registry_in_flight(m->registry) +
	       (m->routed != NULL ? grpc_registry_in_flight(m->routed) : 0);
}

static bool render_steps(struct scrape *s, const struct family *f, struct text *t)
{
	const struct metrics *m = s->metrics;
	char labels[TEXT_LABELS_MAX];
	bool last = s->at == m->step_count;
	const struct metrics_step *step = last ? &m->other : m->steps[s->at++];
	if (last && step->histogram.sum_ns == 0)
		return true;
	text_label(labels, false, "operation", step->operation);
	text_label(labels, true, "step", step->step);
	text_histogram(t, f->name, labels, NULL, &metrics_step_scale, step->histogram.counts,
		step->histogram.sum_ns);
	return last;
}

/* ---- the loop ---- */

/* Ends of buckets of base/hist.h; 2.1 ms is what a turn should never take. */
static const struct text_scale loop_scale = {
	.count = 9,
	.bounds_ns = {1 << 13, 1 << 15, 1 << 17, 1 << 19, 1 << 20, 1 << 21, 1 << 23, 1 << 26,
		1 << 30},
	.le = {"0.000008192", "0.000032768", "0.000131072", "0.000524288", "0.001048576",
		"0.002097152", "0.008388608", "0.067108864", "1.073741824"},
};

static bool render_loop(struct scrape *s, const struct family *f, struct text *t)
{
	const struct ring_stats *stats = ring_stats(s->metrics->reactor->ring);
	uint64_t counts[TEXT_BOUNDS_MAX + 1];
	text_scale_regroup(&loop_scale, &stats->turn, counts);
	text_histogram(t, f->name, NULL, NULL, &loop_scale, counts, stats->turn_ns);
	return true;
}

static uint64_t queue_depth(const struct metrics *m)
{
	return work_queue_depth(m->reactor->work);
}

static uint64_t hung(const struct metrics *m)
{
	const struct helpers *helpers = m->reactor->helpers;
	return helpers != NULL ? helpers_hung_count(helpers) : 0;
}

static bool render_number(struct scrape *s, const struct family *f, struct text *t)
{
	text_u64(t, f->name, NULL, NULL, f->number(s->metrics));
	return true;
}

/* ---- pools ---- */

static uint64_t is_ready(const struct pool *pool)
{
	return pool_state(pool) == POOL_READY;
}

static uint64_t volumes(const struct pool *pool)
{
	return pool_count(pool, RECORD_VOLUME);
}

static uint64_t snapshots(const struct pool *pool)
{
	return pool_count(pool, RECORD_SNAPSHOT);
}

static uint64_t thin_low(const struct pool *pool)
{
	struct pool_thin_state state;
	pool_thin_state(pool, &state);
	return state.low;
}

/* f->pool NULL: a field of its room. A pool that was never read has no size, which is not a size
 * of 0. */
static bool render_pools(struct scrape *s, const struct family *f, struct text *t)
{
	const struct pool *pool;
	char labels[TEXT_LABELS_MAX];
	for (unsigned i = 0; (pool = pools_at(s->metrics->csi->pools, i)) != NULL; i++) {
		struct pool_room room;
		pool_room(pool, &room);
		if (f->pool == NULL && room.capacity_bytes == 0)
			continue;
		if (f->raw_alone && !pool_is_raw(pool))
			continue;
		text_label(labels, false, "pool", pool_name(pool));
		text_u64(t, f->name, labels, NULL,
			f->pool != NULL ? f->pool(pool)
					: *(uint64_t *)(void *)((char *)&room + f->room_field));
	}
	return true;
}

/* ---- trimming by schedule ---- */

static uint64_t trim_done(const struct metrics *m)
{
	return node_trim_stats(m->csi->node->trim).done;
}

static uint64_t trim_failed(const struct metrics *m)
{
	return node_trim_stats(m->csi->node->trim).failed;
}

static uint64_t trim_returned(const struct metrics *m)
{
	return node_trim_stats(m->csi->node->trim).returned_bytes;
}

/* ---- copies ---- */

static void tell_copy(const struct family *f, struct text *t, const char *operation,
	const char *name, uint64_t bytes)
{
	char labels[TEXT_LABELS_MAX];
	text_label(labels, false, "operation", operation);
	text_label(labels, true, "name", name);
	text_u64(t, f->name, labels, NULL, bytes);
}

/* Each copy or erasure under way. */
static bool render_copies(struct scrape *s, const struct family *f, struct text *t)
{
	const struct csi *csi = s->metrics->csi;
	const struct pool *pool;
	uint64_t done, total;
	list_for_each (node, &csi->tasks) {
		const struct csi_task *task = container_of(node, struct csi_task, link);
		if (csi_task_progress(task, &done, &total))
			tell_copy(f, t, task->method, task->subject, f->copy_size ? total : done);
	}
	for (unsigned i = 0; (pool = pools_at(csi->pools, i)) != NULL; i++)
		if (pool_erasing(pool, &done, &total))
			tell_copy(f, t, "erase", pool_name(pool), f->copy_size ? total : done);
	return true;
}

/* ---- copies to and from other nodes ---- */

static struct transfer_stats transfer_stats(const struct metrics *m)
{
	const struct transfer *transfer = m->csi->transfer;
	return transfer != NULL ? transfer->stats : (struct transfer_stats){0};
}

static uint64_t transfer_sent(const struct metrics *m)
{
	return transfer_stats(m).sent_bytes;
}

static uint64_t transfer_received(const struct metrics *m)
{
	return transfer_stats(m).received_bytes;
}

static uint64_t transfer_sends(const struct metrics *m)
{
	return transfer_stats(m).sends;
}

static uint64_t transfer_pulls(const struct metrics *m)
{
	return transfer_stats(m).pulls;
}

static uint64_t transfer_kept(const struct metrics *m)
{
	return m->csi->transfer != NULL ? transfer_grants(m->csi->transfer) : 0;
}

static uint64_t transfer_lost(const struct metrics *m)
{
	return transfer_stats(m).lost;
}

static uint64_t transfer_wrong(const struct metrics *m)
{
	return transfer_stats(m).wrong;
}

/* ---- the process ---- */

static bool render_build(struct scrape *s, const struct family *f, struct text *t)
{
	const struct metrics *m = s->metrics;
	const struct probes *probes = m->csi != NULL ? m->csi->node->probes : NULL;
	char features[METRICS_FEATURES_MAX + 8], labels[TEXT_LABELS_MAX];
	bool bpf = probes != NULL && probes_state(probes) == PROBES_BPF;
	snprintf(features, sizeof(features), "%s%s", m->features, bpf ? ",bpf" : "");
	text_label(labels, false, "version", RINGVOL_VERSION);
	text_label(labels, true, "kernel", m->kernel);
	text_label(labels, true, "features", features);
	text_u64(t, f->name, labels, NULL, 1);
	return true;
}

static bool render_resident(struct scrape *s, const struct family *f, struct text *t)
{
	(void)s;
	char text[128];
	unsigned long long size, resident;
	if (fd_read_file(AT_FDCWD, "/proc/self/statm", text, sizeof(text)) > 0 &&
		sscanf(text, "%llu %llu", &size, &resident) == 2)
		text_u64(t, f->name, NULL, NULL, resident * (uint64_t)sysconf(_SC_PAGESIZE));
	return true;
}

static bool render_cpu(struct scrape *s, const struct family *f, struct text *t)
{
	(void)s;
	struct rusage usage;
	if (getrusage(RUSAGE_SELF, &usage) == 0)
		text_seconds(t, f->name, NULL, NULL,
			(uint64_t)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000000 +
				(uint64_t)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1000);
	return true;
}

static bool render_start(struct scrape *s, const struct family *f, struct text *t)
{
	text_seconds(t, f->name, NULL, NULL, s->metrics->start_ns);
	return true;
}

const struct family value_families[] = {
	{"ringvol_build_info", "gauge", "Always 1; what this is and what it found here.",
		render_build},
	{"ringvol_rpc_duration_seconds", "histogram",
		"Time from a call's request to the end of its answer.", render_rpc},
	{"ringvol_rpc_in_flight", "gauge",
		"Calls that are not answered yet, those their clients have left included.",
		render_number, .number = in_flight},
	{"ringvol_operation_step_seconds", "histogram",
		"Time an operation spent in one of its steps.", render_steps},
	{"ringvol_reactor_loop_seconds", "histogram",
		"Time a turn of the event loop was busy; while it is, nothing else is served.",
		render_loop},
	{"ringvol_work_queue_depth", "gauge",
		"Blocking calls that run on work threads or wait for one.", render_number,
		.number = queue_depth},
	{"ringvol_helpers_hung", "gauge", "Calls that hang in the kernel.", render_number,
		.number = hung},
	{"process_resident_memory_bytes", "gauge", "Resident memory.", render_resident},
	{"process_cpu_seconds_total", "counter", "Processor time, user and system.", render_cpu},
	{"process_start_time_seconds", "gauge", "When the process started, Unix time.",
		render_start},
	{NULL},
};

const struct family pool_families[] = {
	{"ringvol_pool_ready", "gauge", "1 if the pool is served.", render_pools, .pool = is_ready},
	{"ringvol_pool_capacity_bytes", "gauge", "Size of the pool's file system.", render_pools,
		.room_field = offsetof(struct pool_room, capacity_bytes)},
	{"ringvol_pool_free_bytes", "gauge", "What its file system has free.", render_pools,
		.room_field = offsetof(struct pool_room, free_bytes)},
	{"ringvol_pool_provisioned_bytes", "gauge", "What was promised: the sizes of all volumes.",
		render_pools, .room_field = offsetof(struct pool_room, provisioned_bytes)},
	{"ringvol_pool_allocated_bytes", "gauge",
		"What volumes and snapshots take, shared bytes counted for each.", render_pools,
		.room_field = offsetof(struct pool_room, allocated_bytes)},
	{"ringvol_pool_zeroing_bytes", "gauge",
		"Deleted bytes of a raw pool that nobody gets before they are overwritten.",
		render_pools, .room_field = offsetof(struct pool_room, zeroing_bytes),
		.raw_alone = true},
	{"ringvol_pool_thin_bytes", "gauge", "What the thin pool of a raw pool has for data.",
		render_pools, .room_field = offsetof(struct pool_room, thin_bytes),
		.raw_alone = true},
	{"ringvol_pool_thin_used_bytes", "gauge", "What of that is in use.", render_pools,
		.room_field = offsetof(struct pool_room, thin_used_bytes), .raw_alone = true},
	{"ringvol_pool_thin_low", "gauge",
		"1 if the thin pool of a raw pool has little unused and cannot be grown.",
		render_pools, .pool = thin_low, .raw_alone = true},
	{"ringvol_pool_volumes", "gauge", "Volumes of the pool, attached or not.", render_pools,
		.pool = volumes},
	{"ringvol_pool_snapshots", "gauge", "Snapshots of the pool.", render_pools,
		.pool = snapshots},
	{"ringvol_trim_done_total", "counter",
		"Volumes whose file systems gave back what they do not use, by schedule.",
		render_number, .number = trim_done},
	{"ringvol_trim_failed_total", "counter", "Those that failed; the log says why.",
		render_number, .number = trim_failed},
	{"ringvol_trim_returned_bytes_total", "counter",
		"What volumes had allocated before they were trimmed and no more afterwards.",
		render_number, .number = trim_returned},
	{"ringvol_copy_done_bytes", "gauge",
		"How far a copy, or the erasure of a deleted volume, has come in its image.",
		render_copies},
	{"ringvol_copy_size_bytes", "gauge", "The size of that image.", render_copies,
		.copy_size = true},
	{"ringvol_transfer_sent_bytes_total", "counter", "Data of copies sent to other nodes.",
		render_number, .number = transfer_sent},
	{"ringvol_transfer_received_bytes_total", "counter",
		"Data of copies received from other nodes.", render_number,
		.number = transfer_received},
	{"ringvol_transfer_sending", "gauge", "Copies that are being sent.", render_number,
		.number = transfer_sends},
	{"ringvol_transfer_receiving", "gauge", "Copies that are being received.", render_number,
		.number = transfer_pulls},
	{"ringvol_transfer_grants", "gauge", "Images kept for copies of other nodes.",
		render_number, .number = transfer_kept},
	{"ringvol_transfer_lost_total", "counter",
		"Calls of copies to other nodes that failed and were made again.", render_number,
		.number = transfer_lost},
	{"ringvol_transfer_wrong_total", "counter",
		"Data received that was not what its checksum or its place says.", render_number,
		.number = transfer_wrong},
	{NULL},
};
