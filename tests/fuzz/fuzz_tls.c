/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes to a TLS session of ours before its handshake is over, a server's or a client's. The first
 * byte says how: in which pieces, behind a good ClientHello, in place of, or laid over (XOR) the
 * rest of a good client's handshake, with a drain or with time that passes. What must hold: nobody
 * comes in but by a handshake without a changed byte; on_wake never comes from inside; what ends
 * says why; a session that has ended is quiet.
 */
#include "fuzz.h"

#define certs_must(condition) must(condition)
#include "../wire/tls_peer.h"

enum how {
	HOW_PIECES = 7,
	HOW_HELLO = 8,   /* a good ClientHello first */
	HOW_SECOND = 16, /* with it: the client's second flight, with the input laid over it */
	HOW_DRAIN = 32,
	HOW_TIME = 64,
	HOW_CLIENT = 128, /* a client of ours, and a server that is the input */
};

static const size_t pieces[] = {8192, 1, 2, 3, 5, 17, 100, 1000};

static struct ring_sim sim = {.seed = 1};
static struct ring *ring;
static struct issued ca, own;
static struct tls *controller, *node;

static void world_open(void)
{
	must(ring_sim_open(&ring, &sim) == 0);
	ca = issue_ca();
	own = issue(&ca, &(struct spec){.names = "URI:ringvol://node/a", .until_s = 8640000});
	controller = tls_of(
		&ca, &(struct spec){.names = "URI:ringvol://controller", .until_s = 8640000});
	node = tls_of(&ca, &(struct spec){.names = "URI:ringvol://node/b", .until_s = 8640000});
}

static void nothing(struct ring_timer *timer)
{
	timer->fn = NULL;
}

static void pass(uint64_t ms)
{
	struct ring_timer timer = {.fn = nothing};
	ring_timer_arm(ring, &timer, ms);
	while (timer.fn != NULL)
		must(ring_turn(ring, true) == 0);
}

static size_t drained_output(struct end *end)
{
	struct buf out = {0};
	end_output(end, &out, 64 << 10);
	size_t len = out.len;
	buf_free(&out);
	return len;
}

static void feed(struct end *end, const uint8_t *data, size_t len, size_t piece)
{
	while (len > 0 && !end_finished(end)) {
		size_t n = piece < len ? piece : len;
		if (!end->session->paced || end->session->ops->wants_input(end->session)) {
			uint8_t *copy = malloc(n); /* a read past its end is seen */
			memcpy(copy, data, n);
			end_feed(end, copy, n);
			free(copy);
			data += n;
			len -= n;
		}
		turns(ring);
	}
}

/* The good client's part. Whether its second flight went in as it was. */
static bool second_flight(struct end *end, struct alien *alien, struct fuzz *f, size_t piece)
{
	uint8_t flight[8192];
	struct buf out = {0};
	bool changed = false;
	end_output(end, &out, 64 << 10);
	must(out.len > 0 && BIO_write(alien->in, out.data, (int)out.len) == (int)out.len);
	buf_free(&out);
	must(SSL_do_handshake(alien->ssl) == 1);
	int len = BIO_read(alien->out, flight, sizeof(flight));
	must(len > 0);
	/* A ChangeCipherSpec comes first (6 bytes), and means nothing: it stays. */
	for (int i = 6; i < len && f->len > 0; i++) {
		uint8_t byte = fuzz_byte(f);
		flight[i] ^= byte;
		changed |= byte != 0;
	}
	feed(end, flight, (size_t)len, piece);
	return !changed;
}

static void run(struct end *end, struct fuzz *f, uint8_t how)
{
	size_t piece = pieces[how & HOW_PIECES];
	bool client = (how & HOW_CLIENT) != 0, good = false;
	struct alien alien = {0};
	if (!client && (how & HOW_HELLO) != 0) {
		uint8_t hello[4096];
		alien_open(&alien, &(struct alien_spec){.own = &own});
		(void)SSL_do_handshake(alien.ssl);
		int len = BIO_read(alien.out, hello, sizeof(hello));
		must(len > 0);
		feed(end, hello, (size_t)len, piece);
		if ((how & HOW_SECOND) != 0)
			good = second_flight(end, &alien, f, piece);
	}
	(void)drained_output(end);
	if ((how & HOW_DRAIN) != 0)
		end->session->ops->drain(end->session);
	feed(end, f->data, f->len, piece);
	if ((how & HOW_TIME) != 0)
		pass(11000);
	must(!good || end->plain != NULL || (how & HOW_DRAIN) != 0);
	must(good || end->plain == NULL);
	if (alien.ssl != NULL)
		alien_close(&alien);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct fuzz f = {data, len};
	struct end end;
	if (ring == NULL)
		world_open();
	uint8_t how = fuzz_byte(&f);
	bool client = (how & HOW_CLIENT) != 0;
	end_open(&end, ring, client ? node : controller, client);
	turns(ring);
	if (client)
		(void)drained_output(&end);
	run(&end, &f, how);
	(void)drained_output(&end);
	if (end_finished(&end)) {
		/* A peer that has come in may say goodbye. */
		must(end.plain != NULL || end_why(&end)[0] != '\0');
		end_feed(&end, (const uint8_t *)"late", 4);
		turns(ring);
		must(drained_output(&end) == 0 && end_finished(&end));
	}
	end_close(&end);
	turns(ring);
	ERR_clear_error();
	return 0;
}
