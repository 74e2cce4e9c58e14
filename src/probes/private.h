/* SPDX-License-Identifier: Apache-2.0 */
/* Inside probes: the programs in the kernel, and the block layer's own counters. */
#ifndef RINGVOL_PROBES_PRIVATE_H
#define RINGVOL_PROBES_PRIVATE_H

#include "bpf/probe_slot.h"
#include "probes/probes.h"

/* ---- load.c: what takes libbpf and memory ---- */

enum { PROBE_PROGRAMS = 5 };
enum probe_fd {
	PROBE_FD_TABLE,     /* the map of chunks */
	PROBE_FD_VARIABLES, /* the programs' .bss, struct probe_tracked, to be mapped */
	PROBE_FD_LINKS,     /* the attached programs: gone with their last descriptor */
	PROBE_FDS = PROBE_FD_LINKS + PROBE_PROGRAMS,
};
struct probe_loaded {
	int fd[PROBE_FDS];
	unsigned count; /* open; all, or none */
};
/* Blocking, for work jobs. 0, or -errno with the reason and the remedy. */
typedef int probe_load_fn(struct probe_loaded *ret, char ret_why[PROBES_WHY_MAX]);
/* In this process: 14 MB for a moment, and 0.5 MiB of libraries' pages that stay. */
probe_load_fn probe_load_here;
/* In a process of its own. */
probe_load_fn probe_load_apart;
/* That process is killed, and each that comes; from any thread. */
void probe_load_stop(void);

/* What that process answers with: res 0 and PROBE_FDS descriptors, or -errno, why, and none. */
struct probe_message {
	int32_t res;
	char why[PROBES_WHY_MAX];
};

/* For tests: looks at the opened object, or spoils it, before it is loaded. */
struct bpf_object;
typedef void probe_spoil_fn(struct bpf_object *object);
extern probe_spoil_fn *probe_spoil;

/* ---- bpf.c: the loaded programs and their slots, numbered from 0 ---- */

struct probe_bpf;

/* Blocking. 0, or -errno with the reason and the remedy. */
int probe_bpf_open(struct probe_bpf **ret, probe_load_fn *load, char ret_why[PROBES_WHY_MAX]);
void probe_bpf_close(struct probe_bpf *bpf); /* NULL is legal */
/* That many chunks more, or one less; they come and go at the end. Blocking: the kernel waits until
 * no program uses the old table (20 ms; before Linux 6.8 for each chunk). The caller has one such
 * call running at most, and uses the new slots after its end, or none of the old ones since before
 * its start. */
int probe_bpf_grow(struct probe_bpf *bpf, unsigned chunks);
int probe_bpf_shrink(struct probe_bpf *bpf);
unsigned probe_bpf_chunks(const struct probe_bpf *bpf);

/* A microsecond each. -ENOSPC: a major or minor number beyond the table. */
int probe_bpf_bind(
	struct probe_bpf *bpf, uint32_t slot, uint32_t major, uint32_t minor, uint64_t since_ns);
void probe_bpf_unbind(struct probe_bpf *bpf, uint32_t major, uint32_t minor);
int probe_bpf_read(struct probe_bpf *bpf, uint32_t slot, struct probe_counters *ret);
/* Takes out the next device with an error. 0; -EAGAIN: none, or not yet said which; -EOVERFLOW:
 * more than are kept, it may be any of them. */
int probe_bpf_failed(struct probe_bpf *bpf, uint32_t *ret_major, uint32_t *ret_minor);
uint64_t probe_bpf_kernel_bytes(const struct probe_bpf *bpf);
uint64_t probe_bpf_driver_bytes(const struct probe_bpf *bpf);

/* ---- bpf_why.c: what libbpf and the kernel say when it fails ---- */

/* From here to probe_why_end() libbpf's messages are looked through. One thread at a time. */
void probe_why_begin(void);
/* error 0: nothing failed, ret_why is untouched. */
void probe_why_end(int error, char ret_why[PROBES_WHY_MAX]);

/* ---- sysfs.c ---- */

struct probe_sysfs {
	uint64_t ops[PROBE_OPS], bytes[PROBE_OPS], busy_ns[PROBE_OPS];
	uint32_t in_flight[PROBE_OPS]; /* reads and writes; the rest is not told apart */
};

/* -EINVAL for what is not such a file. */
int probe_sysfs_parse(const char *stat, const char *inflight, struct probe_sysfs *ret);
int probe_sysfs_read(uint32_t major, uint32_t minor, struct probe_sysfs *ret);

#endif
