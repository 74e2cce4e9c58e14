/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registration with kubelet, so that no node-driver-registrar is needed: a socket of its own in
 * kubelet's registry directory, DIR/<driver name>-reg.sock, on which kubelet asks who we are.
 *
 * The socket is made when the services are served (kubelet calls them at once), made again when it
 * vanished (somebody emptied the directory) and a while after kubelet said that it could not
 * register us. One that a killed driver left is replaced; while another driver lives behind it (an
 * update that starts the new pod first) it is tried again until that one is gone.
 */
#ifndef RINGVOL_CSI_REGISTRATION_H
#define RINGVOL_CSI_REGISTRATION_H

#include "reactor/op.h"

struct registration;

struct registration_config {
	/* Kept by reference. */
	const char *dir; /* kubelet's, "/var/lib/kubelet/plugins_registry" */
	const char *driver_name;
	const char *endpoint; /* path of the CSI socket as kubelet sees it */
};

enum {
	REGISTRATION_CHECK_MS = 5000,     /* how often the socket is looked after */
	REGISTRATION_RETRY_MS = 1000,     /* while it cannot be made */
	REGISTRATION_AGAIN_MIN_MS = 5000, /* after kubelet refused, doubled each time */
	REGISTRATION_AGAIN_MAX_MS = 60000,
};

/* Starts announcing. 0 or -errno. */
int registration_open(struct registration **ret, struct reactor *reactor,
	const struct registration_config *config);
/* Removes the socket; calls under way end within timeout_ms, and on_drained runs. */
void registration_drain(struct registration *registration, uint64_t timeout_ms,
	void (*on_drained)(void *arg), void *arg);
/* Turns the ring, so not from a callback. NULL is legal. */
void registration_close(struct registration *registration);

#endif
