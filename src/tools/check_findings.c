/* SPDX-License-Identifier: Apache-2.0 */
/* The findings of `ringvol check`, and what all its files ask of what was read. */
#include "tools/check.h"

#include "base/array.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void check_add(struct check *c, const struct check_finding *f)
{
	if (array_grow(&c->findings, &c->cap, c->count, sizeof(*c->findings)) < 0) {
		c->failed = true;
		return;
	}
	struct check_finding copy = *f;
	copy.path = check_text(c, "%s", f->path != NULL ? f->path : "");
	copy.message = check_text(c, "%s", f->message);
	copy.remedy = check_text(c, "%s", f->remedy != NULL ? f->remedy : "");
	copy.name = f->name != NULL ? check_text(c, "%s", f->name) : NULL;
	c->findings[c->count++] = copy;
}

const char *check_text(struct check *c, const char *fmt, ...)
{
	char *text = NULL;
	va_list ap;
	va_start(ap, fmt);
	int len = vasprintf(&text, fmt, ap);
	va_end(ap);
	const char *copy = len < 0 ? NULL : arena_strdup(c->arena, text);
	if (len >= 0)
		free(text);
	if (copy == NULL)
		c->failed = true;
	return copy != NULL ? copy : "";
}

const char *check_mounted_at(const struct check *c, const struct device *device)
{
	for (size_t i = 0; device != NULL && i < c->devices.mount_count; i++)
		if (c->devices.mounts[i].major == device->dev.major &&
			c->devices.mounts[i].minor == device->dev.minor)
			return c->devices.mounts[i].path;
	return NULL;
}
