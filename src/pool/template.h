/* SPDX-License-Identifier: Apache-2.0 */
/* mkfs on an image, and templates: formatted empty images to clone from. For fill.c. */
#ifndef RINGVOL_POOL_TEMPLATE_H
#define RINGVOL_POOL_TEMPLATE_H

#include "blockio/fsimg.h"
#include "pool/pool.h"
#include "reactor/op.h"

/* Child operation. ERR_INVALID: the options cannot be used. ERR_PRECONDITION: mkfs is not installed
 * (names the package). ERR_INTERNAL: it failed (its last words), or made something else. */
struct pool_mkfs {
	struct op op;
	const struct fsimg_spec *spec;
	int fd;
	const uint8_t *uuid; /* 16 bytes */
	/* private */
	struct proc proc;
	struct fsimg_probe probe;
	char mem[2048];
};
/* spec, the image's fd and uuid must live until the end. */
void pool_mkfs_init(struct pool_mkfs *m, struct reactor *reactor, const struct fsimg_spec *spec,
	int fd, const uint8_t uuid[16]);

enum { POOL_TEMPLATES_MAX = 32 }; /* of a pool; the least recently used goes */

/* A template, made on first use: one mkfs at a time for each template, and others wait for it. `fd`
 * is open for reading at the end. Fails as mkfs does. Not for btrfs: see fill.h. */
struct pool_template {
	struct op op;
	struct pool *pool;
	struct fsimg_spec spec; /* mkfs_options must live as long */
	int fd;                 /* out; -1 on failure; the caller closes it */
	struct pool_template_state *state;
};
void pool_template_init(struct pool_template *t, struct reactor *reactor, struct pool *pool,
	const struct fsimg_spec *spec);
/* What is the same for what would be made alike. */
void pool_template_name(const struct fsimg_spec *spec, char name[RECORD_KEY_MAX]);
/* Whether extents can be shared with a template that was looked at before, and its name below
 * templates/. */
bool pool_template_known(
	struct pool *pool, const struct fsimg_spec *spec, char ret_name[RECORD_KEY_MAX]);
/* Forgets them all; the files stay. */
void pool_templates_free(struct pool *pool);

#endif
