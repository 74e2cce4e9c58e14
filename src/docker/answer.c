/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes docker's answers of what memory knows; jansson writes them. How it can fail: for want of
 * memory alone, which shows as NULL at the end.
 */
#include "docker/answer.h"

#include "docker/names.h"
#include "pool/index.h"
#include "pool/prefixed.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Takes the object. */
static char *print(json_t *object)
{
	char *text = object != NULL ? json_dumps(object, JSON_COMPACT) : NULL;
	json_decref(object);
	return text;
}

char *docker_answer_activate(void)
{
	return print(json_pack("{s:[s]}", "Implements", "VolumeDriver"));
}

/* A volume is where its pool is. */
char *docker_answer_capabilities(void)
{
	return print(json_pack("{s:{s:s}}", "Capabilities", "Scope", "local"));
}

/* Messages of the kernel's or of tools may be no UTF-8. */
char *docker_answer_error(const char *message)
{
	char *text = print(json_pack("{s:s}", "Err", message));
	return text != NULL ? text : print(json_pack("{s:s}", "Err", "it failed; see the log"));
}

char *docker_answer_mountpoint(const char *path)
{
	return print(json_pack("{s:s,s:s}", "Mountpoint", path, "Err", ""));
}

static json_t *volume_json(const struct pool_object *volume, const char *mounts)
{
	const struct record *rec = volume->rec;
	const char *name = docker_name_of(volume);
	const char *at = docker_mounted_at(volume, mounts, name);
	char id[RECORD_ID_MAX], created[32];
	time_t second = (time_t)(rec->created_ns / 1000000000);
	struct tm tm;
	gmtime_r(&second, &tm);
	strftime(created, sizeof(created), "%Y-%m-%dT%H:%M:%SZ", &tm);
	pool_object_id(volume, id);
	return json_pack("{s:s,s:s,s:s,s:{s:s,s:s,s:s,s:I,s:I}}", "Name", name, "Mountpoint",
		at != NULL ? at : "", "CreatedAt", created, "Status", "id", id, "pool",
		pool_name(volume->pool), "fs",
		rec->fs != FSIMG_NONE ? fsimg_name(rec->fs) : "block", "size_bytes",
		(json_int_t)rec->size_bytes, "allocated_bytes",
		(json_int_t)volume->allocated_bytes);
}

char *docker_answer_volume(const struct pool_object *volume, const char *mounts)
{
	return print(json_pack("{s:o,s:s}", "Volume", volume_json(volume, mounts), "Err", ""));
}

char *docker_answer_list(const struct pools *pools, const char *mounts)
{
	json_t *list = json_array();
	const struct pool *pool;
	for (unsigned i = 0; list != NULL && (pool = pools_at(pools, i)) != NULL; i++)
		for (struct pool_object *v = prefixed_next(pool, DOCKER_PREFIX, ""); v != NULL;
			v = prefixed_next(pool, DOCKER_PREFIX, v->key))
			if (json_array_append_new(list, volume_json(v, mounts)) < 0) {
				json_decref(list);
				return NULL;
			}
	return print(json_pack("{s:o,s:s}", "Volumes", list, "Err", ""));
}
