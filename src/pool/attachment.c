/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attachments in memory, and their text. Each change is a new copy, so that whoever reads one sees
 * all of it. Parsing takes only what printing makes; what is damaged or of a later version is told
 * apart, and never guessed at.
 */
#include "pool/attachment.h"

#include "base/uuid.h"
#include "pool/record_text.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#define HEAD "ringvol-attachments 1\n"

static size_t text_bytes(const struct attachment *one)
{
	return strlen(one->node) + strlen(one->export) + strlen(one->key) + 3;
}

/* The list may hold NULL, which is left out. */
static struct attachments *make(const struct attachment *const *list, unsigned n)
{
	size_t bytes = sizeof(struct attachments);
	for (unsigned i = 0; i < n; i++)
		if (list[i] != NULL)
			bytes += sizeof(struct attachment) + text_bytes(list[i]);
	struct attachments *made = calloc(1, bytes);
	if (made == NULL)
		return NULL;
	made->bytes = bytes;
	for (unsigned i = 0; i < n; i++)
		if (list[i] != NULL)
			made->at[made->count++] = *list[i];
	char *mem = (char *)&made->at[made->count];
	for (unsigned i = 0; i < made->count; i++) {
		const char **texts[] = {&made->at[i].node, &made->at[i].export, &made->at[i].key};
		for (unsigned k = 0; k < 3; k++) {
			const char *from = *texts[k];
			*texts[k] = mem;
			mem = stpcpy(mem, from) + 1;
		}
	}
	return made;
}

const struct attachment *attachments_find(const struct attachments *a, const char *node)
{
	for (unsigned i = 0; a != NULL && i < a->count; i++)
		if (strcmp(a->at[i].node, node) == 0)
			return &a->at[i];
	return NULL;
}

const struct attachment *attachments_next_exported(const struct attachments *a, unsigned *at)
{
	while (a != NULL && *at < a->count && a->at[*at].export[0] == '\0')
		++*at;
	return a != NULL && *at < a->count ? &a->at[*at] : NULL;
}

bool attachments_exported(const struct attachments *a)
{
	unsigned at = 0;
	return attachments_next_exported(a, &at) != NULL;
}

struct attachments *attachments_with(const struct attachments *a, const struct attachment *one)
{
	const struct attachment *list[ATTACHMENTS_MAX + 1];
	unsigned n = 0;
	bool there = false;
	for (; a != NULL && n < a->count && n < ATTACHMENTS_MAX; n++) {
		bool its = strcmp(a->at[n].node, one->node) == 0;
		list[n] = its ? one : &a->at[n];
		there |= its;
	}
	if (!there)
		list[n++] = one;
	return make(list, n);
}

int attachments_without(const struct attachments *a, const char *node, struct attachments **ret)
{
	const struct attachment *list[ATTACHMENTS_MAX];
	unsigned n = 0;
	for (unsigned i = 0; a != NULL && i < a->count && n < ATTACHMENTS_MAX; i++)
		if (strcmp(a->at[i].node, node) != 0)
			list[n++] = &a->at[i];
	struct attachments *made = n > 0 ? make(list, n) : NULL;
	if (n > 0 && made == NULL)
		return -ENOMEM;
	*ret = made;
	return 0;
}

void attachments_free(struct attachments *a)
{
	if (a == NULL)
		return;
	explicit_bzero(a, a->bytes);
	free(a);
}

/* ---- the text ---- */

static void print_bool(struct record_text *o, const char *name, bool value)
{
	record_text_put(o, name);
	record_text_put(o, value ? "=true\n" : "=false\n");
}

static void print_text(struct record_text *o, const char *name, const char *value)
{
	record_text_put(o, name);
	record_text_char(o, '=');
	record_text_encoded(o, value);
	record_text_char(o, '\n');
}

int attachments_print(const struct attachments *a, char *buf, size_t cap)
{
	struct record_text o = {.buf = buf, .cap = cap};
	record_text_put(&o, HEAD);
	for (unsigned i = 0; i < a->count; i++) {
		const struct attachment *one = &a->at[i];
		print_text(&o, "node", one->node);
		record_text_put(&o, "mode=");
		record_text_number(&o, one->mode);
		record_text_char(&o, '\n');
		print_bool(&o, "block", one->block);
		print_bool(&o, "read_only", one->read_only);
		if (one->export[0] != '\0')
			print_text(&o, "export", one->export);
		if (one->key[0] != '\0')
			print_text(&o, "key", one->key);
	}
	return record_text_end(&o);
}

enum line { LINE_NODE, LINE_MODE, LINE_BLOCK, LINE_READ_ONLY, LINE_EXPORT, LINE_KEY, LINES };
static const char *const names[] = {"node", "mode", "block", "read_only", "export", "key"};

struct parsing {
	struct attachment list[ATTACHMENTS_MAX];
	unsigned count;
	int last; /* enum line; -1: none yet */
};

static int parse_bool(const char *value, bool *ret)
{
	*ret = strcmp(value, "true") == 0;
	return *ret || strcmp(value, "false") == 0 ? 0 : -EPROTONOSUPPORT;
}

static int parse_text(char *value, size_t max, const char **ret)
{
	*ret = value;
	return record_text_decode(value) < 0 || value[0] == '\0' || strlen(value) > max ? -EBADMSG
											: 0;
}

static int parse_value(struct attachment *one, enum line line, char *value)
{
	uint64_t mode = 0;
	int r = 0;
	switch (line) {
	case LINE_NODE:
		return parse_text(value, ATTACHMENT_NODE_MAX, &one->node);
	case LINE_MODE:
		r = record_text_parse_number(value, UINT32_MAX, &mode);
		one->mode = (unsigned)mode;
		if (r == 0 && (mode < ATTACHMENT_WRITER || mode > ATTACHMENT_MULTI_WRITER))
			r = -EPROTONOSUPPORT;
		return r;
	case LINE_BLOCK:
		return parse_bool(value, &one->block);
	case LINE_READ_ONLY:
		return parse_bool(value, &one->read_only);
	case LINE_EXPORT:
		one->export = value;
		return strlen(value) == UUID_BYTES - 1 && uuid_valid(value) ? 0 : -EBADMSG;
	case LINE_KEY:
		return parse_text(value, ATTACHMENT_KEY_MAX, &one->key);
	case LINES:
		break;
	}
	return -EPROTONOSUPPORT;
}

/* One text for one value: in order, and each has its first four lines. */
static int parse_line(struct parsing *p, const char *name, char *value)
{
	int line = 0;
	while (line < LINES && strcmp(names[line], name) != 0)
		line++;
	if (line == LINES)
		return -EPROTONOSUPPORT;
	if (line == LINE_NODE) {
		if ((p->last >= 0 && p->last < LINE_READ_ONLY) || p->count == ATTACHMENTS_MAX)
			return -EBADMSG;
		p->list[p->count++] = (struct attachment){.export = "", .key = ""};
	} else if (p->last < 0 || line <= p->last ||
		   (line != p->last + 1 && p->last < LINE_READ_ONLY)) {
		return -EBADMSG;
	}
	p->last = line;
	return parse_value(&p->list[p->count - 1], line, value);
}

static bool is_twice(const struct parsing *p)
{
	for (unsigned i = 0; i < p->count; i++)
		for (unsigned k = 0; k < i; k++)
			if (strcmp(p->list[i].node, p->list[k].node) == 0)
				return true;
	return false;
}

int attachments_parse(const char *text, size_t len, struct attachments **ret)
{
	char *lines = NULL;
	int r = record_text_open(text, len, ATTACHMENTS_BYTES_MAX, HEAD, &lines);
	if (r < 0)
		return r;
	size_t lines_len = strlen(lines);
	struct parsing p = {.last = -1};
	for (char *rest = lines, *value; r == 0 && *rest != '\0';) {
		const char *name = record_text_line(&rest, &value);
		r = name == NULL ? -EBADMSG : parse_line(&p, name, value);
	}
	if (r == 0 && (p.count == 0 || p.last < LINE_READ_ONLY || is_twice(&p)))
		r = -EBADMSG;
	if (r == 0) {
		const struct attachment *list[ATTACHMENTS_MAX];
		for (unsigned i = 0; i < p.count; i++)
			list[i] = &p.list[i];
		struct attachments *made = make(list, p.count);
		r = made == NULL ? -ENOMEM : 0;
		if (made != NULL)
			*ret = made;
	}
	explicit_bzero(lines, lines_len);
	free(lines);
	return r;
}

int attachments_write(int fd, const struct attachments *a)
{
	char *text = malloc(ATTACHMENTS_BYTES_MAX);
	if (text == NULL)
		return -ENOMEM;
	int r = attachments_print(a, text, ATTACHMENTS_BYTES_MAX);
	if (r >= 0)
		r = fsetxattr(fd, ATTACHMENTS_XATTR, text, (size_t)r, 0) < 0 ? -errno : 0;
	explicit_bzero(text, ATTACHMENTS_BYTES_MAX);
	free(text);
	return r;
}
