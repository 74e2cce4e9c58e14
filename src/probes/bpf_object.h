/* SPDX-License-Identifier: Apache-2.0 */
/* The compiled BPF programs, an ELF file (bpf/meson.build). */
#ifndef RINGVOL_PROBES_BPF_OBJECT_H
#define RINGVOL_PROBES_BPF_OBJECT_H

#include <stddef.h>

extern const unsigned char probes_bpf_object[];
extern const size_t probes_bpf_object_len;

#endif
