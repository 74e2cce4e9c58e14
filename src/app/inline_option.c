/* SPDX-License-Identifier: Apache-2.0 */
/* --inline: settings with commas between, and lists with ':' in them. Pools and namespaces have to
 * be said, because whoever writes a pod asks for the rest. */
#include "app/inline_option.h"

#include "base/options.h"
#include "csi/params.h"
#include "csi/request.h"

#include <string.h>

/* To an array of count names. */
static int split(const char **names, unsigned *count, unsigned max, const char *what, char *value,
	struct err *err)
{
	static const char letters[] =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
	*count = 0;
	while (value != NULL) {
		const char *name = strsep(&value, ":");
		if (name[0] == '\0' || name[strspn(name, letters)] != '\0')
			return err_set(
				err, ERR_INVALID, "%s are names with ':' between them", what);
		if (*count == max)
			return err_set(err, ERR_INVALID, "more than %u %s", max, what);
		names[(*count)++] = name;
	}
	return 0;
}

/* Both ways have it. */
static int number(const char *key, const char *value, uint64_t min, uint64_t max, uint64_t *to,
	uint64_t *to_too, struct err *err)
{
	if (!options_quantity(value, to) || *to < min || *to > max)
		return err_set(err, ERR_INVALID,
			"%s is a number, as 5000 or 100Mi, from %llu to %llu", key,
			(unsigned long long)min, (unsigned long long)max);
	*to_too = *to;
	return 0;
}

static int set(struct csi_inline_policy *p, const char *key, char *value, struct err *err)
{
	if (strcmp(key, "pools") == 0)
		return split(p->pools, &p->n_pools, CSI_INLINE_POOLS_MAX, key, value, err);
	if (strcmp(key, "namespaces") == 0 && strcmp(value, "*") == 0)
		return 0;
	if (strcmp(key, "namespaces") == 0)
		return split(p->namespaces, &p->n_namespaces, CSI_INLINE_NAMESPACES_MAX, key, value,
			err);
	if (strcmp(key, "sources") == 0 && strcmp(value, "*") == 0) {
		p->any_source = true;
		return 0;
	}
	if (strcmp(key, "sources") == 0)
		return split(p->sources, &p->n_sources, CSI_INLINE_SOURCES_MAX, key, value, err);
	if (strcmp(key, "max-size") == 0)
		return number(
			key, value, CSI_SIZE_MIN, CSI_SIZE_MAX, &p->max_bytes, &p->max_bytes, err);
	if (strcmp(key, "iops") == 0)
		return number(key, value, IO_LIMITS_IOPS_MIN, IO_LIMITS_IOPS_MAX,
			&p->most.read_iops, &p->most.write_iops, err);
	if (strcmp(key, "bandwidth") == 0)
		return number(key, value, IO_LIMITS_BANDWIDTH_MIN, IO_LIMITS_BANDWIDTH_MAX,
			&p->most.read_bandwidth, &p->most.write_bandwidth, err);
	static const char *const names[] = {
		"pools", "namespaces", "sources", "max-size", "iops", "bandwidth", NULL};
	const char *near = options_nearest(key, names);
	return err_set(err, ERR_INVALID,
		"'%.40s' is none of pools, namespaces, sources, max-size, iops, bandwidth%s%s%s",
		key, near != NULL ? "; did you mean '" : "", near != NULL ? near : "",
		near != NULL ? "'?" : "");
}

int inline_option_parse(
	struct csi_inline_policy *ret, struct arena *arena, const char *value, struct err *err)
{
	struct csi_inline_policy policy = {.max_bytes = CSI_SIZE_DEFAULT};
	bool namespaces = false;
	char *rest = arena_strdup(arena, value);
	if (rest == NULL)
		return err_set(err, ERR_NO_ROOM, "out of memory");
	if (strcmp(value, "off") == 0)
		rest = NULL;
	while (rest != NULL) {
		char *its = strsep(&rest, ",");
		const char *key = strsep(&its, "=");
		if (its == NULL)
			return err_set(err, ERR_INVALID, "'%.40s' is not KEY=VALUE", key);
		namespaces |= strcmp(key, "namespaces") == 0;
		int r = set(&policy, key, its, err);
		if (r < 0)
			return r;
	}
	if (strcmp(value, "off") != 0 && (policy.n_pools == 0 || !namespaces))
		return err_set(err, ERR_INVALID,
			"say which pools and namespaces: pools=default,namespaces=ci:dev (namespaces=* for all)");
	*ret = policy;
	return 0;
}
