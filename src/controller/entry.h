/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages of CSI that nodes have packed, looked over before anybody is told of them: clients
 * refuse a list for one entry in it that is none. What this version does not know of them stays in.
 */
#ifndef RINGVOL_CONTROLLER_ENTRY_H
#define RINGVOL_CONTROLLER_ENTRY_H

#include "base/err.h"
#include "controller/objects.h"
#include "controller/store.h"

/* An Entry of ListVolumesResponse or ListSnapshotsResponse, of this id. 0; ERR_INVALID: it does not
 * decode, is of another id, or a text in it is not UTF-8; ERR_NO_ROOM: it takes too much memory. */
int entry_check(
	enum store_kind kind, const char *id, const uint8_t *entry, size_t len, struct err *err);
/* The one node that a volume's entry says it is published on. "": none or several, or it does not
 * say. */
void entry_user(const uint8_t *entry, size_t len, char ret_node_id[STORE_NODE_ID_MAX]);
/* A VolumeHealth, likewise. */
int entry_check_health(const char *id, const uint8_t *health, size_t len, struct err *err);
/* A GetCapacityResponse. */
int entry_check_capacity(const uint8_t *response, size_t len, struct err *err);

#endif
