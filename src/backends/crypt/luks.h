/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ringvol luks`: the one process that has a volume's keys in its memory. It serves one order
 * (luks_order.h) and ends. Nobody but the driver starts it, with bounds for its memory and time.
 *
 * libcryptsetup reads and writes the header only. The dm-crypt device is made here, by the device
 * mapper's own calls: under names of ours, with no udev needed and none waited for.
 */
#ifndef RINGVOL_BACKENDS_LUKS_H
#define RINGVOL_BACKENDS_LUKS_H

/* fd: where the order is, up to its end. Returns enum luks_code, the process's exit status. */
int luks_main(int fd);

#endif
