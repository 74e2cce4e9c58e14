/* SPDX-License-Identifier: Apache-2.0 */
/* Private to helper*.c. What goes over a helper's socket: one message each way a call, a header and
 * the payload. Both ends are the same binary, so structs are sent as they are. */
#ifndef RINGVOL_REACTOR_HELPER_WIRE_H
#define RINGVOL_REACTOR_HELPER_WIRE_H

#include <stdint.h>

struct helper_request {
	uint32_t fn;
	uint32_t resp_cap;
};

struct helper_answer {
	int32_t res;
	uint32_t reserved;
};

#endif
