/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cgroups of pods (cgroup v2), and the I/O limits of a device in them. Blocking, for work jobs.
 */
#ifndef RINGVOL_NODE_CGROUP_H
#define RINGVOL_NODE_CGROUP_H

#include "base/err.h"
#include "base/io_limits.h"

#include <stdbool.h>
#include <stdint.h>

#define CGROUP_ROOT "/sys/fs/cgroup"

enum { CGROUP_POD_BYTES = 37 }; /* a UUID, or 32 digits of a static pod */

/* The uid of the pod that kubelet publishes a volume to at this path: what comes after pods/, or at
 * the end of a path of a raw block volume. False: the path names no pod. */
bool cgroup_pod_of(const char *path, char ret_uid[CGROUP_POD_BYTES]);

/* The top of the hierarchy; its descriptor, or -errno with *err set, which has the remedy: there is
 * no cgroup v2 there, or it is without the io controller. */
int cgroup_open_root(const char *path, struct err *err);
/* The pod's cgroup, whatever of kubelet's two cgroup drivers made it. Its descriptor; -ENOENT:
 * there is none (yet); another -errno. */
int cgroup_open_pod(int root_fd, const char *uid);
/* Makes these the pod's limits for the device; what says so already is left as it is. 0;
 * -EOPNOTSUPP: the io controller is off in that cgroup; another -errno. */
int cgroup_set_limits(int pod_fd, uint32_t major, uint32_t minor, const struct io_limits *limits);

#endif
