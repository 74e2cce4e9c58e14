/* SPDX-License-Identifier: Apache-2.0 */
/* The two files of a hold (hold.h): their names, and the text of the one that says for whom. */
#ifndef RINGVOL_POOL_HOLD_FILE_H
#define RINGVOL_POOL_HOLD_FILE_H

#include "pool/hold.h"

#define HOLD_PREFIX "send-"
#define HOLD_SUFFIX ".grant"

enum {
	HOLD_DIGITS = 16,
	HOLD_FILE_BYTES = sizeof(HOLD_PREFIX) + HOLD_DIGITS + sizeof(HOLD_SUFFIX),
	HOLD_TEXT_MAX = RECORD_BYTES_MAX + POOL_HOLD_NODE_MAX + 1024,
};

/* Of either file; of the image; of the one that says for whom. */
bool hold_name_valid(const char *name);
bool hold_is_image_name(const char *name);
bool hold_is_grant_name(const char *name);
/* The file beside an image. */
void hold_grant_name(const char *image, char ret_name[HOLD_FILE_BYTES]);

/* A copy of a text for a hold's field; false: it is too long. */
bool hold_take_field(char *to, size_t cap, const char *from);
/* Into text; the length, or -E2BIG. */
int hold_print(const struct pool_hold *hold, char *text, size_t cap);
/* 0; -EBADMSG: it is damaged; -EPROTONOSUPPORT: of a later version; -ENOMEM. */
int hold_parse(const char *text, size_t len, struct pool_hold *hold);

#endif
