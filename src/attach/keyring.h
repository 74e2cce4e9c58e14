/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel's keyring ".nvme", where both ends of NVMe over TCP and tlshd look for TLS keys. Root
 * alone can look into it, and a process that has not linked it cannot read a key in it. Keys stay
 * when the driver ends, as the kernel connects anew by itself, and go with a reboot.
 */
#ifndef RINGVOL_ATTACH_KEYRING_H
#define RINGVOL_ATTACH_KEYRING_H

#include "attach/psk.h"
#include "base/err.h"

#include <stdint.h>

/* Has the kernel have the TLS key of an attachment (psk.h). One that it has stays, as a connection
 * may be made by it anew: a subsystem has one secret for its life. module: which looks for it, as
 * of keyring_check(). Returns the key's serial number, or
 * ERR_PRECONDITION or ERR_INTERNAL. */
int32_t keyring_give(const char *module, const char *secret, const char *host_nqn,
	const char *subsystem, struct err *err);
/* Takes the keys of a subsystem of ours away. 0 also if there is none; -errno. */
int keyring_drop(const char *subsystem);
/* Whether a module, nvme_tcp or nvmet_tcp, has TLS, as far as is seen without a handshake. 0, or
 * ERR_PRECONDITION with what is missing. */
int keyring_check(const char *module, struct err *err);

/* For tests: in the places of /proc/keys and /sys. NULL: these. */
void keyring_set_roots(const char *keys, const char *sys);

#endif
