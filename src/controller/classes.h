/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Classes of GetCapacity: packed requests that clients have made, without their topology, and what
 * nodes answer to each. For store.c.
 *
 * A class's number says its place modulo CLASSES_MAX. A new class takes a free place, or that of
 * the class asked for longest ago; then its number is a new one, and answers to the old one are
 * nobody's.
 */
#ifndef RINGVOL_CONTROLLER_CLASSES_H
#define RINGVOL_CONTROLLER_CLASSES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	CLASSES_MAX = 64,
	CLASS_REQUEST_MAX = 16384, /* bytes; a larger request is asked of the node each time */
	CLASS_ANSWER_MAX = 512,
};

struct class
{
	uint32_t number; /* 0: the place is free */
	uint8_t *request;
	size_t len;
	uint64_t used; /* when it was asked for, in requests */
};

struct classes {
	struct class places[CLASSES_MAX];
	uint64_t uses;
	uint32_t rounds;
};

/* A node's answers; zero-initialised it has none. */
struct class_answers {
	struct class_answer *places[CLASSES_MAX];
};

/* The class of a request. 0, -ENOMEM, -EMSGSIZE. */
int classes_get(struct classes *classes, const uint8_t *request, size_t len, uint32_t *ret_number,
	bool *ret_new);
/* NULL: there is none of this number any more. */
const struct class *classes_find(const struct classes *classes, uint32_t number);
void classes_free(struct classes *classes);

/* Copies; what it had said of the place before is forgotten. 0 or -ENOMEM. */
int class_answers_set(
	struct class_answers *answers, uint32_t number, const uint8_t *response, size_t len);
/* NULL: none. */
const uint8_t *class_answers_get(
	const struct class_answers *answers, uint32_t number, size_t *ret_len);
void class_answers_free(struct class_answers *answers);

#endif
