/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's side of the data process's socket (ublkd_proto.h): one connection for all
 * operations, made when it is needed and made again when it broke.
 *
 * A call is one request with a bound. It ends exactly once, through on_end, from the loop: with the
 * reply's result, or with an error of its own: ERR_UNAVAILABLE when no data process answers (call
 * again later: every request converges), ERR_TIMEOUT when the bound is over. The data process may
 * still carry out a call that has timed out.
 *
 *   req->call = (struct ublkc_call){.fd = image_fd, .on_end = on_attached};
 *   req->call.request.head.type = UBLKD_ATTACH; ...
 *   ublkc_submit(client, &req->call, timeout_ms);
 *   return op_wait(op);                    // on_attached calls op_complete()
 */
#ifndef RINGVOL_BACKENDS_UBLKC_H
#define RINGVOL_BACKENDS_UBLKC_H

#include "backends/ublk/ublkd_proto.h"
#include "base/err.h"
#include "reactor/ring.h"

struct ublkc;
struct ublkc_call;

/* res: 0 with the reply's fields, or a negative errno with call->err set. The call may be freed. */
typedef void ublkc_fn(struct ublkc_call *call, int res);

/* Embed it; lives until on_end. About 6 KiB. */
struct ublkc_call {
	/* set by the caller */
	struct ublkd_request request; /* head.type and what the type wants; the rest zero */
	int fd;                       /* ATTACH: the image, borrowed until on_end; else -1 */
	ublkc_fn *on_end;
	/* results */
	struct ublkd_reply reply;
	struct err err;
	/* private */
	struct ublkc *client;
	struct list link;
	struct ring_timer timer;
	struct ring_req turn; /* carries an end that is known before anything was sent */
	bool sent;
};

/* Connects nothing yet. socket_path: kept by reference. 0 or -errno. */
int ublkc_open(struct ublkc **ret, struct ring *ring, const char *socket_path);
/* With no call under way. NULL is legal. */
void ublkc_close(struct ublkc *client);
void ublkc_submit(struct ublkc *client, struct ublkc_call *call, uint64_t timeout_ms);

/*
 * Blocking, for work jobs: calls each for every ublk device of ours, those included that wait for
 * recovery. Asks the data process; where none listens, the state files in state_dir are read
 * instead, and devices the kernel still has are given with state WAITING. 0, also when there is
 * neither; else a negative errno with *err set: then nobody knows, and an image must not be
 * attached elsewhere. timeout_ms bounds each answer.
 */
int ublkc_scan(const char *socket_path, const char *state_dir, uint64_t timeout_ms,
	void (*each)(void *arg, const struct ublkd_device *dev), void *arg, struct err *err);

#endif
