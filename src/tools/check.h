/* SPDX-License-Identifier: Apache-2.0 */
/* What `ringvol check` found in one pool. */
#ifndef RINGVOL_TOOLS_CHECK_H
#define RINGVOL_TOOLS_CHECK_H

#include "base/arena.h"
#include "pool/survey.h"
#include "tools/devices.h"

enum check_severity {
	CHECK_PROBLEM,  /* something is lost, wrong or in the way: a person decides */
	CHECK_LEFTOVER, /* what a crash leaves; the driver's next start mends it, so can --repair */
	CHECK_NOTE,     /* worth knowing, nothing is wrong */
};

struct check;
struct check_finding;
/* 0, or -errno and nothing was changed. */
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
	struct arena *arena;
	const char *name; /* the pool's */
	struct survey survey;
	struct devices devices;
	struct survey_object *objects[2]; /* by enum record_kind */
	size_t counts[2];
	bool devices_known; /* all of them and their mounts: else none is let go or thawed */
	bool volumes_known; /* all were read: else none is missed */
	struct check_finding *findings;
	size_t count, cap;
	bool failed; /* out of memory */
};

/* Opens the pool, with its lock where no driver has it, and reads all of it. */
void check_pool(struct check *c, const char *name, const char *path);
/* Mends what can be; no driver may serve the pool. */
void check_repair(struct check *c);
void check_close(struct check *c);

/* ---- private to the files of check ---- */

/* The fields of f that are set are copied. */
void check_add(struct check *c, const struct check_finding *f);
const char *check_text(struct check *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Where the device is mounted; NULL: nowhere, or there is no device. */
const char *check_mounted_at(const struct check *c, const struct device *device);
/* check_objects.c: the pool's objects of a kind, which have been read. */
void check_objects(struct check *c, enum record_kind kind);

/* ---- check_repair.c ---- */

/* Unlinks a file of dir that holds nothing of a tenant's. */
check_repair_fn check_unlink;
/* Makes a missing directory again. */
check_repair_fn check_make_directory;
/* Lets go of a loop device nobody uses. All devices, mounts and volumes are known. */
check_repair_fn check_detach;
/* Removes a guard that was made half; its name is the tag. */
check_repair_fn check_remove_guard;
/* Ends our freeze of a mounted volume, and takes its mark away. -EBUSY: its image is attached where
 * no mount of it is seen. */
check_repair_fn check_thaw;

#endif
