/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fill that formats: a template's extents are shared, or its data copied where there is no
 * reflink or the volume must have blocks of its own (thick, or overwritten when it is deleted: what
 * is written over shared blocks goes to others); btrfs, whose copies cannot be told apart, is
 * made by mkfs on the unnamed image itself. What fails leaves an image without a name, which its
 * builder drops.
 */
#include "pool/private.h"

#include "blockio/image.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

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

int pool_reflink_keep_size(void *arg)
{
	const struct pool_reflink *link = arg;
	struct stat st;
	if (fstat(link->dst_fd, &st) < 0)
		return -errno;
	int r = image_reflink(link->src_fd, link->dst_fd);
	/* The target has the source's size now. */
	return r < 0 ? r : ftruncate(link->dst_fd, st.st_size) < 0 ? -errno : 0;
}

static bool reflink_done(struct op *op)
{
	return makes_own(op) || format_of(op)->must_copy;
}

static int reflink_run(struct op *op)
{
	struct pool_format *f = format_of(op);
	f->reflink = (struct pool_reflink){f->tpl.fd, f->dst_fd};
	return op_work(op, pool_reflink_keep_size, &f->reflink);
}

static int reflink_end(struct op *op, int res)
{
	if (res == -EOPNOTSUPP || res == -EXDEV) {
		format_of(op)->must_copy = true;
		return 0;
	}
	return res < 0 ? op_fail_sys(op, res, "sharing the extents of a template") : 0;
}

static bool copy_done(struct op *op)
{
	return makes_own(op) || !format_of(op)->must_copy;
}

static int copy_run(struct op *op)
{
	struct pool_format *f = format_of(op);
	f->copy =
		(struct copy){.src_fd = f->tpl.fd, .dst_fd = f->dst_fd, .size = f->spec.size_bytes};
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
	return pool_mkfs_run(op, &f->proc, &f->spec, f->dst_fd, f->uuid, f->mem, sizeof(f->mem));
}

static int mkfs_end(struct op *op, int res)
{
	return pool_mkfs_end(op, &format_of(op)->proc, &format_of(op)->spec, res);
}

static int verify_run(struct op *op)
{
	struct pool_format *f = format_of(op);
	return pool_verify_run(op, &f->verify, f->dst_fd);
}

static int verify_end(struct op *op, int res)
{
	return pool_verify_end(op, &format_of(op)->verify, &format_of(op)->spec, res);
}

static const struct op_step format_steps[] = {
	{"template", .run = template_run, .done = makes_own},
	{"reflink", .run = reflink_run, .end = reflink_end, .done = reflink_done},
	{"copy", .run = copy_run, .done = copy_done},
	{"mkfs", .run = mkfs_run, .end = mkfs_end, .done = mkfs_done},
	{"verify", .run = verify_run, .end = verify_end, .done = mkfs_done},
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
	if (f->own_blocks || !pool_template_known(f->pool, &f->spec, b->share_template))
		b->share_template[0] = '\0';
}
