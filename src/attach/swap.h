/* SPDX-License-Identifier: Apache-2.0 */
/* The calls about a volume that moves to this node (calls.h). Blocking. */
#ifndef RINGVOL_ATTACH_SWAP_H
#define RINGVOL_ATTACH_SWAP_H

#include "attach/calls.h"

int attach_suspend(const struct attach_volume_req *req, struct attach_info *info);
int attach_resume(const struct attach_volume_req *req, struct attach_info *info);
int attach_swap(const struct attach_swap_req *req, struct attach_info *info);

#endif
