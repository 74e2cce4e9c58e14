/* SPDX-License-Identifier: Apache-2.0 */
/* What `ringvol serve` can be told, by flag or environment. */
#ifndef RINGVOL_SERVE_OPTIONS_H
#define RINGVOL_SERVE_OPTIONS_H

#include "attach/fabrics.h"
#include "backends/loop/loop.h"
#include "backends/ublk/ublk.h"
#include "base/arena.h"
#include "base/err.h"
#include "base/log.h"
#include "base/options.h"
#include "csi/csi.h"
#include "member/member.h"
#include "pool/pool.h"
#include "pool/pools.h"
#include "rpc/tls.h"
#include "transfer/transfer.h"

enum {
	SERVE_ENDPOINTS_MAX = 8,
	SERVE_NODE_ID_MAX = 256, /* bytes; the specification's */
	SERVE_TARGET_ROOTS_MAX = 16,
	SERVE_TRIM_INTERVAL_MAX_S = 366 * 86400,
	SERVE_POOL_NAME_MAX = 63, /* bytes; it is a label of metrics and a StorageClass value */
};

/* The data process, as --ublkd names them. */
enum serve_ublkd { SERVE_UBLKD_START, SERVE_UBLKD_EXTERNAL, SERVE_UBLKD_OFF };

struct serve_options {
	struct arena *arena; /* what setters keep; other strings are the command line's own */
	const char *endpoints[SERVE_ENDPOINTS_MAX];
	unsigned endpoint_count;
	const char *export_address; /* IP:PORT; NULL: off */
	bool export_without_auth, export_tls;
	bool insecure_tcp; /* without it no endpoint is TCP */
	const char *http;  /* ADDR:PORT; NULL: off */
	struct pool_config pools[POOLS_MAX];
	unsigned pool_count;
	bool no_pools; /* said with "none"; without it there is one at least */
	struct csi_config csi;
	struct transfer_config transfer; /* rate_bytes; the rest is serve.c's */
	struct backend_loop_config loop;
	uint64_t trim_interval_s;    /* 0: off */
	struct fabrics_waits borrow; /* for the owners of other nodes' volumes */
	enum serve_ublkd ublk;
	struct backend_ublk_config ublkd;                 /* socket_path, state_dir, start */
	const char *target_roots[SERVE_TARGET_ROOTS_MAX]; /* none: anywhere but where nothing is */
	unsigned target_root_count;
	const char *cgroup_root; /* NULL: off */
	/* The cluster's; no controller: none of it. */
	const char *controllers[MEMBER_CONTROLLERS_MAX]; /* HOST:PORT */
	unsigned controller_count;
	const char *listen;    /* ADDR:PORT */
	const char *advertise; /* HOST:PORT: how others reach it */
	struct tls_files tls;
	const char *kubelet_registration; /* directory; NULL: none */
	const char *kubelet_endpoint;     /* with it: a path */
	const char *docker_plugin;        /* a socket's path; NULL: off */
	const char *docker_mounts;        /* a directory */
	const char *storage_provider;     /* a socket's path; NULL: off */
	const char *storage_mounts;       /* a directory */
	unsigned storage_idle_s;
	enum log_level log_level;
	enum log_format log_format;
};

extern const struct command serve_command;

/* Zeroed *ret is filled; with result.help nothing in it counts. 0, or a negative errno with one
 * line in *err. Free it in every case. */
int serve_options_parse(struct serve_options *ret, struct options_result *ret_result, int argc,
	char *const *argv, struct err *err);
void serve_options_free(struct serve_options *options);

#endif
