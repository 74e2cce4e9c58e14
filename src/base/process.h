/* SPDX-License-Identifier: Apache-2.0 */
/* What every long-lived process of ringvol does with itself before it starts a thread. */
#ifndef RINGVOL_PROCESS_H
#define RINGVOL_PROCESS_H

#include <stdbool.h>

/* As many open files as allowed, and where nobody has decided yet, the last to be killed for
 * memory. Failures are nobody's fault and change nothing that is promised. */
void process_claim_resources(void);
/* Where others keep all processors busy, the kernel runs whoever wakes when a slice of theirs is
 * over, which may take milliseconds for each; but at once if it asks for shorter slices (Linux
 * 6.12). It gets no more of the processors for that. Of the calling thread and what it starts;
 * false: the kernel's slice again. */
enum { PROCESS_SLICE_NS = 100000 };
void process_be_prompt(bool prompt);
/* What is in memory (secrets of requests, bytes of tenants) goes into no core file, and nobody
 * without CAP_SYS_PTRACE looks at it. A debug build may be looked at. */
void process_hide_memory(void);
/* What is freed goes back to the kernel soon, so that a burst is not resident for ever. With bulk
 * it is kept for what comes next: else large buffers that come and go cost more in page faults than
 * the bytes that pass through them (a third of a copy's processor time). */
void process_keep_memory(bool bulk);
/* SIGTERM and SIGINT come to a signalfd (*ret_fd), SIGPIPE, SIGIO and SIGHUP nowhere, children
 * wait to be reaped; threads started later block them too. 0 or -errno. */
int process_take_signals(int *ret_fd);

/* Tells the service manager how things stand, by the protocol of sd_notify(3). state: "READY=1",
 * "STOPPING=1". 0 when it was sent or nobody asked ($NOTIFY_SOCKET is not set); else -errno. Never
 * waits. */
int process_notify(const char *state);

/* Lets go of the read-only pages of a library that is loaded (a part of its file's name), which
 * come back from the page cache where they are used again. For what is needed in bursts: a
 * handshake leaves 3 MiB of libcrypto behind, of which records need a tenth. */
void process_drop_text(const char *library);

#endif
