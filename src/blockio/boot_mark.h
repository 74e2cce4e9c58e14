/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mark on an image: an extended attribute by which a run of the driver tells later ones what it
 * did to the kernel's state (a freeze, a mount), which ends with the kernel's run. So a mark names
 * that run, and is not synced: until the next one the page cache knows it, and what a power failure
 * left of it means nothing. Blocking, for work jobs.
 */
#ifndef RINGVOL_BLOCKIO_BOOT_MARK_H
#define RINGVOL_BLOCKIO_BOOT_MARK_H

#include <stdbool.h>
#include <stdint.h>

/* The volume is frozen, and by us. */
#define BOOT_MARK_FROZEN "trusted.ringvol.frozen"
/* Its file system grows online, or has grown and was not frozen since (csi/clean_log.h). */
#define BOOT_MARK_GROWN "trusted.ringvol.grown"
/* It is published as SINGLE_NODE_SINGLE_WRITER, at the path that is the text. */
#define BOOT_MARK_WRITER "trusted.ringvol.writer"
/* It is published without having been staged: its first mount is a target. */
#define BOOT_MARK_WHOLE "trusted.ringvol.whole"

/* What was found; only a digest of the text is kept, as attributes have little room. */
struct boot_mark {
	uint8_t text[16];
};

/* 0 or -errno. */
int boot_mark_set(int fd, const char *name, const char *text);
/* Whether there is one, of this run of the kernel. ret may be NULL. */
bool boot_mark_get(int fd, const char *name, struct boot_mark *ret);
/* Whether it was set with this text. */
bool boot_mark_says(const struct boot_mark *mark, const char *text);
/* 0, also when there is none, or -errno. */
int boot_mark_remove(int fd, const char *name);

#endif
