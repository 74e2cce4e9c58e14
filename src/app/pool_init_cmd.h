/* SPDX-License-Identifier: Apache-2.0 */
/* `ringvol pool init PATH` */
#ifndef RINGVOL_POOL_INIT_CMD_H
#define RINGVOL_POOL_INIT_CMD_H

/* argv: what follows the command. Returns the exit status. */
int pool_init_main(int argc, char *const *argv);

#endif
