/* SPDX-License-Identifier: Apache-2.0 */
/* Loading the probes into the kernel: what takes libbpf and memory. */
#ifndef RINGVOL_PROBES_LOAD_H
#define RINGVOL_PROBES_LOAD_H

#include "probes/probes.h"

#include <stddef.h>

/* The compiled BPF programs, an ELF file (bpf/meson.build). */
extern const unsigned char probes_bpf_object[];
extern const size_t probes_bpf_object_len;

enum { PROBE_RQ_PROGRAMS = 5, PROBE_BIO_PROGRAMS = 6 };
enum probe_fd {
	PROBE_FD_TABLE,     /* the map of chunks */
	PROBE_FD_VARIABLES, /* the programs' .bss, struct probe_tracked, to be mapped */
	PROBE_FD_LINKS,     /* the attached programs: gone with their last descriptor */
	PROBE_FDS_RQ = PROBE_FD_LINKS + PROBE_RQ_PROGRAMS,
	PROBE_FDS = PROBE_FDS_RQ + PROBE_BIO_PROGRAMS,
};
struct probe_loaded {
	int fd[PROBE_FDS];
	unsigned count; /* open: PROBE_FDS; PROBE_FDS_RQ without those for bios; or 0 */
};
/* Blocking, for work jobs. 0, or -errno with the reason and the remedy. A kernel that refuses the
 * programs for bios alone is 0, fewer descriptors, and the reason; else ret_why is empty then. */
typedef int probe_load_fn(struct probe_loaded *ret, char ret_why[PROBES_WHY_MAX]);
/* In this process: 14 MB for a moment, and 0.5 MiB of libraries' pages that stay. */
probe_load_fn probe_load_here;
/* In a process of its own. */
probe_load_fn probe_load_apart;
/* That process is killed, and each that comes; from any thread. */
void probe_load_stop(void);

/* What that process answers with: res 0 and the descriptors, or -errno, why, and none. */
struct probe_message {
	int32_t res;
	char why[PROBES_WHY_MAX];
};

/* For tests: looks at the opened object, or spoils it, before it is loaded. */
struct bpf_object;
typedef void probe_spoil_fn(struct bpf_object *object);
extern probe_spoil_fn *probe_spoil;

/* From here to probe_why_end() libbpf's messages are looked through. One thread at a time. */
void probe_why_begin(void);
/* error 0: nothing failed, ret_why is untouched. */
void probe_why_end(int error, char ret_why[PROBES_WHY_MAX]);

#endif
