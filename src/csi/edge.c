/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The edge: every decoded request passes here once, before its method sees it. Strings must be
 * UTF-8 without NUL and within CSI's size limits (128 bytes; node ids 256; paths the kernel's; a
 * map 4 KiB in all), and maps are sorted by key, so that equal requests are equal bytes. The first
 * thing wrong is answered INVALID_ARGUMENT with the field's name, never its value.
 */
#include "base/utf8.h"
#include "csi.pb-c.h"
#include "csi/csi.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum {
	STRING_MAX = 128,
	NODE_ID_MAX = 256,
	MAP_MAX = 4096,
	DEPTH_MAX = 16,
};

static bool ends_with(const char *s, const char *end)
{
	size_t n = strlen(s), m = strlen(end);
	return n >= m && strcmp(s + n - m, end) == 0;
}

/* Longest value in bytes of the string field `name`. */
static size_t limit_of(const char *name)
{
	if (ends_with(name, "_path"))
		return PATH_MAX - 1;
	if (strcmp(name, "node_id") == 0 || strcmp(name, "starting_token") == 0)
		return NODE_ID_MAX;
	if (strcmp(name, "mount_flags") == 0)
		return MAP_MAX;
	return STRING_MAX;
}

static int check_string(
	const char *field, const ProtobufCBinaryData *s, size_t limit, struct err *err)
{
	if (s->len > limit)
		return err_set(err, ERR_INVALID, "%s: %zu bytes long, %zu are allowed", field,
			s->len, limit);
	if (s->len != 0 && memchr(s->data, '\0', s->len) != NULL)
		return err_set(err, ERR_INVALID, "%s: contains a NUL byte", field);
	if (!utf8_valid(s->data, s->len))
		return err_set(err, ERR_INVALID, "%s: is not valid UTF-8", field);
	return 0;
}

static int compare_pairs(const void *a, const void *b)
{
	const Csi__V1__StringPair *x = *(Csi__V1__StringPair *const *)a;
	const Csi__V1__StringPair *y = *(Csi__V1__StringPair *const *)b;
	size_t n = x->key.len < y->key.len ? x->key.len : y->key.len;
	int order = n == 0 ? 0 : memcmp(x->key.data, y->key.data, n);
	return order != 0 ? order : (x->key.len > y->key.len) - (x->key.len < y->key.len);
}

static int check_map(const char *field, Csi__V1__StringPair **pairs, size_t n, struct err *err)
{
	size_t total = 0;
	for (size_t i = 0; i < n; i++) {
		int r = check_string(field, &pairs[i]->key, MAP_MAX, err);
		if (r == 0)
			r = check_string(field, &pairs[i]->value, MAP_MAX, err);
		if (r < 0)
			return r;
		total += pairs[i]->key.len + pairs[i]->value.len;
	}
	if (total > MAP_MAX)
		return err_set(err, ERR_INVALID, "%s: %zu bytes in all, %d are allowed", field,
			total, MAP_MAX);
	if (n > 1)
		qsort(pairs, n, sizeof(*pairs), compare_pairs);
	for (size_t i = 1; i < n; i++)
		if (compare_pairs(&pairs[i - 1], &pairs[i]) == 0)
			return err_set(err, ERR_INVALID, "%s: a key appears twice", field);
	return 0;
}

static int check_message(const ProtobufCMessage *message, unsigned depth, struct err *err);

/* One value of a field that holds a string or a message. */
static int check_value(
	const ProtobufCFieldDescriptor *field, const void *value, unsigned depth, struct err *err)
{
	if (field->type == PROTOBUF_C_TYPE_BYTES)
		return check_string(field->name, value, limit_of(field->name), err);
	if (field->type == PROTOBUF_C_TYPE_MESSAGE) {
		const ProtobufCMessage *child = *(const ProtobufCMessage *const *)value;
		return child == NULL ? 0 : check_message(child, depth + 1, err);
	}
	return 0;
}

static int check_field(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field,
	unsigned depth, struct err *err)
{
	const char *at = (const char *)message + field->offset;
	if (field->label != PROTOBUF_C_LABEL_REPEATED) {
		bool oneof = (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0;
		const uint32_t *which =
			(const void *)((const char *)message + field->quantifier_offset);
		if (oneof && *which != field->id)
			return 0;
		return check_value(field, at, depth, err);
	}
	size_t n = *(const size_t *)((const char *)message + field->quantifier_offset);
	char *items = *(char *const *)at;
	if (field->type == PROTOBUF_C_TYPE_MESSAGE &&
		field->descriptor == (const void *)&csi__v1__string_pair__descriptor)
		return check_map(field->name, (Csi__V1__StringPair **)items, n, err);
	size_t stride =
		field->type == PROTOBUF_C_TYPE_BYTES ? sizeof(ProtobufCBinaryData) : sizeof(void *);
	if (field->type != PROTOBUF_C_TYPE_BYTES && field->type != PROTOBUF_C_TYPE_MESSAGE)
		return 0;
	for (size_t i = 0; i < n; i++) {
		int r = check_value(field, items + i * stride, depth, err);
		if (r < 0)
			return r;
	}
	return 0;
}

static int check_message(const ProtobufCMessage *message, unsigned depth, struct err *err)
{
	if (depth > DEPTH_MAX)
		return err_set(
			err, ERR_INVALID, "%s: nested too deeply", message->descriptor->name);
	for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
		int r = check_field(message, &message->descriptor->fields[i], depth, err);
		if (r < 0)
			return r;
	}
	return 0;
}

enum grpc_status csi_check_request(const ProtobufCMessage *request, struct err *err)
{
	return check_message(request, 0, err) == 0 ? GRPC_OK : csi_status(err->code);
}
