/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many volumes this node can have: one device each, of the kinds that its pools use. What the
 * kernel or a data process has refused lately counts as used up, so that a scheduler is told of it
 * before the next pod comes.
 */
#ifndef RINGVOL_NODE_DEVICES_H
#define RINGVOL_NODE_DEVICES_H

#include "backends/backend.h"

#include <stdbool.h>
#include <stdint.h>

struct node;

/* A refusal is believed for so long: others may let devices go that we do not hear of. */
enum { NODE_NO_DEVICE_MS = 60000 };

/* An attach has ended with that code: ERR_NO_ROOM says that no device of the kind is to be had now,
 * ERR_OK that one was. Other codes tell nothing. */
void node_devices_note(struct node *node, enum backend_type type, enum err_code code);
/* One of the kind was let go. */
void node_devices_freed(struct node *node, enum backend_type type);
/* Whether another device of that kind is to be had, as far as is known. */
bool node_devices_left(const struct node *node, enum backend_type type);

/* Volumes that this node can have in all, those in use included and inline ones left out, which no
 * scheduler counts; bound: the operator's, of all together, 0 for none. Never below what is in use,
 * and never 0, which would mean that there is no limit. */
int64_t node_allocatable(const struct node *node, int64_t bound);
/* Devices in use, of any kind. */
uint64_t node_devices_in_use(const struct node *node);

#endif
