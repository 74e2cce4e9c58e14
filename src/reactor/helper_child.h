/* SPDX-License-Identifier: Apache-2.0 */
/* The helper's side of helper.h, and what goes over its socket. */
#ifndef RINGVOL_REACTOR_HELPER_CHILD_H
#define RINGVOL_REACTOR_HELPER_CHILD_H

#include <stddef.h>
#include <stdint.h>

enum { HELPER_MESSAGE_BYTES = 16384 };

/* One entry of the table both sides are compiled with; index = call->fn. Runs in the helper, may
 * block. req has req_len bytes; resp is zeroed and has room for *resp_len, which is set to what was
 * written, also on failure.
 * Returns 0 or -errno. */
typedef int helper_fn(const void *req, size_t req_len, void *resp, size_t *resp_len);

/* The helper's side, which main() calls when argv[1] is "helper", argv[2] being the fd: serves
 * requests until it is closed. Returns the exit status. */
int helper_main(int fd, helper_fn *const *table, unsigned count);

/* One message each way a call: a header and the payload. Both ends are the same binary, so structs
 * are sent as they are. */
struct helper_request {
	uint32_t fn;
	uint32_t resp_cap;
};

struct helper_answer {
	int32_t res;
	uint32_t reserved;
};

#endif
