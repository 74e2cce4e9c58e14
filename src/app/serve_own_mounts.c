/* SPDX-License-Identifier: Apache-2.0 */
#include "app/serve_own_mounts.h"

int serve_own_mounts(struct serve_options *o, const char *option, const char *mounts_option,
	const char *mounts, struct err *err)
{
	const unsigned needs = CSI_CONTROLLER | CSI_NODE;
	if ((o->csi.services & needs) != needs)
		return err_set(err, ERR_INVALID,
			"%s needs the services controller and node (--services)", option);
	if (o->target_root_count == 0)
		return 0;
	if (o->target_root_count == SERVE_TARGET_ROOTS_MAX)
		return err_set(err, ERR_INVALID, "%s: more than %d roots, with its own (%s)",
			option, SERVE_TARGET_ROOTS_MAX, mounts_option);
	o->target_roots[o->target_root_count++] = mounts;
	return 0;
}
