/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arbitrary bytes through a varlink connection. The first byte says how: in which pieces, with or
 * without a drain, a client that half-closes. What must hold: all that is sent is JSON objects that
 * end with NUL, with an answer or an error; on_wake never comes from inside; names that are taken
 * lead nowhere.
 */
#include "fuzz.h"

#include "../unit/varlink_peer.h"

static const size_t pieces[] = {SESSION_FEED_BYTES, 1, 2, 7, 30, 100, 1000, 4096};

static void check_answers(const struct varlink_peer *p)
{
	size_t at = 0;
	while (at < p->out.len) {
		const char *text = (const char *)p->out.data + at;
		const char *end = memchr(text, '\0', p->out.len - at);
		must(end != NULL);
		json_t *answer = json_loads(text, 0, NULL);
		const json_t *parameters = json_object_get(answer, "parameters");
		must(json_is_object(parameters));
		const char *name = json_string_value(json_object_get(parameters, "name"));
		must(name == NULL || (name[0] != '.' && strchr(name, '/') == NULL &&
					     strlen(name) <= PROVIDER_NAME_MAX));
		json_decref(answer);
		at += (size_t)(end - text) + 1;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct fuzz f = {data, len};
	struct varlink_peer peer;
	uint8_t how = fuzz_byte(&f);
	peer_open(&peer);
	const struct session_ops *ops = peer.session->ops;
	while (f.len > 0 && peer.res == 0 && !ops->finished(peer.session)) {
		struct fuzz part = fuzz_take(&f, pieces[how & 7]);
		unsigned wakes = peer.wakes;
		peer_feed(&peer, part.data, part.len);
		must(peer.wakes == wakes);
		if ((how & 0x10) != 0 && f.len < len / 2)
			ops->drain(peer.session);
		while (peer.later != NULL && (how & 8) == 0)
			peer_answer(&peer);
		must(peer.later != NULL || peer.res < 0 || ops->finished(peer.session) ||
			ops->wants_input(peer.session));
	}
	if ((how & 0x20) != 0)
		ops->input_ended(peer.session);
	check_answers(&peer);
	peer_close(&peer);
	return 0;
}
