/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A volume in use (pool_object.node): what is attached and mounted on this node. It is rebuilt at
 * the start from the devices and mounts found, so it survives any restart. It is a hint only: node
 * operations look at the kernel before they act.
 */
#ifndef RINGVOL_NODE_VOLUME_H
#define RINGVOL_NODE_VOLUME_H

#include "backends/backend.h"
#include "base/list.h"
#include "node/health.h"
#include "node/watch.h"
#include "pool/pool.h"
#include "probes/probes.h"

struct node;
struct node_limit;

enum { NODE_ALONE_MS = 10000 };

struct node_mount {
	struct list link;
	bool staging; /* made by NodeStage (unknown, false, after a restart) */
	bool first;   /* found by adoption before its others, as the one of NodeStage would be */
	bool read_only;
	uint32_t major, minor; /* of its device when it was mounted, which may be another's since */
	bool single_writer; /* published as SINGLE_NODE_SINGLE_WRITER; marked on the image, too */
	char path[];
};

/* What is wrong with a volume in use, and what the watch (watch.h) has to know for that. Times are
 * ring_now_ns(). */
struct node_health {
	uint64_t seq;        /* blkdev.seq of what was attached; 0: not known yet */
	uint64_t looked_ns;  /* at its file system, by whomever; of one without, read from */
	uint64_t checked_ns; /* by the watch; 0: as soon as may be */
	uint64_t judged_ns;  /* its latencies, by the watch */
	bool device_due;     /* something was bound or unbound under its number */
	bool try_read;       /* errors are over if the driver can read from it */
	/* What is wrong with it, by kind of condition; 0: that is not. These are found by looking:
	 * DEVICE_GONE: its device is not bound any more, or is another's.
	 * HANGING: calls on it have overstayed, of anybody, and none has come back in time since. A
	 *   helper that could be killed hangs no longer, but the volume is no better for it.
	 * FS_SHUT_DOWN: its file system answers EIO to everything.
	 * FS_READ_ONLY: its file system turned read-only by itself.
	 * IO_ERRORS: since the first I/O error of this episode.
	 * SLOW: its reads and writes of the last minute looked at. */
	uint64_t since_ns[NODE_CONDITION_KINDS];
	bool other_file; /* DEVICE_GONE is so because it is bound to another file than its image */
	uint64_t slow_p99_ns, slow_ops; /* of the last minute looked at */
	uint64_t errors[PROBE_OPS];     /* of this episode */
	int32_t last_errno;             /* positive */
	/* What the watch remembers of the probes' counters. */
	uint64_t last_error_ns, seen_errors[PROBE_OPS], good_ops;
	uint64_t well_ns,
		quiet_ns; /* the end of the last episode, and how long it had to be quiet */
	/* Reads and writes that were fast enough, and the buckets from NODE_SLOW_MS on. */
	uint32_t latency[NODE_SLOW_BUCKETS + 1];
};

/* A device that is formatted, and is nobody's volume yet (first_stage.h). */
struct node_formatting {
	struct list link; /* node->formatting */
	char tag[64];
};

struct node_volume {
	struct pool_object *volume;
	struct list attached; /* node->attached: checked up longest ago first */
	struct list wanted;   /* the watch's: to be checked up now */
	struct list troubled; /* node->troubled */
	struct probe_owner probed;
	struct backend_dev dev;
	struct list mounts; /* node_mount: staging and publish paths alike */
	/* A block volume that may change its mode is mounted; see node_volume_has_fs(). */
	bool as_fs;
	/* NodeStage has seen to it that the file system fills a device of so many bytes; 0: not in
	 * this run of the driver. */
	uint64_t fitted_bytes;
	/* Its file system may have grown and its log not be clean (clean_log.h): it is frozen
	 * before it is copied. */
	bool grown;
	/* Marks that an earlier run may have left on its image were looked for (adopt_marks.c), or
	 * there can be none. */
	bool marks_read;
	/* Its image has BOOT_MARK_WHOLE. */
	bool whole;
	/* All its exports were made or found, of this device (exports.h). */
	bool exported;
	/* We are letting its device go: that it goes is no finding. */
	bool detaching;
	uint64_t trim_interval; /* the last one that was seen (trim.h); 0: none in this run */
	bool no_trim;           /* its device takes no discards */
	/* Until then (ring_now_ns) its file system is asked by a call of its own: somebody
	 * unmounts it. */
	uint64_t alone_until_ns;
	struct node_limit *limit; /* limit.h; NULL: nothing of it is looked after */
	struct node_health health;
};

/* The volume's state, made when missing. NULL when out of memory. */
struct node_volume *node_volume_get(struct pool_object *volume);
/* NULL when nothing is attached. */
static inline struct node_volume *node_volume_find(const struct pool_object *volume)
{
	return volume->node;
}
/* That of the volume of an id; NULL: it is gone, or not attached. */
struct node_volume *node_volume_by_id(const struct node *node, const char *id);
/* Whether the devices and mounts that earlier runs left of a volume are known; while not, its state
 * may lack them. Of a backend that is switched off nothing can be known, and nothing is waited for.
 */
bool node_knows_volume(const struct node *node, const struct pool_object *volume);
/* Likewise those of one backend in a pool. */
bool node_knows_devices(const struct node *node, const struct pool *pool, enum backend_type type);
/* Whether the volume is used as a file system, and not as a block device: what it was made as,
 * unless its record allows a change of mode and it is mounted. */
static inline bool node_volume_has_fs(const struct pool_object *volume)
{
	const struct node_volume *nv = node_volume_find(volume);
	return volume->rec->fs != FSIMG_NONE || (nv != NULL && nv->as_fs);
}
/* A device is known from attach, adoption or resize until its detach by these two alone; the probes
 * count for it meanwhile. */
void node_volume_set_dev(struct node *node, struct node_volume *nv, const struct backend_dev *dev);
void node_volume_clear_dev(struct node *node, struct node_volume *nv);
/* Forgets the state when nothing is attached any more. */
void node_volume_forget(struct pool_object *volume);
int node_volume_add_mount(
	struct node_volume *nv, const char *path, bool read_only, bool single_writer);
void node_volume_remove_mount(struct node_volume *nv, const char *path);
struct node_mount *node_volume_mount_at(const struct node_volume *nv, const char *path);
/* Where it is staged, in this run of the driver or surely in an earlier one. NULL: nowhere, or
 * nobody can tell. */
struct node_mount *node_volume_staged(const struct node_volume *nv);
/* Where to look: a writable mount if there is one, the staging path first; NULL: it has none. */
const struct node_mount *node_volume_best_mount(const struct node_volume *nv);
void node_volume_free(struct node_volume *nv);

/* "ringvol:<pool uuid8>:<random>"; both parts are the volume's id's, wherever it has moved. */
void node_tag(const char *pool_uuid8, const char *random, char ret_tag[64]);
void node_volume_tag(const struct pool_object *volume, char ret_tag[64]);
/* False for what is no such tag. */
bool node_split_tag(const char *tag, char ret_pool[9], char ret_random[9]);

/* Whether a device of that tag is being formatted now. */
bool node_is_formatting(const struct node *node, const char *tag);

/* What to ask the volume's backend. */
void node_volume_request(const struct pool_object *volume, struct backend_req *ret);
/* The device with the bytes as the image has them: of an encrypted volume the ciphertext, for which
 * nobody needs a key. */
void node_request_stored(struct backend_req *req);
/* Its image, for reading; -errno. For work jobs: the volume's lock keeps its key. dirfd: what
 * pool_dirfd() said on the loop, while the pool was served. It stays that directory's, also while
 * the pool hangs. */
int node_open_image(int dirfd, const struct pool_object *volume);
/* ERR_DATA_LOSS when its image is gone or cut short: nothing is acknowledged of it then. */
int node_check_whole(const struct pool_object *object, struct err *err);

#endif
