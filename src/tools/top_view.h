/* SPDX-License-Identifier: Apache-2.0 */
/* What `ringvol top` has asked of the driver, and its views: JSON, lines, the table of both. */
#ifndef RINGVOL_TOOLS_TOP_VIEW_H
#define RINGVOL_TOOLS_TOP_VIEW_H

#include "base/buf.h"
#include "tools/grpc_client.h"
#include "tools/rates.h"
#include "tools/text.h"
#include "tools/tool.h"

/* A node of the cluster that is not in the answer, or not all of it. */
struct top_missing {
	char id[256], why[256];
};

struct top {
	/* options */
	struct tool_args args;
	bool once;
	enum rates_key key;
	bool reverse;
	uint64_t interval_ms;
	/* the driver */
	struct grpc_client *client;
	struct rates rates;
	unsigned answers;
	struct err err;                 /* why it does not answer; OK when it does */
	char node[64], probes_why[256]; /* of a cluster: how many nodes have answered */
	struct top_missing *missing;
	size_t n_missing, missing_cap;
	bool exact;
	double uptime_seconds;
	/* the screen */
	size_t scrolled;
	bool quit;
};

/* Asks the driver anew. 0, or -errno with top->err set. */
int top_ask(struct top *top);

/* ---- 0 or -ENOMEM ---- */

/* One object and a newline, to standard output. Volumes that were attached within the interval come
 * with the next. */
int top_print_json(const struct top *top);
/* The time and the table, to standard output. */
int top_print_lines(const struct top *top, const struct text_stream *stream);
/* rows_max: at most so many, from the scrolled one on; 0: all. */
int top_print_table(const struct top *top, const struct text_stream *stream, unsigned rows_max,
	struct buf *out);

#endif
