/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What went wrong, for a person and for a status code. Low layers return -errno; whoever knows the
 * object and the remedy fills a struct err. Only csi/status.c turns the code into a gRPC status.
 */
#ifndef RINGVOL_BASE_ERR_H
#define RINGVOL_BASE_ERR_H

enum err_code {
	ERR_OK,
	ERR_INVALID,       /* a field is missing or malformed */
	ERR_NOT_FOUND,     /* the object named does not exist */
	ERR_EXISTS,        /* it exists, with other arguments */
	ERR_PENDING,       /* another operation on the object is running */
	ERR_NO_ROOM,       /* space, devices, memory or a named limit is used up */
	ERR_RANGE,         /* a size or offset out of range */
	ERR_PRECONDITION,  /* state forbids it: in use, feature missing, hung */
	ERR_TIMEOUT,       /* a call overstayed its deadline */
	ERR_UNAVAILABLE,   /* pool missing or loading, shutting down: try again later */
	ERR_UNIMPLEMENTED, /* not served here */
	ERR_DATA_LOSS,     /* a record or image is damaged */
	ERR_KEY,           /* the key that was given is none of the volume's */
	ERR_INTERNAL,      /* the kernel or a tool failed in a way the client cannot mend */
};

struct err {
	enum err_code code;
	int errnum;        /* the positive errno behind it, 0 if none */
	const char *step;  /* static: the operation's step that failed, NULL if none */
	char message[384]; /* names the thing and the remedy; never a secret; valid UTF-8 */
};

/* Each fills *e (unless it already holds an error: the first one wins) and returns a negative
 * errno, so that `return err_set(...)` reads well; err_set returns the errno nearest to code. */
int err_set(struct err *e, enum err_code code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* A failed call: res is a negative errno, fmt says what was tried on what. The code follows from
 * the errno (ENOSPC and EDQUOT: no room; ETIMEDOUT: timeout; else internal), and the message ends
 * with the errno's text. Returns res. */
int err_sys(struct err *e, int res, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

void err_clear(struct err *e);
const char *err_code_name(enum err_code code);

#endif
