/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading a publish_context. Owns nothing. Happy path: each entry that is known is checked by its
 * own rule and copied; then what has to be there is. How it can fail: as refusals that name the
 * entry. No value is in a message, as one of them is a secret and all are from outside.
 */
#include "attach/terms.h"

#include "base/secret.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALNUM      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
#define KEY_PREFIX "DHHC-1:"
#define ALLOW_NQN  ALNUM ".:_-"
#define ALLOW_HOST ALNUM ".-_"
#define ALLOW_NODE ALNUM ".:_-@/+"
#define ALLOW_64   ALNUM "+/"
#define DIGITS     "0123456789"

enum {
	KEY_HASHES = 3,    /* DHHC-1:00 is any, 01 to 03 a hash of the kernel's */
	KEY_TEXT_MIN = 48, /* 32 bytes and their CRC in base64 */
	PORT_MAX = 65535,
};

static int refuse(const char *key, const char *what, struct err *err)
{
	return err_set(err, ERR_INVALID, "publish_context: %s %s", key, what);
}

static bool only(const char *text, const char *allowed)
{
	return text[0] != '\0' && text[strspn(text, allowed)] == '\0';
}

/* ---- one rule each ---- */

static int take_transport(
	struct attach_terms *t, const char *key, const char *value, struct err *err)
{
	t->tls = strcmp(value, ATTACH_TRANSPORT_TLS) == 0;
	if (t->tls || strcmp(value, ATTACH_TRANSPORT_TCP) == 0)
		return 0;
	return err_set(err, ERR_PRECONDITION,
		"publish_context: %s is none that this version knows (" ATTACH_TRANSPORT_TCP
		", " ATTACH_TRANSPORT_TLS "): upgrade ringvol on this node",
		key);
}

static bool port_ok(const char *port)
{
	return only(port, DIGITS) && strlen(port) < ATTACH_TERMS_PORT_BYTES && atoi(port) > 0 &&
	       atoi(port) <= PORT_MAX;
}

static int take_address(struct attach_terms *t, const char *key, const char *value, struct err *err)
{
	static const char what[] = "has to be HOST:PORT, with an IPv6 address in brackets";
	struct in6_addr v6;
	const char *colon = strrchr(value, ':');
	bool bracketed = value[0] == '[';
	if (colon == NULL || colon - value >= ATTACH_TERMS_HOST_BYTES || !port_ok(colon + 1))
		return refuse(key, what, err);
	size_t len = (size_t)(colon - value);
	if (bracketed && (len < 3 || value[len - 1] != ']'))
		return refuse(key, what, err);
	snprintf(t->host, sizeof(t->host), "%.*s", (int)(bracketed ? len - 2 : len),
		bracketed ? value + 1 : value);
	if (bracketed ? inet_pton(AF_INET6, t->host, &v6) != 1 : !only(t->host, ALLOW_HOST))
		return refuse(key, what, err);
	snprintf(t->port, sizeof(t->port), "%s", colon + 1);
	return 0;
}

static int take_nqn(char ret[ATTACH_NQN_BYTES], const char *prefix, const char *key,
	const char *value, struct err *err)
{
	size_t len = strlen(value);
	if (len >= ATTACH_NQN_BYTES || strncmp(value, prefix, strlen(prefix)) != 0 ||
		len == strlen(prefix) || !only(value, ALLOW_NQN))
		return refuse(key, "is no name as ringvol gives them", err);
	memcpy(ret, value, len + 1);
	return 0;
}

static int take_subsystem(
	struct attach_terms *t, const char *key, const char *value, struct err *err)
{
	return take_nqn(t->subsystem, ATTACH_NQN_PREFIX, key, value, err);
}

static int take_host(struct attach_terms *t, const char *key, const char *value, struct err *err)
{
	return take_nqn(t->host_nqn, ATTACH_HOST_NQN_PREFIX, key, value, err);
}

static int take_uuid(char ret[UUID_BYTES], const char *key, const char *value, struct err *err)
{
	if (!uuid_valid(value))
		return refuse(key, "is no UUID", err);
	memcpy(ret, value, UUID_BYTES);
	return 0;
}

static int take_host_id(struct attach_terms *t, const char *key, const char *value, struct err *err)
{
	return take_uuid(t->host_id, key, value, err);
}

static int take_namespace(
	struct attach_terms *t, const char *key, const char *value, struct err *err)
{
	return take_uuid(t->namespace_id, key, value, err);
}

/* "DHHC-1:00:BASE64:" */
static bool key_ok(const char *value)
{
	size_t len = strlen(value), head = strlen(KEY_PREFIX "00:");
	if (len >= ATTACH_KEY_BYTES || len < head + KEY_TEXT_MIN + 1 ||
		strncmp(value, KEY_PREFIX "0", strlen(KEY_PREFIX "0")) != 0)
		return false;
	char hash = value[head - 2];
	size_t text = strspn(value + head, ALLOW_64);
	size_t pad = strspn(value + head + text, "=");
	return hash >= '0' && hash <= '0' + KEY_HASHES && value[head - 1] == ':' && pad <= 2 &&
	       (text + pad) % 4 == 0 && head + text + pad + 1 == len && value[len - 1] == ':';
}

static int take_key(struct attach_terms *t, const char *key, const char *value, struct err *err)
{
	if (!key_ok(value))
		return refuse(key, "is no DH-HMAC-CHAP secret (DHHC-1:00:...:)", err);
	memcpy(t->key, value, strlen(value) + 1);
	return 0;
}

static int take_mode(struct attach_terms *t, const char *key, const char *value, struct err *err)
{
	t->block = strcmp(value, ATTACH_VOLUME_MODE_BLOCK) == 0;
	if (t->block || strcmp(value, ATTACH_VOLUME_MODE_MOUNT) == 0)
		return 0;
	return refuse(
		key, "has to be " ATTACH_VOLUME_MODE_BLOCK " or " ATTACH_VOLUME_MODE_MOUNT, err);
}

static int take_fs(struct attach_terms *t, const char *key, const char *value, struct err *err)
{
	if (value[0] == '\0')
		return 0;
	return fsimg_parse_name(value, &t->fs) == 0
		       ? 0
		       : refuse(key, "has to be ext4, xfs or btrfs", err);
}

static int take_node(struct attach_terms *t, const char *key, const char *value, struct err *err)
{
	if (strlen(value) >= sizeof(t->node) || !only(value, ALLOW_NODE))
		return refuse(key, "is no node's id", err);
	memcpy(t->node, value, strlen(value) + 1);
	return 0;
}

static int take_read_only(
	struct attach_terms *t, const char *key, const char *value, struct err *err)
{
	t->read_only = strcmp(value, "true") == 0;
	if (t->read_only || strcmp(value, "false") == 0)
		return 0;
	return refuse(key, "has to be true or false", err);
}

static int take_encryption(
	struct attach_terms *t, const char *key, const char *value, struct err *err)
{
	t->encrypted = strcmp(value, ATTACH_ENCRYPTION_LUKS2) == 0;
	if (t->encrypted || value[0] == '\0')
		return 0;
	return err_set(err, ERR_PRECONDITION,
		"publish_context: %s is none that this version knows (" ATTACH_ENCRYPTION_LUKS2
		"): upgrade ringvol on this node",
		key);
}

/* ---- all of it ---- */

static const struct {
	const char *key;
	int (*take)(struct attach_terms *t, const char *key, const char *value, struct err *err);
	bool needed;
} rules[] = {
	{ATTACH_TRANSPORT, take_transport, true},
	{ATTACH_ADDRESS, take_address, true},
	{ATTACH_SUBSYSTEM, take_subsystem, true},
	{ATTACH_HOST, take_host, true},
	{ATTACH_HOST_ID, take_host_id, true},
	{ATTACH_KEY, take_key, false},
	{ATTACH_NAMESPACE, take_namespace, true},
	{ATTACH_VOLUME_MODE, take_mode, true},
	{ATTACH_FS_TYPE, take_fs, false},
	{ATTACH_NODE, take_node, true},
	{ATTACH_READ_ONLY, take_read_only, false},
	{ATTACH_ENCRYPTION, take_encryption, false},
};
enum { RULES = sizeof(rules) / sizeof(rules[0]) };

static const char *value_of(const struct attach_pair *pairs, size_t n, const char *key)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(pairs[i].key, key) == 0)
			return pairs[i].value;
	return NULL;
}

bool attach_terms_given(const struct attach_pair *pairs, size_t n)
{
	return value_of(pairs, n, ATTACH_TRANSPORT) != NULL;
}

int attach_terms_parse(
	const struct attach_pair *pairs, size_t n, struct attach_terms *ret, struct err *err)
{
	int r = 0;
	*ret = (struct attach_terms){.fs = FSIMG_NONE};
	for (unsigned i = 0; r == 0 && i < RULES; i++) {
		const char *value = value_of(pairs, n, rules[i].key);
		if (value != NULL)
			r = rules[i].take(ret, rules[i].key, value, err);
		else if (rules[i].needed)
			r = refuse(rules[i].key, "is missing", err);
	}
	if (r == 0 && ret->block != (ret->fs == FSIMG_NONE))
		r = refuse(ATTACH_FS_TYPE, "is for mount volumes, and for each of them", err);
	if (r == 0 && ret->tls && ret->key[0] == '\0')
		r = refuse(ATTACH_KEY, "is missing, which TLS needs", err);
	if (r < 0)
		secret_wipe(ret, sizeof(*ret));
	return r;
}
