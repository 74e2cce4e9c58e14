/* SPDX-License-Identifier: Apache-2.0 */
/* `ringvol controller`: the controller's life. */
#ifndef RINGVOL_APP_CONTROLLER_H
#define RINGVOL_APP_CONTROLLER_H

/* argv: what follows the command. Returns the exit status: 0 after a drain, 1 when it could not
 * start, 2 for a bad option. */
int controller_main(int argc, char *const *argv);

#endif
