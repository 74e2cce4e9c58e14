/* SPDX-License-Identifier: Apache-2.0 */
/* The programs in the kernel, once they are loaded, and their slots, which are numbered from 0. */
#ifndef RINGVOL_PROBES_BPF_H
#define RINGVOL_PROBES_BPF_H

#include "bpf/probe_slot.h"
#include "probes/load.h"

struct probe_bpf;

struct probe_device {
	enum probe_kind kind;
	uint32_t major, minor;
};

/* Blocking. 0, or -errno with the reason and the remedy; 0 and a reason: not for bios. */
int probe_bpf_open(struct probe_bpf **ret, probe_load_fn *load, char ret_why[PROBES_WHY_MAX]);
void probe_bpf_close(struct probe_bpf *bpf); /* NULL is legal */
/* That many chunks more, or one less; they come and go at the end. Blocking: the kernel waits until
 * no program uses the old table (20 ms; before Linux 6.8 for each chunk). The caller has one such
 * call running at most, and uses the new slots after its end, or none of the old ones since before
 * its start. */
int probe_bpf_grow(struct probe_bpf *bpf, unsigned chunks);
int probe_bpf_shrink(struct probe_bpf *bpf);
unsigned probe_bpf_chunks(const struct probe_bpf *bpf);

/* A microsecond each. -ENOSPC: a major or minor number beyond the table. -EOPNOTSUPP: it takes
 * bios, and the kernel has refused what counts them. */
int probe_bpf_bind(
	struct probe_bpf *bpf, uint32_t slot, const struct probe_device *device, uint64_t since_ns);
void probe_bpf_unbind(struct probe_bpf *bpf, const struct probe_device *device);
int probe_bpf_read(struct probe_bpf *bpf, uint32_t slot, struct probe_counters *ret);
/* Takes out the next device with an error. 0; -EAGAIN: none, or not yet said which; -EOVERFLOW:
 * more than are kept, it may be any of them. */
int probe_bpf_failed(struct probe_bpf *bpf, uint32_t *ret_major, uint32_t *ret_minor);
uint64_t probe_bpf_kernel_bytes(const struct probe_bpf *bpf);
uint64_t probe_bpf_driver_bytes(const struct probe_bpf *bpf);

#endif
