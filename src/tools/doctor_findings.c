/* SPDX-License-Identifier: Apache-2.0 */
/* The findings of `ringvol doctor`, kept in the order in which its checks add them. */
#include "tools/doctor_findings.h"

#include "base/buf.h"
#include "tools/text.h"

void doctor_add(
	struct doctor *d, enum doctor_verdict verdict, const char *found, const char *remedy)
{
	struct arena *arena = d->args.arena;
	if (array_grow(&d->findings, &d->cap, d->count, sizeof(*d->findings)) < 0) {
		d->args.failed = true;
		return;
	}
	struct doctor_finding f = {text_clean(arena, d->check), verdict, d->needed,
		text_clean(arena, found), text_clean(arena, remedy)};
	if (f.check == NULL || f.found == NULL || f.remedy == NULL)
		d->args.failed = true;
	else
		d->findings[d->count++] = f;
}

void doctor_begin(struct doctor *d, const char *check, bool needed)
{
	d->check = check;
	d->needed = needed;
}
