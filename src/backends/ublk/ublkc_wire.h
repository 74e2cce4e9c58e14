/* SPDX-License-Identifier: Apache-2.0 */
/* Single messages of ublkd_proto.h, for both ends and for the blocking scan. */
#ifndef RINGVOL_BLOCKIO_UBLKC_WIRE_H
#define RINGVOL_BLOCKIO_UBLKC_WIRE_H

#include "backends/ublk/ublkd_proto.h"
#include "base/err.h"

#include <stddef.h>

/* A connected, non-blocking socket, its other end root's; or -errno (-EPERM: it is not). */
int ublkc_wire_connect(const char *path);
/* What a failed connect means, for a sentence that begins with "the data process at PATH". */
const char *ublkc_wire_why(int r);
/* Fills the head and sends it, with image_fd unless that is -1. 0 or -errno; -EAGAIN with
 * MSG_DONTWAIT when the socket is full. */
int ublkc_wire_send(int fd, const struct ublkd_request *request, int image_fd, int flags);
/* Makes a reply of `len` bytes whole: zeros for what an older sender does not know, strings ended.
 * -EPROTO when it is none. */
int ublkc_wire_check(struct ublkd_reply *reply, size_t len);
/* The same for a request. */
int ublkc_wire_check_request(struct ublkd_request *request, size_t len);
/* The reply's result; an error's code and message go to *err. */
int ublkc_wire_result(const struct ublkd_reply *reply, struct err *err);
/* And the other way: fills res, code and message. */
void ublkc_wire_fail(struct ublkd_reply *reply, int res, const struct err *err);

#endif
