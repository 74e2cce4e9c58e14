/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel's NVMe client as files: a sysfs and a /dev/nvme-fabrics in a temporary directory,
 * which change when they are written to (write() is wrapped). What the kernel would refuse, the
 * fake is told to.
 */
#ifndef RINGVOL_TESTS_FAKE_NVME_H
#define RINGVOL_TESTS_FAKE_NVME_H

#include <stdbool.h>
#include <stdint.h>

struct fake_nvme {
	char dir[64];
	/* What a connect comes to: 0 or a positive errno; then whether a device appears, with which
	 * UUID (NULL: the one that was asked for first), and how large. */
	int connect_errno;
	bool no_disk, stuck, read_only;
	const char *uuid;
	uint64_t size_bytes, size_after_rescan;
	/* What was seen. */
	char options[2048];
	unsigned connects, deletes, rescans;
};
extern struct fake_nvme fake_nvme;

/* A directory of its own, and fabrics.h looks there. */
void fake_nvme_open(void);
void fake_nvme_close(void);
/* A connection with its device, of those names: nvme<n>. */
void fake_nvme_add(
	unsigned n, const char *subsystem, const char *host, const char *uuid, uint64_t size_bytes);
void fake_nvme_state(unsigned n, const char *state);
/* Its device goes, and the connection stays; or both. */
void fake_nvme_lose_disk(unsigned n);
void fake_nvme_lose(unsigned n);
bool fake_nvme_has(unsigned n);
/* Who may read its key. */
unsigned fake_nvme_key_mode(unsigned n);

enum { FAKE_NVME_MAJOR = 259 };

#endif
