/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Printing, parsing, reading and writing the note of a departure. One departure has one text.
 * Parsing fails with -EBADMSG where bytes are damaged or contradict each other, and with
 * -EPROTONOSUPPORT where they are sound but not understood.
 *
 * A note is written under a name of its own and renamed to its key, so that under the key it is
 * whole or not there. The first name is left by a crash, and goes at the next load.
 */
#include "pool/departure_file.h"

#include "base/fd.h"
#include "pool/record_text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define DEPARTURE_HEAD "ringvol-departure 1\n"
#define NEW_PREFIX     "+new-"
enum { NEW_DIGITS = 16, NEW_NAME_BYTES = sizeof(NEW_PREFIX) + NEW_DIGITS };

enum departure_field { FIELD_ID, FIELD_MOVES, FIELD_TO, FIELD_NODE, FIELD_GRANT, FIELDS };

static const char *const names[FIELDS] = {"id", "moves", "to", "node", "grant"};

bool departure_is_new_name(const char *name)
{
	size_t len = strlen(NEW_PREFIX);
	return strncmp(name, NEW_PREFIX, len) == 0 && strlen(name) == len + NEW_DIGITS &&
	       record_text_is_hex(name + len, NEW_DIGITS);
}

/* ---- printing ---- */

static void print_line(struct record_text *o, enum departure_field field, const char *value)
{
	record_text_put(o, names[field]);
	record_text_char(o, '=');
	record_text_encoded(o, value);
	record_text_char(o, '\n');
}

int departure_print(const struct pool_departure *d, char *text, size_t cap)
{
	struct record_text o = {.buf = text, .cap = cap};
	record_text_put(&o, DEPARTURE_HEAD);
	print_line(&o, FIELD_ID, d->id);
	record_text_put(&o, "moves=");
	record_text_number(&o, d->moves);
	record_text_char(&o, '\n');
	print_line(&o, FIELD_TO, d->to);
	print_line(&o, FIELD_NODE, d->node_id);
	print_line(&o, FIELD_GRANT, d->grant);
	return record_text_end(&o);
}

/* ---- parsing ---- */

static int take_hex(char *to, const char *value, size_t digits)
{
	if (strlen(value) != digits || !record_text_is_hex(value, digits))
		return -EBADMSG;
	memcpy(to, value, digits + 1);
	return 0;
}

static int parse_field(struct pool_departure *d, enum departure_field field, char *value)
{
	struct record_id id;
	switch (field) {
	case FIELD_ID:
		if (record_id_parse(value, &id) < 0 || strcmp(id.key, d->key) != 0)
			return -EBADMSG;
		strcpy(d->id, value);
		return 0;
	case FIELD_MOVES:
		return record_text_parse_number(value, UINT64_MAX, &d->moves);
	case FIELD_TO:
		return take_hex(d->to, value, RECORD_POOL_DIGITS);
	case FIELD_NODE:
		if (record_text_decode(value) < 0 || value[0] == '\0' ||
			strlen(value) >= sizeof(d->node_id))
			return -EBADMSG;
		strcpy(d->node_id, value);
		return 0;
	case FIELD_GRANT:
	case FIELDS:
		break;
	}
	return take_hex(d->grant, value, POOL_GRANT_BYTES - 1);
}

static int parse_lines(struct pool_departure *d, char *lines)
{
	unsigned at = 0;
	for (char *rest = lines, *value; *rest != '\0'; at++) {
		const char *name = record_text_line(&rest, &value);
		unsigned field = 0;
		while (name != NULL && field < FIELDS && strcmp(names[field], name) != 0)
			field++;
		if (field == FIELDS)
			return -EPROTONOSUPPORT;
		int r = name == NULL || field != at ? -EBADMSG : parse_field(d, field, value);
		if (r < 0)
			return r;
	}
	return at == FIELDS && d->moves > 0 ? 0 : -EBADMSG;
}

static struct pool_departure *departure_new(const char *key)
{
	struct pool_departure *d = calloc(1, sizeof(*d));
	if (d == NULL)
		return NULL;
	list_init(&d->link);
	snprintf(d->key, sizeof(d->key), "%s", key);
	return d;
}

int departure_parse(const char *text, size_t len, const char *key, struct pool_departure **ret)
{
	_cleanup_free_ char *lines = NULL;
	int r = record_text_open(text, len, DEPARTURE_TEXT_MAX, DEPARTURE_HEAD, &lines);
	if (r < 0)
		return r;
	struct pool_departure *d = departure_new(key);
	r = d == NULL ? -ENOMEM : parse_lines(d, lines);
	if (r < 0) {
		free(d);
		return r;
	}
	*ret = d;
	return 0;
}

/* ---- reading ---- */

int departure_read(int departed_fd, const char *key, struct pool_departure **ret)
{
	char text[DEPARTURE_TEXT_MAX + 1];
	ssize_t n = record_text_read(departed_fd, key, text, sizeof(text));
	int r = n < 0 ? (int)n : departure_parse(text, (size_t)n, key, ret);
	if (r == 0 || r == -ENOENT || r == -ENOMEM || r == -EMFILE || r == -ENFILE)
		return r;
	struct pool_departure *damaged = departure_new(key);
	if (damaged == NULL)
		return -ENOMEM;
	damaged->why = record_text_why(r);
	*ret = damaged;
	return 0;
}

/* ---- writing ---- */

/* A rename that failed may have come about all the same. */
static bool has_name(int fd, int departed_fd, const char *key)
{
	struct stat st, named;
	return fstat(fd, &st) < 0 ||
	       (fstatat(departed_fd, key, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
		       st.st_dev == named.st_dev && st.st_ino == named.st_ino);
}

int departure_write(int departed_fd, const char *key, const char *text, size_t len, bool *ret_named)
{
	char name[NEW_NAME_BYTES] = NEW_PREFIX;
	pool_random_hex(name + strlen(NEW_PREFIX), NEW_DIGITS);
	_cleanup_fd_ int fd =
		openat(departed_fd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	ssize_t n = write(fd, text, len);
	int r = n < 0 ? -errno : n != (ssize_t)len ? -ENOSPC : 0;
	if (r == 0 && fsync(fd) < 0)
		r = -errno;
	if (r == 0 && renameat(departed_fd, name, departed_fd, key) < 0) {
		r = -errno;
		*ret_named = has_name(fd, departed_fd, key);
	}
	if (r < 0) {
		(void)unlinkat(departed_fd, name, 0);
		return r;
	}
	*ret_named = true;
	return fsync(fd) < 0 || fsync(departed_fd) < 0 ? -errno : 0;
}
