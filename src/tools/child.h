/* SPDX-License-Identifier: Apache-2.0 */
/* Running a program and waiting for it; by argv, never through a shell. Blocking. */
#ifndef RINGVOL_TOOLS_CHILD_H
#define RINGVOL_TOOLS_CHILD_H

#include <stddef.h>

/* argv[0] is looked for along PATH. `file`, unless it is -1, is handed to it as its descriptor
 * PROC_FILE, which it can name PROC_FILE_PATH (reactor/proc.h). What it prints on both outputs goes
 * into out (cap bytes with a NUL, the rest is dropped). Its exit status; -ETIMEDOUT (it was
 * killed), -EINTR (a signal killed it), -ENOENT (not installed), another -errno. */
int child_run(char *const argv[], int file, int timeout_ms, char *out, size_t cap);

#endif
