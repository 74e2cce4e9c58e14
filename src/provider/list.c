/* SPDX-License-Identifier: Apache-2.0 */
/* A list goes on behind the last key or id it has told. How it can fail: for want of memory, which
 * ends the list, or before it the connection. */
#include "provider/list.h"

#include "csi/csi.h"
#include "pool/golden.h"
#include "pool/index.h"
#include "pool/prefixed.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct listing {
	struct varlink_source source;
	const struct provider_jobs *jobs;
	char *pattern;              /* NULL: all */
	unsigned at;                /* the pool, or the fixed template */
	char after[RECORD_KEY_MAX]; /* the last volume's key in that pool */
	struct pool_walk walk;      /* the last image */
};

static struct listing *listing_of(struct varlink_source *source)
{
	return container_of(source, struct listing, source);
}

static bool matches(const struct listing *l, const char *name)
{
	return l->pattern == NULL || fnmatch(l->pattern, name, FNM_NOESCAPE) == 0;
}

static void listing_free(struct varlink_source *source)
{
	struct listing *l = listing_of(source);
	free(l->pattern);
	free(l);
}

/* ---- volumes ---- */

static json_t *volume_json(const struct pool_object *volume, const char *name)
{
	const struct record *rec = volume->rec;
	return json_pack("{s:s,s:s,s:b,s:I,s:I}", "name", name, "type",
		provider_type_name(rec->fs == FSIMG_NONE ? PROVIDER_BLK : PROVIDER_DIR), "readOnly",
		0, "sizeBytes", (json_int_t)rec->size_bytes, "usedBytes",
		(json_int_t)volume->allocated_bytes);
}

static json_t *next_volume(struct varlink_source *source)
{
	struct listing *l = listing_of(source);
	const struct pool *pool;
	while ((pool = pools_at(l->jobs->csi->pools, l->at)) != NULL) {
		const struct pool_object *volume = prefixed_next(pool, PROVIDER_PREFIX, l->after);
		if (volume == NULL) {
			l->at++;
			l->after[0] = '\0';
			continue;
		}
		snprintf(l->after, sizeof(l->after), "%s", volume->key);
		const char *name = prefixed_name_of(volume, PROVIDER_PREFIX);
		if (matches(l, name))
			return volume_json(volume, name);
	}
	return NULL;
}

/* ---- templates ---- */

static json_t *template_json(const struct listing *l, const char *name)
{
	enum provider_type type = provider_template_type(l->jobs, name);
	return type == PROVIDER_TYPE_ANY
		       ? NULL
		       : json_pack("{s:s,s:s}", "name", name, "type", provider_type_name(type));
}

/* Two images of one name are none. */
static json_t *next_template(struct varlink_source *source)
{
	struct listing *l = listing_of(source);
	const char *name;
	while ((name = provider_template_at(l->at)) != NULL) {
		l->at++;
		if (matches(l, name))
			return template_json(l, name);
	}
	const struct pool_object *image;
	while ((image = pools_next(l->jobs->csi->pools, RECORD_SNAPSHOT, &l->walk)) != NULL) {
		const struct record *rec = image->rec;
		if (!golden_is(rec->key, rec->source_id) || !matches(l, rec->key))
			continue;
		json_t *answer = template_json(l, rec->key);
		if (answer != NULL)
			return answer;
	}
	return NULL;
}

/* ---- the calls ---- */

static void begin(struct varlink_call *call, const struct provider_jobs *jobs, const char *pattern,
	json_t *(*next)(struct varlink_source *source), const char *none)
{
	struct listing *l = calloc(1, sizeof(*l));
	char *kept = pattern != NULL ? strdup(pattern) : NULL;
	if (l == NULL || (pattern != NULL && kept == NULL)) {
		free(l);
		free(kept);
		varlink_reply(call, NULL, -1);
		return;
	}
	*l = (struct listing){.source = {.next = next, .free = listing_free, .none = none},
		.jobs = jobs,
		.pattern = kept};
	varlink_stream(call, &l->source);
}

void provider_list_volumes(
	struct varlink_call *call, const struct provider_jobs *jobs, const char *pattern)
{
	begin(call, jobs, pattern, next_volume, PROVIDER_ERROR("NoSuchVolume"));
}

void provider_list_templates(
	struct varlink_call *call, const struct provider_jobs *jobs, const char *pattern)
{
	begin(call, jobs, pattern, next_template, PROVIDER_ERROR("NoSuchTemplate"));
}
