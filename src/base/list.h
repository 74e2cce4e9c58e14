/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Intrusive doubly linked list. A node lives inside the object it links; the list owns nothing.
 * An initialised node that is on no list points to itself, so removing it twice is harmless.
 */
#ifndef RINGVOL_BASE_LIST_H
#define RINGVOL_BASE_LIST_H

#include <stdbool.h>
#include <stddef.h>

#define container_of(ptr, type, member)                                                            \
	((type *)((char *)(1 ? (ptr) : &((type *)0)->member) - offsetof(type, member)))

struct list {
	struct list *next, *prev;
};

static inline void list_init(struct list *l)
{
	l->next = l->prev = l;
}

static inline bool list_empty(const struct list *l)
{
	return l->next == l;
}

static inline void list_push(struct list *head, struct list *node)
{
	node->prev = head->prev;
	node->next = head;
	head->prev->next = node;
	head->prev = node;
}

static inline void list_push_front(struct list *head, struct list *node)
{
	list_push(head->next, node);
}

static inline void list_remove(struct list *node)
{
	node->prev->next = node->next;
	node->next->prev = node->prev;
	list_init(node);
}

/* Removes and returns the first node, or NULL. */
static inline struct list *list_pop(struct list *head)
{
	struct list *node = head->next;
	if (node == head)
		return NULL;
	list_remove(node);
	return node;
}

/* Moves all nodes of `from` to the end of `to`; `from` is empty afterwards. */
static inline void list_splice(struct list *to, struct list *from)
{
	if (list_empty(from))
		return;
	from->next->prev = to->prev;
	to->prev->next = from->next;
	from->prev->next = to;
	to->prev = from->prev;
	list_init(from);
}

#define list_for_each(pos, head)                                                                   \
	for (struct list *pos = (head)->next; pos != (head); pos = pos->next)

/* `pos` may be removed and freed in the body. */
#define list_for_each_safe(pos, head)                                                              \
	for (struct list *pos = (head)->next, *pos##_next = pos->next; pos != (head);              \
		pos = pos##_next, pos##_next = pos->next)

#endif
