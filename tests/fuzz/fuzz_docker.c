/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arbitrary bytes as a request of docker's. The first byte is the verb. What must hold: what is
 * taken has plain names, which lead nowhere; what is refused says why.
 */
#include "docker/request.h"
#include "fuzz.h"

#include <string.h>

static void check_plain(const char *s, size_t max)
{
	size_t len = strlen(s);
	must(len > 0 && len <= max && s[0] != '.' && strchr(s, '/') == NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct fuzz f = {data, len};
	enum docker_verb verb = fuzz_byte(&f) % DOCKER_VERBS;
	struct docker_request req;
	struct err err = {0};
	struct arena *arena = arena_new(256 << 10);
	must(arena != NULL);
	if (docker_request_parse(verb, f.data, f.len, arena, &req, &err) < 0) {
		must(err.code != ERR_OK && err.message[0] != '\0');
	} else if (verb >= DOCKER_CREATE && verb != DOCKER_LIST) {
		check_plain(req.name, DOCKER_NAME_MAX);
		if (verb == DOCKER_MOUNT || verb == DOCKER_UNMOUNT)
			check_plain(req.id, DOCKER_ID_MAX);
		must(req.n_options <= DOCKER_OPTIONS_MAX);
		must(verb == DOCKER_CREATE || req.n_options == 0);
		for (unsigned i = 0; i < req.n_options; i++)
			must(req.options[i].key != NULL && req.options[i].value != NULL);
	}
	arena_unref(arena);
	return 0;
}
