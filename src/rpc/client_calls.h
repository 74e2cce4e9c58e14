/* SPDX-License-Identifier: Apache-2.0 */
/* All calls of a channel, and what they have to do in the loop's next turn. */
#ifndef RINGVOL_RPC_CLIENT_CALLS_H
#define RINGVOL_RPC_CLIENT_CALLS_H

#include "rpc/client_call.h"

void client_calls_init(struct client_calls *calls, struct ring *ring, struct budget *memory);
/* Ends with UNAVAILABLE those that are on no list but the ones in here. */
void client_calls_end(struct client_calls *calls, const char *why);
/* No call is active any more, and no callback runs. */
void client_calls_close(struct client_calls *calls);

#endif
