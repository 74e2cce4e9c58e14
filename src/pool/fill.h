/* SPDX-License-Identifier: Apache-2.0 */
/* The two fills of a build: what gives its unnamed image the first bytes. */
#ifndef RINGVOL_POOL_FILL_H
#define RINGVOL_POOL_FILL_H

#include "blockio/copy.h"
#include "pool/build.h"
#include "pool/template.h"

/*
 * Formats the image. A template that is known is shared without a fill. Else the fill makes or
 * checks the template first. It then shares it, or copies its few data extents where there is no
 * reflink or the volume is thick or has eraseOnDelete: zero. A btrfs image gets an mkfs of its own,
 * because copies of one cannot be told apart; in a raw pool one that is then copied. The image has
 * no name until it is formatted, so an interrupted mkfs leaves nothing, and nothing that has a name
 * is ever formatted.
 */
struct pool_format {
	struct pool_template tpl;
	struct copy copy;
	struct op op;
	struct pool *pool;
	struct fsimg_spec spec;
	uint8_t uuid[16];
	/* private */
	struct pool_build *build;
	bool own_blocks, must_copy, wrote;
	struct pool_mkfs mkfs;
	int dst_fd;
};
void pool_format_init(struct pool_format *f, struct pool *pool, const struct fsimg_spec *spec,
	const uint8_t uuid[16]);
/* The format lives until the build's end. */
void pool_build_format(struct pool_build *b, struct pool_format *format);

/* Makes dst, of size_bytes, share all extents of src, and keeps its size. Blocking. */
int pool_share_extents(int src_fd, int dst_fd, uint64_t size_bytes);

/* The bytes of another image, by a sparse copy through the ring. It writes: set fill_writes. */
struct pool_clone {
	struct op op;
	struct copy copy;
	struct pool_object *source;
	const struct pool_build *build; /* whose fill it is; NULL: nobody's, and dst is a file */
	/* private */
	int src_fd, dst_fd;
	struct disk *src_disk; /* of a source in a raw pool, with its bytes at */
	struct copy_places *src_places;
};
void pool_clone_init(struct pool_clone *c, struct pool_object *source);
int pool_clone_fill(struct op *op, int dst_fd, void *clone);
int pool_clone_fill_end(struct op *op, int res, void *clone);

#endif
