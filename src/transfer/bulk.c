/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of a copy come and go by the thousand: their memory is kept for the next one, until the
 * last copy has ended. */
#include "transfer/bulk.h"

#include "base/process.h"

void bulk_counted(struct transfer *t)
{
	bool bulk = t->stats.sends + t->stats.pulls > 0;
	if (bulk != t->bulk)
		process_keep_memory(bulk);
	t->bulk = bulk;
}
