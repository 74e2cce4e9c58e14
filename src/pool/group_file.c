/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Printing and parsing a group's file. One group has one text: fields in order, members in the
 * order in which they were asked for, none twice. Parsing fails with -EBADMSG where bytes are
 * damaged or contradict each other, and with -EPROTONOSUPPORT where they are sound but not
 * understood.
 */
#include "pool/group_file.h"

#include "base/fd.h"
#include "pool/record_text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define GROUP_HEAD "ringvol-group 1\n"

enum group_field { FIELD_NAME, FIELD_RANDOM, FIELD_CREATED, FIELD_MEMBER, FIELDS };

static const char *const names[FIELDS] = {"name", "random", "created_ns", "member"};

/* ---- names ---- */

static const char *const aside_names[] = {[GROUP_NEW] = "+new-", [GROUP_GONE] = "+gone-"};

void group_aside_name(enum group_aside aside, const char *random, const char *key,
	char ret_name[GROUP_ASIDE_BYTES])
{
	snprintf(ret_name, GROUP_ASIDE_BYTES, "%s%s-%s", aside_names[aside], random, key);
}

bool group_aside_parse(const char *name, char ret_random[9], char ret_key[RECORD_KEY_MAX])
{
	enum { DIGITS = 8 };
	for (unsigned i = 0; i < 2; i++) {
		size_t len = strlen(aside_names[i]);
		if (strncmp(name, aside_names[i], len) != 0)
			continue;
		name += len;
		if (strnlen(name, DIGITS + 1) <= DIGITS || name[DIGITS] != '-' ||
			!record_text_is_hex(name, DIGITS) || !record_key_valid(name + DIGITS + 1))
			return false;
		memcpy(ret_random, name, DIGITS);
		ret_random[DIGITS] = '\0';
		strcpy(ret_key, name + DIGITS + 1);
		return true;
	}
	return false;
}

/* ---- printing ---- */

static void print_line(struct record_text *o, enum group_field field, const char *value)
{
	record_text_put(o, names[field]);
	record_text_char(o, '=');
	record_text_encoded(o, value);
	record_text_char(o, '\n');
}

int group_print(const struct pool_group *group, char *text, size_t cap)
{
	struct record_text o = {.buf = text, .cap = cap};
	record_text_put(&o, GROUP_HEAD);
	print_line(&o, FIELD_NAME, group->name);
	print_line(&o, FIELD_RANDOM, group->random);
	record_text_put(&o, "created_ns=");
	record_text_number(&o, group->created_ns);
	record_text_char(&o, '\n');
	for (unsigned i = 0; i < group->count; i++)
		print_line(&o, FIELD_MEMBER, group->members[i]);
	return record_text_end(&o);
}

/* ---- parsing ---- */

static int parse_name(struct pool_group *group, char *value)
{
	int r = record_text_decode(value);
	if (r < 0 || value[0] == '\0' || strlen(value) > RECORD_NAME_MAX)
		return -EBADMSG;
	strcpy(group->name, value);
	return 0;
}

static int parse_member(struct pool_group *group, const char *value)
{
	struct record_id id;
	if (record_id_parse(value, &id) < 0 || group->count == POOL_GROUP_MEMBERS_MAX)
		return -EBADMSG;
	for (unsigned i = 0; i < group->count; i++)
		if (strcmp(group->members[i], value) == 0)
			return -EBADMSG;
	strcpy(group->members[group->count++], value);
	return 0;
}

/* at: the field that is due. */
static int parse_field(struct pool_group *group, const char *name, char *value, unsigned *at)
{
	unsigned field = 0;
	while (field < FIELDS && strcmp(names[field], name) != 0)
		field++;
	if (field == FIELDS)
		return -EPROTONOSUPPORT;
	if (field != *at)
		return -EBADMSG;
	*at += field < FIELD_MEMBER;
	switch ((enum group_field)field) {
	case FIELD_NAME:
		return parse_name(group, value);
	case FIELD_RANDOM:
		return record_text_parse_random(value, group->random);
	case FIELD_CREATED:
		return record_text_parse_number(value, UINT64_MAX, &group->created_ns);
	case FIELD_MEMBER:
	case FIELDS:
		break;
	}
	return parse_member(group, value);
}

static int parse_lines(struct pool_group *group, char *lines)
{
	unsigned at = 0;
	for (char *rest = lines, *value; *rest != '\0';) {
		const char *name = record_text_line(&rest, &value);
		int r = name == NULL ? -EBADMSG : parse_field(group, name, value, &at);
		if (r < 0)
			return r;
	}
	return at == FIELD_MEMBER && group->count > 0 ? 0 : -EBADMSG;
}

int group_parse(const char *text, size_t len, const char *key, struct pool_group **ret)
{
	_cleanup_free_ char *lines = NULL;
	char expected[RECORD_KEY_MAX];
	int r = record_text_open(text, len, GROUP_TEXT_MAX, GROUP_HEAD, &lines);
	if (r < 0)
		return r;
	struct pool_group *group = pool_group_new(key, POOL_GROUP_MEMBERS_MAX);
	if (group == NULL)
		return -ENOMEM;
	r = parse_lines(group, lines);
	if (r == 0) {
		record_key(group->name, expected);
		r = strcmp(expected, key) != 0 ? -EBADMSG : 0;
	}
	if (r < 0) {
		pool_group_free(group);
		return r;
	}
	/* It is kept, and few have so many. */
	void *fit = realloc(group->members, group->count * sizeof(*group->members));
	if (fit != NULL)
		group->members = fit;
	*ret = group;
	return 0;
}

/* ---- reading ---- */

int group_read(int groups_fd, const char *key, struct pool_group **ret)
{
	_cleanup_free_ char *text = malloc(GROUP_TEXT_MAX + 1);
	if (text == NULL)
		return -ENOMEM;
	ssize_t n = record_text_read(groups_fd, key, text, GROUP_TEXT_MAX + 1);
	int r = n < 0 ? (int)n : group_parse(text, (size_t)n, key, ret);
	if (r == 0 || r == -ENOENT || r == -ENOMEM || r == -EMFILE || r == -ENFILE)
		return r;
	struct pool_group *damaged = pool_group_new(key, 1);
	if (damaged == NULL)
		return -ENOMEM;
	damaged->why = record_text_why(r);
	*ret = damaged;
	return 0;
}
