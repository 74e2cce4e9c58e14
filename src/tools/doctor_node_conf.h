/* SPDX-License-Identifier: Apache-2.0 */
/* What the configuration of LVM, mdadm and multipath says of our devices, read as these programs
 * read it. */
#ifndef RINGVOL_TOOLS_DOCTOR_NODE_CONF_H
#define RINGVOL_TOOLS_DOCTOR_NODE_CONF_H

#include <stdbool.h>

enum doctor_conf {
	DOCTOR_CONF_SILENT, /* it has no setting of that kind */
	DOCTOR_CONF_TAKES,  /* it has one, and at least one kind of device of ours is taken */
	DOCTOR_CONF_LEAVES, /* it has one that leaves our devices alone */
};

/* text: the contents of a configuration file; changed on the way (comments become blanks). */

/* lvm.conf: devices/global_filter. */
enum doctor_conf doctor_conf_lvm_filter(char *text);
/* lvm.conf: devices/use_devicesfile is 1: LEAVES; 0: TAKES. */
enum doctor_conf doctor_conf_lvm_devices_file(char *text);
/* mdadm.conf: AUTO and DEVICE lines. */
enum doctor_conf doctor_conf_md(char *text);
/* multipath.conf: TAKES if blacklist_exceptions has a devnode that matches a device of ours. */
enum doctor_conf doctor_conf_multipath(char *text);

#endif
