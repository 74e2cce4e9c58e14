/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The probes in the kernel (bpf/probes.bpf.c), as the driver sees them: owns the loaded programs
 * (descriptors), the table of tracked devices (mapped memory) and the chunks of slots (one
 * descriptor each).
 *
 * Happy path: what load.c has loaded and attached; a first chunk. A device is
 * bound by clearing a slot and writing its number into the table, which programs read without a
 * lock; it is read with one system call, which copies the slot. Slots are not mapped: the kernel
 * puts all pages of such a mapping into the driver's resident memory, 7.7 KiB a volume.
 *
 * How it can fail: see load.c; later for want of memory or descriptors, and the device is then
 * counted from sysfs.
 */
#include "probes/bpf.h"

#include "base/fd.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE_BYTES = 4096 };

struct probe_bpf {
	struct probe_loaded loaded;
	struct probe_tracked *tracked; /* the programs' .bss */
	uint64_t errors_seen;
	unsigned chunk_count;
	int chunk_fds[PROBE_CHUNKS];
};

/* ---- taking over what was loaded ---- */

static int take_over(struct probe_bpf *bpf)
{
	void *memory = mmap(NULL, sizeof(*bpf->tracked), PROT_READ | PROT_WRITE, MAP_SHARED,
		bpf->loaded.fd[PROBE_FD_VARIABLES], 0);
	if (memory == MAP_FAILED)
		return -errno;
	bpf->tracked = memory;
	return probe_bpf_grow(bpf, 1);
}

int probe_bpf_open(struct probe_bpf **ret, probe_load_fn *load, char ret_why[PROBES_WHY_MAX])
{
	struct probe_bpf *bpf = calloc(1, sizeof(*bpf));
	if (bpf == NULL)
		return -ENOMEM;
	int r = load(&bpf->loaded, ret_why);
	if (r == 0 && (r = take_over(bpf)) < 0)
		snprintf(ret_why, PROBES_WHY_MAX, "memory for the probes: %s", strerrordesc_np(-r));
	if (r < 0) {
		probe_bpf_close(bpf);
		return r;
	}
	*ret = bpf;
	return 0;
}

void probe_bpf_close(struct probe_bpf *bpf)
{
	if (bpf == NULL)
		return;
	if (bpf->tracked != NULL)
		munmap(bpf->tracked, sizeof(*bpf->tracked));
	for (unsigned i = 0; i < bpf->chunk_count; i++)
		close(bpf->chunk_fds[i]);
	for (unsigned i = 0; i < bpf->loaded.count; i++)
		close(bpf->loaded.fd[i]);
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
	int batch = made == 0 ? 0
			      : bpf_map_update_batch(bpf->loaded.fd[PROBE_FD_TABLE], keys, fds,
					&added, &options);
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
	int r = bpf_map_delete_elem(bpf->loaded.fd[PROBE_FD_TABLE], &at);
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

static uint16_t *entry_of(struct probe_bpf *bpf, const struct probe_device *device, bool make)
{
	struct probe_tracked *t = bpf->tracked;
	if (device->major == 0 || device->minor >= PROBE_MINORS)
		return NULL;
	bool bios = device->kind == PROBE_BIOS;
	unsigned end = bios ? PROBE_MAJORS : PROBE_RQ_MAJORS;
	for (unsigned row = bios ? PROBE_BIO_ROW : 0; row < end; row++) {
		if (t->majors[row] == 0 && make)
			t->majors[row] = device->major;
		if (t->majors[row] == device->major)
			return &t->slot[row][device->minor];
	}
	return NULL;
}

static bool counts_bios(const struct probe_bpf *bpf)
{
	return bpf->loaded.count == PROBE_FDS;
}

int probe_bpf_bind(
	struct probe_bpf *bpf, uint32_t slot, const struct probe_device *device, uint64_t since_ns)
{
	const struct probe_slot fresh = {.since_ns = since_ns};
	if (device->kind == PROBE_BIOS && !counts_bios(bpf))
		return -EOPNOTSUPP;
	uint16_t *entry = entry_of(bpf, device, true);
	if (entry == NULL)
		return -ENOSPC;
	uint32_t at = slot % PROBE_CHUNK_SLOTS;
	int r = bpf_map_update_elem(bpf->chunk_fds[slot / PROBE_CHUNK_SLOTS], &at, &fresh, BPF_ANY);
	if (r < 0)
		return r;
	__atomic_store_n(entry, (uint16_t)(slot + 1), __ATOMIC_RELEASE);
	return 0;
}

void probe_bpf_unbind(struct probe_bpf *bpf, const struct probe_device *device)
{
	uint16_t *entry = entry_of(bpf, device, false);
	if (entry != NULL)
		__atomic_store_n(
			entry, device->kind == PROBE_BIOS ? PROBE_LEFT : 0, __ATOMIC_RELEASE);
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
			.in_flight = now.in_flight[i],
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

/* Programs move the count first and put the device in after, so what is wiped here has been counted
 * when the count is read again behind the barrier; what is counted later stays. */
static int failed_too_many(struct probe_bpf *bpf)
{
	for (unsigned i = 0; i < PROBE_FAILED; i++)
		__atomic_store_n(&bpf->tracked->failed[i], 0, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	bpf->errors_seen = __atomic_load_n(&bpf->tracked->errors, __ATOMIC_ACQUIRE);
	return -EOVERFLOW;
}

int probe_bpf_failed(struct probe_bpf *bpf, uint32_t *ret_major, uint32_t *ret_minor)
{
	const uint64_t *errors = &bpf->tracked->errors;
	uint64_t waiting = __atomic_load_n(errors, __ATOMIC_ACQUIRE) - bpf->errors_seen;
	if (waiting == 0)
		return -EAGAIN;
	if (waiting > PROBE_FAILED)
		return failed_too_many(bpf);
	uint32_t device = __atomic_exchange_n(
		&bpf->tracked->failed[bpf->errors_seen % PROBE_FAILED], 0, __ATOMIC_ACQ_REL);
	/* Meanwhile the place may have been taken by an error that many later. */
	if (__atomic_load_n(errors, __ATOMIC_ACQUIRE) - bpf->errors_seen > PROBE_FAILED)
		return failed_too_many(bpf);
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
	/* struct bpf_array, in front of its elements; a hash table's array of lists */
	enum { MAP_HEAD_BYTES = 320, LIST_BYTES = 16 };
	unsigned programs = bpf->loaded.count - PROBE_FD_LINKS;
	uint64_t chunk = pages(MAP_HEAD_BYTES + PROBE_CHUNK_SLOTS * sizeof(struct probe_slot));
	return bpf->chunk_count * chunk + pages(sizeof(struct probe_tracked)) +
	       pages(MAP_HEAD_BYTES + PROBE_CHUNKS * sizeof(void *)) +
	       (counts_bios(bpf) ? PROBE_BIOS_MAX * LIST_BYTES +
					   pages(MAP_HEAD_BYTES +
						   PROBE_BIO_SETS * sizeof(struct probe_bio_set))
				 : 0) +
	       programs * 2 * PAGE_BYTES;
}

uint64_t probe_bpf_driver_bytes(const struct probe_bpf *bpf)
{
	return sizeof(*bpf);
}
