/* SPDX-License-Identifier: Apache-2.0 */
/* Covers, and the connections below them: for the files of the calls (calls.h). Blocking. */
#ifndef RINGVOL_ATTACH_COVER_H
#define RINGVOL_ATTACH_COVER_H

#include "attach/calls.h"
#include "backends/crypt/crypt_dev.h"
#include "backends/dm/guard.h"

/* In the name of a dm-crypt device over a cover; over an image it is that one's inode. */
enum { COVER_CRYPT_INO = 0 };

/* One volume's, looked at. */
struct cover {
	char volume[ATTACH_TAG_BYTES]; /* the volume's tag, */
	char tag[ATTACH_TAG_BYTES];    /* and its own: "ringvol:cover:..." */
	struct dm dm;
	struct guard guard;       /* zero: there is none */
	struct fabrics_disk disk; /* below it, if info.alive; of a local one without name */
	struct crypt_dev crypt;   /* over it, if opened */
	bool opened;
};

/* Looks at the cover of the volume's tag, the device below it, and the connection to that, as far
 * as they are there. subsystem: of the connection, for where the device is gone; "": nobody knows.
 */
int cover_open(struct cover *c, const char *tag, const char *subsystem, struct attach_info *info);
void cover_close(struct cover *c);
#define _cleanup_cover_ __attribute__((cleanup(cover_close)))

/* What is over it, as the kernel has it now. 0 or -errno. */
int cover_look_opened(struct cover *c);
/* The same for whoever is about to open it: with what was left half swept away, or *err. */
int cover_find_opened(struct cover *c, struct err *err);
/* The cover, and what is over it, are so by now. */
void cover_put(const struct cover *c, struct attach_info *info);
/* Whether somebody has what the volume is used by open, has it mounted, or has its node, whose
 * number would be another's once it is gone. On doubt it is in use. */
bool cover_is_used(const struct cover *c);
/* Takes what is over it away, then the cover. */
int cover_remove(struct cover *c, struct err *err);
/* The device below a cover: one of NVMe, or any other, which is this node's own. -ENOENT: it is
 * gone. */
int cover_disk(const struct guard *guard, struct fabrics_disk *ret, bool *ret_local);

/* The device mapper, for all of them. */
int covers_open_dm(struct dm *dm, struct err *err);
/* The same for a start, which asks what dm_open() answers. */
int covers_try_dm(struct dm *dm);
int covers_each(struct dm *dm, int (*each)(void *arg, struct cover *c), void *arg);

/* Ends a connection; all of them to a subsystem of ours. */
int cover_disconnect(const struct fabrics_ctrl *ctrl, struct err *err);
int cover_disconnect_all(const char *subsystem, struct err *err);

#endif
