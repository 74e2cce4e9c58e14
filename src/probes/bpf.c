/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The probes in the kernel (bpf/probes.bpf.c), as the driver sees them: owns the loaded programs,
 * the table of tracked devices (mapped memory) and the chunks of slots (one descriptor each).
 *
 * Happy path: open the embedded object, load, attach three programs; a first chunk. A device is
 * bound by clearing a slot and writing its number into the table, which programs read without a
 * lock; it is read with one system call, which copies the slot. Slots are not mapped: the kernel
 * puts all pages of such a mapping into the driver's resident memory, 7.7 KiB a volume.
 *
 * How it can fail: see bpf_why.c; later for want of memory or descriptors, and the device is then
 * counted from sysfs.
 */
#include "base/fd.h"
#include "probes/bpf_object.h"
#include "probes/private.h"

#include <assert.h>
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PROGRAMS = 5, PAGE_BYTES = 4096 };

struct probe_bpf {
	struct bpf_object *object;
	struct bpf_link *links[PROGRAMS];
	struct probe_tracked *tracked; /* the programs' .bss */
	int table_fd;
	uint64_t errors_seen;
	unsigned chunk_count;
	int chunk_fds[PROBE_CHUNKS];
};

/* ---- loading ---- */

static int attach(struct probe_bpf *bpf)
{
	struct bpf_program *program;
	unsigned i = 0;
	bpf_object__for_each_program(program, bpf->object)
	{
		bpf->links[i] = bpf_program__attach(program);
		if (bpf->links[i++] == NULL)
			return -errno;
	}
	return 0;
}

static int load(struct probe_bpf *bpf, probe_spoil_fn *spoil)
{
	LIBBPF_OPTS(bpf_object_open_opts, options, .object_name = "ringvol");
	bpf->object = bpf_object__open_mem(probes_bpf_object, probes_bpf_object_len, &options);
	if (bpf->object == NULL)
		return -errno;
	if (spoil != NULL)
		spoil(bpf->object);
	int r = bpf_object__load(bpf->object);
	if (r < 0)
		return r;
	struct bpf_map *table = bpf_object__find_map_by_name(bpf->object, "chunks");
	struct bpf_map *variables = bpf_object__find_map_by_name(bpf->object, ".bss");
	assert(table != NULL && bpf_map__value_size(variables) == sizeof(*bpf->tracked));
	bpf->table_fd = bpf_map__fd(table);
	void *memory = mmap(NULL, sizeof(*bpf->tracked), PROT_READ | PROT_WRITE, MAP_SHARED,
		bpf_map__fd(variables), 0);
	if (memory == MAP_FAILED)
		return -errno;
	bpf->tracked = memory;
	r = probe_bpf_grow(bpf, 1);
	return r < 0 ? r : attach(bpf);
}

int probe_bpf_open(struct probe_bpf **ret, probe_spoil_fn *spoil, char ret_why[PROBES_WHY_MAX])
{
	struct probe_bpf *bpf = calloc(1, sizeof(*bpf));
	probe_why_begin();
	int r = bpf == NULL ? -ENOMEM : load(bpf, spoil);
	probe_why_end(r, ret_why);
	if (r < 0) {
		probe_bpf_close(bpf);
		bpf = NULL;
	}
	/* Loading takes 14 MB for a moment. */
	malloc_trim(0);
	if (r == 0)
		*ret = bpf;
	return r;
}

void probe_bpf_close(struct probe_bpf *bpf)
{
	if (bpf == NULL)
		return;
	for (unsigned i = 0; i < PROGRAMS; i++)
		bpf_link__destroy(bpf->links[i]);
	for (unsigned i = 0; i < bpf->chunk_count; i++)
		close(bpf->chunk_fds[i]);
	if (bpf->tracked != NULL)
		munmap(bpf->tracked, sizeof(*bpf->tracked));
	bpf_object__close(bpf->object);
	free(bpf);
}

/* ---- chunks ---- */

int probe_bpf_grow(struct probe_bpf *bpf, unsigned chunks)
{
	LIBBPF_OPTS(bpf_map_batch_opts, options);
	uint32_t keys[PROBE_CHUNKS], made = 0;
	int *fds = bpf->chunk_fds + bpf->chunk_count, r = 0;
	if (chunks > PROBE_CHUNKS - bpf->chunk_count)
		return -ENOSPC;
	while (made < chunks && r == 0) {
		int fd = bpf_map_create(BPF_MAP_TYPE_ARRAY, "ringvol_slots", sizeof(uint32_t),
			sizeof(struct probe_slot), PROBE_CHUNK_SLOTS, NULL);
		if (fd < 0) {
			r = fd;
		} else {
			keys[made] = bpf->chunk_count + made;
			fds[made++] = fd;
		}
	}
	/* What could be made is of use. */
	uint32_t added = made;
	int batch =
		made == 0 ? 0 : bpf_map_update_batch(bpf->table_fd, keys, fds, &added, &options);
	if (batch < 0)
		r = batch;
	for (uint32_t i = added; i < made; i++)
		close(fds[i]);
	bpf->chunk_count += added;
	return r;
}

int probe_bpf_shrink(struct probe_bpf *bpf)
{
	uint32_t at = bpf->chunk_count - 1;
	int r = bpf_map_delete_elem(bpf->table_fd, &at);
	if (r < 0)
		return r;
	bpf->chunk_count--;
	close(bpf->chunk_fds[at]);
	return 0;
}

unsigned probe_bpf_chunks(const struct probe_bpf *bpf)
{
	return bpf->chunk_count;
}

/* ---- devices ---- */

static uint16_t *entry_of(struct probe_bpf *bpf, uint32_t major, uint32_t minor, bool make)
{
	struct probe_tracked *t = bpf->tracked;
	if (major == 0 || minor >= PROBE_MINORS)
		return NULL;
	for (unsigned row = 0; row < PROBE_MAJORS; row++) {
		if (t->majors[row] == 0 && make)
			t->majors[row] = major;
		if (t->majors[row] == major)
			return &t->slot[row][minor];
	}
	return NULL;
}

int probe_bpf_bind(
	struct probe_bpf *bpf, uint32_t slot, uint32_t major, uint32_t minor, uint64_t since_ns)
{
	const struct probe_slot fresh = {.since_ns = since_ns};
	uint16_t *entry = entry_of(bpf, major, minor, true);
	if (entry == NULL)
		return -ENOSPC;
	uint32_t at = slot % PROBE_CHUNK_SLOTS;
	int r = bpf_map_update_elem(bpf->chunk_fds[slot / PROBE_CHUNK_SLOTS], &at, &fresh, BPF_ANY);
	if (r < 0)
		return r;
	__atomic_store_n(entry, (uint16_t)(slot + 1), __ATOMIC_RELEASE);
	return 0;
}

void probe_bpf_unbind(struct probe_bpf *bpf, uint32_t major, uint32_t minor)
{
	uint16_t *entry = entry_of(bpf, major, minor, false);
	if (entry != NULL)
		__atomic_store_n(entry, 0, __ATOMIC_RELEASE);
}

/* The kernel's errno_to_blk_status(), backwards; newer statuses have no settled numbers. */
static int32_t status_errno(uint64_t status)
{
	static const int32_t errnos[] = {0, EOPNOTSUPP, ETIMEDOUT, ENOSPC, ENOLINK, EREMOTEIO,
		EBADE, ENODATA, EILSEQ, ENOMEM, EIO, EREMCHG, EAGAIN, EBUSY};
	return status < sizeof(errnos) / sizeof(errnos[0]) ? errnos[status] : EIO;
}

int probe_bpf_read(struct probe_bpf *bpf, uint32_t slot, struct probe_counters *ret)
{
	struct probe_slot now;
	uint32_t at = slot % PROBE_CHUNK_SLOTS;
	int r = bpf_map_lookup_elem(bpf->chunk_fds[slot / PROBE_CHUNK_SLOTS], &at, &now);
	if (r < 0)
		return r;
	for (unsigned i = 0; i < PROBE_OPS; i++) {
		const struct probe_slot_op *from = &now.op[i];
		struct probe_op_counters *to = &ret->op[i];
		*to = (struct probe_op_counters){
			.bytes = from->bytes,
			.errors = from->errors,
			.busy_ns = from->busy_ns,
			.last_errno = status_errno(from->last_status),
			.last_error_ns = from->last_error_ns,
		};
		memcpy(to->latency.count, from->latency, sizeof(from->latency));
		memcpy(to->queue.count, from->queue, sizeof(from->queue));
		to->ops = hist_total(&to->latency);
	}
	for (unsigned i = 0; i < PROBE_TAGS; i++)
		if (now.mark[i] & PROBE_MARK_ISSUED)
			ret->op[now.mark[i] & PROBE_MARK_OP].in_flight++;
	ret->exact = true;
	return 0;
}

int probe_bpf_failed(struct probe_bpf *bpf, uint32_t *ret_major, uint32_t *ret_minor)
{
	uint64_t errors = __atomic_load_n(&bpf->tracked->errors, __ATOMIC_ACQUIRE);
	if (errors == bpf->errors_seen)
		return -EAGAIN;
	if (errors - bpf->errors_seen > PROBE_FAILED) {
		for (unsigned i = 0; i < PROBE_FAILED; i++)
			__atomic_store_n(&bpf->tracked->failed[i], 0, __ATOMIC_RELAXED);
		bpf->errors_seen = errors;
		return -EOVERFLOW;
	}
	uint32_t device = __atomic_exchange_n(
		&bpf->tracked->failed[bpf->errors_seen % PROBE_FAILED], 0, __ATOMIC_ACQ_REL);
	if (device == 0)
		return -EAGAIN;
	bpf->errors_seen++;
	*ret_major = device >> 20;
	*ret_minor = device & ((1 << 20) - 1);
	return 0;
}

/* ---- memory ---- */

static uint64_t pages(uint64_t bytes)
{
	return (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

uint64_t probe_bpf_kernel_bytes(const struct probe_bpf *bpf)
{
	enum { MAP_HEAD_BYTES = 320 }; /* struct bpf_array, in front of its elements */
	uint64_t chunk = pages(MAP_HEAD_BYTES + PROBE_CHUNK_SLOTS * sizeof(struct probe_slot));
	return bpf->chunk_count * chunk + pages(sizeof(struct probe_tracked)) +
	       pages(MAP_HEAD_BYTES + PROBE_CHUNKS * sizeof(void *)) + PROGRAMS * 2 * PAGE_BYTES;
}

uint64_t probe_bpf_driver_bytes(const struct probe_bpf *bpf)
{
	return sizeof(*bpf);
}
