/* SPDX-License-Identifier: Apache-2.0 */
/* What is left of a departure goes: the volume was deleted where it went, or is back. */
#ifndef RINGVOL_POOL_DEPARTURE_DROP_H
#define RINGVOL_POOL_DEPARTURE_DROP_H

#include "pool/departure.h"
#include "reactor/op.h"

/* What its pool still has of it: it could not go to the trash so far. As long as the note is there
 * it is no volume. NULL: nothing. */
struct pool_object *pool_departure_leftover(const struct pool_departure *departure);

/* Takes the note away, durably. Until that has succeeded it counts. */
struct pool_departure_drop {
	struct op op;
	struct pool_departure *departure;
	/* private */
	int departed_fd;
	char key[RECORD_KEY_MAX];
};
void pool_departure_drop_init(
	struct pool_departure_drop *d, struct reactor *reactor, struct pool_departure *departure);

#endif
