/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of an nghttp2 session. Each session keeps one buffer for the frame it sends, 16 KiB,
 * for as long as it lives. A process with thousands of silent connections gives those pages back:
 * h2_mem_rest().
 */
#ifndef RINGVOL_RPC_H2_MEM_H
#define RINGVOL_RPC_H2_MEM_H

#include <nghttp2/nghttp2.h>
#include <stddef.h>

/* Embed it; zeroed, then h2_mem_init(). It lives as long as the session does. */
struct h2_mem {
	nghttp2_mem calls; /* nghttp2_session_*_new3()'s */
	void *frame;       /* its buffer: a mapping. NULL: not made yet */
	size_t frame_bytes;
};

void h2_mem_init(struct h2_mem *mem);
/* The session has nothing to send: what its last frame held is not read again. */
void h2_mem_rest(const struct h2_mem *mem);

#endif
