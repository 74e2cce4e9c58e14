/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `ringvol import` reads: a raw image or block device, a directory, a tar archive in a file or
 * on standard input. Trees go through tar(1), with owners, modes, times, extended attributes and
 * ACLs as they are.
 */
#ifndef RINGVOL_TOOLS_IMPORT_SOURCE_H
#define RINGVOL_TOOLS_IMPORT_SOURCE_H

#include "base/err.h"
#include "blockio/fsimg.h"

#include <signal.h>
#include <stdint.h>

enum import_kind {
	IMPORT_RAW,
	IMPORT_TREE,
	IMPORT_ARCHIVE,
	IMPORT_STREAM, /* an archive on standard input */
};

struct import_source {
	const char *path;
	enum import_kind kind;
	int fd;              /* -1: standard input; else all of it is read from here */
	uint64_t need_bytes; /* size of the volume that it takes; 0: not known */
	unsigned block_size; /* logical, of the device that a raw image was made for; 0: any will do
			      */
	enum fsimg_type fs;  /* what a raw image holds; FSIMG_NONE: none of ours */
};

/* Looks at it. -errno and why: it cannot be read, is of no such kind, or is an image that was cut
 * short. */
int import_source_open(struct import_source *s, const char *path, struct err *err);
void import_source_close(struct import_source *s);
/* Whether target is a block device, or a file system's root, as the source needs it: what the
 * driver has published may not be seen from here. */
int import_source_check_target(const struct import_source *s, const char *target, struct err *err);
/* Onto a raw block volume, or into the file system, that is published at target; durable with 0. A
 * signal that sets *interrupted ends it (-EINTR). */
int import_source_write(const struct import_source *s, const char *target,
	const volatile sig_atomic_t *interrupted, struct err *err);

#endif
