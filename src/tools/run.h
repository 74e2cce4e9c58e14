/* SPDX-License-Identifier: Apache-2.0 */
/* Running a program, for tools: what it says, and how it ended. Blocking. */
#ifndef RINGVOL_TOOLS_RUN_H
#define RINGVOL_TOOLS_RUN_H

#include <stddef.h>

/* Runs a program, by argv and never through a shell, and waits for it. argv[0] is looked for along
 * PATH. `file`, unless it is -1, is handed to it as its descriptor PROC_FILE, which it can name
 * PROC_FILE_PATH (reactor/proc.h). What it prints on both outputs goes into out (cap bytes with a
 * NUL, the rest is dropped). Its exit status; -ETIMEDOUT (it was killed), -EINTR (a signal killed
 * it), -ENOENT (not installed), another -errno. */
int tool_run(char *const argv[], int file, unsigned timeout_ms, char *out, size_t cap);

#endif
