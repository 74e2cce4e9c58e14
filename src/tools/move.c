/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ringvol move`: a volume goes to another node, or all volumes of a node go to others.
 *
 * Happy path: a controller is asked for the move (MoveVolume) and answers where the volume is. What
 * it cannot do yet (the volume is in use, a node is away, there is much to copy) it is asked again,
 * and the reason is printed each time it is another one. All of a node: its volumes are listed, and
 * moved one after the other, first those that nobody uses; then those that are left, again and
 * again, until none is.
 *
 * It fails (1) when no controller answers, when the time is over or a signal ends it, and when a
 * volume will not move. What is copied is kept by then: the next call goes on with it.
 */
#include "tools/tool.h"

#include "base/buf.h"
#include "base/clock.h"
#include "pool/record.h"
#include "tools/move_calls.h"
#include "tools/text.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
	AGAIN_MS = 2000, /* between two calls */
	AGAIN_PASS_MS = 5000,
};

struct move_args {
	struct tool_args tool; /* first: tool_main()'s */
	bool all;
	const char *from, *to, *pool; /* NULL: not said */
	unsigned timeout_s;
};

/* A volume of a node that is emptied. */
struct mover {
	const char *id, *name;
	const char *reason; /* the last that was printed; "" */
	bool in_use, stays, seen;
};

struct move {
	struct move_args *args;
	struct move_calls calls;
	uint64_t end_ms; /* UINT64_MAX: never */
	struct mover *movers;
	size_t count, cap;
	unsigned moved, snapshots;
};

static volatile sig_atomic_t stopped;

static void on_signal(int number)
{
	(void)number;
	stopped = 1;
}

static void take_signals(void)
{
	struct sigaction action = {.sa_handler = on_signal}; /* calls end with EINTR */
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGHUP, &action, NULL);
}

/* ---- time ---- */

static uint64_t now_ms(void)
{
	return clock_monotonic_ns() / 1000000;
}

static bool is_over(const struct move *m)
{
	return stopped != 0 || now_ms() >= m->end_ms;
}

static unsigned call_ms(const struct move *m)
{
	uint64_t now = now_ms();
	uint64_t left = m->end_ms > now ? m->end_ms - now : 1;
	return left < MOVE_CALL_MS ? (unsigned)left : MOVE_CALL_MS;
}

/* In pieces: a signal may come just before the sleep. */
static void pause_for(const struct move *m, unsigned ms)
{
	const struct timespec piece = {.tv_nsec = 100000000};
	for (unsigned slept = 0; slept < ms && !is_over(m); slept += 100)
		nanosleep(&piece, NULL);
}

static int end_early(const struct move *m)
{
	return tool_fail(&m->args->tool,
		stopped != 0 ? "ended by a signal; what is copied is kept: run it again to go on"
			     : "the time is over; what is copied is kept: run it again to go on");
}

/* ---- what is said ---- */

/* Names come from outside. */
static const char *clean(const struct move *m, const char *s)
{
	const char *text = text_clean(m->args->tool.arena, s);
	m->args->tool.failed |= text == NULL;
	return text != NULL ? text : "";
}

static void say_reason(const struct move *m, const char *name, const char *reason)
{
	fprintf(stderr, "ringvol move: %s%s%s\n", clean(m, name), name[0] != '\0' ? ": " : "",
		clean(m, reason));
}

static void say_done(const struct move *m, const char *name, const struct move_answer *answer)
{
	printf("%s is %son node %s, in pool %s\n", clean(m, name),
		answer->was_there ? "already " : "", clean(m, answer->node),
		clean(m, answer->pool));
	fflush(stdout);
}

/* ---- one volume ---- */

/* What to ask for it by: the id, which it has also while it is between two nodes. A name that no
 * file can have is not in the id, and is said itself. */
static const char *asked_as(const char *id, const char *name)
{
	struct record_id parsed;
	bool in_id = record_id_parse(id, &parsed) == 0 && parsed.key[0] != '=';
	return in_id ? id : name;
}

/* Of several by the name, and of none, the controller speaks. */
static const char *find_volume(struct move *m, const char *operand)
{
	struct inventory inv = {0};
	struct record_id parsed;
	struct err reason = {0};
	const char *found = operand;
	unsigned count = 0;
	if (record_id_parse(operand, &parsed) == 0)
		return operand;
	if (move_list(&m->calls, &inv, &reason) == MOVE_DONE)
		for (size_t i = 0; i < inv.volumes.count; i++) {
			const Ringvol__V1__Volume *v = (const void *)inv.volumes.at[i];
			if (strcmp(inventory_str(v->name), operand) == 0 && count++ == 0)
				found = tool_text(&m->args->tool, "%s",
					asked_as(inventory_str(v->id), operand));
		}
	inventory_free(&inv);
	return count == 1 ? found : operand;
}

static int move_one(struct move *m)
{
	const struct move_args *args = m->args;
	const char *name = args->tool.operands[0], *volume = find_volume(m, name);
	const char *node = args->tool.operands[1] != NULL ? args->tool.operands[1] : "";
	const char *pool = args->pool != NULL ? args->pool : "";
	struct err said = {0};
	while (!is_over(m)) {
		struct move_answer answer;
		struct err reason = {0};
		switch (move_ask(&m->calls, volume, node, pool, call_ms(m), &answer, &reason)) {
		case MOVE_DONE:
			say_done(m, name, &answer);
			return 0;
		case MOVE_NEVER:
			if (stopped != 0)
				return end_early(m);
			return tool_fail(&args->tool, clean(m, reason.message));
		case MOVE_LATER:
			break;
		}
		if (is_over(m))
			break;
		if (strcmp(said.message, reason.message) != 0)
			say_reason(m, "", reason.message);
		said = reason;
		pause_for(m, reason.code == ERR_TIMEOUT ? 0 : AGAIN_MS);
	}
	return end_early(m);
}

/* ---- all of a node ---- */

static struct mover *find_mover(struct move *m, const char *id)
{
	for (size_t i = 0; i < m->count; i++)
		if (strcmp(m->movers[i].id, id) == 0)
			return &m->movers[i];
	return NULL;
}

static int take_volume(struct move *m, const Ringvol__V1__Volume *v)
{
	struct arena *arena = m->args->tool.arena;
	const char *id = inventory_str(v->id);
	struct mover *mover = find_mover(m, id);
	if (mover == NULL) {
		if (array_grow(&m->movers, &m->cap, m->count, sizeof(*m->movers)) < 0)
			return -ENOMEM;
		mover = &m->movers[m->count];
		*mover = (struct mover){.id = arena_strdup(arena, id),
			.name = arena_strdup(arena, inventory_str(v->name)),
			.reason = ""};
		if (mover->id == NULL || mover->name == NULL)
			return -ENOMEM;
		m->count++;
	}
	mover->seen = true;
	mover->in_use = v->device != NULL || v->n_mounts != 0;
	return 0;
}

/* What is on the node now. */
static int take_inventory(struct move *m, const struct inventory *inv)
{
	const char *from = m->args->from;
	int r = 0;
	m->snapshots = 0;
	for (size_t i = 0; i < m->count; i++)
		m->movers[i].seen = false;
	for (size_t i = 0; r == 0 && i < inv->volumes.count; i++) {
		const Ringvol__V1__Volume *v = (const void *)inv->volumes.at[i];
		if (strcmp(inventory_str(v->node), from) == 0)
			r = take_volume(m, v);
	}
	for (size_t i = 0; i < inv->snapshots.count; i++) {
		const Ringvol__V1__Snapshot *s = (const void *)inv->snapshots.at[i];
		m->snapshots += strcmp(inventory_str(s->node), from) == 0;
	}
	return r;
}

/* The node is known, and has told what it has. */
static enum move_outcome check_node(
	const struct move *m, const struct inventory *inv, struct err *reason)
{
	for (size_t i = 0; i < inv->nodes.count; i++) {
		const Ringvol__V1__ClusterNode *n = (const void *)inv->nodes.at[i];
		if (strcmp(inventory_str(n->id), m->args->from) != 0)
			continue;
		if (n->state == RINGVOL__V1__CLUSTER_NODE__STATE__PRESENT && n->why.len == 0)
			return MOVE_DONE;
		err_set(reason, ERR_UNAVAILABLE, "node %.64s is not here%s%s", m->args->from,
			n->why.len != 0 ? ": " : "", inventory_str(n->why));
		return MOVE_LATER;
	}
	err_set(reason, ERR_NOT_FOUND, "no node %.64s has ever joined", m->args->from);
	return MOVE_NEVER;
}

static enum move_outcome look(struct move *m, struct err *reason)
{
	struct inventory inv = {0};
	enum move_outcome outcome = move_list(&m->calls, &inv, reason);
	if (outcome == MOVE_DONE)
		outcome = check_node(m, &inv, reason);
	if (outcome == MOVE_DONE && take_inventory(m, &inv) < 0) {
		err_set(reason, ERR_NO_ROOM, "out of memory");
		outcome = MOVE_NEVER;
	}
	inventory_free(&inv);
	return outcome;
}

/* True: it has moved. */
static bool move_next(struct move *m, struct mover *mover)
{
	const struct move_args *args = m->args;
	enum move_outcome outcome;
	struct move_answer answer;
	struct err reason = {0};
	do { /* while it is copied no other one is begun */
		err_clear(&reason);
		outcome = move_ask(&m->calls, asked_as(mover->id, mover->name),
			args->to != NULL ? args->to : "", args->pool != NULL ? args->pool : "",
			call_ms(m), &answer, &reason);
	} while (outcome == MOVE_LATER && reason.code == ERR_TIMEOUT && !is_over(m));
	if (outcome == MOVE_DONE && strcmp(answer.node, args->from) != 0) {
		say_done(m, mover->name, &answer);
		mover->seen = false;
		m->moved++;
		return true;
	}
	if (outcome == MOVE_DONE)
		err_set(&reason, ERR_PRECONDITION, "it is on node %.64s", args->from);
	if (is_over(m))
		return false;
	mover->stays = outcome != MOVE_LATER;
	if (strcmp(mover->reason, reason.message) != 0)
		say_reason(m, mover->name, reason.message);
	mover->reason = tool_text(&m->args->tool, "%s", reason.message);
	return false;
}

/* Those that nobody uses, then the others. How many have moved. */
static unsigned move_pass(struct move *m)
{
	unsigned before = m->moved;
	for (unsigned in_use = 0; in_use < 2; in_use++)
		for (size_t i = 0; i < m->count && !is_over(m); i++) {
			struct mover *mover = &m->movers[i];
			if (mover->seen && !mover->stays && mover->in_use == (in_use != 0))
				move_next(m, mover);
		}
	return m->moved - before;
}

static size_t count_left(const struct move *m, bool stays)
{
	size_t count = 0;
	for (size_t i = 0; i < m->count; i++)
		count += m->movers[i].seen && m->movers[i].stays == stays;
	return count;
}

static int end_all(const struct move *m)
{
	const char *from = clean(m, m->args->from);
	size_t stay = count_left(m, true);
	for (size_t i = 0; i < m->count; i++)
		if (m->movers[i].seen)
			printf("%s stays on node %s: %s\n", clean(m, m->movers[i].name), from,
				clean(m, m->movers[i].reason));
	printf("moved: %u, not moved: %zu, snapshots left on node: %u (%s)\n", m->moved, stay,
		m->snapshots, from);
	return stay == 0 ? 0 : TOOL_FAILED;
}

static int move_all(struct move *m)
{
	struct err said = {0};
	while (!is_over(m)) {
		struct err reason = {0};
		enum move_outcome outcome = look(m, &reason);
		unsigned moved = 0;
		if (outcome == MOVE_NEVER && stopped == 0)
			return tool_fail(&m->args->tool, clean(m, reason.message));
		if (outcome == MOVE_DONE && count_left(m, false) == 0)
			return end_all(m);
		if (outcome == MOVE_DONE)
			moved = move_pass(m);
		else if (strcmp(said.message, reason.message) != 0 && !is_over(m))
			say_reason(m, "", reason.message);
		said = reason;
		pause_for(m, moved != 0 ? 0 : AGAIN_PASS_MS);
	}
	return end_early(m);
}

/* ---- the command ---- */

static int usage(const struct move_args *args, const char *why)
{
	tool_fail(&args->tool, why);
	return TOOL_USAGE;
}

static int check_args(const struct move_args *args)
{
	if (args->all && (args->from == NULL || args->tool.operands[0] != NULL))
		return usage(args, "--all needs --from NODE, and no VOLUME; see 'ringvol move "
				   "--help'");
	if (!args->all && args->tool.operands[0] == NULL)
		return usage(args, "VOLUME is missing; see 'ringvol move --help'");
	if (!args->all && (args->from != NULL || args->to != NULL))
		return usage(args, "--from and --to are for --all; see 'ringvol move --help'");
	return 0;
}

static int run(struct tool_args *tool)
{
	struct move_args *args = (struct move_args *)tool;
	struct move m = {.args = args,
		.calls = {.endpoint = tool->endpoint},
		.end_ms = args->timeout_s != 0 ? now_ms() + args->timeout_s * UINT64_C(1000)
					       : UINT64_MAX};
	int status = check_args(args);
	if (status != 0)
		return status;
	take_signals();
	status = args->all ? move_all(&m) : move_one(&m);
	move_calls_close(&m.calls);
	free(m.movers);
	return status;
}

static int set_text(const char **text, const char *value)
{
	*text = value;
	return 0;
}

static int set_from(void *args, const char *value, struct err *err)
{
	(void)err;
	return set_text(&((struct move_args *)args)->from, value);
}

static int set_to(void *args, const char *value, struct err *err)
{
	(void)err;
	return set_text(&((struct move_args *)args)->to, value);
}

static int set_pool(void *args, const char *value, struct err *err)
{
	(void)err;
	return set_text(&((struct move_args *)args)->pool, value);
}

static const struct option_row rows[] = {
	{"--endpoint", "unix:///PATH", {"CSI_ENDPOINT"}, .fallback = TOOL_ENDPOINT_CLUSTER,
		.help = "where the controller serves CSI", .set = tool_set_endpoint},
	{"--pool", "NAME", .fallback_help = "the name of the one that it is in",
		.help = "which pool of the other node it goes into", .set = set_pool},
	{"--all", .help = "all volumes of the node of --from, one after the other",
		.kind = OPTION_FLAG, OPTION_IN(struct move_args, all)},
	{"--from", "NODE", .fallback_help = "none",
		.help = "with --all: the node that is to have no volumes", .set = set_from},
	{"--to", "NODE", .fallback_help = "for each the node with most room",
		.help = "with --all: where they go", .set = set_to},
	{"--timeout", "SECONDS", .fallback = "0",
		.help = "ends after that, with status 1, whatever is left; 0: when it is done",
		.kind = OPTION_NUMBER, OPTION_IN(struct move_args, timeout_s), .max = 31536000},
	{NULL},
};

const struct tool move_tool = {
	.command =
		{
			.name = "move",
			.operands = {"[VOLUME]", "[NODE]"},
			.summary =
				"Moves a volume, by its id or name, to another node: the one that is named, or "
				"the one\n"
				"with most room. It keeps its id. While it is in use it is copied, and it moves "
				"when it\n"
				"is released: the command waits for that. Asks a controller. Ended, it loses "
				"nothing:\n"
				"the next one goes on.\n"
				"With --all and --from it empties a node. Snapshots stay.",
			.options = rows,
		},
	.size = sizeof(struct move_args),
	.run = run,
};
