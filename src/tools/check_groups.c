/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What can be wrong with groups of snapshots: a file that is damaged, a member that a group lacks,
 * members whose group is not there. The pool's snapshots have been read. Beside a driver a group
 * may be made or deleted just now, so that what is missing is no finding.
 */
#include "base/fd.h"
#include "pool/group_file.h"
#include "tools/check_findings.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const struct pool_found *snapshot_of(const struct check *c, const char *id)
{
	struct record_id parsed;
	if (record_id_parse(id, &parsed) < 0)
		return NULL;
	for (size_t i = 0; i < c->counts[RECORD_SNAPSHOT]; i++)
		if (strcmp(c->objects[RECORD_SNAPSHOT][i].key, parsed.key) == 0)
			return &c->objects[RECORD_SNAPSHOT][i];
	return NULL;
}

static void look_at_members(struct check *c, const char *path, const struct pool_group *group)
{
	for (unsigned i = 0; i < group->count; i++) {
		const struct pool_found *o = snapshot_of(c, group->members[i]);
		if (o != NULL && o->rec != NULL)
			continue;
		check_add(c, .kind = "GroupIncomplete", .path = path,
			.message = tool_text(c->args, "its member %s %s", group->members[i],
				o == NULL ? "is gone" : "is quarantined"),
			.remedy = "save what you need of its other members, then delete the group");
	}
}

static int look_at_group(void *arg, const char *name)
{
	struct check *c = arg;
	struct pool_group *group;
	const char *path = tool_text(c->args, "%s/%s", survey_dir_names[SURVEY_GROUPS], name);
	if (!record_key_valid(name) || group_read(c->survey.fds[SURVEY_GROUPS], name, &group) < 0)
		return 0;
	if (group->why != NULL)
		check_add(c, .kind = "GroupDamaged", .path = path, .message = group->why,
			.remedy = "restore the file from a backup; its members are kept");
	else if (!c->survey.served)
		look_at_members(c, path, group);
	pool_group_free(group);
	return 0;
}

static bool is_missing(const struct check *c, const char *name)
{
	struct stat st;
	return fstatat(c->survey.fds[SURVEY_GROUPS], name, &st, AT_SYMLINK_NOFOLLOW) < 0 &&
	       errno == ENOENT;
}

/* Whether a file says that there is no such group. */
static bool is_aside(const struct check *c, const struct record_id *id)
{
	char new_name[GROUP_ASIDE_BYTES], gone_name[GROUP_ASIDE_BYTES];
	group_aside_name(GROUP_NEW, id->random, id->key, new_name);
	group_aside_name(GROUP_GONE, id->random, id->key, gone_name);
	return !is_missing(c, new_name) || !is_missing(c, gone_name);
}

static void look_at_group_of(struct check *c, const char *path, const struct record *rec)
{
	struct record_id id;
	if (record_id_parse(rec->group, &id) < 0)
		return;
	if (is_aside(c, &id))
		check_add(c, .severity = CHECK_LEFTOVER, .kind = "GroupLeft", .path = path,
			.message = "a member of a group that was never finished, or is deleted",
			.remedy = "the driver moves it to the trash at its start");
	else if (is_missing(c, id.key))
		check_add(c, .kind = "GroupLost", .path = path,
			.message = tool_text(c->args,
				"the file of its group, groups/%s, is missing, and nothing says that the group was deleted",
				id.key),
			.remedy = "look for the file in a backup of the pool, and put it back");
}

static void look_at_orphan(struct check *c, const struct pool_found *o)
{
	const char *path = tool_text(c->args, "%s/%s", survey_dir_names[SURVEY_SNAPSHOTS], o->key);
	if (c->survey.fds[SURVEY_GROUPS] < 0)
		check_add(c, .kind = "GroupsMissing", .path = path,
			.message =
				"it is a member of a group, and the pool has no directory groups/",
			.remedy =
				"look for the directory in lost+found or a backup, and move it back");
	else if (!c->survey.served)
		look_at_group_of(c, path, o->rec);
}

void check_groups(struct check *c)
{
	int r = survey_each(&c->survey, SURVEY_GROUPS, look_at_group, c);
	if (r < 0)
		check_add(c, .kind = "DirectoryUnreadable", .path = survey_dir_names[SURVEY_GROUPS],
			.message = strerrordesc_np(-r), .remedy = "see the kernel log");
	for (size_t i = 0; i < c->counts[RECORD_SNAPSHOT]; i++) {
		const struct pool_found *o = &c->objects[RECORD_SNAPSHOT][i];
		if (o->rec != NULL && o->rec->group[0] != '\0')
			look_at_orphan(c, o);
	}
}
