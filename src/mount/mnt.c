/* SPDX-License-Identifier: Apache-2.0 */
/* The table of mount calls. */
#include "mount/mnt.h"

#include "mount/mnt_attach.h"
#include "mount/mnt_fs.h"
#include "mount/mnt_look.h"

helper_fn *const mnt_calls[MNT_CALLS] = {
	[MNT_INSPECT] = mnt_call_inspect,
	[MNT_MOUNT] = mnt_call_mount,
	[MNT_BIND] = mnt_call_bind,
	[MNT_UNMOUNT] = mnt_call_unmount,
	[MNT_STATS] = mnt_call_stats,
	[MNT_GROW] = mnt_call_grow,
	[MNT_CLEAN] = mnt_call_clean,
	[MNT_SYNC] = mnt_call_sync,
	[MNT_FREEZE] = mnt_call_freeze,
	[MNT_THAW] = mnt_call_thaw,
	[MNT_STATS_MANY] = mnt_call_stats_many,
	[MNT_TRIM] = mnt_call_trim,
	[MNT_TRY_READ] = mnt_call_try_read,
	[MNT_LABEL] = mnt_call_label,
};
