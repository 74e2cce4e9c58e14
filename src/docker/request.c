/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a request of docker's. jansson takes the JSON apart: it refuses what is no UTF-8, has a NUL
 * in a string, or has a key twice. Here the fields that a verb needs are looked over and copied;
 * fields of later versions of the protocol are passed over. How it can fail: as ERR_INVALID that
 * names the field.
 */
#include "docker/request.h"

#include <jansson.h>
#include <stdbool.h>
#include <string.h>

static const struct verb {
	const char *path;
	bool named, mounts, optioned;
} verbs[DOCKER_VERBS] = {
	[DOCKER_ACTIVATE] = {"/Plugin.Activate"},
	[DOCKER_CAPABILITIES] = {"/VolumeDriver.Capabilities"},
	[DOCKER_CREATE] = {"/VolumeDriver.Create", .named = true, .optioned = true},
	[DOCKER_REMOVE] = {"/VolumeDriver.Remove", .named = true},
	[DOCKER_MOUNT] = {"/VolumeDriver.Mount", .named = true, .mounts = true},
	[DOCKER_UNMOUNT] = {"/VolumeDriver.Unmount", .named = true, .mounts = true},
	[DOCKER_PATH] = {"/VolumeDriver.Path", .named = true},
	[DOCKER_GET] = {"/VolumeDriver.Get", .named = true},
	[DOCKER_LIST] = {"/VolumeDriver.List"},
};

const char *docker_verb_path(enum docker_verb verb)
{
	return verbs[verb].path;
}

static bool is_plain(const char *s, size_t max)
{
	static const char letters[] =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
	size_t len = strlen(s);
	return len > 0 && len <= max && strchr("-_.", s[0]) == NULL &&
	       s[strspn(s, letters)] == '\0';
}

static int out_of_memory(struct err *err)
{
	return err_set(err, ERR_NO_ROOM, "out of memory");
}

static int copy_plain(const json_t *root, const char *field, size_t max, struct arena *arena,
	const char **ret, struct err *err)
{
	const char *value = json_string_value(json_object_get(root, field));
	if (value == NULL)
		return err_set(err, ERR_INVALID, "%s is missing, or no string", field);
	if (!is_plain(value, max))
		return err_set(err, ERR_INVALID,
			"%s has 1 to %zu letters, digits, '-', '_' or '.', a letter or digit first",
			field, max);
	*ret = arena_strdup(arena, value);
	return *ret == NULL ? out_of_memory(err) : 0;
}

static int copy_options(
	json_t *options, struct arena *arena, struct docker_request *ret, struct err *err)
{
	const char *key;
	json_t *value;
	if (options == NULL || json_is_null(options))
		return 0;
	if (!json_is_object(options))
		return err_set(err, ERR_INVALID, "Opts is no object");
	json_object_foreach(options, key, value)
	{
		if (!json_is_string(value))
			return err_set(err, ERR_INVALID, "Opts: '%.40s' is no string", key);
		if (ret->n_options == DOCKER_OPTIONS_MAX)
			return err_set(
				err, ERR_INVALID, "Opts: more than %d options", DOCKER_OPTIONS_MAX);
		struct docker_option *option = &ret->options[ret->n_options];
		option->key = arena_strdup(arena, key);
		option->value = arena_strdup(arena, json_string_value(value));
		if (option->key == NULL || option->value == NULL)
			return out_of_memory(err);
		ret->n_options++;
	}
	return 0;
}

static int take(
	const json_t *root, struct arena *arena, struct docker_request *ret, struct err *err)
{
	const struct verb *verb = &verbs[ret->verb];
	int r = copy_plain(root, "Name", DOCKER_NAME_MAX, arena, &ret->name, err);
	if (r == 0 && verb->mounts)
		r = copy_plain(root, "ID", DOCKER_ID_MAX, arena, &ret->id, err);
	if (r == 0 && verb->optioned)
		r = copy_options(json_object_get(root, "Opts"), arena, ret, err);
	return r;
}

int docker_request_parse(enum docker_verb verb, const uint8_t *data, size_t len,
	struct arena *arena, struct docker_request *ret, struct err *err)
{
	json_error_t why;
	*ret = (struct docker_request){.verb = verb, .name = "", .id = ""};
	/* docker sends these with no body, or an empty one. */
	if (!verbs[verb].named)
		return 0;
	json_t *root = json_loadb((const char *)data, len, JSON_REJECT_DUPLICATES, &why);
	if (root == NULL)
		return err_set(err, ERR_INVALID,
			"the request is no JSON object: line %d, column %d", why.line, why.column);
	int r = json_is_object(root) ? take(root, arena, ret, err)
				     : err_set(err, ERR_INVALID, "the request is no JSON object");
	json_decref(root);
	return r;
}
