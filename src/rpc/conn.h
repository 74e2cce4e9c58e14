/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One connection between its socket and its session, whoever has dialled: the server's connections
 * (server_conns.h) and a channel's (channel.h) embed one each. The owner makes the socket, the
 * session and the memory; from then on the connection moves bytes, and ends by itself.
 */
#ifndef RINGVOL_RPC_CONN_H
#define RINGVOL_RPC_CONN_H

#include "reactor/ring.h"
#include "reactor/ring_chore.h"
#include "rpc/session.h"

struct budget;
struct conn;
struct conn_pass;
struct ring_bufs;

/* What the connections of an owner share. A function that may be NULL is told nothing then. */
struct conn_host {
	struct ring *ring;
	struct ring_bufs *bufs;              /* conn_bufs_open() */
	bool bulk;                           /* what comes is a chore (ring_chore.h): much of it */
	struct budget *memory;               /* output that waits counts here; NULL: nowhere */
	uint64_t *bytes_in, *bytes_out;      /* counted up; NULL: not counted */
	void (*on_flush)(struct conn *conn); /* it is about to send; may be NULL */
	/* It carries no more calls. The session is freed when this returns, and calls that run on
	 * it end then. */
	void (*on_end)(struct conn *conn, const struct session *session);
	/* Its socket takes and gives nothing any more; may be NULL. After on_end() or before. */
	void (*on_close)(struct conn *conn);
	/* The kernel has let go of it and its socket is closed: its memory may go. */
	void (*on_free)(struct conn *conn);
};

enum conn_state { CONN_OPEN, CONN_LINGER, CONN_CLOSED };

/* Embed it. All is conn.c's but for reading. */
struct conn {
	const struct conn_host *host;
	int fd;
	enum conn_state state;
	int error;  /* -errno that ended it; 0: its peer or its session did */
	bool paced; /* as the session was last */
	bool ended; /* the peer has sent its last byte */
	bool cut;   /* nothing more can be sent */
	bool wipes; /* what is received may have secrets, also what comes too late */
	struct session *session;
	struct ring_req recv, send, wake;
	struct ring_chore chore; /* the next receive, of what is bulk */
	struct ring_timer timer; /* a send without progress; then lingering */
	unsigned write_stall_ms;
	struct buf out;
	size_t out_counted; /* of out, in the host's memory */
	size_t sent;
	struct conn_pass *pass; /* goes along with the first byte of out; NULL: none */
	uint64_t progress_ns;
};

/* What connections receive into, shared by all of a ring that are bulk, or are not:
 * ring_bufs_close() ends the owner's share. 0 or -errno. */
int conn_bufs_open(struct ring *ring, bool bulk, struct ring_bufs **ret);
/* Takes fd. Nothing happens before conn_begin(). */
void conn_init(struct conn *conn, const struct conn_host *host, int fd);
/* Takes the session, which was made with conn_wake(conn) as its on_wake. A peer that takes nothing
 * for write_stall_ms while there is something to send is given up. */
void conn_begin(struct conn *conn, struct session *session, unsigned write_stall_ms);
/* The session's to call (session_wake_fn). Flushes once a turn, however many calls were answered
 * in it. */
void conn_wake(void *conn);
/* Ends it at once, on_free() follows now or later. Not from inside its session. */
void conn_close(struct conn *conn);
/* The same, and on_free() is called before this returns. */
void conn_discard(struct conn *conn);

#endif
