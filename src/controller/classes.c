/* SPDX-License-Identifier: Apache-2.0 */
/* Two small arrays. What fails is memory, and a request that is too large for a class. */
#include "controller/classes.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct class_answer {
	uint32_t number, len;
	uint8_t data[];
};

/* A free place, or the one that was used longest ago. */
static unsigned place_for_new(const struct classes *classes)
{
	unsigned oldest = 0;
	for (unsigned i = 0; i < CLASSES_MAX; i++) {
		if (classes->places[i].number == 0)
			return i;
		if (classes->places[i].used < classes->places[oldest].used)
			oldest = i;
	}
	return oldest;
}

int classes_get(struct classes *classes, const uint8_t *request, size_t len, uint32_t *ret_number,
	bool *ret_new)
{
	if (len > CLASS_REQUEST_MAX)
		return -EMSGSIZE;
	for (unsigned i = 0; i < CLASSES_MAX; i++) {
		struct class *class = &classes->places[i];
		if (class->number == 0 || class->len != len ||
			memcmp(class->request, request, len) != 0)
			continue;
		class->used = ++classes->uses;
		*ret_number = class->number;
		*ret_new = false;
		return 0;
	}
	uint8_t *copy = malloc(len + 1);
	if (copy == NULL)
		return -ENOMEM;
	memcpy(copy, request, len);
	unsigned at = place_for_new(classes);
	struct class *class = &classes->places[at];
	free(class->request);
	classes->rounds = classes->rounds % (UINT32_MAX / CLASSES_MAX - 1) + 1;
	class->number = classes->rounds * CLASSES_MAX + at;
	class->request = copy;
	class->len = len;
	class->used = ++classes->uses;
	*ret_number = class->number;
	*ret_new = true;
	return 0;
}

const struct class *classes_find(const struct classes *classes, uint32_t number)
{
	const struct class *class = &classes->places[number % CLASSES_MAX];
	return number != 0 && class->number == number ? class : NULL;
}

void classes_free(struct classes *classes)
{
	for (unsigned i = 0; i < CLASSES_MAX; i++)
		free(classes->places[i].request);
	*classes = (struct classes){0};
}

int class_answers_set(
	struct class_answers *answers, uint32_t number, const uint8_t *response, size_t len)
{
	assert(len <= CLASS_ANSWER_MAX);
	struct class_answer **place = &answers->places[number % CLASSES_MAX];
	if (*place == NULL || (*place)->len != len) {
		struct class_answer *answer = malloc(sizeof(*answer) + len);
		if (answer == NULL)
			return -ENOMEM;
		free(*place);
		*place = answer;
	}
	(*place)->number = number;
	(*place)->len = (uint32_t)len;
	if (len > 0)
		memcpy((*place)->data, response, len);
	return 0;
}

const uint8_t *class_answers_get(
	const struct class_answers *answers, uint32_t number, size_t *ret_len)
{
	const struct class_answer *answer = answers->places[number % CLASSES_MAX];
	if (answer == NULL || answer->number != number)
		return NULL;
	*ret_len = answer->len;
	return answer->data;
}

void class_answers_free(struct class_answers *answers)
{
	for (unsigned i = 0; i < CLASSES_MAX; i++)
		free(answers->places[i]);
	*answers = (struct class_answers){0};
}
