/* SPDX-License-Identifier: Apache-2.0 */
/* The findings of `ringvol doctor`, kept in the order in which its checks add them. */
#include "tools/doctor.h"

#include "base/array.h"
#include "tools/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void doctor_add(struct doctor *d, const char *check, enum doctor_verdict verdict, bool needed,
	const char *found, const char *remedy)
{
	if (array_grow(&d->findings, &d->cap, d->count, sizeof(*d->findings)) < 0) {
		d->failed = true;
		return;
	}
	struct doctor_finding f = {text_clean(d->args.arena, check), verdict, needed,
		text_clean(d->args.arena, found), text_clean(d->args.arena, remedy)};
	if (f.check == NULL || f.found == NULL || f.remedy == NULL)
		d->failed = true;
	else
		d->findings[d->count++] = f;
}

const char *doctor_text(struct doctor *d, const char *fmt, ...)
{
	char *text = NULL;
	va_list ap;
	va_start(ap, fmt);
	int len = vasprintf(&text, fmt, ap);
	va_end(ap);
	const char *copy = len < 0 ? NULL : arena_strdup(d->args.arena, text);
	if (len >= 0)
		free(text);
	if (copy == NULL)
		d->failed = true;
	return copy != NULL ? copy : "";
}
