/* SPDX-License-Identifier: Apache-2.0 */
/* Changing what a volume's record says of how the volume is used. */
#ifndef RINGVOL_POOL_AMEND_H
#define RINGVOL_POOL_AMEND_H

#include "pool/pool.h"
#include "reactor/op.h"

/* What can change. */
struct pool_amendment {
	enum record_erase erase;
	bool snapshot_freeze;
	struct io_limits limits;
};

/* The new record, durable, then the one in memory. A crash leaves the old one or the new one.
 * Nothing is done where the record says so already. ERR_DATA_LOSS: the object is quarantined. */
struct pool_amend {
	struct op op;
	struct pool_object *object;
	struct pool_amendment to;
	/* private */
	int fd;
	struct record *rec;
	char record_text[RECORD_BYTES_MAX];
};
void pool_amend_init(struct pool_amend *a, struct reactor *reactor, struct pool_object *object,
	const struct pool_amendment *to);

#endif
