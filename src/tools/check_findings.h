/* SPDX-License-Identifier: Apache-2.0 */
/* What `ringvol check` has read of one pool and found in it. */
#ifndef RINGVOL_TOOLS_CHECK_FINDINGS_H
#define RINGVOL_TOOLS_CHECK_FINDINGS_H

#include "pool/survey.h"
#include "tools/devices.h"
#include "tools/tool.h"

enum check_severity {
	CHECK_PROBLEM,  /* something is lost, wrong or in the way: a person decides */
	CHECK_LEFTOVER, /* what a crash leaves; the driver's next start mends it, so can --repair */
	CHECK_NOTE,     /* worth knowing, nothing is wrong */
};

struct check;
struct check_finding;
/* Mends it: no more than the driver does at its start (but for the metadata of a thin pool), and
 * nothing that removes what a tenant wrote. The pool's lock is held all the while. 0, or -errno and
 * nothing was changed: the next attempt or the driver mends it. */
typedef int check_repair_fn(struct check *c, const struct check_finding *f);

struct check_finding {
	enum check_severity severity;
	const char *kind; /* "RecordDamaged": for machines */
	const char *path; /* below the pool: "volumes/pvc-1"; or of a device */
	const char *message, *remedy;
	check_repair_fn *repair; /* NULL: not ours to mend */
	bool repaired;
	/* for repair */
	enum survey_dir dir;
	const char *name;
	const struct device *device;
};

struct check {
	struct tool_args *args;
	const char *name; /* the pool's */
	struct survey survey;
	struct devices devices;
	struct pool_found *objects[2]; /* by enum record_kind */
	size_t counts[2];
	size_t departed;       /* notes of volumes that have moved to other pools */
	bool departed_unknown; /* some of those notes cannot be read */
	bool devices_known;    /* all of them and their mounts: else none is let go or thawed */
	bool volumes_known;    /* all were read: else none is missed */
	struct check_finding *findings;
	size_t count, cap;
	const char *repair_why; /* why the repair under way failed, where -errno says too little */
};

/* check_add(c, .kind = "PoolSick", ...): the fields that are set are copied. */
#define check_add(c, ...) check_add_finding((c), &(const struct check_finding){__VA_ARGS__})
void check_add_finding(struct check *c, const struct check_finding *f);
/* Where the device is mounted; NULL: nowhere, or there is no device. */
const char *check_mounted_at(const struct check *c, const struct device *device);
/* Mends what can be; no driver may serve the pool. */
void check_repair(struct check *c);

/* check_objects.c: the pool's objects of a kind, which have been read. */
void check_objects(struct check *c, enum record_kind kind);
/* check_groups.c: likewise its groups of snapshots. */
void check_groups(struct check *c);
/* check_departed.c: likewise its notes of volumes that have moved away; and whether one says so
 * of a volume with that random part of its id. */
void check_departed(struct check *c);
bool check_has_departed(const struct check *c, const char *random);
/* check_pool.c: opens the pool, with its lock where no driver has it, and reads all of it. repair:
 * what is found is to be repaired. */
void check_pool(struct check *c, const char *name, const char *path, bool repair);
void check_close(struct check *c);

#endif
