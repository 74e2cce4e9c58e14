/* SPDX-License-Identifier: Apache-2.0 */
#include "heap.h"

#include "rpc/h2.h"

#include <criterion/criterion.h>
#include <nghttp2/nghttp2.h>

struct heap heap;

void heap_arm(unsigned long nth, bool lasting)
{
	heap.fail_at = nth;
	heap.lasting = lasting;
	heap.count = heap.failed = 0;
	heap.armed = true;
}

bool heap_disarm(void)
{
	heap.armed = false;
	return heap.failed > 0;
}

bool heap_hold(void)
{
	bool armed = heap.armed;
	heap.armed = false;
	return armed;
}

void heap_release(bool armed)
{
	heap.armed = armed;
}

/* ---- the ring's arrays ---- */

static void timer_never(struct ring_timer *timer)
{
	(void)timer;
}

static void posted(struct ring_req *req, int res, uint32_t flags)
{
	(void)req;
	(void)res;
	(void)flags;
}

void heap_spare_ring(struct ring *ring)
{
	enum { TIMERS = 256, POSTS = 64 };
	static struct ring_timer timers[TIMERS];
	static struct ring_req posts[POSTS];
	for (unsigned i = 0; i < TIMERS; i++) {
		timers[i].fn = timer_never;
		ring_timer_arm(ring, &timers[i], 1);
	}
	for (unsigned i = 0; i < TIMERS; i++)
		ring_timer_cancel(ring, &timers[i]);
	for (unsigned i = 0; i < POSTS; i++) {
		posts[i].fn = posted;
		ring_post(ring, &posts[i], 0);
	}
	for (unsigned i = 0; i < POSTS; i++)
		while (posts[i].armed)
			cr_assert_eq(ring_turn(ring, false), 0);
}

/* ---- whether it fails ---- */

static bool heap_fails(void)
{
	if (!heap.armed || heap.inside == 0)
		return false;
	heap.count++;
	bool fails = heap.lasting ? heap.count >= heap.fail_at : heap.count == heap.fail_at;
	heap.failed += fails;
	return fails;
}

/* ---- the C library's ---- */

/* The linker's names. */
void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *p, size_t size);
void *__real_reallocarray(void *p, size_t count, size_t size);
void __real_free(void *p);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *p, size_t size);
void *__wrap_reallocarray(void *p, size_t count, size_t size);
void __wrap_free(void *p);

void *__wrap_malloc(size_t size)
{
	void *p = heap_fails() ? NULL : __real_malloc(size);
	heap.live += p != NULL;
	return p;
}

void *__wrap_calloc(size_t count, size_t size)
{
	void *p = heap_fails() ? NULL : __real_calloc(count, size);
	heap.live += p != NULL;
	return p;
}

void *__wrap_realloc(void *p, size_t size)
{
	void *q = heap_fails() ? NULL : __real_realloc(p, size);
	heap.live += p == NULL && q != NULL;
	return q;
}

void *__wrap_reallocarray(void *p, size_t count, size_t size)
{
	void *q = heap_fails() ? NULL : __real_reallocarray(p, count, size);
	heap.live += p == NULL && q != NULL;
	return q;
}

void __wrap_free(void *p)
{
	heap.live -= p != NULL;
	__real_free(p);
}

/* ---- nghttp2's ---- */

static nghttp2_realloc session_realloc;

/* Its priority queues, which begin with 4 pointers and double, must not fail: there nghttp2 before
 * 1.61 frees an item twice (session_attach_stream_item), which no caller can prevent. */
static void *mem_realloc(void *p, size_t size, void *arg)
{
	bool queue = size >= 4 * sizeof(void *) && size <= 4096 && (size & (size - 1)) == 0;
	bool armed = heap.armed;
	heap.armed = armed && !queue;
	void *q = session_realloc(p, size, arg);
	heap.armed = armed;
	return q;
}

int __real_nghttp2_session_server_new3(nghttp2_session **ret,
	const nghttp2_session_callbacks *callbacks, void *arg, const nghttp2_option *option,
	nghttp2_mem *mem);
int __wrap_nghttp2_session_server_new3(nghttp2_session **ret,
	const nghttp2_session_callbacks *callbacks, void *arg, const nghttp2_option *option,
	nghttp2_mem *mem);
int __real_nghttp2_session_client_new3(nghttp2_session **ret,
	const nghttp2_session_callbacks *callbacks, void *arg, const nghttp2_option *option,
	nghttp2_mem *mem);
int __wrap_nghttp2_session_client_new3(nghttp2_session **ret,
	const nghttp2_session_callbacks *callbacks, void *arg, const nghttp2_option *option,
	nghttp2_mem *mem);
int __real_nghttp2_session_callbacks_new(nghttp2_session_callbacks **ret);
int __wrap_nghttp2_session_callbacks_new(nghttp2_session_callbacks **ret);
int __real_nghttp2_option_new(nghttp2_option **ret);
int __wrap_nghttp2_option_new(nghttp2_option **ret);

static nghttp2_mem sparing_queues(const nghttp2_mem *mem)
{
	nghttp2_mem ret = *mem;
	session_realloc = mem->realloc;
	ret.realloc = mem_realloc;
	return ret;
}

int __wrap_nghttp2_session_server_new3(nghttp2_session **ret,
	const nghttp2_session_callbacks *callbacks, void *arg, const nghttp2_option *option,
	nghttp2_mem *mem)
{
	nghttp2_mem spared = sparing_queues(mem);
	return __real_nghttp2_session_server_new3(ret, callbacks, arg, option, &spared);
}

int __wrap_nghttp2_session_client_new3(nghttp2_session **ret,
	const nghttp2_session_callbacks *callbacks, void *arg, const nghttp2_option *option,
	nghttp2_mem *mem)
{
	nghttp2_mem spared = sparing_queues(mem);
	return __real_nghttp2_session_client_new3(ret, callbacks, arg, option, &spared);
}

int __wrap_nghttp2_session_callbacks_new(nghttp2_session_callbacks **ret)
{
	return heap_fails() ? NGHTTP2_ERR_NOMEM : __real_nghttp2_session_callbacks_new(ret);
}

int __wrap_nghttp2_option_new(nghttp2_option **ret)
{
	return heap_fails() ? NGHTTP2_ERR_NOMEM : __real_nghttp2_option_new(ret);
}

/* ---- the server's functions ---- */

int __real_h2_session_new(const struct h2_config *config, struct session **ret);
int __wrap_h2_session_new(const struct h2_config *config, struct session **ret);
int __real_ring_turn(struct ring *ring, bool wait);
int __wrap_ring_turn(struct ring *ring, bool wait);

static const struct session_ops *real_ops;

static int inside_feed(struct session *session, const uint8_t *data, size_t len)
{
	return heap_inside(real_ops->feed(session, data, len));
}

static int inside_output(struct session *session, struct buf *out, size_t limit)
{
	return heap_inside(real_ops->output(session, out, limit));
}

static void inside_drain(struct session *session)
{
	heap.inside++;
	real_ops->drain(session);
	heap.inside--;
}

int __wrap_h2_session_new(const struct h2_config *config, struct session **ret)
{
	static struct session_ops ops;
	int res = heap_inside(__real_h2_session_new(config, ret));
	if (res < 0)
		return res;
	real_ops = (*ret)->ops;
	ops = *real_ops;
	ops.feed = inside_feed;
	ops.output = inside_output;
	ops.drain = inside_drain;
	(*ret)->ops = &ops;
	return 0;
}

int __wrap_ring_turn(struct ring *ring, bool wait)
{
	heap.inside++;
	int res = __real_ring_turn(ring, wait);
	heap.inside--;
	return res;
}
