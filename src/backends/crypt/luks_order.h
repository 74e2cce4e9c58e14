/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `ringvol luks` is told, by a pipe that holds all of it before the child starts: never by its
 * arguments or environment. One fixed head, then the keys. Both ends are of one binary; still
 * nothing in it is believed before it was compared with what was read.
 *
 * The child's answer is its exit status, and the last line of its output.
 */
#ifndef RINGVOL_BACKENDS_LUKS_ORDER_H
#define RINGVOL_BACKENDS_LUKS_ORDER_H

#include "base/secret.h"
#include "disk/dm.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum luks_what {
	LUKS_OPEN = 1, /* makes the dm-crypt device; with format, the header first. The device below
			* is LUKS_DEVICE_FD */
	LUKS_GROW,     /* gives it the size that the device below has now; takes no key */
};

/* Exit statuses. Below 10: the program did not get so far. */
enum luks_code {
	LUKS_OK = 0,
	LUKS_FAILED = 10, /* the message says what */
	LUKS_WRONG_KEY,
	LUKS_NO_HEADER,   /* the device holds no LUKS2 */
	LUKS_OTHER_SHAPE, /* LUKS2, and not as ringvol makes it */
	LUKS_NO_LIBRARY,
	LUKS_NO_DM_CRYPT,
	LUKS_NO_MEMORY, /* a key slot wants more than there is */
	LUKS_LAST_KEY,
	LUKS_BUSY, /* somebody else is writing the header */
	LUKS_CODES_END,
};

struct luks_order {
	enum luks_what what;
	pid_t driver; /* who gives it, and is the child's parent as long as it lives */
	bool format, read_only, no_discard;
	uint32_t sector_bytes;                     /* of format: 512 or 4096 */
	uint32_t major, minor;                     /* the device that holds the header */
	char path[64];                             /* its node */
	char name[DM_NAME_LEN], uuid[DM_UUID_LEN]; /* of the dm-crypt device */
	const uint8_t *key;
	size_t key_len;
};

enum { LUKS_DEVICE_FD = 4 };
enum { LUKS_HEAD_BYTES = 384, LUKS_ORDER_BYTES_MAX = LUKS_HEAD_BYTES + SECRET_BYTES_MAX };

/* The head of an order; the key follows it. */
void luks_order_print(const struct luks_order *order, uint8_t ret_head[LUKS_HEAD_BYTES]);
/* 0; -EBADMSG: it is none. The key stays in data. */
int luks_order_parse(const uint8_t *data, size_t len, struct luks_order *ret);

/* Before the last line of a child's output, which is its message. */
#define LUKS_SAYS "ringvol luks: "

#endif
