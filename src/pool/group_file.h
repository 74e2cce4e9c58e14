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

/*
 * Other names of the file say that there is no such group, for certain: one that is being made has
 * its file under the first name before any member has a name, and one that was deleted under the
 * second, until no member has one any more. A load makes trash of the members of these alone.
 *
 *   groups/+new-<random>-<key>
 *   groups/+gone-<random>-<key>
 */
enum { GROUP_ASIDE_BYTES = sizeof("+gone-") + 9 + RECORD_KEY_MAX };
enum group_aside { GROUP_NEW, GROUP_GONE };
void group_aside_name(enum group_aside aside, const char *random, const char *key,
	char ret_name[GROUP_ASIDE_BYTES]);
/* Whether a file name is one of these, of the group of that id. False for any other. */
bool group_aside_parse(const char *name, char ret_random[9], char ret_key[RECORD_KEY_MAX]);

/* The length, or -E2BIG. */
int group_print(const struct pool_group *group, char *text, size_t cap);
/* 0 with a new *ret; -EBADMSG: damaged or not ours; -EPROTONOSUPPORT: of a later version; -ENOMEM.
 * `key` is the file name it was found under and must match. */
int group_parse(const char *text, size_t len, const char *key, struct pool_group **ret);
/* Reads one. What is damaged, or cannot be read, is a group with a `why`. Blocking. 0; -ENOENT:
 * there is none; -ENOMEM, -EMFILE, -ENFILE: nobody can tell now. */
int group_read(int groups_fd, const char *key, struct pool_group **ret);

#endif
