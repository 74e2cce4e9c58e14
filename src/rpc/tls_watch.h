/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the files of a struct tls again when they change. A work thread looks at them every
 * TLS_WATCH_MS, so a link that is swapped (Kubernetes' ..data) and a file on a network are alike
 * and nothing waits on the loop. Files that are not good change nothing: what was read before stays
 * in force, and the owner is told, once for each new reason.
 */
#ifndef RINGVOL_RPC_TLS_WATCH_H
#define RINGVOL_RPC_TLS_WATCH_H

#include "reactor/ring.h"
#include "reactor/work.h"
#include "rpc/tls.h"

enum { TLS_WATCH_MS = 2000 };

struct tls_watch;

struct tls_watch_config {
	struct ring *ring;
	struct work *work;
	struct tls *tls;        /* outlives the watch */
	struct tls_files files; /* their strings live as long as the watch */
	/* err: NULL: new files are in force. Else what is wrong with the files, or with the time of
	 * the certificate that is in force; in_force tells which. */
	void (*on_event)(void *arg, const struct err *err, bool in_force);
	void *arg;
};

/* 0 or -ENOMEM. */
int tls_watch_open(struct tls_watch **ret, const struct tls_watch_config *config);
/* Turns the ring until a look that is under way has ended, so not from a callback. NULL is legal.
 */
void tls_watch_close(struct tls_watch *watch);

#endif
