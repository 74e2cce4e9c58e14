/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every decoded request passes here once, before its method sees it. Strings must be UTF-8 without
 * NUL and within CSI's size limits (128 bytes; node ids 256; paths the kernel's; a map 4 KiB in
 * all), and maps are sorted by key, so that equal requests are equal bytes. The first thing wrong
 * is answered INVALID_ARGUMENT with the field's name, never its value.
 *
 * And what several requests carry: paths and capacity ranges. Pure functions; what a range
 * can be wrong in is named, and no sum here can wrap.
 */
#include "csi/request.h"

#include "base/utf8.h"
#include "csi/messages.h"
#include "csi/status.h"
#include "pool/pool.h"

#include <assert.h>
#include <inttypes.h>
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

/* ---- single fields ---- */

static const ProtobufCFieldDescriptor *find_field(
	const ProtobufCMessage *request, const char *field, const void **ret_value)
{
	const ProtobufCFieldDescriptor *found =
		protobuf_c_message_descriptor_get_field_by_name(request->descriptor, field);
	assert(found != NULL);
	*ret_value = (const char *)request + found->offset;
	return found;
}

const char *csi_field(const ProtobufCMessage *request, const char *field)
{
	const void *value;
	find_field(request, field, &value);
	return csi_str(*(const ProtobufCBinaryData *)value);
}

int csi_check_given(const ProtobufCMessage *request, const char *field, struct err *err)
{
	const void *value;
	const ProtobufCFieldDescriptor *found = find_field(request, field, &value);
	bool given;
	if (found->label == PROTOBUF_C_LABEL_REPEATED)
		given = *(const size_t *)((const char *)request + found->quantifier_offset) != 0;
	else if (found->type == PROTOBUF_C_TYPE_BYTES)
		given = ((const ProtobufCBinaryData *)value)->len != 0;
	else
		given = *(const ProtobufCMessage *const *)value != NULL;
	return given ? 0 : err_set(err, ERR_INVALID, "%s is missing", field);
}

int csi_check_path(const char *field, const char *path, struct err *err)
{
	if (path[0] == '\0')
		return err_set(err, ERR_INVALID, "%s is missing", field);
	if (path[0] != '/')
		return err_set(err, ERR_INVALID, "%s is not an absolute path: %s", field, path);
	if (path[1] == '\0')
		return err_set(err, ERR_INVALID, "%s: '/' cannot be a volume's path", field);
	for (const char *p = path; (p = strstr(p, "/..")) != NULL; p += 3)
		if (p[3] == '/' || p[3] == '\0')
			return err_set(err, ERR_INVALID, "%s: '..' is not allowed", field);
	return 0;
}

/* ---- capacity ---- */

static uint64_t round_up(uint64_t size_bytes)
{
	return (size_bytes + POOL_SIZE_ALIGN - 1) / POOL_SIZE_ALIGN * POOL_SIZE_ALIGN;
}

static uint64_t round_down(uint64_t size_bytes)
{
	return size_bytes / POOL_SIZE_ALIGN * POOL_SIZE_ALIGN;
}

/* What to aim for, before the least size and the rounding. */
static uint64_t wanted_size(uint64_t required, uint64_t limit, uint64_t default_bytes)
{
	if (required != 0)
		return required;
	return limit != 0 && limit < default_bytes ? round_down(limit) : default_bytes;
}

int csi_capacity(const Csi__V1__CapacityRange *range, uint64_t default_bytes, uint64_t min_bytes,
	uint64_t *ret_size, uint64_t *ret_limit, struct err *err)
{
	if (range != NULL && (range->required_bytes < 0 || range->limit_bytes < 0))
		return err_set(err, ERR_INVALID, "capacity_range: %s is negative",
			range->required_bytes < 0 ? "required_bytes" : "limit_bytes");
	uint64_t required = range == NULL ? 0 : (uint64_t)range->required_bytes;
	uint64_t limit = range == NULL ? 0 : (uint64_t)range->limit_bytes;
	if (limit != 0 && limit < required)
		return err_set(err, ERR_RANGE,
			"capacity_range: limit_bytes (%" PRIu64
			") is below required_bytes (%" PRIu64 ")",
			limit, required);
	if (required > CSI_SIZE_MAX)
		return err_set(err, ERR_RANGE,
			"capacity_range: required_bytes (%" PRIu64
			") is over the largest volume, %llu bytes",
			required, CSI_SIZE_MAX);
	uint64_t size = wanted_size(required, limit, default_bytes);
	size = round_up(size < min_bytes ? min_bytes : size);
	if (limit != 0 && size > limit)
		return err_set(err, ERR_RANGE,
			"capacity_range: limit_bytes (%" PRIu64
			") is too small, the least that serves is %" PRIu64
			" bytes (sizes are multiples of 1 MiB)",
			limit, size);
	*ret_size = size;
	*ret_limit = limit;
	return 0;
}
