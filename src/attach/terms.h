/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a publish_context says of a volume of another node, checked: how its device is reached, and
 * what it is. Whatever is in here may be put into the kernel's list of options, a path or a message
 * as it is: no comma, blank or control character is in any of it.
 */
#ifndef RINGVOL_ATTACH_TERMS_H
#define RINGVOL_ATTACH_TERMS_H

#include "attach/context.h"
#include "base/err.h"
#include "base/uuid.h"
#include "blockio/fsimg.h"

#include <stdbool.h>
#include <stddef.h>

enum {
	ATTACH_TERMS_HOST_BYTES = 256, /* with the NUL: an IPv4 or IPv6 address, or a name */
	ATTACH_TERMS_PORT_BYTES = 6,
	ATTACH_TERMS_NODE_BYTES = 257, /* CSI's limit of a node id */
};

/* One entry of the context. */
struct attach_pair {
	const char *key, *value;
};

/* Plain bytes: it goes to a helper process as it is. Who has it wipes the key. */
struct attach_terms {
	char host[ATTACH_TERMS_HOST_BYTES]; /* an IPv6 address without its brackets */
	char port[ATTACH_TERMS_PORT_BYTES];
	char subsystem[ATTACH_NQN_BYTES], host_nqn[ATTACH_NQN_BYTES];
	char host_id[UUID_BYTES], namespace_id[UUID_BYTES];
	char key[ATTACH_KEY_BYTES];         /* "": the owner wants none */
	char node[ATTACH_TERMS_NODE_BYTES]; /* the owner's id, for people */
	bool block, read_only;
	bool encrypted;     /* its device holds LUKS2 */
	bool tls;           /* never reached without; there is a key */
	enum fsimg_type fs; /* FSIMG_NONE of a block volume */
};

/* Whether the context is of a volume of another node. */
bool attach_terms_given(const struct attach_pair *pairs, size_t n);
/* 0; ERR_INVALID: an entry is missing or malformed; ERR_PRECONDITION: it asks for what this version
 * has not. The message names the entry, and never has its value. Entries that are not known are
 * passed over. */
int attach_terms_parse(
	const struct attach_pair *pairs, size_t n, struct attach_terms *ret, struct err *err);

#endif
