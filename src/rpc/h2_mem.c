/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/h2_mem.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* nghttp2's least; no other piece of a fresh session is as large. */
enum { FRAME_BYTES = 16 << 10 };

/* The first large piece of a session is its frame's buffer. Its pages are nobody else's, so that
 * what is given back is all of it. */
static void *mem_malloc(size_t size, void *arg)
{
	struct h2_mem *mem = arg;
	if (size < FRAME_BYTES || mem->frame != NULL)
		return malloc(size);
	void *pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pages == MAP_FAILED)
		return NULL;
	mem->frame = pages;
	mem->frame_bytes = size;
	return pages;
}

static void mem_free(void *ptr, void *arg)
{
	struct h2_mem *mem = arg;
	if (ptr == NULL || ptr != mem->frame) {
		free(ptr);
		return;
	}
	munmap(mem->frame, mem->frame_bytes);
	mem->frame = NULL;
}

static void *mem_calloc(size_t count, size_t size, void *arg)
{
	(void)arg;
	return calloc(count, size);
}

/* nghttp2 makes its buffers of frames by this, too. It lets none of them grow in place: it adds
 * another. */
static void *mem_realloc(void *ptr, size_t size, void *arg)
{
	const struct h2_mem *mem = arg;
	if (ptr == NULL)
		return mem_malloc(size, arg);
	return ptr == mem->frame ? NULL : realloc(ptr, size);
}

void h2_mem_init(struct h2_mem *mem)
{
	mem->calls = (nghttp2_mem){mem, mem_malloc, mem_free, mem_calloc, mem_realloc};
}

void h2_mem_rest(const struct h2_mem *mem)
{
	if (mem->frame != NULL)
		(void)madvise(mem->frame, mem->frame_bytes, MADV_DONTNEED);
}
