/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ringvol health`: whether the driver lives, or is ready; for what restarts it or sends it work.
 *
 * Happy path: connect to the driver's socket, ask Inspect/Health, print one line. It asks over the
 * unix socket because nobody on the network can be in its way there.
 * How it can fail (1): no driver listens, it says that it is not well, or it has not answered when
 * the time is over. A loop that hangs still has a kernel that accepts for it, and connect() waits
 * where too many did before: so the time is one alarm for everything.
 */
#include "tools/tool.h"

#include "base/err.h"
#include "inspect.pb-c.h"
#include "tools/grpc_client.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct health_args {
	struct tool_args tool; /* first: tool_main()'s */
	bool ready;
	unsigned timeout_s;
};

struct health_answer {
	bool given, well;
	char why[256];
	bool ready_asked;
};

static const struct option_row rows[] = {
	TOOL_ENDPOINT_ROW,
	{"--ready", .help = "whether it is ready: every pool is, and earlier devices are known",
		.kind = OPTION_FLAG, OPTION_IN(struct health_args, ready)},
	{"--timeout", "SECONDS", .fallback = "3", .help = "a driver that takes longer is not well",
		.kind = OPTION_NUMBER, OPTION_IN(struct health_args, timeout_s), .min = 1,
		.max = 3600},
	{NULL},
};

/* ---- the time ---- */

/* Made before the alarm is set: its handler can only write. */
static char late[256];

static void on_alarm(int signal)
{
	(void)signal;
	ssize_t n = write(STDERR_FILENO, late, strlen(late));
	(void)n;
	_exit(TOOL_FAILED);
}

static void limit_time(const struct health_args *args)
{
	const struct sigaction action = {.sa_handler = on_alarm};
	snprintf(late, sizeof(late),
		"ringvol health: %.150s: the driver has not answered for %u s\n",
		args->tool.endpoint, args->timeout_s);
	sigaction(SIGALRM, &action, NULL);
	alarm(args->timeout_s);
}

/* ---- the question ---- */

static int on_answer(void *arg, const uint8_t *data, size_t len)
{
	struct health_answer *answer = arg;
	Ringvol__V1__HealthResponse *m = ringvol__v1__health_response__unpack(NULL, len, data);
	if (m == NULL)
		return -EPROTO;
	answer->given = true;
	answer->well = answer->ready_asked ? m->ready : m->live;
	ProtobufCBinaryData why = answer->ready_asked ? m->ready_why : m->live_why;
	/* Bytes on the wire end without a NUL. */
	snprintf(answer->why, sizeof(answer->why), "%.*s",
		why.len < sizeof(answer->why) ? (int)why.len : (int)sizeof(answer->why) - 1,
		why.data != NULL ? (const char *)why.data : "");
	ringvol__v1__health_response__free_unpacked(m, NULL);
	return 0;
}

static int ask(const char *endpoint, struct health_answer *answer, struct err *err)
{
	const Ringvol__V1__HealthRequest request = RINGVOL__V1__HEALTH_REQUEST__INIT;
	struct grpc_client *client = NULL;
	int r = grpc_client_open(&client, endpoint, err);
	if (r == 0)
		r = grpc_client_call(client, "/ringvol.v1.Inspect/Health", &request.base, on_answer,
			answer, err);
	grpc_client_close(client);
	return r;
}

static int run(struct tool_args *tool)
{
	const struct health_args *args = (struct health_args *)tool;
	struct health_answer answer = {.ready_asked = args->ready};
	struct err err = {0};
	limit_time(args);
	if (ask(tool->endpoint, &answer, &err) < 0)
		return tool_fail(tool, err.message);
	if (!answer.given)
		return tool_fail(tool, "the driver answers nothing");
	if (!answer.well)
		return tool_fail(tool, answer.why);
	puts(args->ready ? "ready" : "live");
	return 0;
}

const struct tool health_tool = {
	.command =
		{
			.name = "health",
			.summary =
				"Asks the driver whether it lives: its loop turns and every pool answers. A "
				"pool that is\n"
				"missing or read-only is no reason to start it again. Prints one line; the "
				"status is\n"
				"0 if it does, 1 if not or if nothing answers.",
			.options = rows,
		},
	.size = sizeof(struct health_args),
	.run = run,
};
