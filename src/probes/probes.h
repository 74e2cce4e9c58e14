/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every volume's device does: operations, bytes, errors, times. BPF programs on the block
 * layer's tracepoints (bpf/) count it in the kernel, for tracked devices only. Where BPF cannot be
 * had, the block layer's own counters (/sys/dev/block/M:N/stat) do, which know neither errors nor
 * histograms. Neither counts merges and splits: an operation is a request as the device gets it, as
 * in iostat; of a device of the device mapper, which has no requests, it is a bio.
 *
 * Loading takes 20 ms, and 14 MB for a moment. So it is a work job after the socket serves, and the
 * memory belongs to a process of its own. Devices that are tracked earlier are counted from the end
 * of loading on.
 */
#ifndef RINGVOL_PROBES_PROBES_H
#define RINGVOL_PROBES_PROBES_H

#include "base/hist.h"
#include "reactor/op.h"

#include <stdbool.h>
#include <stdint.h>

enum probe_op { PROBE_READ, PROBE_WRITE, PROBE_FLUSH, PROBE_DISCARD, PROBE_OPS };
extern const char *const probe_op_names[PROBE_OPS]; /* "read", "write", "flush", "discard" */

/* What a device takes. */
enum probe_kind {
	PROBE_REQUESTS, /* loop, ublk */
	/* A device of the device mapper. It has no queue, so the latency is all of the time since
	 * it got the bio. In sysfs its flushes are writes. */
	PROBE_BIOS,
};

enum probes_state {
	PROBES_LOADING,
	PROBES_BPF,
	PROBES_SYSFS, /* probes_why() says why not BPF, and the remedy */
};

struct probe_op_counters {
	uint64_t ops;   /* completed, failed ones included */
	uint64_t bytes; /* of those that did not fail */
	uint64_t errors;
	uint64_t busy_ns;       /* sum of the times from issue to completion */
	uint32_t in_flight;     /* issued and not completed */
	int32_t last_errno;     /* of the last error, positive (EIO); 0: none yet */
	uint64_t last_error_ns; /* CLOCK_MONOTONIC; 0: none yet */
	struct hist latency;    /* from issue to the driver until completion */
	struct hist queue;      /* from insertion until issue; of bios: nothing */
};

struct probe_counters {
	bool exact;        /* from BPF: errors and histograms are known */
	uint64_t since_ns; /* CLOCK_MONOTONIC, when counting began */
	struct probe_op_counters op[PROBE_OPS];
};

enum {
	PROBES_DEVICES_MAX = 16384, /* tracked at once; one more is counted from sysfs alone */
	PROBES_WHY_MAX = 384,
};

struct probes;

/* 0 or -ENOMEM. Devices can be tracked at once; nothing is loaded before probes_start(). */
int probes_open(struct probes **ret, struct reactor *reactor);
/* Starts loading in a work job. apart: in a process of its own, which is this program started
 * again; its main() calls probes_loader_main(). on_loaded (NULL: nobody is told) runs from the loop
 * when the state is known, or at once when there is no room for the job. */
void probes_start(struct probes *probes, bool apart, void (*on_loaded)(void *arg), void *arg);
/* For a shutdown: loading that is under way ends as failed, soon, and so does each that begins. On
 * a slow machine it takes a while, and work_close() waits for it. */
void probes_stop(void);
/* The probes leave the kernel. To be called when no job can run any more, after work_close(). NULL
 * is legal. */
void probes_close(struct probes *probes);
enum probes_state probes_state(const struct probes *probes);
const char *probes_why(const struct probes *probes); /* "" unless PROBES_SYSFS */
/* Why devices that take bios are counted from sysfs although the others are not, and the remedy;
 * "": they are counted by BPF like the others. */
const char *probes_bios_why(const struct probes *probes);

/* The loading process's side: loads, sends what there is over fd. Returns the exit status. */
int probes_loader_main(int fd);

/* For `doctor`: loads the probes and takes them out again. Blocking. 0, or -errno with the reason
 * and the remedy; 0 and a reason: not for devices that take bios. */
int probes_try(char ret_why[PROBES_WHY_MAX]);

/* What an owner is by, where devices are of several kinds: a volume of this node's pools, or
 * another. */
struct probe_owner {
	bool other;
};

/* Counting starts from zero. The owner is any pointer that stands for the device's owner. Tracking
 * again for the same owner changes nothing. For another owner it begins anew: the number was given
 * away behind the former owner's back, and the former owner's untracking then does nothing. 0 or
 * -ENOMEM. Neither blocks (a BPF map update costs a microsecond). */
int probes_track(struct probes *probes, enum probe_kind kind, uint32_t major, uint32_t minor,
	const void *owner);
void probes_untrack(struct probes *probes, uint32_t major, uint32_t minor, const void *owner);

/* Whose the device is; NULL: nobody's, it is not tracked. probes may be NULL. */
const void *probes_owner(struct probes *probes, uint32_t major, uint32_t minor);

/* One system call that copies 8 KiB (2 us); without BPF two files of sysfs (10 us), which wait for
 * no device. -ENOENT for what is not tracked or gone. */
int probes_read(struct probes *probes, uint32_t major, uint32_t minor, struct probe_counters *ret);

/* Calls each for every device that has had I/O errors since the last call, by its owner; some may
 * be named that had none. Costs a read of memory when there were none; without BPF nobody knows. */
void probes_each_failed(
	struct probes *probes, void (*each)(void *arg, const void *owner), void *arg);

/* Bytes of kernel memory (maps) and of the driver's, for metrics and docs. */
struct probes_memory {
	uint64_t kernel_bytes, driver_bytes, devices;
};
void probes_memory(const struct probes *probes, struct probes_memory *ret);

#endif
