/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two fills of a build. What fails leaves an image without a name, which its builder drops.
 *
 * The fill that formats shares the extents of a template. It copies the template's data where there
 * is no reflink, or where the volume must have blocks of its own: a thick one, and one that is
 * overwritten when it is deleted (zeros written to shared blocks go to others). A btrfs image is
 * made by mkfs on the unnamed image itself, because copies of one cannot be told apart. In a raw
 * pool mkfs gets an unnamed file of its own among the records, and what it has written is copied to
 * the image's places on the disks, as a template's data is.
 *
 * The fill that copies reads another image through the ring, where its extents cannot be shared (no
 * reflink, a thick target). A target larger than its source ends in a hole. A source of a raw pool
 * is read where its map says.
 */
#include "pool/fill.h"

#include "blockio/image.h"
#include "disk/places.h"
#include "pool/private.h"
#include "pool/raw.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

/* ---- the fill that formats ---- */

static struct pool_format *format_of(struct op *op)
{
	return container_of(op, struct pool_format, op);
}

static bool makes_own(struct op *op)
{
	return format_of(op)->spec.type == FSIMG_BTRFS;
}

static int template_run(struct op *op)
{
	struct pool_format *f = format_of(op);
	pool_template_init(&f->tpl, op->reactor, f->pool, &f->spec);
	return op_child(op, &f->tpl.op);
}

int pool_share_extents(int src_fd, int dst_fd, uint64_t size_bytes)
{
	struct stat st;
	int r = image_reflink(src_fd, dst_fd);
	if (r < 0)
		return r;
	/* A larger source has made it larger. */
	if (fstat(dst_fd, &st) < 0 ||
		((uint64_t)st.st_size != size_bytes && ftruncate(dst_fd, (off_t)size_bytes) < 0))
		return -errno;
	return 0;
}

static int reflink_call(struct op *op)
{
	const struct pool_format *f = format_of(op);
	return pool_share_extents(f->tpl.fd, f->dst_fd, f->build->rec->size_bytes);
}

static bool reflink_done(struct op *op)
{
	return makes_own(op) || format_of(op)->must_copy;
}

static int reflink_end(struct op *op, int res)
{
	if (res == -EOPNOTSUPP || res == -EXDEV) {
		format_of(op)->must_copy = true;
		return 0;
	}
	return res < 0 ? op_fail_sys(op, res, "sharing the extents of a template") : 0;
}

static bool on_disks(struct op *op)
{
	return format_of(op)->build->places != NULL;
}

/* The file for mkfs, in the template's place. */
static bool file_done(struct op *op)
{
	return !makes_own(op) || !on_disks(op);
}

static int file_call(struct op *op)
{
	struct pool_format *f = format_of(op);
	int flags = O_TMPFILE | O_RDWR | O_CLOEXEC | (f->pool->features.direct_io ? O_DIRECT : 0);
	f->tpl.fd = openat(f->pool->fds[POOL_FD_TRASH], ".", flags, 0600);
	return f->tpl.fd < 0 ? -errno : image_resize(f->tpl.fd, f->spec.size_bytes, false);
}

static int file_end(struct op *op, int res)
{
	const struct pool_format *f = format_of(op);
	return res < 0 ? pool_fail_sys(f->pool, &op->err, res, "making a file for mkfs in pool %s",
				 pool_name(f->pool))
		       : 0;
}

static bool copy_done(struct op *op)
{
	return (makes_own(op) && !on_disks(op)) || !format_of(op)->must_copy;
}

static int copy_run(struct op *op)
{
	struct pool_format *f = format_of(op);
	f->copy = (struct copy){.src_fd = f->tpl.fd,
		.dst_fd = f->dst_fd,
		.dst_places = f->build->places,
		.size = f->spec.size_bytes};
	copy_init(&f->copy, op->reactor);
	f->wrote = true;
	return op_child(op, &f->copy.op);
}

static bool mkfs_done(struct op *op)
{
	return !makes_own(op);
}

static int mkfs_run(struct op *op)
{
	struct pool_format *f = format_of(op);
	f->wrote = true;
	pool_mkfs_init(
		&f->mkfs, op->reactor, &f->spec, on_disks(op) ? f->tpl.fd : f->dst_fd, f->uuid);
	return op_child(op, &f->mkfs.op);
}

static const struct op_step format_steps[] = {
	{"template", .run = template_run, .done = makes_own},
	{"reflink", .call = reflink_call, .end = reflink_end, .done = reflink_done},
	{"file", .call = file_call, .end = file_end, .done = file_done},
	{"mkfs", .run = mkfs_run, .done = mkfs_done},
	{"copy", .run = copy_run, .done = copy_done},
	{NULL},
};

void pool_format_init(struct pool_format *f, struct pool *pool, const struct fsimg_spec *spec,
	const uint8_t uuid[16])
{
	*f = (struct pool_format){.pool = pool, .spec = *spec, .dst_fd = -1};
	f->tpl.fd = -1;
	memcpy(f->uuid, uuid, sizeof(f->uuid));
}

static int format_fill(struct op *op, int dst_fd, void *arg)
{
	struct pool_format *f = arg;
	f->dst_fd = dst_fd;
	f->tpl.fd = -1;
	f->wrote = false;
	f->must_copy = f->own_blocks || !f->pool->features.reflink;
	op_init(&f->op, op->reactor, "pool_format", format_steps, NULL);
	return op_child(op, &f->op);
}

static int format_fill_end(struct op *op, int res, void *arg)
{
	struct pool_format *f = arg;
	(void)op;
	fd_close(&f->tpl.fd);
	f->build->fill_writes = f->wrote;
	return res;
}

void pool_build_format(struct pool_build *b, struct pool_format *f)
{
	f->build = b;
	f->own_blocks = b->rec->thick || b->rec->erase == RECORD_ERASE_ZERO;
	b->fill = format_fill;
	b->fill_end = format_fill_end;
	b->fill_arg = f;
	b->format = f->spec.type != FSIMG_BTRFS ? &f->spec : NULL;
	if (f->own_blocks || !pool_template_known(f->pool, &f->spec, b->share_template))
		b->share_template[0] = '\0';
}

/* ---- the fill that copies ---- */

static struct pool_clone *clone_of(struct op *op)
{
	return container_of(op, struct pool_clone, op);
}

static int source_run(struct op *op)
{
	struct pool_clone *c = clone_of(op);
	struct pool_object *source = c->source;
	int r = pool_check_ready(source->pool, &op->err);
	if (r < 0)
		return r;
	if (source->rec == NULL || source->image == POOL_IMAGE_TRUNCATED)
		return op_fail(op, ERR_DATA_LOSS, "%s in pool %s cannot be copied: %s", source->key,
			pool_name(source->pool),
			source->rec == NULL ? source->why
					    : "its image is shorter than it should be");
	int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
	if (source->pool->features.direct_io)
		flags |= O_DIRECT;
	io_uring_prep_openat(
		op_sqe(op), pool_fd_of(source->pool, source->kind), source->key, flags, 0);
	return op_submit(op);
}

static int source_end(struct op *op, int res)
{
	struct pool_clone *c = clone_of(op);
	if (res < 0)
		return op_fail_sys(op, res, "opening the image of %s", c->source->rec->name);
	c->src_fd = res;
	return 0;
}

static bool places_done(struct op *op)
{
	return clone_of(op)->src_disk == NULL;
}

static int places_call(struct op *op)
{
	struct pool_clone *c = clone_of(op);
	struct image_map map;
	int r = image_map_read(c->src_fd, &map);
	return r < 0 ? r : disk_places(c->src_disk, &map, &c->src_places);
}

static int places_end(struct op *op, int res)
{
	struct pool_clone *c = clone_of(op);
	return res < 0 ? op_fail_sys(op, res, "finding %s on the disks of pool %s",
				 c->source->rec->name, pool_name(c->source->pool))
		       : 0;
}

static int clone_copy_run(struct op *op)
{
	struct pool_clone *c = clone_of(op);
	/* It may have been stopped before it began. */
	c->copy = (struct copy){.src_fd = c->src_fd,
		.dst_fd = c->dst_fd,
		.src_places = c->src_places,
		.dst_places = c->build != NULL ? c->build->places : NULL,
		.size = record_image_bytes(c->source->rec),
		.stop = c->copy.stop};
	copy_init(&c->copy, op->reactor);
	return op_child(op, &c->copy.op);
}

static const struct op_step clone_steps[] = {
	{"open", .run = source_run, .end = source_end},
	{"places", .call = places_call, .end = places_end, .done = places_done},
	{"copy", .run = clone_copy_run},
	{NULL},
};

void pool_clone_init(struct pool_clone *c, struct pool_object *source)
{
	*c = (struct pool_clone){.source = source, .src_fd = -1, .dst_fd = -1};
}

int pool_clone_fill(struct op *op, int dst_fd, void *arg)
{
	struct pool_clone *c = arg;
	c->dst_fd = dst_fd;
	c->src_fd = -1;
	c->src_places = NULL;
	c->src_disk = c->source->pool->raw != NULL ? disk_ref(c->source->pool->raw->disk) : NULL;
	op_init(&c->op, op->reactor, "pool_clone", clone_steps, NULL);
	return op_child(op, &c->op);
}

int pool_clone_fill_end(struct op *op, int res, void *arg)
{
	struct pool_clone *c = arg;
	(void)op;
	fd_close(&c->src_fd);
	free(c->src_places);
	c->src_places = NULL;
	if (c->src_disk != NULL)
		disk_unref(c->src_disk);
	c->src_disk = NULL;
	return res;
}
