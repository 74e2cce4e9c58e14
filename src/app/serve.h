/* SPDX-License-Identifier: Apache-2.0 */
/* `ringvol serve`: the driver's life. */
#ifndef RINGVOL_SERVE_H
#define RINGVOL_SERVE_H

/* argv: what follows the command. Returns the exit status: 0 after a drain, 1 when it could not
 * start, 2 for a bad option. */
int serve_main(int argc, char *const *argv);

#endif
