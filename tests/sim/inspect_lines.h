/* SPDX-License-Identifier: Apache-2.0 */
/* Inspect.List as lines of text, over probes, a trash and a clock of the test's own. */
#ifndef RINGVOL_TESTS_INSPECT_LINES_H
#define RINGVOL_TESTS_INSPECT_LINES_H

#include "answers.h"

#include "inspect.pb-c.h"
#include "pool/index.h"
#include "probes/probes.h"

#define KIND(name) RINGVOL__V1__LIST_REQUEST__KIND__##name

/* What the probes say: csi->node->probes, and those of borrowed volumes, may point to it. */
extern struct counted {
	bool there;
	enum probes_state state;
	uint32_t major, minor; /* of the only device that is counted */
	struct probe_counters counters;
} counted;
extern uint64_t erasing_total; /* in each pool; 0: nothing is erased */

enum { LINES_BYTES = 32768 };

/* The last list: a line for each message. */
extern struct got {
	struct grpc_local local;
	char lines[LINES_BYTES];
	size_t len;
	unsigned messages, ends;
	enum grpc_status status;
} got;

/* slowly: the client reads one message, and the next one when it is told to. */
void begin_list(const Ringvol__V1__ListRequest *req, bool slowly);
void turn(void);
/* The lines of one kind, or of all (0). */
const char *list_with(Ringvol__V1__ListRequest__Kind kind, bool attached_only, bool histograms);
const char *list(Ringvol__V1__ListRequest__Kind kind);

/* One without an image, as memory has it, in the pool of that number; why: it is quarantined. */
struct pool_object *insert(enum record_kind kind, const char *name);
struct pool_object *insert_damaged(
	unsigned pool, enum record_kind kind, const char *key, const char *why);
/* And out again. */
void take_out(struct pool_object *object);

#endif
