/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/h2_mem.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
	PAGE_BYTES = 4096,
	FRAME_BYTES = 16 << 10, /* nghttp2's least; no other piece of a fresh session is as large */
};

/* The first large piece of a session is its frame's buffer; it begins at a page. */
static void *mem_malloc(size_t size, void *arg)
{
	struct h2_mem *mem = arg;
	if (size < FRAME_BYTES || mem->frame != NULL)
		return malloc(size);
	mem->frame = malloc(size + PAGE_BYTES);
	if (mem->frame == NULL)
		return NULL;
	uintptr_t at = ((uintptr_t)mem->frame + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
	mem->pages = (uint8_t *)mem->frame + (at - (uintptr_t)mem->frame);
	return mem->pages;
}

static void mem_free(void *ptr, void *arg)
{
	struct h2_mem *mem = arg;
	if (ptr == NULL || ptr != mem->pages) {
		free(ptr);
		return;
	}
	free(mem->frame);
	mem->frame = mem->pages = NULL;
}

static void *mem_calloc(size_t count, size_t size, void *arg)
{
	(void)arg;
	return calloc(count, size);
}

/* nghttp2 lets no buffer of frames grow in place: it adds another. */
static void *mem_realloc(void *ptr, size_t size, void *arg)
{
	const struct h2_mem *mem = arg;
	return ptr != NULL && ptr == mem->pages ? NULL : realloc(ptr, size);
}

void h2_mem_init(struct h2_mem *mem)
{
	mem->calls = (nghttp2_mem){mem, mem_malloc, mem_free, mem_calloc, mem_realloc};
}

void h2_mem_rest(const struct h2_mem *mem)
{
	if (mem->pages != NULL)
		(void)madvise(mem->pages, FRAME_BYTES, MADV_DONTNEED);
}
