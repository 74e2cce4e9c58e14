/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client's call that is passed on: one or several calls to nodes, one after the other, and then
 * one answer. The client's deadline is theirs. When the client goes away the one under way is
 * cancelled; what it has begun at its node goes on there.
 *
 * Of a row that streams, each message is passed on as it comes. While the client does not read,
 * nothing is taken from the node, which then has to wait as well.
 */
#ifndef RINGVOL_CONTROLLER_FORWARD_H
#define RINGVOL_CONTROLLER_FORWARD_H

#include "controller/controller.h"
#include "controller/route.h"
#include "pool/record.h"

#include <stdbool.h>

/* Zeroed, and allocated alone or as the first member of what is: it is freed when it ends. */
struct forward {
	struct list link; /* the controller's */
	struct controller *controller;
	struct grpc_call *client;
	const struct route *route;
	const char *node_id; /* of the call under way; in the client's arena; "": config.node */
	const char *subject; /* what it works on, by name or id; likewise; "" */
	char key[RECORD_KEY_MAX]; /* of the name that a create is of; "" */
	struct buf answer;        /* of the last call */
	bool sent;                /* the node may have seen that call */
	uint64_t start_ns;
	/* The last call has ended. Ends all of it (forward_end()), or makes the next. */
	void (*on_answer)(struct forward *f, enum grpc_status status, const char *message);
	/* The client has gone, and the last call is given up. NULL: that is all. */
	void (*on_gone)(struct forward *f);
	struct arena *arena; /* the client's */
	/* private */
	struct channel_call call;
	bool lost;      /* there was no memory for the answer */
	size_t counted; /* of the answer, in the clients' budget */
};

/* The caller has set on_answer. */
void forward_open(struct forward *f, struct controller *controller, struct grpc_call *client,
	const struct route *route);
/* Calls path at the node (NULL: config.node's process); the bytes are copied. 0, or it is not here
 * (err) and on_answer() is not called. */
int forward_call(struct forward *f, struct store_node *node, const char *path, const uint8_t *data,
	size_t len, struct err *err);
/* Likewise with a request that is packed, at the node of that id. */
int forward_message(struct forward *f, const char *node_id, const char *path,
	const ProtobufCMessage *request, struct err *err);
/* Answers the client: with f->answer if status is OK, else with the message; frees it. */
void forward_end(struct forward *f, enum grpc_status status, const char *message);
/* The same, as what a node has answered: where it is the node's state that is the reason, its id
 * comes first. */
void forward_pass(struct forward *f, enum grpc_status status, const char *message);
/* The same with an error of ours, which is logged. */
void forward_refuse(struct forward *f, const struct err *err);
/* A line in the log for the last call, if the row changes something. forward_pass() has it. */
void forward_log(const struct forward *f, enum grpc_status status, const char *message);
/* Shutting down: streams are ended, as they may take as long as their clients like. */
void forward_end_streams(struct controller *controller);
/* Another forward for the same name is under way. */
bool forward_others(const struct forward *f);
/* One is, for that name. */
bool forward_is_under_way(void *controller, enum store_kind kind, const char *key);

#endif
