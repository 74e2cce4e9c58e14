/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of an nghttp2 session: the frame's buffer, and how its pages are given back. */
#include "rpc/h2_mem.h"

#include <criterion/criterion.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

enum { FRAME = 16 << 10, PAGE = 4096 };

static struct h2_mem mem;

static void *take(size_t size)
{
	return mem.calls.malloc(size, mem.calls.mem_user_data);
}

static void give(void *p)
{
	mem.calls.free(p, mem.calls.mem_user_data);
}

static unsigned resident(const uint8_t *p)
{
	unsigned char pages[FRAME / PAGE];
	unsigned n = 0;
	cr_assert_eq(mincore((void *)p, FRAME, pages), 0);
	for (unsigned i = 0; i < FRAME / PAGE; i++)
		n += pages[i] & 1;
	return n;
}

Test(h2_mem, the_frame_goes_back)
{
	h2_mem_init(&mem);
	h2_mem_rest(&mem); /* nothing yet */
	char *small = take(100);
	uint8_t *frame = take(FRAME + 10), *second = take(FRAME + 10);
	cr_assert(small != NULL && frame != NULL && second != NULL);
	cr_assert_eq((uintptr_t)frame % PAGE, 0);
	memset(frame, 1, FRAME + 10);
	memset(second, 2, FRAME + 10);
	memset(small, 3, 100);
	cr_assert_eq(resident(frame), FRAME / PAGE);
	h2_mem_rest(&mem);
	cr_assert_eq(resident(frame), 0);
	for (unsigned i = 0; i < FRAME + 10; i++)
		cr_assert_eq(second[i], 2);
	for (unsigned i = 0; i < FRAME + 10; i++)
		cr_assert_eq(frame[i], 0);
	for (unsigned i = 0; i < 100; i++)
		cr_assert_eq(small[i], 3);
	cr_assert_null(mem.calls.realloc(frame, 2 * FRAME, mem.calls.mem_user_data));
	small = mem.calls.realloc(small, 200, mem.calls.mem_user_data);
	cr_assert_eq(small[99], 3);
	give(small);
	give(frame);
	give(second);
	give(NULL);
	frame = take(FRAME);
	cr_assert_eq(mem.frame, frame);
	give(frame);
	cr_assert_null(mem.frame);
}

/* By nghttp2 itself, which decides by what call it asks for which piece. */
Test(h2_mem, a_session_s_frame_goes_back)
{
	nghttp2_session *session;
	nghttp2_session_callbacks *callbacks;
	const uint8_t *data;
	h2_mem_init(&mem);
	cr_assert_eq(nghttp2_session_callbacks_new(&callbacks), 0);
	cr_assert_eq(nghttp2_session_server_new3(&session, callbacks, NULL, NULL, &mem.calls), 0);
	cr_assert_not_null(mem.frame);
	for (unsigned i = 0; i < 3; i++) {
		cr_assert_eq(nghttp2_submit_settings(session, NGHTTP2_FLAG_NONE, NULL, 0), 0);
		cr_assert_eq(nghttp2_session_mem_send(session, &data), 9);
		cr_assert_eq(nghttp2_session_mem_send(session, &data), 0);
		cr_assert_gt(resident(mem.frame), 0);
		h2_mem_rest(&mem);
		cr_assert_eq(resident(mem.frame), 0);
	}
	nghttp2_session_callbacks_del(callbacks);
	nghttp2_session_del(session);
	cr_assert_null(mem.frame);
}
