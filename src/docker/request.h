/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What docker asks of a volume plugin: JSON from outside becomes a request that was checked. Names
 * and mounts become parts of paths, so they are letters, digits and ".-_", a letter or digit first.
 */
#ifndef RINGVOL_DOCKER_REQUEST_H
#define RINGVOL_DOCKER_REQUEST_H

#include "base/arena.h"
#include "base/err.h"

#include <stddef.h>
#include <stdint.h>

enum docker_verb {
	DOCKER_ACTIVATE,
	DOCKER_CAPABILITIES,
	DOCKER_CREATE,
	DOCKER_REMOVE,
	DOCKER_MOUNT,
	DOCKER_UNMOUNT,
	DOCKER_PATH,
	DOCKER_GET,
	DOCKER_LIST,
	DOCKER_VERBS
};

enum {
	DOCKER_BODY_MAX = 16 << 10, /* bytes of a request */
	DOCKER_NAME_MAX = 120,      /* bytes of a volume's name; ringvol's has a prefix */
	DOCKER_ID_MAX = 128,        /* bytes of what names one mount */
	DOCKER_OPTIONS_MAX = 32,
};

struct docker_option {
	const char *key, *value;
};

struct docker_request {
	enum docker_verb verb;
	const char *name; /* "": the verb has none */
	const char *id;   /* of Mount and Unmount: whose mount it is */
	unsigned n_options;
	struct docker_option options[DOCKER_OPTIONS_MAX]; /* of Create */
};

/* "/VolumeDriver.Create". */
const char *docker_verb_path(enum docker_verb verb);
/* Strings of *ret lie in the arena. 0, or ERR_INVALID saying what is wrong. */
int docker_request_parse(enum docker_verb verb, const uint8_t *data, size_t len,
	struct arena *arena, struct docker_request *ret, struct err *err);

#endif
