/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Frames that ask for nothing and cost a little: acknowledged pings, empty DATA, WINDOW_UPDATE,
 * PRIORITY, SETTINGS, kinds that are not known, and what makes us reset a stream. A client needs
 * few of them, and most of those for the answers it gets. So each costs one point, a frame of an
 * answer takes H2_CALM_ANSWER points back, a second H2_CALM_PER_S, and beyond H2_CALM_MAX the
 * connection is given up (ENHANCE_YOUR_CALM).
 *
 * Counted elsewhere: pings (on_ping(), as grpc-go does), resets by the client, CONTINUATION and
 * SETTINGS without an end (nghttp2), header lists (header_bytes), frames that wait to be sent.
 */
#include "rpc/h2_private.h"

void h2_calm_earn(struct h2_conn *conn)
{
	conn->calm_points -=
		conn->calm_points < H2_CALM_ANSWER ? conn->calm_points : H2_CALM_ANSWER;
}

void h2_calm_spend(struct h2_conn *conn)
{
	uint64_t now = ring_now_ns(conn->config.ring);
	uint64_t back = (now - conn->calm_ns) / (1000000000 / H2_CALM_PER_S);
	if (back > 0) {
		conn->calm_points -= back < conn->calm_points ? (unsigned)back : conn->calm_points;
		conn->calm_ns = now;
	}
	if (++conn->calm_points > H2_CALM_MAX)
		h2_conn_give_up(conn, SESSION_END_FLOODED, NGHTTP2_ENHANCE_YOUR_CALM,
			"too many frames that ask for nothing");
}

void h2_calm_on_frame(struct h2_conn *conn, const nghttp2_frame_hd *hd)
{
	switch (hd->type) {
	case NGHTTP2_DATA:
		if (hd->length == 0 && (hd->flags & NGHTTP2_FLAG_END_STREAM) == 0)
			h2_calm_spend(conn);
		break;
	case NGHTTP2_PING:
		if ((hd->flags & NGHTTP2_FLAG_ACK) != 0)
			h2_calm_spend(conn);
		break;
	case NGHTTP2_HEADERS:
	case NGHTTP2_CONTINUATION:
	case NGHTTP2_RST_STREAM:
	case NGHTTP2_GOAWAY:
		break;
	default: /* SETTINGS, WINDOW_UPDATE, PRIORITY, unknown ones */
		h2_calm_spend(conn);
		break;
	}
}
