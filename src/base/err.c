/* SPDX-License-Identifier: Apache-2.0 */
/* Formats errors; nothing here can fail, a message that is too long is cut at a character. */
#include "base/err.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
	const char *name;
	int errnum;
} codes[] = {
	[ERR_OK] = {"ok", 0},
	[ERR_INVALID] = {"invalid", EINVAL},
	[ERR_NOT_FOUND] = {"not_found", ENOENT},
	[ERR_EXISTS] = {"exists", EEXIST},
	[ERR_PENDING] = {"pending", EINPROGRESS},
	[ERR_NO_ROOM] = {"no_room", ENOSPC},
	[ERR_RANGE] = {"range", ERANGE},
	[ERR_PRECONDITION] = {"precondition", EBUSY},
	[ERR_TIMEOUT] = {"timeout", ETIMEDOUT},
	[ERR_UNAVAILABLE] = {"unavailable", EAGAIN},
	[ERR_UNIMPLEMENTED] = {"unimplemented", EOPNOTSUPP},
	[ERR_DATA_LOSS] = {"data_loss", EBADMSG},
	[ERR_KEY] = {"key", EKEYREJECTED},
	[ERR_INTERNAL] = {"internal", EIO},
};

const char *err_code_name(enum err_code code)
{
	return codes[code].name;
}

void err_clear(struct err *e)
{
	*e = (struct err){0};
}

/* Drops a UTF-8 character that snprintf cut in two at the end of the buffer. */
static void trim_partial(char *s)
{
	size_t len = strlen(s), back = 0;
	while (back < 4 && back < len && ((unsigned char)s[len - 1 - back] & 0xC0) == 0x80)
		back++;
	if (back == len)
		return;
	unsigned char lead = (unsigned char)s[len - 1 - back];
	size_t want = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : lead >= 0xC0 ? 1 : 0;
	if (want != 0 && back < want)
		s[len - 1 - back] = '\0';
}

int err_set(struct err *e, enum err_code code, const char *fmt, ...)
{
	assert(code != ERR_OK); /* it would be taken for success */
	if (e->code == ERR_OK) {
		e->code = code;
		e->errnum = codes[code].errnum;
		va_list ap;
		va_start(ap, fmt);
		vsnprintf(e->message, sizeof(e->message), fmt, ap);
		va_end(ap);
		trim_partial(e->message);
	}
	return -codes[code].errnum;
}

int err_sys(struct err *e, int res, const char *fmt, ...)
{
	if (e->code == ERR_OK) {
		e->errnum = -res;
		e->code = res == -ENOSPC || res == -EDQUOT || res == -ENOMEM ? ERR_NO_ROOM
			  : res == -ETIMEDOUT                                ? ERR_TIMEOUT
									     : ERR_INTERNAL;
		va_list ap;
		va_start(ap, fmt);
		int len = vsnprintf(e->message, sizeof(e->message), fmt, ap);
		va_end(ap);
		if (len >= 0 && (size_t)len < sizeof(e->message))
			snprintf(e->message + len, sizeof(e->message) - (size_t)len, ": %s",
				strerrordesc_np(-res) ? strerrordesc_np(-res) : "unknown error");
		trim_partial(e->message);
	}
	return res;
}
