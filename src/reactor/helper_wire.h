/* SPDX-License-Identifier: Apache-2.0 */
/* Private to helper*.c. What goes over a helper's socket: one message each way a call, a header and
 * the payload. Both ends are the same binary, so structs are sent as they are. */
#ifndef RINGVOL_REACTOR_HELPER_WIRE_H
#define RINGVOL_REACTOR_HELPER_WIRE_H

#include <stdint.h>
#include <sys/types.h>

struct helper_request {
	uint32_t fn;
	uint32_t resp_cap;
};

struct helper_answer {
	int32_t res;
	uint32_t reserved;
};

/* helper_spawn.c: the process, its pidfd and the driver's end of the socket. 0 or -errno. */
int helper_spawn(pid_t *ret_pid, int *ret_pidfd, int *ret_fd);

#endif
