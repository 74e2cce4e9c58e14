/* SPDX-License-Identifier: Apache-2.0 */
/* The findings of `ringvol check`, what is mended of them, and what both kinds of them ask of
 * devices. */
#include "tools/check_findings.h"

#include "base/buf.h"

#include <assert.h>
#include <string.h>

void check_add_finding(struct check *c, const struct check_finding *f)
{
	if (array_grow(&c->findings, &c->cap, c->count, sizeof(*c->findings)) < 0) {
		c->args->failed = true;
		return;
	}
	struct check_finding copy = *f;
	copy.path = tool_text(c->args, "%s", f->path != NULL ? f->path : "");
	copy.message = tool_text(c->args, "%s", f->message);
	copy.remedy = tool_text(c->args, "%s", f->remedy != NULL ? f->remedy : "");
	copy.name = f->name != NULL ? tool_text(c->args, "%s", f->name) : NULL;
	c->findings[c->count++] = copy;
}

const char *check_mounted_at(const struct check *c, const struct device *device)
{
	for (size_t i = 0; device != NULL && i < c->devices.mount_count; i++)
		if (c->devices.mounts[i].major == device->dev.major &&
			c->devices.mounts[i].minor == device->dev.minor)
			return c->devices.mounts[i].path;
	return NULL;
}

void check_repair(struct check *c)
{
	assert(!c->survey.served);
	for (size_t i = 0; i < c->count; i++) {
		struct check_finding *f = &c->findings[i];
		if (f->repair == NULL)
			continue;
		c->repair_why = NULL;
		int r = f->repair(c, f);
		f->repaired = r == 0;
		if (r < 0)
			f->remedy = tool_text(c->args, "repairing it failed (%s); %s",
				c->repair_why != NULL ? c->repair_why : strerrordesc_np(-r),
				f->remedy);
	}
}
