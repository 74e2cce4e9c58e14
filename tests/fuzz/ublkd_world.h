/* SPDX-License-Identifier: Apache-2.0 */
/* The world of fuzz_ublkd.c: the data process's server and devices over a kernel that is made up,
 * and clients. */
#ifndef RINGVOL_TESTS_UBLKD_WORLD_H
#define RINGVOL_TESTS_UBLKD_WORLD_H

#include "fuzz.h"

#include "backends/ublk/ublk_dev.h"

enum {
	CLIENTS = 2,
	IMAGES = 2,
	FIRST_ID = 2000000, /* of devices: none that a real kernel may have */
	IDS = 4,
};

struct client {
	int fd;
	bool settled; /* the fence was answered, or the connection closed */
};

struct world {
	struct reactor reactor;
	struct ublk_ctl *ctl;
	struct ublk_ctl_fake kernel;
	struct ublk_ctl_slot *held[UBLK_CTL_SLOTS]; /* commands without an answer */
	unsigned held_count;
	bool well; /* the kernel does what it is told */
	struct fuzz answers;
	int state_dir;
	struct ublk_devs *devs;
	struct ublkd_server *server;
	struct client client[CLIENTS];
};

extern char image_path[IMAGES][64];

/* Once, at first. */
void world_open(struct world *w);
/* Files may be left in w->state_dir before it. */
void world_start(struct world *w);
/* As a driver that ends all volumes, with a kernel that does as it is told: nothing is left. */
void world_end(struct world *w);
/* Until nothing moves but what the kernel holds or what a timer will try again. */
void world_settle(struct world *w);
/* What the kernel holds ends in an error. */
void kernel_answers(struct world *w);

void client_open(struct client *c);
/* False: the connection is full, or was cut off. */
bool client_send(struct client *c, const void *data, size_t len, const int *fds, unsigned count);

#endif
