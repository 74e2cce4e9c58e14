/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of volumes and templates, made while they are read: volumes may come and go meanwhile. */
#ifndef RINGVOL_PROVIDER_LIST_H
#define RINGVOL_PROVIDER_LIST_H

#include "provider/job.h"
#include "provider/varlink.h"

/* Answer the call; pattern: a shell's, NULL: all. */
void provider_list_volumes(
	struct varlink_call *call, const struct provider_jobs *jobs, const char *pattern);
void provider_list_templates(
	struct varlink_call *call, const struct provider_jobs *jobs, const char *pattern);

#endif
