/* SPDX-License-Identifier: Apache-2.0 */
/* Offers: where a controller says that the data of a volume to come can be had. Memory alone; a
 * controller makes its offer before each CreateVolume that needs it. */
#ifndef RINGVOL_TRANSFER_OFFER_H
#define RINGVOL_TRANSFER_OFFER_H

#include "pool/hold.h"
#include "transfer/transfer.h"

enum { OFFER_ADDRESS_MAX = 320 }; /* HOST:PORT */

struct offer {
	struct list link; /* the transfer's, oldest first */
	char source_id[RECORD_ID_MAX];
	char volume_name[RECORD_NAME_MAX + 1];
	char grant[POOL_GRANT_BYTES];
	char node_id[POOL_HOLD_NODE_MAX];
	char address[OFFER_ADDRESS_MAX];
	uint64_t made_ns;
};

/* Takes the offer in the place of an earlier one for the same name and source. The strings are the
 * caller's. ERR_INVALID: a field is none. */
int offer_put(struct transfer *transfer, const char *source_id, const char *volume_name,
	const char *grant, const char *node_id, const char *address, struct err *err);
/* A copy of it. False: there is none. */
bool offer_find(struct transfer *transfer, const char *source_id, const char *volume_name,
	struct offer *ret);
/* Likewise where the source is known by its key alone. */
bool offer_find_key(
	struct transfer *transfer, const char *key, const char *volume_name, struct offer *ret);
/* It is used up. Nothing where there is none. */
void offer_drop(struct transfer *transfer, const char *source_id, const char *volume_name);
void offers_sweep(struct transfer *transfer);
void offers_free(struct transfer *transfer);

#endif
