/* SPDX-License-Identifier: Apache-2.0 */
/* The arrivals of a pool: read at a load, added, listed, forgotten. */
#include "pool/arrival.h"

#include "base/fd.h"
#include "pool/private.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

static struct pool_arrival *arrival_of(struct list *link)
{
	return container_of(link, struct pool_arrival, link);
}

struct pool_arrival *pool_arrival_next(const struct pool *pool, const struct pool_arrival *after)
{
	struct list *next = after == NULL ? pool->arrivals.next : after->link.next;
	return next == &pool->arrivals ? NULL : arrival_of(next);
}

int pool_arrival_add(struct pool *pool, const char *key, const char *text, size_t len)
{
	assert(len <= POOL_PART_TEXT_MAX && record_key_valid(key));
	struct pool_arrival *arrival = calloc(1, sizeof(*arrival));
	if (arrival == NULL)
		return -ENOMEM;
	pool_arrival_forget(pool, key);
	arrival->len = len;
	memcpy(arrival->text, text, len);
	strcpy(arrival->key, key);
	list_push(&pool->arrivals, &arrival->link);
	return 0;
}

void pool_arrival_forget(struct pool *pool, const char *key)
{
	list_for_each_safe (l, &pool->arrivals) {
		struct pool_arrival *arrival = arrival_of(l);
		if (strcmp(arrival->key, key) == 0) {
			list_remove(l);
			free(arrival);
		}
	}
}

struct reading {
	int copies_fd;
	struct list *arrivals;
};

static int read_one(void *arg, const char *name)
{
	const struct reading *reading = arg;
	if (!pool_part_name_valid(name))
		return 0;
	_cleanup_fd_ int fd =
		openat(reading->copies_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	struct pool_arrival *arrival = fd < 0 ? NULL : calloc(1, sizeof(*arrival));
	if (arrival == NULL)
		return fd < 0 ? 0 : -ENOMEM;
	ssize_t len = pool_part_text(fd, arrival->text);
	if (len < 0) {
		free(arrival);
		return 0;
	}
	arrival->len = (size_t)len;
	strcpy(arrival->key, name + strlen(POOL_PART_PREFIX));
	list_push(reading->arrivals, &arrival->link);
	return 0;
}

int pool_arrivals_read(int copies_fd, struct list *ret_arrivals)
{
	struct reading reading = {copies_fd, ret_arrivals};
	return fd_each_name(copies_fd, read_one, &reading);
}

void pool_arrivals_adopt(struct pool *pool, struct list *arrivals)
{
	pool_arrivals_free(&pool->arrivals);
	list_splice(&pool->arrivals, arrivals);
}

void pool_arrivals_free(struct list *arrivals)
{
	for (struct list *l; (l = list_pop(arrivals)) != NULL;)
		free(arrival_of(l));
}
