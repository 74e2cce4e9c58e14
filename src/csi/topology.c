/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The segments of this node: checked when they are given, compared with what is asked for, told.
 * Pure functions.
 */
#include "csi/topology.h"

#include "base/buf.h"
#include "csi/messages.h"
#include "csi/request.h"

#include <ctype.h>
#include <strings.h>

enum {
	LABEL_MAX = 63, /* of a label's name or value, and of each part of a domain */
	PREFIX_MAX = 253,
	SEGMENTS_BYTES_MAX = 4096, /* CSI's limit of a map */
};

/* ---- what may be given ---- */

static bool is_alnum(char c)
{
	return isalnum((unsigned char)c) && isascii((unsigned char)c);
}

/* Letters, digits, '-', '_' and '.', the first and last a letter or digit. */
static bool is_label(const char *s, size_t len)
{
	if (len == 0 || len > LABEL_MAX || !is_alnum(s[0]) || !is_alnum(s[len - 1]))
		return false;
	for (size_t i = 0; i < len; i++)
		if (!is_alnum(s[i]) && strchr("-_.", s[i]) == NULL)
			return false;
	return true;
}

/* A domain in small letters. */
static bool is_domain(const char *s, size_t len)
{
	if (len == 0 || len > PREFIX_MAX)
		return false;
	for (size_t at = 0; at <= len;) {
		const char *dot = memchr(s + at, '.', len - at);
		size_t part = dot != NULL ? (size_t)(dot - s) - at : len - at;
		if (!is_label(s + at, part))
			return false;
		for (size_t i = at; i < at + part; i++)
			if (s[i] == '_' || (s[i] >= 'A' && s[i] <= 'Z'))
				return false;
		at += part + 1;
	}
	return true;
}

static int check_key(const char *key, struct err *err)
{
	const char *slash = strchr(key, '/');
	const char *name = slash != NULL ? slash + 1 : key;
	if (is_label(name, strlen(name)) &&
		(slash == NULL || is_domain(key, (size_t)(slash - key))))
		return 0;
	return err_set(err, ERR_INVALID,
		"the key is no label's: [DOMAIN/]NAME, the name 1 to %d letters, digits, '-', '_' or "
		"'.', a letter or digit first and last",
		LABEL_MAX);
}

int csi_topology_add(struct csi_config *config, const char *key, const char *value, struct err *err)
{
	int r = check_key(key, err);
	if (r < 0)
		return r;
	if (!is_label(value, strlen(value)))
		return err_set(err, ERR_INVALID,
			"the value is no label's: 1 to %d letters, digits, '-', '_' or '.', a "
			"letter or digit first and last",
			LABEL_MAX);
	if (strcasecmp(key, CSI_TOPOLOGY_KEY) == 0)
		return err_set(err, ERR_INVALID,
			CSI_TOPOLOGY_KEY " is the node's own segment; its value is --node-id");
	size_t bytes = strlen(CSI_TOPOLOGY_KEY) + 256 + strlen(key) + strlen(value);
	for (unsigned i = 0; i < config->n_topology; i++) {
		const struct csi_segment *s = &config->topology[i];
		if (strcasecmp(s->key, key) == 0)
			return err_set(err, ERR_INVALID, "the key is given twice");
		bytes += strlen(s->key) + strlen(s->value);
	}
	if (config->n_topology == CSI_SEGMENTS_MAX || bytes > SEGMENTS_BYTES_MAX)
		return err_set(err, ERR_INVALID, "more than %d segments, or %d bytes in all",
			CSI_SEGMENTS_MAX, SEGMENTS_BYTES_MAX);
	config->topology[config->n_topology++] = (struct csi_segment){key, value};
	return 0;
}

/* ---- told ---- */

Csi__V1__Topology *csi_topology_message(struct arena *arena, const struct csi *csi)
{
	const struct csi_config *config = &csi->config;
	size_t count = 1 + config->n_topology;
	Csi__V1__Topology *topology = arena_new_of(arena, Csi__V1__Topology);
	Csi__V1__StringPair *pairs = arena_alloc(arena, count * sizeof(*pairs));
	Csi__V1__StringPair **segments = arena_alloc(arena, count * sizeof(*segments));
	if (topology == NULL || pairs == NULL || segments == NULL)
		return NULL;
	csi__v1__topology__init(topology);
	for (size_t i = 0; i < count; i++) {
		const struct csi_segment own = {CSI_TOPOLOGY_KEY, config->node_id};
		const struct csi_segment *s = i == 0 ? &own : &config->topology[i - 1];
		csi__v1__string_pair__init(&pairs[i]);
		pairs[i].key = csi_bytes(s->key);
		pairs[i].value = csi_bytes(s->value);
		segments[i] = &pairs[i];
	}
	topology->segments = segments;
	topology->n_segments = count;
	return topology;
}

/* ---- asked for ---- */

/* NULL: the node has no such key. */
static const char *value_of(const struct csi_config *config, const char *key)
{
	if (strcmp(key, CSI_TOPOLOGY_KEY) == 0)
		return config->node_id;
	for (unsigned i = 0; i < config->n_topology; i++)
		if (strcmp(key, config->topology[i].key) == 0)
			return config->topology[i].value;
	return NULL;
}

bool csi_topology_is_here(const Csi__V1__Topology *topology, const struct csi_config *config)
{
	for (size_t i = 0; topology != NULL && i < topology->n_segments; i++) {
		const Csi__V1__StringPair *segment = topology->segments[i];
		const char *value = value_of(config, csi_str(segment->key));
		if (value == NULL || strcmp(csi_str(segment->value), value) != 0)
			return false;
	}
	return true;
}

static int refuse(const struct csi_config *config, struct err *err)
{
	struct buf others = {0};
	for (unsigned i = 0; i < config->n_topology; i++)
		(void)buf_printf(
			&others, ", %s=%s", config->topology[i].key, config->topology[i].value);
	int r = err_set(err, ERR_NO_ROOM,
		"accessibility_requirements: none of requisite is this node (" CSI_TOPOLOGY_KEY
		"=%s%s)",
		config->node_id, others.data != NULL ? (const char *)others.data : "");
	buf_free(&others);
	return r;
}

int csi_check_topology(
	const Csi__V1__TopologyRequirement *req, const struct csi_config *config, struct err *err)
{
	/* `preferred` alone is a wish. */
	if (req == NULL || req->n_requisite == 0)
		return 0;
	for (size_t i = 0; i < req->n_requisite; i++)
		if (csi_topology_is_here(req->requisite[i], config))
			return 0;
	return refuse(config, err);
}
