/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job hands a volume over (Acquire), or takes it back when nobody has it any more: an operation
 * whose steps are calls of CSI. It goes on when its client has gone. Jobs of one volume run one
 * after the other.
 *
 * The provider's volume NAME is ringvol's "storage-NAME", and nothing else tells it from others. It
 * is mounted at MOUNTS/NAME/volume, beside MOUNTS/NAME/stage. A client gets a descriptor of that,
 * and nobody tells when it is closed: the interface has no such method. So what nobody uses is
 * looked for (provider_release()): see the step "look".
 */
#ifndef RINGVOL_PROVIDER_JOB_H
#define RINGVOL_PROVIDER_JOB_H

#include "csi/own_call.h"
#include "provider/request.h"
#include "reactor/line.h"
#include "reactor/op.h"

struct csi;
struct pool_object;

#define PROVIDER_PREFIX      "storage-"
#define PROVIDER_ERROR(name) "io.systemd.StorageProvider." name

enum { PROVIDER_JOBS_MAX = 1024 }; /* at once, those that wait included */

/* What the jobs of a driver share. */
struct provider_jobs {
	struct csi *csi;
	struct grpc_registry *registry;
	const char *mounts; /* an absolute path without links in it */
	unsigned idle_s;    /* a volume is kept for so long when nobody uses it */
	struct line line;   /* provider_job.place */
	bool draining;      /* nothing is tried again */
};

struct provider_job {
	struct op op;
	struct provider_jobs *jobs;
	struct line_place place;
	struct arena *arena;
	struct provider_acquire request; /* in the arena; of a release the name alone */
	const char *dir, *stage_path, *target_path;
	struct csi_own_call call;
	/* Told the outcome, from the loop: op.err, or what is behind it here. Then the job is gone.
	 * NULL: nobody wants to hear of it. */
	void (*on_end)(struct provider_job *job, void *arg);
	void *arg;
	const char *error;     /* the interface's own, static; NULL: it failed otherwise */
	int fd;                /* of Acquire: who is told takes it; -1: none */
	bool block;            /* it is a block volume */
	bool read_only;        /* handed over so */
	uint32_t major, minor; /* release: of its device */
	bool used;             /* release: somebody has it */
};

void provider_jobs_init(struct provider_jobs *jobs, struct csi *csi, struct grpc_registry *registry,
	const char *mounts, unsigned idle_s);
/* Takes a reference of the arena. -ENOMEM; -EBUSY: there are PROVIDER_JOBS_MAX. */
int provider_acquire(struct provider_jobs *jobs, struct arena *arena,
	const struct provider_acquire *request, void (*on_end)(struct provider_job *job, void *arg),
	void *arg);
/* Takes back what was handed over and is not used, of all volumes that no job is about. */
void provider_release_unused(struct provider_jobs *jobs);

/* A template is a file system, "block", or a golden image: what it makes; PROVIDER_TYPE_ANY: it is
 * none. */
enum provider_type provider_template_type(const struct provider_jobs *jobs, const char *name);
/* The first templates, which are always there; NULL behind the last. */
const char *provider_template_at(unsigned i);

#endif
