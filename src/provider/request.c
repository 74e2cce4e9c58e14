/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters are looked for by a table: what it does not have is refused, because a misspelt one
 * would go unnoticed. null is as good as nothing. */
#include "provider/request.h"

#include <string.h>

enum { TEMPLATE_MAX = 255, PATTERN_MAX = 1024 };

struct field {
	const char *name;
	/* False: it is wrong. NULL: its value does not matter. */
	bool (*take)(const json_t *value, struct arena *arena, void *into);
};

static const char *const type_names[] = {
	[PROVIDER_BLK] = "blk", [PROVIDER_REG] = "reg", [PROVIDER_DIR] = "dir"};
static const char *const create_names[] = {[PROVIDER_CREATE_ANY] = "any",
	[PROVIDER_CREATE_NEW] = "new",
	[PROVIDER_CREATE_OPEN] = "open"};

const char *provider_type_name(enum provider_type type)
{
	return type_names[type];
}

/* -1: it is none of them. */
static int choice(const json_t *value, const char *const *names, int count)
{
	const char *text = json_string_value(value);
	for (int i = 0; text != NULL && i < count; i++)
		if (names[i] != NULL && strcmp(names[i], text) == 0)
			return i;
	return -1;
}

/* NULL: it is no string, too long, has control characters, or there is no memory. */
static const char *copy(const json_t *value, struct arena *arena, size_t max)
{
	const char *text = json_string_value(value);
	if (text == NULL || strlen(text) > max)
		return NULL;
	for (const char *p = text; *p != '\0'; p++)
		if ((unsigned char)*p < ' ' || *p == 0x7f)
			return NULL;
	return arena_strdup(arena, text);
}

static bool take_name(const json_t *value, struct arena *arena, void *into)
{
	static const char letters[] =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
	struct provider_acquire *ret = into;
	const char *name = copy(value, arena, PROVIDER_NAME_MAX);
	if (name == NULL || name[0] == '\0' || strchr("-_.", name[0]) != NULL ||
		name[strspn(name, letters)] != '\0')
		return false;
	ret->name = name;
	return true;
}

static bool take_create(const json_t *value, struct arena *arena, void *into)
{
	(void)arena;
	int found = choice(value, create_names, sizeof(create_names) / sizeof(create_names[0]));
	((struct provider_acquire *)into)->create = found > 0 ? (enum provider_create)found : 0;
	return found >= 0;
}

static bool take_type(const json_t *value, struct arena *arena, void *into)
{
	(void)arena;
	int found = choice(value, type_names, sizeof(type_names) / sizeof(type_names[0]));
	((struct provider_acquire *)into)->type = found > 0 ? (enum provider_type)found : 0;
	return found >= 0;
}

static bool take_template(const json_t *value, struct arena *arena, void *into)
{
	struct provider_acquire *ret = into;
	const char *text = copy(value, arena, TEMPLATE_MAX);
	if (text != NULL)
		ret->template = text;
	return text != NULL;
}

static bool take_read_only(const json_t *value, struct arena *arena, void *into)
{
	(void)arena;
	((struct provider_acquire *)into)->writes =
		json_is_true(value) ? PROVIDER_READ_ONLY : PROVIDER_WRITABLE;
	return json_is_boolean(value);
}

static bool take_size(const json_t *value, struct arena *arena, void *into)
{
	(void)arena;
	json_int_t size = json_integer_value(value);
	((struct provider_acquire *)into)->size_bytes = size > 0 ? (uint64_t)size : 0;
	return json_is_integer(value) && size > 0;
}

static bool take_pattern(const json_t *value, struct arena *arena, void *into)
{
	const char *text = copy(value, arena, PATTERN_MAX);
	if (text != NULL)
		*(const char **)into = text;
	return text != NULL;
}

/* allowInteractiveAuthentication: nobody is asked, root may. */
static const struct field acquire_fields[] = {
	{"name", take_name},
	{"createMode", take_create},
	{"template", take_template},
	{"readOnly", take_read_only},
	{"requestAs", take_type},
	{"createSizeBytes", take_size},
	{"allowInteractiveAuthentication", NULL},
	{NULL},
};
static const struct field list_fields[] = {{"matchName", take_pattern}, {NULL}};

static const char *take_all(
	const json_t *parameters, const struct field *fields, struct arena *arena, void *into)
{
	const char *key;
	json_t *value;
	json_object_foreach((json_t *)parameters, key, value)
	{
		const struct field *field = fields;
		while (field->name != NULL && strcmp(field->name, key) != 0)
			field++;
		if (field->name == NULL) {
			const char *kept = arena_strdup(arena, key);
			return kept != NULL ? kept : "";
		}
		if (!json_is_null(value) && field->take != NULL && !field->take(value, arena, into))
			return field->name;
	}
	return NULL;
}

const char *provider_acquire_parse(
	const json_t *parameters, struct arena *arena, struct provider_acquire *ret)
{
	*ret = (struct provider_acquire){.name = "", .template = ""};
	const char *wrong = take_all(parameters, acquire_fields, arena, ret);
	if (wrong != NULL)
		return wrong;
	if (ret->name[0] == '\0')
		return "name";
	if (ret->writes == PROVIDER_READ_ONLY) {
		if (ret->create == PROVIDER_CREATE_NEW)
			return "readOnly"; /* what is empty is not worth reading */
		ret->create = PROVIDER_CREATE_OPEN;
	}
	return NULL;
}

const char *provider_list_parse(
	const json_t *parameters, struct arena *arena, const char **ret_pattern)
{
	*ret_pattern = NULL;
	return take_all(parameters, list_fields, arena, ret_pattern);
}
