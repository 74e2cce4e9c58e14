/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing JSON (RFC 8259). Strings may be any bytes: what is not UTF-8 becomes U+FFFD, controls are
 * escaped. Commas are put where they belong; ends are the caller's to match. The
 * names differ from those of jansson, which is linked as well: a function of ours with one of its
 * names could be called in place of its own.
 */
#ifndef RINGVOL_TOOLS_JSON_H
#define RINGVOL_TOOLS_JSON_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct json {
	FILE *out;
	bool comma;   /* something precedes at this level */
	bool by_line; /* each value of the innermost array begins a line */
};

/* key: of a member of an object; NULL: for what is in an array, or stands alone. */
void json_open(struct json *j, const char *key, char bracket); /* '{' or '[' */
void json_close(struct json *j, char bracket);
void json_put_string(struct json *j, const char *key, const char *s);
void json_put_uint(struct json *j, const char *key, uint64_t value);
/* Not a number, or infinite: null. */
void json_put_double(struct json *j, const char *key, double value);
void json_put_bool(struct json *j, const char *key, bool value);
void json_put_null(struct json *j, const char *key);

/* A message as an object: every field by its name in the .proto, enum values in lower case, what is
 * not set as null (messages) or its default. 64-bit integers are numbers. */
void json_put_message(struct json *j, const char *key, const ProtobufCMessage *message);

#endif
