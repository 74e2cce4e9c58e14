/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scans a FileDescriptorSet. A small reader of the wire format walks the few fields that name
 * things; everything else is skipped by its wire type. Two passes over the files: the first finds
 * their names, symbols and extensions, the second ties imports to files.
 *
 * It fails when memory is short or a length points past the end of what holds it.
 */
#include "rpc/reflection_index.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Field numbers of google/protobuf/descriptor.proto. */
enum {
	SET_FILE = 1,
	FILE_NAME = 1,
	FILE_PACKAGE = 2,
	FILE_DEPENDENCY = 3,
	FILE_MESSAGE = 4,
	FILE_ENUM = 5,
	FILE_SERVICE = 6,
	FILE_EXTENSION = 7,
	ANY_NAME = 1, /* of messages, enums, enum values, services, methods, fields */
	MESSAGE_FIELD = 2,
	MESSAGE_NESTED = 3,
	MESSAGE_ENUM = 4,
	MESSAGE_EXTENSION = 6,
	MESSAGE_ONEOF = 8,
	ENUM_VALUE = 2,
	SERVICE_METHOD = 2,
	FIELD_EXTENDEE = 2,
	FIELD_NUMBER = 3,
	NESTING_MAX = 32,
};

bool bytes_equal(struct bytes a, struct bytes b)
{
	return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

/* ---- the wire format ---- */

struct field {
	uint64_t id;
	uint64_t varint;
	struct bytes body; /* of a length-prefixed field */
};

static int read_varint(struct bytes *in, uint64_t *ret)
{
	uint64_t value = 0;
	for (unsigned shift = 0; shift < 64; shift += 7) {
		if (in->len == 0)
			return -EBADMSG;
		uint8_t b = *in->data++;
		in->len--;
		value |= (uint64_t)(b & 0x7F) << shift;
		if ((b & 0x80) == 0) {
			*ret = value;
			return 0;
		}
	}
	return -EBADMSG;
}

static int skip(struct bytes *in, uint64_t n)
{
	if (n > in->len)
		return -EBADMSG;
	in->data += n;
	in->len -= (size_t)n;
	return 0;
}

/* The next field of `in`: 1, 0 at the end, or -EBADMSG. */
static int read_field(struct bytes *in, struct field *ret)
{
	uint64_t key, len;
	*ret = (struct field){0};
	if (in->len == 0)
		return 0;
	int res = read_varint(in, &key);
	if (res < 0)
		return res;
	ret->id = key >> 3;
	switch (key & 7) {
	case 0:
		res = read_varint(in, &ret->varint);
		break;
	case 1:
		res = skip(in, 8);
		break;
	case 2:
		res = read_varint(in, &len);
		if (res == 0) {
			ret->body = (struct bytes){in->data, (size_t)len};
			res = skip(in, len);
		}
		break;
	case 5:
		res = skip(in, 4);
		break;
	default:
		return -EBADMSG;
	}
	return res < 0 ? res : 1;
}

/* The body of the first field `id`, empty when there is none. */
static struct bytes find(struct bytes in, uint64_t id)
{
	struct field f;
	while (read_field(&in, &f) == 1) {
		if (f.id == id)
			return f.body;
	}
	return (struct bytes){0};
}

/* ---- growing arrays ---- */

/* Makes room for one more in an array that grows by doubling. 0 or -ENOMEM. */
static int grow(void *array, size_t count, size_t size)
{
	void **p = array;
	if (count != 0 && (count < 8 || (count & (count - 1)) != 0))
		return 0;
	void *more = reallocarray(*p, count < 8 ? 8 : count * 2, size);
	if (more == NULL)
		return -ENOMEM;
	*p = more;
	return 0;
}

static int add_symbol(struct reflection_index *index, unsigned file, struct bytes scope,
	struct bytes name, struct bytes *ret)
{
	int res = grow(&index->symbols, index->symbol_count, sizeof(*index->symbols));
	if (res < 0)
		return res;
	size_t dot = scope.len > 0;
	char *full = malloc(scope.len + dot + name.len + 1);
	if (full == NULL)
		return -ENOMEM;
	if (dot) {
		memcpy(full, scope.data, scope.len);
		full[scope.len] = '.';
	}
	if (name.len > 0)
		memcpy(full + scope.len + dot, name.data, name.len);
	full[scope.len + dot + name.len] = '\0';
	index->symbols[index->symbol_count++] = (struct reflection_symbol){full, file};
	*ret = (struct bytes){(const uint8_t *)full, scope.len + dot + name.len};
	return 0;
}

/* ---- one file ---- */

typedef int scan_fn(struct reflection_index *index, unsigned file, struct bytes scope,
	struct bytes body, unsigned depth);

/* What a body may have: the number of a field, and how its value is scanned. */
struct part {
	uint64_t id;
	scan_fn *scan;
};

static int scan_parts(struct reflection_index *index, unsigned file, struct bytes scope,
	struct bytes body, unsigned depth, const struct part *parts)
{
	struct field f;
	int res;
	while ((res = read_field(&body, &f)) == 1) {
		const struct part *part = parts;
		while (part->scan != NULL && part->id != f.id)
			part++;
		int sub = part->scan == NULL ? 0 : part->scan(index, file, scope, f.body, depth);
		if (sub < 0)
			return sub;
	}
	return res;
}

/* What has a name and nothing below it. */
static int scan_name(struct reflection_index *index, unsigned file, struct bytes scope,
	struct bytes body, unsigned depth)
{
	struct bytes full;
	(void)depth;
	return add_symbol(index, file, scope, find(body, ANY_NAME), &full);
}

static int scan_extension(struct reflection_index *index, unsigned file, struct bytes scope,
	struct bytes body, unsigned depth)
{
	(void)depth;
	struct bytes full, extendee = find(body, FIELD_EXTENDEE);
	int32_t number = 0;
	struct field f;
	int res = add_symbol(index, file, scope, find(body, ANY_NAME), &full);
	if (res < 0)
		return res;
	while ((res = read_field(&body, &f)) == 1) {
		if (f.id == FIELD_NUMBER)
			number = (int32_t)f.varint;
	}
	if (res < 0)
		return res;
	if (extendee.len > 0 && extendee.data[0] == '.')
		skip(&extendee, 1);
	res = grow(&index->extensions, index->extension_count, sizeof(*index->extensions));
	if (res < 0)
		return res;
	index->extensions[index->extension_count++] =
		(struct reflection_extension){extendee, number, file};
	return 0;
}

/* An enum's values are named beside it, as in C++. */
static int scan_enum(struct reflection_index *index, unsigned file, struct bytes scope,
	struct bytes body, unsigned depth)
{
	static const struct part parts[] = {{ENUM_VALUE, scan_name}, {0, NULL}};
	int res = scan_name(index, file, scope, body, depth);
	return res < 0 ? res : scan_parts(index, file, scope, body, depth, parts);
}

static int scan_service(struct reflection_index *index, unsigned file, struct bytes scope,
	struct bytes body, unsigned depth)
{
	static const struct part parts[] = {{SERVICE_METHOD, scan_name}, {0, NULL}};
	struct bytes full;
	int res = add_symbol(index, file, scope, find(body, ANY_NAME), &full);
	return res < 0 ? res : scan_parts(index, file, full, body, depth, parts);
}

static int scan_message(struct reflection_index *index, unsigned file, struct bytes scope,
	struct bytes body, unsigned depth)
{
	static const struct part parts[] = {{MESSAGE_FIELD, scan_name}, {MESSAGE_ONEOF, scan_name},
		{MESSAGE_NESTED, scan_message}, {MESSAGE_ENUM, scan_enum},
		{MESSAGE_EXTENSION, scan_extension}, {0, NULL}};
	struct bytes full;
	if (depth == NESTING_MAX)
		return -EBADMSG;
	int res = add_symbol(index, file, scope, find(body, ANY_NAME), &full);
	return res < 0 ? res : scan_parts(index, file, full, body, depth + 1, parts);
}

static int scan_file(struct reflection_index *index, unsigned file)
{
	static const struct part parts[] = {{FILE_MESSAGE, scan_message}, {FILE_ENUM, scan_enum},
		{FILE_SERVICE, scan_service}, {FILE_EXTENSION, scan_extension}, {0, NULL}};
	struct bytes body = index->files[file].proto;
	struct bytes package = find(body, FILE_PACKAGE);
	index->files[file].name = find(body, FILE_NAME);
	index->files[file].package = package;
	return scan_parts(index, file, package, body, 0, parts);
}

static int tie_imports(struct reflection_index *index, unsigned file)
{
	struct bytes body = index->files[file].proto;
	struct field f;
	int res;

	index->files[file].import_at = index->import_count;
	while ((res = read_field(&body, &f)) == 1) {
		if (f.id != FILE_DEPENDENCY)
			continue;
		int import = reflection_index_file(index, f.body);
		if (import < 0)
			return -EBADMSG;
		res = grow(&index->imports, index->import_count, sizeof(*index->imports));
		if (res < 0)
			return res;
		index->imports[index->import_count++] = (unsigned)import;
		index->files[file].import_count++;
	}
	return res;
}

/* ---- the whole ---- */

static int symbol_cmp(const void *a, const void *b)
{
	return strcmp(((const struct reflection_symbol *)a)->name,
		((const struct reflection_symbol *)b)->name);
}

static int build(struct reflection_index *index, struct bytes set)
{
	struct field f;
	int res;
	while ((res = read_field(&set, &f)) == 1) {
		if (f.id != SET_FILE)
			continue;
		res = grow(&index->files, index->file_count, sizeof(*index->files));
		if (res < 0)
			return res;
		index->files[index->file_count++] = (struct reflection_file){.proto = f.body};
	}
	for (unsigned i = 0; res == 0 && i < index->file_count; i++)
		res = scan_file(index, i);
	for (unsigned i = 0; res == 0 && i < index->file_count; i++)
		res = tie_imports(index, i);
	if (res == 0 && index->symbol_count > 0)
		qsort(index->symbols, index->symbol_count, sizeof(*index->symbols), symbol_cmp);
	return res;
}

int reflection_index_build(struct reflection_index *index, const uint8_t *set, size_t len)
{
	*index = (struct reflection_index){0};
	int res = build(index, (struct bytes){set, len});
	if (res < 0)
		reflection_index_free(index);
	return res;
}

void reflection_index_free(struct reflection_index *index)
{
	for (size_t i = 0; i < index->symbol_count; i++)
		free(index->symbols[i].name);
	free(index->files);
	free(index->symbols);
	free(index->extensions);
	free(index->imports);
	*index = (struct reflection_index){0};
}

int reflection_index_file(const struct reflection_index *index, struct bytes name)
{
	for (size_t i = 0; i < index->file_count; i++) {
		if (bytes_equal(index->files[i].name, name))
			return (int)i;
	}
	return -1;
}

int reflection_index_symbol(const struct reflection_index *index, struct bytes name)
{
	size_t low = 0, high = index->symbol_count;
	while (low < high) {
		size_t mid = low + (high - low) / 2;
		const char *have = index->symbols[mid].name;
		size_t have_len = strlen(have);
		int order = memcmp(have, name.data, have_len < name.len ? have_len : name.len);
		if (order == 0)
			order = (have_len > name.len) - (have_len < name.len);
		if (order == 0)
			return (int)index->symbols[mid].file;
		if (order < 0)
			low = mid + 1;
		else
			high = mid;
	}
	return -1;
}
