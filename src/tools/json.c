/* SPDX-License-Identifier: Apache-2.0 */
/* JSON to a stream. Nothing can fail but the stream, which its owner finds out when closing it. */
#include "tools/json.h"

#include "base/utf8.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

static void print_bytes(struct json *j, const uint8_t *s, size_t len)
{
	fputc('"', j->out);
	for (size_t at = 0; at < len;) {
		uint32_t c = 0;
		size_t n = utf8_char(s + at, len - at, &c);
		if (n == 0)
			fputs("\\ufffd", j->out);
		else if (c == '"' || c == '\\')
			fprintf(j->out, "\\%c", (int)c);
		else if (c < 0x20 || (c >= 0x7F && c < 0xA0))
			fprintf(j->out, "\\u%04x", (unsigned)c);
		else
			fwrite(s + at, 1, n, j->out);
		at += n == 0 ? 1 : n;
	}
	fputc('"', j->out);
}

static void before_value(struct json *j, const char *key)
{
	if (j->comma)
		fputc(',', j->out);
	if (j->by_line)
		fputc('\n', j->out);
	j->comma = true;
	if (key != NULL) {
		print_bytes(j, (const uint8_t *)key, strlen(key));
		fputc(':', j->out);
	}
}

void json_open(struct json *j, const char *key, char bracket)
{
	before_value(j, key);
	fputc(bracket, j->out);
	j->comma = false;
}

void json_close(struct json *j, char bracket)
{
	fputc(bracket, j->out);
	j->comma = true;
}

void json_put_string(struct json *j, const char *key, const char *s)
{
	before_value(j, key);
	print_bytes(j, (const uint8_t *)s, strlen(s));
}

void json_put_uint(struct json *j, const char *key, uint64_t value)
{
	before_value(j, key);
	fprintf(j->out, "%" PRIu64, value);
}

void json_put_double(struct json *j, const char *key, double value)
{
	before_value(j, key);
	if (isfinite(value))
		fprintf(j->out, "%.9g", value);
	else
		fputs("null", j->out);
}

void json_put_bool(struct json *j, const char *key, bool value)
{
	before_value(j, key);
	fputs(value ? "true" : "false", j->out);
}

void json_put_null(struct json *j, const char *key)
{
	before_value(j, key);
	fputs("null", j->out);
}

/* ---- messages ---- */

static void print_enum(
	struct json *j, const char *key, const ProtobufCFieldDescriptor *field, int value)
{
	const ProtobufCEnumValue *known = protobuf_c_enum_descriptor_get_value(
		(const ProtobufCEnumDescriptor *)field->descriptor, value);
	char name[64] = "";
	for (size_t i = 0; known != NULL && known->name[i] != '\0' && i + 1 < sizeof(name); i++)
		name[i] = (char)tolower((unsigned char)known->name[i]);
	if (known != NULL)
		json_put_string(j, key, name);
	else
		json_put_uint(j, key, (uint64_t)value); /* of a later driver */
}

static size_t size_of(ProtobufCType type)
{
	switch (type) {
	case PROTOBUF_C_TYPE_BYTES:
		return sizeof(ProtobufCBinaryData);
	case PROTOBUF_C_TYPE_MESSAGE:
		return sizeof(ProtobufCMessage *);
	case PROTOBUF_C_TYPE_UINT64:
	case PROTOBUF_C_TYPE_DOUBLE:
		return 8;
	case PROTOBUF_C_TYPE_BOOL:
		return sizeof(protobuf_c_boolean);
	default:
		return 4;
	}
}

/* The types inspect.proto uses. */
static void print_value(
	struct json *j, const char *key, const ProtobufCFieldDescriptor *field, const void *at)
{
	switch (field->type) {
	case PROTOBUF_C_TYPE_BYTES: {
		const ProtobufCBinaryData *s = at;
		before_value(j, key);
		print_bytes(j, s->data, s->len);
		return;
	}
	case PROTOBUF_C_TYPE_MESSAGE: {
		const ProtobufCMessage *message = *(const ProtobufCMessage *const *)at;
		if (message == NULL)
			json_put_null(j, key);
		else
			json_put_message(j, key, message);
		return;
	}
	case PROTOBUF_C_TYPE_ENUM:
		print_enum(j, key, field, *(const int *)at);
		return;
	case PROTOBUF_C_TYPE_UINT64:
		json_put_uint(j, key, *(const uint64_t *)at);
		return;
	case PROTOBUF_C_TYPE_UINT32:
		json_put_uint(j, key, *(const uint32_t *)at);
		return;
	case PROTOBUF_C_TYPE_DOUBLE:
		json_put_double(j, key, *(const double *)at);
		return;
	case PROTOBUF_C_TYPE_BOOL:
		json_put_bool(j, key, *(const protobuf_c_boolean *)at);
		return;
	default:
		json_put_null(j, key);
	}
}

void json_put_message(struct json *j, const char *key, const ProtobufCMessage *message)
{
	const ProtobufCMessageDescriptor *descriptor = message->descriptor;
	json_open(j, key, '{');
	bool by_line = j->by_line;
	j->by_line = false;
	for (unsigned i = 0; i < descriptor->n_fields; i++) {
		const ProtobufCFieldDescriptor *field = &descriptor->fields[i];
		const char *at = (const char *)message + field->offset;
		if (field->label != PROTOBUF_C_LABEL_REPEATED) {
			print_value(j, field->name, field, at);
			continue;
		}
		size_t n = *(const size_t *)((const char *)message + field->quantifier_offset);
		const char *items = *(const char *const *)at;
		json_open(j, field->name, '[');
		for (size_t k = 0; k < n; k++)
			print_value(j, NULL, field, items + k * size_of(field->type));
		json_close(j, ']');
	}
	json_close(j, '}');
	j->by_line = by_line;
}
