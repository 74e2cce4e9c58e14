/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the fuzz targets share: the entry point's prototype, a reader that turns the fuzzer's bytes
 * into choices, and an assertion that holds whatever the build says. A reader that has run dry
 * answers zeros, so that every input is a program with an end.
 */
#ifndef RINGVOL_TESTS_FUZZ_H
#define RINGVOL_TESTS_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

#define must(condition)                                                                            \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__,          \
				#condition);                                                       \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

struct fuzz {
	const uint8_t *data;
	size_t len;
};

static inline uint8_t fuzz_byte(struct fuzz *f)
{
	if (f->len == 0)
		return 0;
	f->len--;
	return *f->data++;
}

static inline unsigned fuzz_below(struct fuzz *f, unsigned limit)
{
	return fuzz_byte(f) % limit;
}

static inline uint32_t fuzz_u32(struct fuzz *f)
{
	uint32_t v = 0;
	for (unsigned i = 0; i < 4; i++)
		v = v << 8 | fuzz_byte(f);
	return v;
}

/* At most `want` bytes of the input itself. */
static inline struct fuzz fuzz_take(struct fuzz *f, size_t want)
{
	struct fuzz part = {f->data, want < f->len ? want : f->len};
	f->data += part.len;
	f->len -= part.len;
	return part;
}

/* A copy that ends with NUL, and no byte more, so that a read past its end is seen. */
static inline char *fuzz_text(const uint8_t *data, size_t len)
{
	char *text = malloc(len + 1);
	must(text != NULL);
	for (size_t i = 0; i < len; i++)
		text[i] = (char)data[i];
	text[len] = '\0';
	return text;
}

#endif
