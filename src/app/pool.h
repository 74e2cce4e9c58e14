/* SPDX-License-Identifier: Apache-2.0 */
/* `ringvol pool`: making pools, growing and letting go of raw ones. */
#ifndef RINGVOL_APP_POOL_H
#define RINGVOL_APP_POOL_H

/* What follows "pool"; the exit status. */
int pool_main(int argc, char *const *argv);

#endif
