/* SPDX-License-Identifier: Apache-2.0 */
/* Orders as bytes, and back. Nothing fails but for what does not fit or cannot be. */
#include "backends/crypt/luks_order.h"

#include <errno.h>
#include <string.h>

enum {
	FORMAT = 1 << 0,
	READ_ONLY = 1 << 1,
	NO_DISCARD = 1 << 2,
	FLAGS_END = 1 << 3,
};

static const char magic[8] = "RVLUKS1";

struct wire {
	char magic[8];
	uint32_t what, flags, sector_bytes, major, minor, key_len, driver;
	char path[64], name[DM_NAME_LEN], uuid[DM_UUID_LEN];
	char unused[LUKS_HEAD_BYTES - 36 - 64 - DM_NAME_LEN - DM_UUID_LEN];
};

_Static_assert(sizeof(struct wire) == LUKS_HEAD_BYTES, "no byte of it is left unset");

void luks_order_print(const struct luks_order *order, uint8_t ret_head[LUKS_HEAD_BYTES])
{
	struct wire w = {
		.what = order->what,
		.flags = (order->format ? FORMAT : 0) | (order->read_only ? READ_ONLY : 0) |
			 (order->no_discard ? NO_DISCARD : 0),
		.sector_bytes = order->sector_bytes,
		.major = order->major,
		.minor = order->minor,
		.key_len = (uint32_t)order->key_len,
		.driver = (uint32_t)order->driver,
	};
	memcpy(w.magic, magic, sizeof(magic));
	memcpy(w.path, order->path, sizeof(order->path));
	memcpy(w.name, order->name, sizeof(order->name));
	memcpy(w.uuid, order->uuid, sizeof(order->uuid));
	memcpy(ret_head, &w, sizeof(w));
}

static bool is_text(const char *text, size_t cap)
{
	size_t len = strnlen(text, cap);
	return len != 0 && len < cap;
}

static bool is_whole(const struct wire *w, size_t len)
{
	bool has_key = w->what == LUKS_OPEN;
	return memcmp(w->magic, magic, sizeof(magic)) == 0 &&
	       (w->what == LUKS_OPEN || w->what == LUKS_GROW) && w->flags < FLAGS_END &&
	       (w->sector_bytes == 512 || w->sector_bytes == 4096) &&
	       w->key_len <= SECRET_BYTES_MAX && (w->key_len != 0) == has_key &&
	       len == sizeof(*w) + w->key_len && is_text(w->path, sizeof(w->path)) &&
	       w->path[0] == '/' && is_text(w->name, DM_NAME_LEN) && is_text(w->uuid, DM_UUID_LEN);
}

int luks_order_parse(const uint8_t *data, size_t len, struct luks_order *ret)
{
	struct wire w;
	if (len < sizeof(w))
		return -EBADMSG;
	memcpy(&w, data, sizeof(w));
	if (!is_whole(&w, len))
		return -EBADMSG;
	*ret = (struct luks_order){
		.what = (enum luks_what)w.what,
		.driver = (pid_t)w.driver,
		.format = w.flags & FORMAT,
		.read_only = w.flags & READ_ONLY,
		.no_discard = w.flags & NO_DISCARD,
		.sector_bytes = w.sector_bytes,
		.major = w.major,
		.minor = w.minor,
		.key = data + sizeof(w),
		.key_len = w.key_len,
	};
	memcpy(ret->path, w.path, sizeof(ret->path));
	memcpy(ret->name, w.name, sizeof(ret->name));
	memcpy(ret->uuid, w.uuid, sizeof(ret->uuid));
	return 0;
}
