/* SPDX-License-Identifier: Apache-2.0 */
/* What the finished part of a volume that moves here says (pool/part.h): how to ask the node that
 * it came from whether it has left. */
#ifndef RINGVOL_CSI_TAKE_TEXT_H
#define RINGVOL_CSI_TAKE_TEXT_H

#include "pool/part.h"
#include "transfer/offer.h"
#include "transfer/pull.h"

struct take_text {
	struct offer offer;                /* but for link and made_ns */
	char from[RECORD_POOL_DIGITS + 1]; /* the uuid of the pool that it was in */
	uint64_t since;                    /* LeaveVolume asks for it */
	/* It is in use on this node, by a cover that is suspended until the volume is here, or the
	 * part is finished no more. mode 0: it is not. */
	struct pull_attached attached;
};

/* The length, or -E2BIG. */
ssize_t take_text_print(const struct take_text *take, char text[POOL_PART_TEXT_MAX]);
/* 0; -EBADMSG; -EPROTONOSUPPORT: of a later version. */
int take_text_parse(const char *text, size_t len, struct take_text *ret);

#endif
