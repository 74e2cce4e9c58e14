/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tracked devices: owns which there are, which slot of the kernel's probes each has, and the job
 * that loads the probes or makes room in them.
 *
 * Happy path: probes_start() loads in a work job; a tracked device takes the lowest free slot at
 * once, as half a chunk is kept free ahead; its numbers are read from there. When fewer are free a
 * job adds chunks, when two are free more than that it takes the last away.
 * How it can fail: the probes cannot be loaded, or there is no room (yet, or for want of memory);
 * those devices are counted from sysfs, from the moment they are tracked, or while nothing is known
 * yet from their first reading, and change over when they get a slot.
 */
#include "probes/probes.h"

#include "base/clock.h"
#include "probes/bpf.h"
#include "probes/sysfs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	BUCKETS = 512,
	SPARE_SLOTS = PROBE_CHUNK_SLOTS / 2,
	NO_SLOT = -1,
};
_Static_assert(PROBE_CHUNK_SLOTS == 16, "the bits of a chunk's word");
_Static_assert(PROBE_CHUNK_SLOTS *PROBE_CHUNKS == PROBES_DEVICES_MAX, "room for all");
_Static_assert((int)PROBE_SLOT_OPS == (int)PROBE_OPS, "the operations of a slot");

const char *const probe_op_names[PROBE_OPS] = {"read", "write", "flush", "discard"};

struct device {
	struct list link;
	struct probe_device id;
	const void *owner;
	int32_t slot;
	bool beyond; /* its number or kind is not in the kernel's table: never gets a slot */
	uint64_t since_ns;
	struct probe_sysfs *base; /* what sysfs said when counting began; NULL: not yet asked */
};

struct probes {
	struct reactor *reactor;
	void (*on_loaded)(void *arg);
	void *on_loaded_arg;
	enum probes_state state;
	char why[PROBES_WHY_MAX];
	probe_load_fn *load;

	struct list devices[BUCKETS];
	unsigned device_count, beyond_count;
	struct probe_bpf *bpf;
	/* A bit for each slot. Chunks beyond chunk_count are being made or taken away. */
	uint16_t used[PROBE_CHUNKS];
	unsigned chunk_count;

	struct work_job job; /* loading, growing or shrinking, one at a time */
	bool job_runs;
	unsigned grow_by;
};

/* ---- slots ---- */

static int lowest_free(const struct probes *p)
{
	for (unsigned i = 0; i < p->chunk_count; i++)
		if (p->used[i] != UINT16_MAX)
			return (int)(i * PROBE_CHUNK_SLOTS) + __builtin_ctz(~p->used[i]);
	return NO_SLOT;
}

static void device_bind(struct probes *p, struct device *device)
{
	int slot = lowest_free(p);
	if (slot == NO_SLOT || device->beyond)
		return;
	uint64_t now = clock_monotonic_ns();
	int r = probe_bpf_bind(p->bpf, (uint32_t)slot, &device->id, now);
	if (r == -ENOSPC || r == -EOPNOTSUPP) {
		device->beyond = true;
		p->beyond_count++;
	}
	if (r < 0)
		return;
	p->used[slot / PROBE_CHUNK_SLOTS] |= (uint16_t)(1 << slot % PROBE_CHUNK_SLOTS);
	device->slot = slot;
	device->since_ns = now;
	free(device->base);
	device->base = NULL;
}

static void device_unbind(struct probes *p, struct device *device)
{
	if (device->slot == NO_SLOT)
		return;
	probe_bpf_unbind(p->bpf, &device->id);
	p->used[device->slot / PROBE_CHUNK_SLOTS] &=
		(uint16_t) ~(1 << device->slot % PROBE_CHUNK_SLOTS);
	device->slot = NO_SLOT;
}

static void bind_waiting(struct probes *p)
{
	for (unsigned i = 0; i < BUCKETS; i++)
		list_for_each (link, &p->devices[i]) {
			struct device *device = container_of(link, struct device, link);
			if (device->slot == NO_SLOT)
				device_bind(p, device);
		}
}

/* ---- making room ---- */

static void make_room(struct probes *p);

static int grow_run(struct work_job *job)
{
	struct probes *p = container_of(job, struct probes, job);
	return probe_bpf_grow(p->bpf, p->grow_by);
}

static int shrink_run(struct work_job *job)
{
	return probe_bpf_shrink(container_of(job, struct probes, job)->bpf);
}

static void on_room(struct work_job *job, int res)
{
	struct probes *p = container_of(job, struct probes, job);
	p->job_runs = false;
	p->chunk_count = probe_bpf_chunks(p->bpf);
	bind_waiting(p);
	if (res == 0) /* else the next device that comes or goes tries again */
		make_room(p);
}

static void submit(struct probes *p, int (*run)(struct work_job *job))
{
	p->job = (struct work_job){.run = run, .on_end = on_room};
	p->job_runs = work_submit(p->reactor->work, &p->job) == 0;
}

static void make_room(struct probes *p)
{
	if (p->state != PROBES_BPF || p->job_runs)
		return;
	unsigned needed = p->device_count - p->beyond_count, wanted = needed + SPARE_SLOTS;
	unsigned have = p->chunk_count * PROBE_CHUNK_SLOTS;
	if (wanted > PROBES_DEVICES_MAX)
		wanted = PROBES_DEVICES_MAX;
	if (have < wanted) {
		p->grow_by = (wanted - have + PROBE_CHUNK_SLOTS - 1) / PROBE_CHUNK_SLOTS;
		submit(p, grow_run);
	} else if (have >= wanted + 2 * PROBE_CHUNK_SLOTS && p->used[p->chunk_count - 1] == 0) {
		p->chunk_count--; /* from now on nobody gets its slots */
		submit(p, shrink_run);
		if (!p->job_runs)
			p->chunk_count++;
	}
}

/* ---- loading ---- */

static int load_run(struct work_job *job)
{
	struct probes *p = container_of(job, struct probes, job);
	return probe_bpf_open(&p->bpf, p->load, p->why);
}

static void on_load(struct work_job *job, int res)
{
	struct probes *p = container_of(job, struct probes, job);
	p->job_runs = false;
	p->state = res == 0 ? PROBES_BPF : PROBES_SYSFS;
	if (res == 0) {
		p->chunk_count = probe_bpf_chunks(p->bpf);
		bind_waiting(p);
		make_room(p);
	}
	if (p->on_loaded != NULL)
		p->on_loaded(p->on_loaded_arg);
}

void probes_start(struct probes *p, bool apart, void (*on_loaded)(void *arg), void *arg)
{
	p->load = apart ? probe_load_apart : probe_load_here;
	p->on_loaded = on_loaded;
	p->on_loaded_arg = arg;
	p->job = (struct work_job){.run = load_run, .on_end = on_load};
	int r = work_submit(p->reactor->work, &p->job);
	p->job_runs = r == 0;
	if (r < 0) {
		snprintf(p->why, sizeof(p->why),
			"too much other work was waiting at the start: restart the driver");
		on_load(&p->job, r);
	}
}

void probes_stop(void)
{
	probe_load_stop();
}

int probes_try(char ret_why[PROBES_WHY_MAX])
{
	struct probe_bpf *bpf = NULL;
	int r = probe_bpf_open(&bpf, probe_load_here, ret_why);
	probe_bpf_close(bpf);
	return r;
}

int probes_open(struct probes **ret, struct reactor *reactor)
{
	struct probes *p = calloc(1, sizeof(*p));
	if (p == NULL)
		return -ENOMEM;
	p->reactor = reactor;
	for (unsigned i = 0; i < BUCKETS; i++)
		list_init(&p->devices[i]);
	*ret = p;
	return 0;
}

static void device_free(struct device *device)
{
	free(device->base);
	free(device);
}

void probes_close(struct probes *p)
{
	if (p == NULL)
		return;
	for (unsigned i = 0; i < BUCKETS; i++)
		for (struct list *link; (link = list_pop(&p->devices[i])) != NULL;)
			device_free(container_of(link, struct device, link));
	probe_bpf_close(p->bpf);
	free(p);
}

enum probes_state probes_state(const struct probes *p)
{
	return p->state;
}

const char *probes_why(const struct probes *p)
{
	return p->state == PROBES_SYSFS ? p->why : "";
}

const char *probes_bios_why(const struct probes *p)
{
	return p->state == PROBES_BPF ? p->why : "";
}

/* ---- devices ---- */

static struct list *bucket_of(struct probes *p, uint32_t major, uint32_t minor)
{
	return &p->devices[(major * 31 + minor) % BUCKETS];
}

static struct device *find(struct probes *p, uint32_t major, uint32_t minor)
{
	list_for_each (link, bucket_of(p, major, minor)) {
		struct device *device = container_of(link, struct device, link);
		if (device->id.major == major && device->id.minor == minor)
			return device;
	}
	return NULL;
}

const void *probes_owner(struct probes *p, uint32_t major, uint32_t minor)
{
	const struct device *device = p == NULL ? NULL : find(p, major, minor);
	return device == NULL ? NULL : device->owner;
}

/* From now on sysfs counts for it. */
static int begin_sysfs(struct device *device)
{
	struct probe_sysfs *base = malloc(sizeof(*base));
	if (base == NULL)
		return -ENOMEM;
	int r = probe_sysfs_read(device->id.major, device->id.minor, base);
	if (r < 0) {
		free(base);
		return r;
	}
	device->base = base;
	device->since_ns = clock_monotonic_ns();
	return 0;
}

int probes_track(
	struct probes *p, enum probe_kind kind, uint32_t major, uint32_t minor, const void *owner)
{
	struct device *device = find(p, major, minor);
	if (device != NULL && device->owner == owner && device->id.kind == kind)
		return 0;
	if (device != NULL)
		probes_untrack(p, major, minor, device->owner);
	device = calloc(1, sizeof(*device));
	if (device == NULL)
		return -ENOMEM;
	*device = (struct device){.id = {kind, major, minor}, .owner = owner, .slot = NO_SLOT};
	list_push(bucket_of(p, major, minor), &device->link);
	p->device_count++;
	if (p->state == PROBES_BPF)
		device_bind(p, device);
	/* While loading there will be a slot in a moment. What fails is tried again when read. */
	if (device->slot == NO_SLOT && p->state != PROBES_LOADING)
		(void)begin_sysfs(device);
	make_room(p);
	return 0;
}

void probes_untrack(struct probes *p, uint32_t major, uint32_t minor, const void *owner)
{
	struct device *device = find(p, major, minor);
	if (device == NULL || device->owner != owner)
		return;
	device_unbind(p, device);
	list_remove(&device->link);
	p->device_count--;
	p->beyond_count -= device->beyond;
	device_free(device);
	make_room(p);
}

static int read_sysfs(struct device *device, struct probe_counters *ret)
{
	struct probe_sysfs now;
	int r = device->base == NULL ? begin_sysfs(device) : 0;
	if (r == 0)
		r = probe_sysfs_read(device->id.major, device->id.minor, &now);
	if (r < 0)
		return r == -ENODEV ? -ENOENT : r;
	*ret = (struct probe_counters){.since_ns = device->since_ns};
	for (unsigned i = 0; i < PROBE_OPS; i++) {
		ret->op[i].ops = now.ops[i] - device->base->ops[i];
		ret->op[i].bytes = now.bytes[i] - device->base->bytes[i];
		ret->op[i].busy_ns = now.busy_ns[i] - device->base->busy_ns[i];
		ret->op[i].in_flight = now.in_flight[i];
	}
	return 0;
}

int probes_read(struct probes *p, uint32_t major, uint32_t minor, struct probe_counters *ret)
{
	struct device *device = find(p, major, minor);
	if (device == NULL)
		return -ENOENT;
	if (device->slot == NO_SLOT)
		return read_sysfs(device, ret);
	ret->since_ns = device->since_ns;
	return probe_bpf_read(p->bpf, (uint32_t)device->slot, ret);
}

void probes_each_failed(struct probes *p, void (*each)(void *arg, const void *owner), void *arg)
{
	uint32_t major, minor;
	int r;
	if (p->state != PROBES_BPF)
		return;
	while ((r = probe_bpf_failed(p->bpf, &major, &minor)) == 0) {
		const struct device *device = find(p, major, minor);
		if (device != NULL)
			each(arg, device->owner);
	}
	for (unsigned i = 0; r == -EOVERFLOW && i < BUCKETS; i++)
		list_for_each (link, &p->devices[i])
			each(arg, container_of(link, struct device, link)->owner);
}

void probes_memory(const struct probes *p, struct probes_memory *ret)
{
	*ret = (struct probes_memory){
		.driver_bytes = sizeof(*p) + p->device_count * sizeof(struct device),
		.devices = p->device_count,
	};
	if (p->state == PROBES_BPF) {
		ret->kernel_bytes = probe_bpf_kernel_bytes(p->bpf);
		ret->driver_bytes += probe_bpf_driver_bytes(p->bpf);
	} else {
		ret->driver_bytes += p->device_count * sizeof(struct probe_sysfs);
	}
}
