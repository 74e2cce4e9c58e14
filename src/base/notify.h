/* SPDX-License-Identifier: Apache-2.0 */
/* Tells the service manager how things stand: the protocol of sd_notify(3). */
#ifndef RINGVOL_NOTIFY_H
#define RINGVOL_NOTIFY_H

/* state: "READY=1", "STOPPING=1". 0 when it was sent or nobody asked ($NOTIFY_SOCKET is not set);
 * else -errno. Never waits. */
int notify_send(const char *state);

#endif
