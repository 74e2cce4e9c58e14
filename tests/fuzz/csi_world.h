/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The world of fuzz_csi.c: a pool in memory, a node some of whose volumes are in use, and instead
 * of all that would reach for the machine (helpers, devices, images, children, lists of mounts)
 * answers that the input gives. Nothing of this machine is touched.
 */
#ifndef RINGVOL_FUZZ_CSI_WORLD_H
#define RINGVOL_FUZZ_CSI_WORLD_H

#include "fuzz.h"

#include "csi/csi.h"
#include "rpc/grpc_local.h"
#include "simring/sim.h"

struct csi_world {
	struct ring_sim sim;
	struct reactor reactor;
	struct pools *pools;
	struct csi *csi;
	struct grpc_registry *registry;
};

/* What helpers, devices and images say; when it has run dry all is well. */
extern struct fuzz csi_world_answers;

static inline uint8_t csi_world_answer(void)
{
	return fuzz_byte(&csi_world_answers);
}

/* Numbers of devices that no machine has. */
enum { CSI_WORLD_IMAGE_DEV = 77, CSI_WORLD_MAJOR = 7, CSI_WORLD_MINOR = 4000 };

/* Of the device mounted at a path; where the path says nothing it is the first volume's. */
uint32_t csi_world_minor_at(const char *path);

/* how: bit 0: the controller grows volumes; 1: CSI 1.13; 2 and 3 both: an empty pool; 4: volumes in
 * use are tried to be read from; 5: a pool without reflink. */
void csi_world_open(struct csi_world *w, uint8_t how);
/* With all calls and tasks at their end. */
void csi_world_close(struct csi_world *w);

#endif
