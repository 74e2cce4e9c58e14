/* SPDX-License-Identifier: Apache-2.0 */
/* The CSI services' context, and what main() needs of them. */
#ifndef RINGVOL_CSI_CSI_H
#define RINGVOL_CSI_CSI_H

#include "attach/borrowed.h"
#include "backends/backend.h"
#include "base/err.h"
#include "node/node.h"
#include "pool/pool.h"
#include "reactor/op.h"

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stdint.h>

enum csi_services {
	CSI_IDENTITY = 1 << 0,
	CSI_CONTROLLER = 1 << 1,
	CSI_NODE = 1 << 2,
	CSI_SNAPSHOT_METADATA = 1 << 3,
	CSI_GROUP = 1 << 4,
};

/* How a volume's health is told: by conditions within other answers, as up to 1.12, or by calls of
 * its own, as from 1.13 on. The numbers of the two do not collide, so a driver can have both. */
enum csi_health {
	CSI_HEALTH_1_12 = 1 << 0,
	CSI_HEALTH_1_13 = 1 << 1,
};

enum {
	CSI_TASKS_MAX = 4096,         /* long operations at once; then RESOURCE_EXHAUSTED */
	CSI_SEGMENTS_MAX = 16,        /* beside the node's own */
	CSI_WAITERS_MAX = 1024,       /* calls that wait for one operation; then ABORTED */
	CSI_MOUNT_TIMEOUT_MS = 60000, /* mount (may replay a journal), umount (may write back) */
	CSI_GROW_TIMEOUT_MS = 60000,
	/* How old the look at attached images may be that says what they use: it costs by the
	 * image (29 ms at 4,000). */
	CSI_MEASURE_MS = 1000,
};

/* Where a node is, beside its own segment: a zone, a rack. topology.h checks them. */
struct csi_segment {
	const char *key, *value;
};

enum {
	CSI_INLINE_NAMESPACES_MAX = 64,
	CSI_INLINE_POOLS_MAX = POOLS_MAX,
	CSI_INLINE_SOURCES_MAX = 64,
};

/* What pods may have of inline volumes (--inline): whoever writes a pod writes their attributes. */
struct csi_inline_policy {
	unsigned n_pools;                        /* 0: there are no inline volumes */
	const char *pools[CSI_INLINE_POOLS_MAX]; /* the first one is taken where none is named */
	unsigned n_namespaces;                   /* 0: pods of every namespace */
	const char *namespaces[CSI_INLINE_NAMESPACES_MAX];
	bool any_source;
	unsigned n_sources; /* golden images that they may begin as */
	const char *sources[CSI_INLINE_SOURCES_MAX];
	uint64_t max_bytes;
	struct io_limits most; /* each volume has these, or less; 0: no limit */
};

struct csi_config {
	const char *driver_name;
	const char *node_id;
	struct csi_segment topology[CSI_SEGMENTS_MAX]; /* --topology */
	unsigned n_topology;
	unsigned services;      /* enum csi_services */
	bool controller_expand; /* --controller-expand on */
	unsigned health;        /* enum csi_health: --csi-version */
	int64_t max_volumes;    /* 0: as many as there can be devices */
	struct csi_inline_policy inlines;
	bool staging;   /* --staging on; else NodePublishVolume does both */
	bool attach;    /* --attach: ControllerPublishVolume is served */
	bool clustered; /* controllers pass calls on, and know which nodes there are */
};

struct csi_task;
struct grpc_call;

/* Told to somebody above csi. Any function may be NULL. */
struct csi_hooks {
	/* A call is about to make something of this name; its request was checked. True: the hook
	 * has taken the call, and goes on with csi_rpc_go() (rpc.h) or ends it. */
	bool (*on_create)(void *arg, struct grpc_call *call, const ProtobufCMessage *request,
		enum record_kind kind, const char *name);
	/* A task has let its locks go; its calls are answered when this returns. */
	void (*on_task_end)(void *arg, const struct csi_task *task);
	void *arg;
};

struct csi {
	struct csi_config config; /* strings are main()'s */
	struct csi_hooks hooks;
	struct reactor *reactor;
	struct pools *pools;
	struct node *node;         /* its reactor and pools are these */
	struct borrows *borrows;   /* volumes of other nodes that are used here */
	struct transfer *transfer; /* main()'s; NULL: there are no copies between nodes */
	struct list tasks;         /* running, task.h */
	unsigned task_count;
	uint64_t task_number;         /* of the last one */
	struct ring_timer long_timer; /* task.c: looks at what has been running for long */
	uint64_t start_ns;            /* ring_now_ns() */
	void (*on_idle)(void *arg);
	void *on_idle_arg;
};

/* 0 or -ENOMEM. The strings of config must outlive it. */
int csi_open(struct csi **ret, const struct csi_config *config, struct reactor *reactor,
	struct pools *pools);
void csi_close(struct csi *csi); /* no task may run; NULL is legal */

/* Whether this process serves the node that volumes made here are for. */
static inline bool csi_is_node(const struct csi *csi)
{
	return (csi->config.services & CSI_NODE) != 0;
}

/* Whether a volume's node would go to tenants of this process's node: for backend_check(). */
static inline bool csi_is_raw_here(const struct csi *csi, bool block)
{
	return block && csi_is_node(csi);
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
