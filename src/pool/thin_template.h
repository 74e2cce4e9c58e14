/* SPDX-License-Identifier: Apache-2.0 */
/* Making a template in the thin pool (thin_templates.h): a copy of a template among the records
 * (template.h), by the first create that wants it. */
#ifndef RINGVOL_POOL_THIN_TEMPLATE_H
#define RINGVOL_POOL_THIN_TEMPLATE_H

#include "blockio/fsimg.h"
#include "pool/pool.h"
#include "reactor/op.h"

/* Child operation of a build, whose pool has an active thin pool: finds one or makes it. ret_id is
 * an id that may be gone when dm-thin is told (-ENODATA). Fails as mkfs does (template.h), and as a
 * build that writes (build_thin.h). Free it after its end, by free(). */
struct thin_template {
	struct op op;
	uint32_t ret_id;
};
/* mkfs_options of the spec must live as long. NULL: no memory. */
struct thin_template *thin_template_new(
	struct reactor *reactor, struct pool *pool, const struct fsimg_spec *spec);

#endif
