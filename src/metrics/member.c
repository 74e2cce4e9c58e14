/* SPDX-License-Identifier: Apache-2.0 */
/* What a node tells of the controllers it joins. */
#include "metrics/private.h"

#include "member/member.h"

static bool render_up(struct scrape *s, const struct family *f, struct text *t)
{
	struct member_controller controller;
	char labels[TEXT_LABELS_MAX];
	for (unsigned i = 0; member_controller_at(s->metrics->member, i, &controller); i++) {
		text_label(labels, false, "controller", controller.address);
		text_u64(t, f->name, labels, NULL, controller.joined);
	}
	return true;
}

static bool render_joins(struct scrape *s, const struct family *f, struct text *t)
{
	struct member_controller controller;
	char labels[TEXT_LABELS_MAX];
	for (unsigned i = 0; member_controller_at(s->metrics->member, i, &controller); i++) {
		text_label(labels, false, "controller", controller.address);
		text_u64(t, f->name, labels, NULL, controller.joins);
	}
	return true;
}

static bool render_refused(struct scrape *s, const struct family *f, struct text *t)
{
	if (s->metrics->member != NULL)
		text_u64(t, f->name, NULL, NULL, member_claims_refused(s->metrics->member));
	return true;
}

const struct family member_families[] = {
	{"ringvol_controller_up", "gauge",
		"1 if the controller was joined and told all that this node has.", render_up},
	{"ringvol_controller_joins_total", "counter", "How often it was joined.", render_joins},
	{"ringvol_names_refused_total", "counter",
		"Names that were not made here, as another node has them or makes them.",
		render_refused},
	{NULL},
};
