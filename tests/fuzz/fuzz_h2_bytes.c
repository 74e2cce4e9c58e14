/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arbitrary bytes through the connection. The first byte says how: with the preface and SETTINGS
 * before them or without, in which pieces, under which limits, with or without a drain.
 */
#include "h2_world.h"

static const uint8_t greeting[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	static const size_t pieces[] = {1 << 20, 1, 2, 9, 24, 100, 1000, 4096};
	struct fuzz f = {data, len};
	uint8_t how = fuzz_byte(&f);
	struct h2_world *w = h2_world_open((how & 0x10) != 0);
	if ((how & 1) != 0)
		h2_world_feed(w, greeting, sizeof(greeting)); /* its NUL ends the SETTINGS frame */
	while (f.len > 0) {
		struct fuzz part = fuzz_take(&f, pieces[how >> 1 & 7]);
		if (!h2_world_feed(w, part.data, part.len))
			break;
		if ((how & 0x20) != 0)
			h2_world_output(w, 1 << 20);
	}
	h2_world_output(w, 1 << 20);
	if ((how & 0x40) != 0)
		w->session->ops->drain(w->session);
	h2_world_advance(w, (how & 0x80) != 0 ? 60000 : 10);
	h2_world_close(w);
	return 0;
}
