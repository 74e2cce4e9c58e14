/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole driver in one process for tests: simulated ring, real pool directory, real loop devices
 * and mounts, RPCs dispatched without a socket. Root only.
 */
#ifndef RINGVOL_TESTS_WORLD_H
#define RINGVOL_TESTS_WORLD_H

#include "attach/calls.h"
#include "csi.pb-c.h"
#include "csi/csi.h"
#include "mount/mnt.h"
#include "node/exports.h"
#include "rpc/grpc.h"
#include "rpc/grpc_local.h"
#include "simring/sim.h"
#include "transfer/transfer.h"

enum world_fs { WORLD_EXT4, WORLD_XFS }; /* without and with reflink */

struct world {
	char dir[64]; /* temporary; pool, staging and target paths lie below */
	char pool_path[80];
	bool mounted;
	bool two_pools;                     /* "other" as well, from the next restart on */
	bool attach;                        /* --attach, from the next restart on */
	struct node_exports_config exports; /* with it; without a target nothing is exported */
	const char *cgroup_root; /* the node's cgroups, from the next restart on; NULL: none */
	struct ring_sim sim;
	struct reactor reactor;
	struct op_observer observer;
	struct pools *pools;
	helper_fn *calls[ATTACH_CALLS]; /* a test may put its own in; a restart puts ours back */
	struct csi *csi;
	struct transfer *transfer; /* the driver's; anybody may call its services */
	struct grpc_registry *registry;
	const struct grpc_peer *peer; /* as whom calls are made; NULL: a client of this host */
	/* What the inventory counts sizes from, for an operation whose opposite is that it is asked
	 * for more the next time. */
	int64_t size_zero;
	/* the fault armed: the n-th step from now fails with -EIO */
	int fault_after;      /* -1: none */
	int work_fault_after; /* the same of jobs on threads and the ring's requests */
	bool fault_hit;
	unsigned scan_faults; /* looks for devices of earlier runs that fail, from now on */
	bool adopted;
	/* Called before each step, if set. */
	void (*on_step)(const char *op_name, const char *step_name);
	char fault_at[96]; /* "operation/step" it hit; "job of operation/step", "request opcode" */
};

#define WORLD_DISK_BYTES (600ULL << 20)

/* A new XFS of WORLD_DISK_BYTES, mounted on path. What is below it has no name, and lies in memory
 * where there is enough: a simulation flushes thousands of times. options: of mkfs.xfs. */
bool world_mount_xfs(const char *options, const char *path);

/* NULL with a reason in *why when this machine cannot run it. */
struct world *world_open(enum world_fs fs, uint64_t seed, const char **why);
/* As after kill -9: everything in memory goes, devices and mounts stay; and up again. */
void world_restart(struct world *w);
/* Looks for devices once more, as when a pool appears. */
void world_adopt(struct world *w);
void world_close(struct world *w);

struct world_answer {
	bool ended;
	enum grpc_status status;
	char message[512];
	unsigned messages;
	uint8_t *data; /* packed response, the last one; NULL if none; freed by world_answer_free */
	size_t len;
	struct grpc_local local;
};

/* Dispatches and does not wait. method: "Node/NodeStageVolume", or a whole path. */
void world_send(struct world *w, const char *method, const ProtobufCMessage *request,
	struct world_answer *answer);
/* Turns until the answer is there (a test fails when it never comes). */
void world_wait(struct world *w, struct world_answer *answer);
/* Both; returns the status, the answer's memory is kept in the world until the next call. */
enum grpc_status world_call(struct world *w, const char *method, const ProtobufCMessage *request,
	struct world_answer *answer);
void world_answer_free(struct world_answer *answer);
/* Turns until nothing but look-after timers is left: trash reclaimed, children ended. */
void world_settle(struct world *w);

/* In an inventory: a device that is no volume's any more, and that somebody else has open. */
#define WORLD_LINGERS "lingering device"

/* What is left behind, as one string to compare: names and sizes in volumes/, snapshots/, trash/,
 * copies/, bound loop devices and mounts of this world, open descriptors of the process; last the
 * volumes that are marked as frozen. Static buffer of the caller. */
void world_inventory(struct world *w, char *text, size_t cap);

/* For tests that stand between (`wrapped` in tests/meson.build). */
int __real_op_helper(struct op *op, unsigned fn, const char *key, const void *req, size_t req_len,
	void *resp, size_t resp_cap, uint64_t timeout_ms);
int __wrap_op_helper(struct op *op, unsigned fn, const char *key, const void *req, size_t req_len,
	void *resp, size_t resp_cap, uint64_t timeout_ms);

#endif
