/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operator's commands. They run beside the driver or without one, block as they like, and
 * change nothing (but for `check --repair`). Each takes what follows its name and returns the exit
 * status; 2 is a command line that was not understood.
 */
#ifndef RINGVOL_TOOLS_TOOLS_H
#define RINGVOL_TOOLS_TOOLS_H

int tools_check_main(int argc, char *const *argv);
int tools_doctor_main(int argc, char *const *argv);
int tools_health_main(int argc, char *const *argv);
int tools_ls_main(int argc, char *const *argv);
int tools_top_main(int argc, char *const *argv);

#endif
