/* SPDX-License-Identifier: Apache-2.0 */
/* `ringvol ublkd`: the data process of ublk devices. */
#ifndef RINGVOL_UBLKD_H
#define RINGVOL_UBLKD_H

/* argv: what follows the command's name. Returns the process's exit status. */
int ublkd_main(int argc, char *const *argv);

#endif
