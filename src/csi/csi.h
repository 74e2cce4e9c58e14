/* SPDX-License-Identifier: Apache-2.0 */
/* The CSI services' context, and what main() needs of them. */
#ifndef RINGVOL_CSI_CSI_H
#define RINGVOL_CSI_CSI_H

#include "backends/backend.h"
#include "base/err.h"
#include "pool/pool.h"
#include "reactor/op.h"
#include "rpc/grpc.h"

#include <stdbool.h>
#include <stdint.h>

enum csi_services {
	CSI_IDENTITY = 1 << 0,
	CSI_CONTROLLER = 1 << 1,
	CSI_NODE = 1 << 2,
};

/* How a volume's health is told: by conditions within other answers, as up to 1.12, or by calls of
 * its own, as from 1.13 on. The numbers of the two do not collide, so a driver can have both. */
enum csi_health {
	CSI_HEALTH_1_12 = 1 << 0,
	CSI_HEALTH_1_13 = 1 << 1,
};

enum {
	CSI_TASKS_MAX = 4096,         /* long operations at once; then RESOURCE_EXHAUSTED */
	CSI_WAITERS_MAX = 1024,       /* calls that wait for one operation; then ABORTED */
	CSI_STAT_TIMEOUT_MS = 2000,   /* inspect and statfs */
	CSI_MOUNT_TIMEOUT_MS = 60000, /* mount (may replay a journal), umount (may write back) */
	CSI_SYNC_TIMEOUT_MS = 30000,  /* syncfs before a snapshot */
	CSI_FREEZE_TIMEOUT_MS = 5000,
	CSI_GROW_TIMEOUT_MS = 60000,
	CSI_ADOPT_RETRY_MS = 5000,
	CSI_ADOPT_AGAIN_MS = 1000, /* for volumes that were being worked on */
	CSI_TOUCHED_MAX = 256,     /* of them during one look; then it is repeated for all */
	/* How old the look at attached images may be that says what they use: it costs by the
	 * image (29 ms at 4,000). */
	CSI_MEASURE_MS = 1000,
};
/* A mounted volume without reflink is copied under a freeze only up to this much data. */
#define CSI_FREEZE_COPY_MAX (256ULL << 20)

struct csi_watch;
struct stats_batch;

struct csi_config {
	const char *driver_name;
	const char *node_id;
	unsigned services;      /* enum csi_services */
	bool controller_expand; /* --controller-expand on */
	unsigned health;        /* enum csi_health: --csi-version */
	int64_t max_volumes;    /* 0: no limit */
};

/* What is known of one backend's devices of earlier runs, and the look for them; adoption.c's. */
struct csi_adoption {
	struct csi *csi;
	const struct backend *backend;
	bool known; /* a look has succeeded */
	/* Per pool: 1 + pool_state_since_ns() of the state it was ready in when its volumes were
	 * looked for; so what was known before it went is not taken for what is so now. 0: not. */
	uint64_t pool_known[POOLS_MAX];
	bool running, again;     /* again: asked for while one is running */
	struct ring_timer retry; /* the next try after one that failed */
	struct err why;          /* why the last one failed; ERR_OK: it did not */
	/* csi_lock_hash() of volumes. What a look saw of the first may be over: somebody has had
	 * them alone since it began. The others were therefore left out by the last one. */
	uint64_t touched[CSI_TOUCHED_MAX], left_out[CSI_TOUCHED_MAX];
	unsigned touched_count, left_out_count;
};

struct csi {
	struct csi_config config; /* strings are main()'s */
	struct reactor *reactor;
	struct pools *pools;
	struct probes *probes;   /* what devices do; set by main() before csi_adopt(), or NULL */
	struct csi_watch *watch; /* NULL: nobody watches */
	struct list attached;    /* node_health.link: the volumes in use */
	struct list troubled;    /* node_health.troubled: have I/O errors, or hang */
	struct stats_batch *stats_open, *stats_spare; /* stats_batch.h; NULL: none */
	struct list tasks;                            /* running, task.h */
	struct list holds;                            /* task.h */
	unsigned task_count;
	struct ring_timer long_timer; /* task.c: looks at what has been running for long */
	uint64_t task_number;         /* of the last one */
	struct list refreshes;        /* waiting, refresh.h */
	struct list measures;         /* under way for them */
	uint64_t start_ns;            /* ring_now_ns() */
	bool draining;
	int64_t clock_zero_unix; /* condition.h: when the ring's clock was 0 */
	struct csi_adoption adoption[BACKEND_TYPES];
	void (*on_adopted)(void *arg);
	void *on_adopted_arg;
	void (*on_idle)(void *arg);
	void *on_idle_arg;
};

/* 0 or -ENOMEM. The strings of config must outlive it. */
int csi_open(struct csi **ret, const struct csi_config *config, struct reactor *reactor,
	struct pools *pools);
void csi_close(struct csi *csi); /* no task may run; NULL is legal */

/* Finds the devices and mounts that earlier runs left (a work job for each backend), clears devices
 * of volumes that are no more. To be called when pools are loaded, and again when a pool appears;
 * what fails is repeated by itself. on_done runs from the loop whenever no look is under way any
 * more, whatever came of it, after repeats as well. */
void csi_adopt(struct csi *csi, void (*on_done)(void *arg), void *arg);
bool csi_adopting(const struct csi *csi);
/* Whether all of them are known, of the pools that are ready. False: *why says what is not, unless
 * it is NULL. */
bool csi_adopted(const struct csi *csi, struct err *why);
/* Whether those of this volume are; while not, its node state may lack them. Of a backend that is
 * switched off nothing can be known, and nothing is waited for. */
bool csi_knows_volume(const struct csi *csi, const struct pool_object *volume);
/* Whether those of any backend are known in this pool. */
bool csi_knows_pool(const struct csi *csi, const struct pool *pool);
/* A task has ended that had this object (csi_lock_hash) for itself. */
void csi_adopt_touch(struct csi *csi, uint64_t hash);
void csi_adopt_no_more(struct csi *csi); /* no repeats: a drain, or the end */

/* Whether a volume's node would go to tenants of this process's node: for backend_check(). */
static inline bool csi_is_raw_here(const struct csi *csi, bool block)
{
	return block && (csi->config.services & CSI_NODE) != 0;
}

/* No new operations (UNAVAILABLE); copies are stopped and undone, the rest finishes. on_idle runs
 * when nothing is left. */
void csi_drain(struct csi *csi, void (*on_idle)(void *arg), void *arg);

/* 0 while the loop turns, or nobody could ask, and every pool answers. A pool that is missing or
 * sick otherwise is no reason for a restart. */
int csi_check_live(const struct csi *csi, struct err *err);
/* 0 when everything that was asked of the driver at its start is there: earlier devices and mounts
 * are known, every pool is ready, no drain. ERR_UNAVAILABLE: it will be by itself;
 * ERR_PRECONDITION: a pool needs somebody's hand. */
int csi_check_ready(const struct csi *csi, struct err *err);

#endif
