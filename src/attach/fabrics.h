/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel's NVMe client: connect by /dev/nvme-fabrics, look and disconnect by sysfs. Only
 * controllers whose subsystem and host both have names as ringvol gives them are seen here; those
 * of others are neither told of nor touched. Synchronous: connecting waits for the network, and
 * disconnecting for what is under way, so all of it is for helper processes.
 */
#ifndef RINGVOL_ATTACH_FABRICS_H
#define RINGVOL_ATTACH_FABRICS_H

#include "attach/terms.h"
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum {
	FABRICS_NAME_BYTES = 32,
	FABRICS_ADDRESS_BYTES = 128,
	FABRICS_STATE_BYTES = 16,
	FABRICS_OPTIONS_BYTES = 2048,
};

/* How long I/O waits for an owner that does not answer. */
struct fabrics_waits {
	uint32_t loss_s; /* from then on the device is gone for good (ctrl_loss_tmo) */
	uint32_t fail_s; /* from then on I/O fails, and goes on if the owner is back in time
			    (fast_io_fail_tmo); 0: it waits for as long as loss_s */
};

/* A connection, as sysfs has it. */
struct fabrics_ctrl {
	char name[FABRICS_NAME_BYTES]; /* nvme3 */
	char subsystem[ATTACH_NQN_BYTES], host_nqn[ATTACH_NQN_BYTES];
	char address[FABRICS_ADDRESS_BYTES]; /* traddr=...,trsvcid=... */
	char state[FABRICS_STATE_BYTES];     /* live, connecting, deleting... */
};

/* The block device of a namespace. */
struct fabrics_disk {
	char name[FABRICS_NAME_BYTES]; /* nvme3n1 */
	uint32_t major, minor;
	uint64_t size_bytes;
	bool read_only;
	char subsystem[ATTACH_NQN_BYTES];
};

/* Whether this kernel can connect over TCP, as far as is seen without connecting: 0, or
 * ERR_PRECONDITION naming the module. */
int fabrics_check(struct err *err);
/* What is written to the kernel. address: of terms->host, in numbers. tls_key: its serial number;
 * 0: without TLS. -E2BIG. It has the secret: who has it wipes it. */
int fabrics_options(const struct attach_terms *terms, const char *address,
	const struct fabrics_waits *waits, int32_t tls_key, char ret[FABRICS_OPTIONS_BYTES]);
/* Connects. 0 also if the connection is there. ERR_UNAVAILABLE: the owner does not answer, or its
 * name is not found; ERR_PRECONDITION: it refuses this node; ERR_INTERNAL. */
int fabrics_connect(
	const struct attach_terms *terms, const struct fabrics_waits *waits, struct err *err);
/* Calls each for all connections of ours, until it answers other than 0: that, or -errno. */
int fabrics_each(int (*each)(void *arg, const struct fabrics_ctrl *ctrl), void *arg);
/* The one of these names. 0, -ENOENT or -errno. */
int fabrics_find(const char *subsystem, const char *host_nqn, struct fabrics_ctrl *ret);
/* The device of a namespace of that subsystem. 0; -ENOENT: there is none now; -errno. */
int fabrics_disk(const char *subsystem, const char *namespace_id, struct fabrics_disk *ret);
/* The device of that number, if it is of a subsystem of ours. 0, -ENOENT or -errno. */
int fabrics_disk_at(uint32_t dev_major, uint32_t dev_minor, struct fabrics_disk *ret);
/* Has it look again which namespaces there are, and how large. 0 or -errno. */
int fabrics_rescan(const struct fabrics_ctrl *ctrl);
/* Ends a connection; its devices go with it. 0: it is gone; -EBUSY: not yet; -errno. */
int fabrics_disconnect(const struct fabrics_ctrl *ctrl);

/* For tests: in the places of /sys and /dev. NULL: these. */
void fabrics_set_roots(const char *sys, const char *dev);

#endif
