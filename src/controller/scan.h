/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads protobuf's wire format without knowing the message: what a controller passes on may be of a
 * later version than itself. The bytes are a client's or a node's and may be anything.
 */
#ifndef RINGVOL_CONTROLLER_SCAN_H
#define RINGVOL_CONTROLLER_SCAN_H

#include "base/buf.h"

#include <stddef.h>
#include <stdint.h>

enum scan_wire { SCAN_VARINT = 0, SCAN_64 = 1, SCAN_BYTES = 2, SCAN_32 = 5 };

struct scan {
	const uint8_t *at, *end;
};

struct scan_field {
	uint32_t number;
	enum scan_wire wire;
	const uint8_t *data; /* SCAN_BYTES: what is in it; inside the message */
	size_t len;
	uint64_t value;       /* SCAN_VARINT */
	const uint8_t *whole; /* with its tag, up to the scan's `at` */
};

/* The next field: 1; 0: that was all; -EBADMSG: this is no message. */
int scan_next(struct scan *scan, struct scan_field *ret);

/* A field of bytes, a string or a message; the last one, if it is there more than once, as
 * protobuf's parsers take it. *ret_data NULL and *ret_len 0: it is not there. 0 or -EBADMSG. */
int scan_bytes(const uint8_t *message, size_t len, uint32_t number, const uint8_t **ret_data,
	size_t *ret_len);

/* The same as a string of less than `cap` bytes: "" if it is not there, cannot be held or contains
 * a NUL, so that nobody takes a part of it for all. */
int scan_string(const uint8_t *message, size_t len, uint32_t number, char *ret, size_t cap);

/* Appends a field of bytes. 0 or -ENOMEM. */
int scan_append(struct buf *out, uint32_t number, const void *data, size_t len);

#endif
