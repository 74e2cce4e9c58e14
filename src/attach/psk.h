/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The TLS key of one attachment, which both of its nodes make from the secret that they have in
 * common (ATTACH_KEY). Steps are HKDF with SHA-256 (RFC 5869, and HKDF-Expand-Label of RFC 8446):
 *
 *   configured PSK = (secret, "ringvol tls", subsystem)     ours: nobody gets back to the secret
 *   retained PSK   = (configured PSK, "HostNQN", host)      as NVMe over TCP says
 *   TLS PSK        = (retained PSK, "nvme-tls-psk", identity)
 *
 * So nothing more has to be kept, and who learns the TLS key still cannot authenticate.
 *
 * The identity passes in clear in each handshake. NVMe over TCP has the names of host and subsystem
 * there, by which who has overheard them might come as that host: within TLS some kernels ask for
 * nothing more than a name (Linux 7.2; 6.12 asks for the secret). Ours has a digest in their place,
 * so the kernel does not find a key by the names, and is told which one to use.
 */
#ifndef RINGVOL_ATTACH_PSK_H
#define RINGVOL_ATTACH_PSK_H

#include "attach/context.h"

#include <stddef.h>
#include <stdint.h>

enum {
	PSK_BYTES = 32,
	PSK_IDENTITY_BYTES = 9 + 2 * 32 + 1, /* with the NUL */
};

struct psk {
	char identity[PSK_IDENTITY_BYTES];
	uint8_t key[PSK_BYTES]; /* whoever has it wipes it */
};

/* "NVMe0R01 " and SHA-256 of the name in hex. By the first word tlshd knows the hash, SHA-256. */
void psk_identity(const char *subsystem, char ret[PSK_IDENTITY_BYTES]);
/* 0; -EINVAL: no secret; -E2BIG: a name is too long. */
int psk_make(const char *secret, const char *host_nqn, const char *subsystem, struct psk *ret);

/* One step. input and ret may be the same. 0, or -E2BIG: of label or context. */
int psk_step(const uint8_t *input, size_t len, const char *label, const char *context,
	uint8_t ret[PSK_BYTES]);

#endif
