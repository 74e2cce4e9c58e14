/* SPDX-License-Identifier: Apache-2.0 */
/* The file of a group, groups/<key>: text as that of a record (record_text.h). */
#ifndef RINGVOL_POOL_GROUP_FILE_H
#define RINGVOL_POOL_GROUP_FILE_H

#include "pool/group.h"

#include <stddef.h>

/*
 *   ringvol-group 1
 *   name=groupsnapshot-0a1b
 *   random=89abcdef
 *   created_ns=1700000000000000000
 *   member=<id of a snapshot>
 *   member=...
 *   sum=...
 */
enum { GROUP_TEXT_MAX = 1024 + POOL_GROUP_MEMBERS_MAX * (RECORD_ID_MAX + 8) };

/* The length, or -E2BIG. */
int group_print(const struct pool_group *group, char *text, size_t cap);
/* 0 with a new *ret; -EBADMSG: damaged or not ours; -EPROTONOSUPPORT: of a later version; -ENOMEM.
 * `key` is the file name it was found under and must match. */
int group_parse(const char *text, size_t len, const char *key, struct pool_group **ret);
/* Reads one. What is damaged, or cannot be read, is a group with a `why`. Blocking. 0; -ENOENT:
 * there is none; -ENOMEM, -EMFILE, -ENFILE: nobody can tell now. */
int group_read(int groups_fd, const char *key, struct pool_group **ret);

#endif
