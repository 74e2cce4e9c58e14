/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The header of a disk: text, and where it lies.
 *
 * Printing walks a table of fields. Parsing checks the sum, then the version, then reads the same
 * table in the same order, then whether the numbers fit each other: what it accepts is what
 * printing can have made. A block that is torn between two writes fails its sum, and the other of
 * the two blocks counts.
 *
 * Fails with -EBADMSG where bytes are damaged, -ENODATA where nothing is ours, and with what
 * reading fails with.
 */
#include "disk/header.h"

#include "base/fd.h"
#include "base/uuid.h"

#include <errno.h>
#include <sha256.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAGIC "ringvol-disk "
#define HEAD  MAGIC "1\n"

enum { SUM_DIGITS = 16, LINE_MAX_BYTES = 1024, ALIGN_BYTES = 4096 };

static const char *const states[DISK_STATES] = {"sound", "making", "growing"};

/* ---- the fields ---- */

enum field_type { FIELD_UUID, FIELD_COUNT, FIELD_U64, FIELD_STATE, FIELD_TEXT };

static const struct field {
	const char *name;
	enum field_type type;
	size_t at, size;
} fields[] = {
#define AT(member)                                                                                 \
	offsetof(struct disk_header, member), sizeof(((struct disk_header *)NULL)->member)
	{"pool", FIELD_UUID, AT(pool)},
	{"disk", FIELD_UUID, AT(disk)},
	{"index", FIELD_COUNT, AT(index)},
	{"count", FIELD_COUNT, AT(count)},
	{"size", FIELD_U64, AT(size_bytes)},
	{"start", FIELD_U64, AT(start)},
	{"offset", FIELD_U64, AT(offset)},
	{"bytes", FIELD_U64, AT(bytes)},
	{"records-offset", FIELD_U64, AT(records_offset)},
	{"records-bytes", FIELD_U64, AT(records_bytes)},
	{"generation", FIELD_U64, AT(generation)},
	{"state", FIELD_STATE, AT(state)},
	{"owner", FIELD_TEXT, AT(owner)},
	{"owner-machine", FIELD_TEXT, AT(owner_machine)},
	{"owner-since", FIELD_U64, AT(owner_since_ns)},
#undef AT
};
enum { FIELDS = sizeof(fields) / sizeof(fields[0]) };

static void sum_of(const char *text, size_t len, char ret[SUM_DIGITS + 1])
{
	char digest[SHA256_DIGEST_STRING_LENGTH];
	SHA256Data((const uint8_t *)text, len, digest);
	memcpy(ret, digest, SUM_DIGITS);
	ret[SUM_DIGITS] = '\0';
}

/* ---- printing ---- */

struct out {
	char *buf;
	size_t len;
	int res;
};

static void put(struct out *out, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void put(struct out *out, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	size_t left = DISK_HEADER_BYTES - out->len;
	int n = vsnprintf(out->buf + out->len, left, fmt, ap);
	va_end(ap);
	if (n < 0 || (size_t)n >= left)
		out->res = -E2BIG;
	else
		out->len += (size_t)n;
}

/* A text of ours has no line end and no other control character. */
static bool is_text(const char *text, size_t cap)
{
	size_t len = strnlen(text, cap);
	for (size_t i = 0; i < len; i++)
		if ((unsigned char)text[i] < ' ' || text[i] == 0x7f)
			return false;
	return len < cap;
}

static void put_field(struct out *out, const struct field *f, const void *at)
{
	unsigned count;
	uint64_t number;
	switch (f->type) {
	case FIELD_UUID:
		put(out, "%s=%s\n", f->name, (const char *)at);
		return;
	case FIELD_COUNT:
		memcpy(&count, at, sizeof(count));
		if (count != 0)
			put(out, "%s=%u\n", f->name, count);
		return;
	case FIELD_U64:
		memcpy(&number, at, sizeof(number));
		if (number != 0)
			put(out, "%s=%llu\n", f->name, (unsigned long long)number);
		return;
	case FIELD_STATE:
		memcpy(&count, at, sizeof(count));
		if (count != DISK_SOUND)
			put(out, "%s=%s\n", f->name, states[count]);
		return;
	case FIELD_TEXT:
		if (!is_text(at, f->size))
			out->res = -E2BIG;
		else if (*(const char *)at != '\0')
			put(out, "%s=%s\n", f->name, (const char *)at);
		return;
	}
}

int disk_header_print(const struct disk_header *header, char *buf)
{
	struct out out = {.buf = buf};
	char sum[SUM_DIGITS + 1];
	put(&out, HEAD);
	for (unsigned i = 0; i < FIELDS; i++)
		put_field(&out, &fields[i], (const char *)header + fields[i].at);
	for (unsigned i = 0; i < header->count && i < DISK_MEMBERS_MAX; i++)
		put(&out, "member=%s\n", header->disks[i]);
	sum_of(buf, out.len, sum);
	put(&out, "sum=%s\n", sum);
	if (out.res < 0)
		return out.res;
	memset(buf + out.len, 0, DISK_HEADER_BYTES - out.len);
	return 0;
}

/* ---- parsing ---- */

/* The value of the line at *text if it is name's; *text moves behind the line. NULL: another's. */
static const char *take_line(const char **text, const char *name, char *value, size_t cap)
{
	size_t name_len = strlen(name);
	const char *end = strchr(*text, '\n');
	if (end == NULL || strncmp(*text, name, name_len) != 0 || (*text)[name_len] != '=')
		return NULL;
	const char *at = *text + name_len + 1;
	size_t len = (size_t)(end - at);
	if (len >= cap)
		return NULL;
	memcpy(value, at, len);
	value[len] = '\0';
	*text = end + 1;
	return value;
}

/* As printed: no sign, no leading 0, and no 0, which is left out. */
static bool parse_number(const char *text, uint64_t max, uint64_t *ret)
{
	char *end;
	if (text[0] < '1' || text[0] > '9' || strspn(text, "0123456789") != strlen(text))
		return false;
	errno = 0;
	unsigned long long number = strtoull(text, &end, 10);
	*ret = number;
	return errno == 0 && number <= max;
}

static bool parse_state(const char *text, unsigned *ret)
{
	for (unsigned i = DISK_SOUND + 1; i < DISK_STATES; i++)
		if (strcmp(states[i], text) == 0) {
			*ret = i;
			return true;
		}
	return false;
}

static bool get_field(const struct field *f, const char *value, void *at)
{
	uint64_t number;
	unsigned count;
	switch (f->type) {
	case FIELD_UUID:
		if (!uuid_valid(value))
			return false;
		memcpy(at, value, DISK_UUID_BYTES);
		return true;
	case FIELD_COUNT:
		if (!parse_number(value, DISK_MEMBERS_MAX, &number))
			return false;
		count = (unsigned)number;
		memcpy(at, &count, sizeof(count));
		return true;
	case FIELD_U64:
		if (!parse_number(value, UINT64_MAX, &number))
			return false;
		memcpy(at, &number, sizeof(number));
		return true;
	case FIELD_STATE:
		if (!parse_state(value, &count))
			return false;
		memcpy(at, &count, sizeof(count));
		return true;
	case FIELD_TEXT:
		if (value[0] == '\0' || strlen(value) >= f->size || !is_text(value, f->size))
			return false;
		memcpy(at, value, strlen(value) + 1);
		return true;
	}
	return false;
}

static bool get_fields(const char *text, struct disk_header *h)
{
	char line[LINE_MAX_BYTES];
	for (unsigned i = 0; i < FIELDS; i++) {
		const char *value = take_line(&text, fields[i].name, line, sizeof(line));
		if (value == NULL && fields[i].type == FIELD_UUID)
			return false;
		if (value != NULL && !get_field(&fields[i], value, (char *)h + fields[i].at))
			return false;
	}
	for (unsigned i = 0; i < h->count; i++) {
		if (take_line(&text, "member", line, sizeof(line)) == NULL || !uuid_valid(line))
			return false;
		memcpy(h->disks[i], line, DISK_UUID_BYTES);
	}
	return *text == '\0';
}

static bool aligned(uint64_t bytes)
{
	return bytes % DISK_UNIT_BYTES == 0 && bytes <= INT64_MAX;
}

/* Whether [offset, offset + bytes) lies between the header's unit and the copy's. */
static bool lies_within(const struct disk_header *h, uint64_t offset, uint64_t bytes)
{
	return aligned(offset) && aligned(bytes) && offset >= DISK_UNIT_BYTES && bytes != 0 &&
	       offset <= h->size_bytes - DISK_UNIT_BYTES &&
	       bytes <= h->size_bytes - DISK_UNIT_BYTES - offset;
}

static bool members_fit(const struct disk_header *h)
{
	if (h->index != 0)
		return h->count == 0 && h->index < DISK_MEMBERS_MAX;
	if (h->count == 0 || strcmp(h->disks[0], h->disk) != 0)
		return false;
	for (unsigned i = 0; i < h->count; i++)
		for (unsigned j = 0; j < i; j++)
			if (strcmp(h->disks[i], h->disks[j]) == 0)
				return false;
	return true;
}

static bool fits(const struct disk_header *h)
{
	bool first = h->index == 0;
	if (h->generation == 0 || h->size_bytes < 3 * (uint64_t)DISK_UNIT_BYTES ||
		!aligned(h->size_bytes) || !members_fit(h) || !aligned(h->start) ||
		!lies_within(h, h->offset, h->bytes) || h->start > INT64_MAX - h->bytes)
		return false;
	if (!first)
		return h->records_offset == 0 && h->records_bytes == 0 && h->owner[0] == '\0' &&
		       h->owner_machine[0] == '\0' && h->owner_since_ns == 0 &&
		       h->state != DISK_GROWING;
	return lies_within(h, h->records_offset, h->records_bytes) &&
	       h->offset >= h->records_offset + h->records_bytes;
}

int disk_header_parse(const char *buf, struct disk_header *ret)
{
	char text[DISK_HEADER_BYTES + 1], sum[SUM_DIGITS + 1];
	struct disk_header h = {0};
	if (memcmp(buf, MAGIC, strlen(MAGIC)) != 0)
		return -ENODATA;
	memcpy(text, buf, DISK_HEADER_BYTES);
	text[DISK_HEADER_BYTES] = '\0';
	size_t len = strlen(text);
	for (size_t i = len; i < DISK_HEADER_BYTES; i++)
		if (buf[i] != '\0')
			return -EBADMSG;
	const size_t tail = strlen("sum=\n") + SUM_DIGITS;
	if (len < tail)
		return -EBADMSG;
	char *last = text + len - tail;
	sum_of(text, (size_t)(last - text), sum);
	if (memcmp(last, "sum=", 4) != 0 || memcmp(last + 4, sum, SUM_DIGITS) != 0 ||
		last[4 + SUM_DIGITS] != '\n')
		return -EBADMSG;
	*last = '\0';
	if (strncmp(text, HEAD, strlen(HEAD)) != 0)
		return -EPROTONOSUPPORT;
	if (!get_fields(text + strlen(HEAD), &h) || !fits(&h))
		return -EBADMSG;
	*ret = h;
	return 0;
}

/* ---- where it lies ---- */

/* As direct I/O wants it. NULL: out of memory. */
static char *block_new(void)
{
	return aligned_alloc(ALIGN_BYTES, DISK_HEADER_BYTES);
}

static int read_at(int fd, char *block, uint64_t offset, struct disk_header *ret)
{
	memset(block, 0, DISK_HEADER_BYTES); /* what is not there */
	ssize_t n = pread(fd, block, DISK_HEADER_BYTES, (off_t)offset);
	if (n < 0)
		return -errno;
	return n < DISK_HEADER_BYTES ? -ENODATA : disk_header_parse(block, ret);
}

static bool is_zero(const char *block)
{
	return block[0] == '\0' && memcmp(block, block + 1, DISK_HEADER_BYTES - 1) == 0;
}

static bool is_same(const struct disk_header *a, const struct disk_header *b)
{
	return strcmp(a->pool, b->pool) == 0 && strcmp(a->disk, b->disk) == 0;
}

int disk_header_read(int fd, uint64_t size_bytes, struct disk_header *ret, bool *ret_damaged)
{
	struct disk_header first, copy;
	uint64_t units = size_bytes / DISK_UNIT_BYTES;
	_cleanup_free_ char *block = block_new();
	if (block == NULL)
		return -ENOMEM;
	int r = read_at(fd, block, 0, &first);
	bool wiped = r == -ENODATA && is_zero(block);
	if (r < 0 && (wiped || units < 2 || r == -EPROTONOSUPPORT))
		return r;
	if (units < 2) {
		*ret_damaged = false;
		*ret = first;
		return 0;
	}
	/* The disk may have grown since. */
	uint64_t end = r == 0 && first.size_bytes <= size_bytes ? first.size_bytes
								: units * DISK_UNIT_BYTES;
	int q = read_at(fd, block, end - DISK_UNIT_BYTES, &copy);
	if (q == 0 && copy.size_bytes != end)
		q = -EBADMSG; /* it was copied here with what is around it */
	if (q == 0 && r == 0 && !is_same(&first, &copy))
		q = -EBADMSG; /* of an earlier life of the disk */
	if (r < 0 && q < 0)
		return r;
	*ret_damaged = r < 0 || q < 0;
	*ret = r < 0 || (q == 0 && copy.generation > first.generation) ? copy : first;
	return 0;
}

static int write_at(int fd, const char *block, uint64_t offset)
{
	ssize_t n = pwrite(fd, block, DISK_HEADER_BYTES, (off_t)offset);
	if (n < 0)
		return -errno;
	if (n < DISK_HEADER_BYTES)
		return -EIO;
	return fdatasync(fd) < 0 ? -errno : 0;
}

int disk_header_write(int fd, const struct disk_header *header)
{
	_cleanup_free_ char *block = block_new();
	if (block == NULL)
		return -ENOMEM;
	int r = disk_header_print(header, block);
	if (r == 0)
		r = write_at(fd, block, header->size_bytes - DISK_UNIT_BYTES);
	return r < 0 ? r : write_at(fd, block, 0);
}
