/* SPDX-License-Identifier: Apache-2.0 */
/* The files behind TLS: what is wrong with them, what is said of it, and what a replacement does to
 * connections that are there. */
#include "app/tls_options.h"
#include "rpc/tls_watch.h"
#include "tls_peer.h"
#include "unit/sim_time.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>

static struct ring_sim sim = {.seed = 1};
static struct ring *ring;
static struct work *work;
static struct issued ca, own;
static struct cert_dir dir;
static struct tls_files files;

static const struct spec node_spec = {.names = "URI:ringvol://node/node-a"};

static void setup(void)
{
	cr_assert_eq(ring_sim_open(&ring, &sim), 0);
	cr_assert_eq(work_open(&work, ring, WORK_THREADS), 0);
	ca = issue_ca();
	own = issue(&ca, &node_spec);
	cert_dir_open(&dir);
	write_all(&dir, &own, &ca);
	files = cert_dir_files(&dir);
}

static void teardown(void)
{
	work_close(work);
	cert_dir_close(&dir);
	issued_free(&own);
	issued_free(&ca);
	ring_close(ring);
}

TestSuite(tls_keys, .init = setup, .fini = teardown);

static struct tls *open_good(void)
{
	struct tls *tls = NULL;
	struct err err = {0};
	cr_assert_eq(tls_open(&tls, &files, &err), 0, "%s", err.message);
	return tls;
}

/* ---- reading ---- */

Test(tls_keys, good_files)
{
	struct tls *tls = open_good(), *again = open_good();
	int64_t now = time(NULL);
	cr_assert_eq(tls_self(tls)->role, GRPC_PEER_NODE);
	cr_assert_str_eq(tls_self(tls)->node_id, "node-a");
	cr_assert_geq(tls_not_after(tls), now + 86000);
	cr_assert_leq(tls_not_after(tls), now + 86400);
	cr_assert(tls_equal(tls, again));
	tls_free(again);
	write_all(&dir, &ca, &own); /* a file that was read is not needed any more */
	cr_assert_eq(tls_time(tls, now, NULL), TLS_TIME_GOOD);
	tls_free(tls);
	tls_free(NULL);
}

static void assert_bad(const char *path, const char *part)
{
	struct tls *tls = NULL;
	struct err err = {0};
	cr_assert_lt(tls_open(&tls, &files, &err), 0, "%s", part);
	cr_assert_null(tls);
	cr_assert_not_null(strstr(err.message, part), "\"%s\" has no \"%s\"", err.message, part);
	cr_assert_not_null(strstr(err.message, path), "\"%s\" does not name %s", err.message, path);
}

Test(tls_keys, files_that_are_missing_or_no_files)
{
	const char *const paths[] = {dir.cert, dir.key, dir.ca};
	for (unsigned i = 0; i < 3; i++) {
		write_all(&dir, &own, &ca);
		cr_assert_eq(unlink(paths[i]), 0);
		assert_bad(paths[i], "put the file there");
		cr_assert_eq(mkdir(paths[i], 0700), 0);
		assert_bad(paths[i], "is no file");
		cr_assert_eq(rmdir(paths[i]), 0);
		cr_assert_eq(mkfifo(paths[i], 0600), 0);
		assert_bad(paths[i], "is no file");
		cr_assert_eq(unlink(paths[i]), 0);
		write_text(paths[i], "");
		assert_bad(paths[i], "in PEM form");
		write_text(paths[i], "-----BEGIN CERTIFICATE-----\nbm90aGluZw==\n");
		assert_bad(paths[i], "in PEM form");
		FILE *file = cert_file(paths[i]);
		for (unsigned at = 0; at < TLS_FILE_MAX_BYTES + 1; at++)
			fputc('x', file);
		cert_file_done(file, paths[i]);
		assert_bad(paths[i], "more than 1048576 bytes");
	}
}

static void write_key_with_passphrase(const char *path)
{
	FILE *file = cert_file(path);
	cr_assert_eq(PEM_write_PKCS8PrivateKey(
			     file, own.key, EVP_aes_128_cbc(), "secret", 6, NULL, NULL),
		1);
	cert_file_done(file, path);
}

Test(tls_keys, files_that_do_not_fit)
{
	static const struct {
		struct spec spec;
		const char *why;
	} rows[] = {
		{{0}, "no ringvol:// name"},
		{{.names = "URI:ringvol://node/a,URI:ringvol://node/b"}, "more than one"},
		{{.names = "URI:ringvol://pod/a"}, "is none of"},
		{{.names = "URI:ringvol://node/a", .usage = "clientAuth"}, "both usages"},
		{{.names = "URI:ringvol://node/a", .usage = "serverAuth"}, "both usages"},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct issued bad = issue(&ca, &rows[i].spec);
		write_all(&dir, &bad, &ca);
		assert_bad(dir.cert, rows[i].why);
		issued_free(&bad);
	}
	write_all(&dir, &own, &ca);
	write_key(dir.key, &ca);
	assert_bad(dir.key, "does not belong to the certificate");
	write_cert(dir.key, &own);
	assert_bad(dir.key, "no private key");
	write_key_with_passphrase(dir.key);
	assert_bad(dir.key, "has a passphrase");
	write_all(&dir, &own, &ca);
	write_key(dir.ca, &ca);
	assert_bad(dir.ca, "no certificate");
}

Test(tls_keys, a_certificate_and_the_clock)
{
	struct tls *tls = open_good();
	int64_t from = time(NULL) - 3600, until = time(NULL) + 86400;
	static const char *const parts[] = {
		[TLS_TIME_EARLY] = "is this host's clock right?",
		[TLS_TIME_ENDING] = "has not been renewed",
		[TLS_TIME_OVER] = "has ended",
	};
	const struct {
		int64_t now;
		enum tls_time time;
	} rows[] = {
		{from - 60, TLS_TIME_EARLY},
		{from + 60, TLS_TIME_GOOD},
		{until - 9060, TLS_TIME_GOOD}, /* a tenth of 25 hours is 9,000 s */
		{until - 8940, TLS_TIME_ENDING},
		{until - 60, TLS_TIME_ENDING},
		{until + 60, TLS_TIME_OVER},
	};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct err err = {0};
		cr_assert_eq(tls_time(tls, rows[i].now, &err), rows[i].time, "row %zu", i);
		if (rows[i].time == TLS_TIME_GOOD)
			cr_assert_eq(err.code, ERR_OK);
		else
			cr_assert_not_null(
				strstr(err.message, parts[rows[i].time]), "%s", err.message);
	}
	tls_free(tls);
	/* One that has ended can be opened: it may be replaced. */
	struct issued old = issue(&ca, &(struct spec){.names = node_spec.names, .until_s = -60});
	write_all(&dir, &old, &ca);
	tls = open_good();
	cr_assert_eq(tls_time(tls, time(NULL), NULL), TLS_TIME_OVER);
	tls_free(tls);
	issued_free(&old);
}

/* A chain: our certificate is signed by one below the CA that peers know. */
Test(tls_keys, a_chain)
{
	struct issued below = issue(&ca, &(struct spec){.ca = true});
	struct issued leaf = issue(&below, &node_spec);
	struct end client, server;
	struct tls *peer = open_good();
	for (int whole = 0; whole < 2; whole++) {
		write_all(&dir, &leaf, &ca);
		if (whole != 0) {
			FILE *file = cert_file(dir.cert);
			PEM_write_X509(file, leaf.cert);
			PEM_write_X509(file, below.cert);
			cert_file_done(file, dir.cert);
		}
		struct tls *tls = open_good();
		end_open(&server, ring, peer, false);
		end_open(&client, ring, tls, true);
		pump(ring, &client, &server, 0);
		cr_assert_eq(server.plain != NULL, whole != 0, "%s", end_why(&server));
		end_close(&client);
		end_close(&server);
		tls_free(tls);
	}
	tls_free(peer);
	issued_free(&below);
	issued_free(&leaf);
}

/* ---- without any ---- */

Test(tls_keys, nothing_to_speak_with)
{
	struct tls *tls = tls_open_empty("the files are not there");
	struct end server, client;
	cr_assert_null(tls_self(tls));
	cr_assert_eq(tls_not_after(tls), 0);
	cr_assert_eq(tls_time(tls, time(NULL), NULL), TLS_TIME_GOOD);
	end_open(&server, ring, tls, false);
	end_open(&client, ring, tls, true);
	cr_assert(end_finished(&server) && end_finished(&client));
	cr_assert_eq(client.wakes, 0);
	turns(ring);
	cr_assert_eq(client.wakes, 1);
	cr_assert_eq(server.wakes, 1);
	cr_assert_str_eq(end_why(&client), "the files are not there");
	end_feed(&server, (const uint8_t *)"\x16\x03\x01", 3);
	end_close(&server);
	end_close(&client);
	tls_replace(tls, open_good());
	struct tls *peer = open_good();
	end_open(&server, ring, tls, false);
	end_open(&client, ring, peer, true);
	pump(ring, &client, &server, 0);
	cr_assert_not_null(server.plain, "%s", end_why(&server));
	end_close(&server);
	end_close(&client);
	tls_free(peer);
	tls_free(tls);
}

/* ---- replaced ---- */

static void write_crl(const X509_CRL *crl)
{
	FILE *file = cert_file(dir.ca);
	cr_assert_eq(PEM_write_X509(file, ca.cert), 1);
	cr_assert_eq(PEM_write_X509_CRL(file, crl), 1);
	cert_file_done(file, dir.ca);
}

static void two_cas(const struct issued *a, const struct issued *b)
{
	FILE *file = cert_file(dir.ca);
	cr_assert_eq(PEM_write_X509(file, a->cert), 1);
	cr_assert_eq(PEM_write_X509(file, b->cert), 1);
	cert_file_done(file, dir.ca);
}

struct pair {
	struct end client, server;
};

static void pair_open(struct pair *p, struct tls *client, struct tls *server)
{
	end_open(&p->server, ring, server, false);
	end_open(&p->client, ring, client, true);
	pump(ring, &p->client, &p->server, 0);
}

static void pair_close(struct pair *p)
{
	end_close(&p->client);
	end_close(&p->server);
}

/* Whom the same trust covers needs no second look. */
Test(tls_keys, a_renewed_certificate_ends_nothing)
{
	struct tls *server = open_good(), *client = open_good();
	struct pair p, next;
	pair_open(&p, client, server);
	struct issued renewed = issue(&ca, &(struct spec){.names = "URI:ringvol://node/renamed"});
	write_all(&dir, &renewed, &ca);
	uint64_t completed = ring_stats(ring)->completed;
	tls_replace(server, open_good());
	turns(ring);
	cr_assert_eq(ring_stats(ring)->completed, completed, "nobody is looked at again");
	cr_assert_str_eq(tls_self(server)->node_id, "renamed");
	end_say(&p.client, "still", 5);
	pump(ring, &p.client, &p.server, 0);
	cr_assert_eq(p.server.plain->in.len, 5);
	pair_open(&next, client, server);
	cr_assert_str_eq(next.client.peer.node_id, "renamed");
	pair_close(&p);
	pair_close(&next);
	issued_free(&renewed);
	tls_free(server);
	tls_free(client);
}

/* Both the side that was dialled and the one that dials. */
Test(tls_keys, a_trust_that_does_not_cover_the_peer_any_more)
{
	struct issued other = issue_ca(), others = issue(&other, &node_spec);
	struct tls *old = open_good();
	two_cas(&ca, &other);
	struct tls *both = open_good();
	write_all(&dir, &others, &other);
	two_cas(&ca, &other);
	struct tls *new = open_good();
	struct pair p, q, r;
	pair_open(&p, old, both);
	pair_open(&q, new, both);
	pair_open(&r, both, old);
	cr_assert_not_null(p.server.plain, "%s", end_why(&p.server));
	cr_assert_not_null(q.server.plain, "%s", end_why(&q.server));
	cr_assert_not_null(r.client.plain, "%s", end_why(&r.client));

	/* A wider trust ends nobody. */
	write_all(&dir, &own, &ca);
	FILE *file = cert_file(dir.ca);
	PEM_write_X509(file, other.cert);
	PEM_write_X509(file, ca.cert);
	cert_file_done(file, dir.ca);
	tls_replace(both, open_good());
	turns(ring);
	cr_assert_not(end_finished(&p.server) || end_finished(&q.server));
	cr_assert_eq(tls_stats(both)->revoked, 0);

	write_cert(dir.ca, &other);
	unsigned wakes = p.server.wakes;
	tls_replace(both, open_good());
	cr_assert_not(p.server.session->dead); /* each has its turn */
	turns(ring);
	cr_assert(p.server.session->dead && end_finished(&p.server));
	cr_assert_gt(p.server.wakes, wakes);
	cr_assert_not_null(
		strstr(end_why(&p.server), "ringvol://node/node-a"), "%s", end_why(&p.server));
	cr_assert(r.client.session->dead);
	cr_assert_not(end_finished(&q.server), "%s", end_why(&q.server));
	cr_assert_eq(tls_stats(both)->revoked, 2);
	end_feed(&p.server, (const uint8_t *)"late", 4);
	cr_assert_eq(p.server.fed, 0);
	struct buf out = {0};
	end_output(&p.server, &out, 1000);
	cr_assert_eq(out.len, 0);
	pair_close(&p);
	pair_close(&q);
	pair_close(&r);

	/* And nobody with it comes in again. */
	pair_open(&p, old, both);
	cr_assert_null(p.server.plain);
	pair_close(&p);
	tls_free(old);
	tls_free(both);
	tls_free(new);
	issued_free(&other);
	issued_free(&others);
}

/* The handshake began under the old trust. */
Test(tls_keys, a_trust_that_changes_within_a_handshake)
{
	struct issued other = issue_ca();
	struct tls *server = open_good(), *client = open_good();
	struct pair p;
	struct buf out = {0};
	end_open(&p.server, ring, server, false);
	end_open(&p.client, ring, client, true);
	turns(ring);
	end_output(&p.client, &out, 10000);
	end_feed(&p.server, out.data, out.len);
	turns(ring);
	buf_free(&out);
	write_cert(dir.ca, &other);
	tls_replace(server, open_good());
	pump(ring, &p.client, &p.server, 0);
	cr_assert(end_finished(&p.server));
	cr_assert_eq(tls_stats(server)->revoked, 1, "%s", end_why(&p.server));
	pair_close(&p);
	tls_free(server);
	tls_free(client);
	issued_free(&other);
}

/* A client's connection that was there while its certificate was valid. On a slow machine that
 * takes more than a moment. */
static struct tls *open_briefly(struct pair *p, struct tls *server)
{
	for (int life_s = 2;; life_s *= 3) {
		struct issued brief =
			issue(&ca, &(struct spec){.names = node_spec.names, .until_s = life_s});
		write_all(&dir, &brief, &ca);
		issued_free(&brief);
		struct tls *client = open_good();
		pair_open(p, client, server);
		if (p->server.plain != NULL)
			return client;
		cr_assert_lt(life_s, 100, "%s", end_why(&p->server));
		pair_close(p);
		tls_free(client);
	}
}

Test(tls_keys, a_certificate_that_ended_ends_no_connection)
{
	struct tls *server = open_good();
	struct pair p;
	struct tls *client = open_briefly(&p, server);
	while (time(NULL) <= tls_not_after(client))
		usleep(100000);
	write_all(&dir, &own, &ca);
	struct issued more = issue_ca();
	two_cas(&ca, &more);
	tls_replace(server, open_good()); /* the trust is another, so it is looked at */
	turns(ring);
	cr_assert_not(end_finished(&p.server), "%s", end_why(&p.server));
	pair_close(&p);
	pair_open(&p, client, server);
	cr_assert_null(p.server.plain);
	cr_assert_not_null(strstr(end_why(&p.server), "expired"), "%s", end_why(&p.server));
	pair_close(&p);
	tls_free(server);
	tls_free(client);
	issued_free(&more);
}

Test(tls_keys, a_list_of_revoked_certificates)
{
	struct issued bad = issue(&ca, &(struct spec){.names = "URI:ringvol://node/bad"});
	struct issued other = issue_ca();
	struct tls *server = open_good(), *good = open_good();
	struct pair p, q;
	write_all(&dir, &bad, &ca);
	struct tls *stolen = open_good();
	pair_open(&p, stolen, server);
	pair_open(&q, good, server);
	cr_assert_not_null(p.server.plain, "%s", end_why(&p.server));
	write_all(&dir, &own, &ca);
	X509_CRL *crl = issue_crl(&ca, &bad);
	write_crl(crl);
	tls_replace(server, open_good());
	turns(ring);
	cr_assert(p.server.session->dead);
	cr_assert_not_null(strstr(end_why(&p.server), "revoked (ringvol://node/bad)"), "%s",
		end_why(&p.server));
	cr_assert_not(end_finished(&q.server), "%s", end_why(&q.server));
	pair_close(&p);
	pair_close(&q);
	pair_open(&p, stolen, server);
	cr_assert_null(p.server.plain);
	cr_assert_not_null(strstr(end_why(&p.client), "revoked there"), "%s", end_why(&p.client));
	pair_close(&p);
	X509_CRL_free(crl);

	/* A list of another CA says nothing of ours. */
	crl = issue_crl(&other, NULL);
	write_crl(crl);
	tls_replace(server, open_good());
	pair_open(&p, good, server);
	cr_assert_not_null(p.server.plain, "%s", end_why(&p.server));
	pair_close(&p);
	X509_CRL_free(crl);
	tls_free(server);
	tls_free(good);
	tls_free(stolen);
	issued_free(&bad);
	issued_free(&other);
}

/* Handshakes take turns: what waits for one does not go at once. */
Test(tls_keys, many_at_once)
{
	enum { MANY = 40 };
	static struct end servers[MANY], clients[MANY];
	struct tls *tls = open_good(), *peer = open_good();
	struct buf out = {0};
	for (unsigned i = 0; i < MANY; i++) {
		end_open(&servers[i], ring, tls, false);
		end_open(&clients[i], ring, peer, true);
	}
	for (unsigned i = 0; i < 100; i++)
		cr_assert_eq(ring_turn(ring, false), 0);
	for (unsigned i = 0; i < MANY; i++) {
		out.len = 0;
		end_output(&clients[i], &out, 10000);
		cr_assert_gt(out.len, 0);
		end_feed(&servers[i], out.data, out.len);
		cr_assert_not(servers[i].session->ops->wants_input(servers[i].session));
	}
	buf_free(&out);
	unsigned turns_taken = 0, served = 0;
	while (served < MANY && turns_taken < 1000) {
		cr_assert_eq(ring_turn(ring, false), 0);
		turns_taken++;
		served = 0;
		for (unsigned i = 0; i < MANY; i++)
			served += servers[i].wakes > 0;
		cr_assert(turns_taken > 1 || served < MANY, "all in one turn");
	}
	cr_assert_eq(served, MANY);
	for (unsigned i = 0; i < MANY; i++) {
		end_close(&servers[i]); /* in the midst of it */
		end_close(&clients[i]);
	}
	tls_free(tls);
	tls_free(peer);
}

/* ---- watched ---- */

static struct {
	unsigned good, bad, warned;
	char why[400];
} events;

static void on_event(void *arg, const struct err *err, bool in_force)
{
	cr_assert_eq(arg, &events);
	events.good += err == NULL;
	events.bad += err != NULL && !in_force;
	events.warned += err != NULL && in_force;
	if (err != NULL)
		snprintf(events.why, sizeof(events.why), "%s", err->message);
}

/* So many looks. */
static void looks(unsigned count)
{
	sim_pass_ms(ring, count * (TLS_WATCH_MS + 100));
}

static struct tls_watch *watch_open(struct tls *tls)
{
	struct tls_watch *watch;
	const struct tls_watch_config config = {.ring = ring,
		.work = work,
		.tls = tls,
		.files = files,
		.on_event = on_event,
		.arg = &events};
	cr_assert_eq(tls_watch_open(&watch, &config), 0);
	return watch;
}

Test(tls_keys, a_watch)
{
	struct tls *tls = open_good();
	struct tls_watch *watch = watch_open(tls);
	struct issued next = issue(&ca, &(struct spec){.names = "URI:ringvol://node/next"});
	looks(3);
	cr_assert_eq(events.good + events.bad + events.warned, 0);

	/* Half of a replacement is met, and nothing said of it. */
	write_cert(dir.cert, &next);
	looks(1);
	cr_assert_eq(events.good + events.bad, 0);
	cr_assert_str_eq(tls_self(tls)->node_id, "node-a");
	write_key(dir.key, &next);
	looks(2);
	cr_assert_eq(events.good, 1);
	cr_assert_eq(events.bad, 0);
	cr_assert_str_eq(tls_self(tls)->node_id, "next");

	/* What is bad is said once, and changes nothing. */
	write_text(dir.ca, "nonsense");
	looks(6);
	cr_assert_eq(events.bad, 1, "%s", events.why);
	cr_assert_not_null(strstr(events.why, dir.ca));
	cr_assert_str_eq(tls_self(tls)->node_id, "next");
	write_text(dir.ca, "nonsense"); /* written anew */
	looks(2);
	cr_assert_eq(events.bad, 1);
	cr_assert_eq(unlink(dir.ca), 0); /* another reason */
	looks(6);
	cr_assert_eq(events.bad, 2);
	cr_assert_eq(events.good, 1);
	write_cert(dir.ca, &ca);
	looks(2);
	cr_assert_eq(events.good, 2);
	looks(6);
	cr_assert_eq(events.good, 2);
	cr_assert_eq(events.bad, 2);

	/* What was good before is no news; what was bad before is, when it has lasted. */
	write_cert(dir.ca, &ca);
	looks(2);
	cr_assert_eq(events.good, 2);
	cr_assert_eq(unlink(dir.ca), 0);
	looks(1);
	cr_assert_eq(events.bad, 2);
	looks(2);
	cr_assert_eq(events.bad, 3);
	tls_watch_close(watch);
	tls_watch_close(NULL);
	tls_free(tls);
	issued_free(&next);
}

/* Also when it is replaced alone: a longer chain, the key in another form, a wider trust. */
Test(tls_keys, each_file_is_watched)
{
	struct tls *tls = open_good();
	struct tls_watch *watch = watch_open(tls);
	struct issued other = issue_ca();
	looks(2);
	FILE *file = cert_file(dir.cert);
	cr_assert_eq(PEM_write_X509(file, own.cert), 1);
	cr_assert_eq(PEM_write_X509(file, ca.cert), 1);
	cert_file_done(file, dir.cert);
	looks(2);
	cr_assert_eq(events.good, 1);
	char next[80];
	snprintf(next, sizeof(next), "%s.new", dir.key);
	BIO *bio = BIO_new_file(next, "w");
	cr_assert_eq(
		PEM_write_bio_PrivateKey_traditional(bio, own.key, NULL, NULL, 0, NULL, NULL), 1);
	BIO_free(bio);
	cr_assert_eq(rename(next, dir.key), 0);
	looks(2);
	cr_assert_eq(events.good, 2);
	two_cas(&ca, &other);
	looks(2);
	cr_assert_eq(events.good, 3);
	cr_assert_eq(events.bad, 0);
	tls_watch_close(watch);
	tls_free(tls);
	issued_free(&other);
}

/* As kubelet replaces the files of a secret. */
Test(tls_keys, a_link_that_is_swapped)
{
	struct issued next = issue(&ca, &(struct spec){.names = "URI:ringvol://node/next"});
	struct cert_dir first = dir, second;
	char data[80], cert[100], key[100], ca_path[100], swapped[80];
	cert_dir_open(&second);
	write_all(&second, &next, &ca);
	snprintf(data, sizeof(data), "%s.data", first.dir);
	snprintf(swapped, sizeof(swapped), "%s.swap", first.dir);
	snprintf(cert, sizeof(cert), "%s/tls.crt", data);
	snprintf(key, sizeof(key), "%s/tls.key", data);
	snprintf(ca_path, sizeof(ca_path), "%s/ca.crt", data);
	cr_assert_eq(symlink(first.dir, data), 0);
	files = (struct tls_files){.cert = cert, .key = key, .ca = ca_path};
	struct tls *tls = open_good();
	struct tls_watch *watch = watch_open(tls);
	looks(2);
	cr_assert_eq(symlink(second.dir, swapped), 0);
	cr_assert_eq(rename(swapped, data), 0);
	looks(2);
	cr_assert_eq(events.good, 1);
	cr_assert_str_eq(tls_self(tls)->node_id, "next");
	tls_watch_close(watch);
	tls_free(tls);
	unlink(data);
	cert_dir_close(&second);
	issued_free(&next);
}

Test(tls_keys, a_watch_warns_of_the_end)
{
	struct issued old = issue(&ca, &(struct spec){.names = node_spec.names, .until_s = 60});
	write_all(&dir, &old, &ca);
	struct tls *tls = open_good();
	struct tls_watch *watch = watch_open(tls);
	cr_assert_eq(events.warned, 1);
	cr_assert_not_null(strstr(events.why, "has not been renewed"), "%s", events.why);
	looks(5);
	cr_assert_eq(events.warned, 1);
	write_all(&dir, &own, &ca);
	looks(2);
	cr_assert_eq(events.good, 1);
	write_all(&dir, &old, &ca);
	looks(2);
	cr_assert_eq(events.warned, 2);
	tls_watch_close(watch);
	tls_free(tls);
	issued_free(&old);
}

/* ---- the options of commands ---- */

Test(tls_keys, options)
{
	struct tls_files some = files;
	struct err err = {0};
	cr_assert_eq(tls_options_check(&some, "--listen", &err), 0);
	some.key = NULL;
	cr_assert_eq(tls_options_check(&some, "--listen", &err), -EINVAL);
	cr_assert_eq(strncmp(err.message, "--listen needs --tls-key: ", 26), 0, "%s", err.message);
}

Test(tls_keys, a_process_starts_whatever_its_files_are)
{
	struct tls_keys keys = {0};
	cr_assert_eq(unlink(dir.key), 0);
	cr_assert_eq(tls_keys_open(&keys, &files, "node-a", ring, work), 0);
	cr_assert_null(tls_self(keys.tls));
	looks(2);
	write_key(dir.key, &own);
	looks(2);
	cr_assert_str_eq(tls_self(keys.tls)->node_id, "node-a");
	tls_keys_close(&keys);
	tls_keys_close(&keys);
}

/* What is logged on opening the keys of node-a as a process that is this one. */
static bool is_warned_of(const char *node_id)
{
	char said[4096];
	struct tls_keys keys = {0};
	int before = dup(STDERR_FILENO), log = memfd_create("log", MFD_CLOEXEC);
	cr_assert(before >= 0 && log >= 0 && dup2(log, STDERR_FILENO) >= 0);
	cr_assert_eq(tls_keys_open(&keys, &files, node_id, ring, work), 0);
	cr_assert(dup2(before, STDERR_FILENO) >= 0);
	ssize_t len = pread(log, said, sizeof(said) - 1, 0);
	cr_assert_gt(len, 0);
	said[len] = '\0';
	cr_assert_not_null(strstr(said, "ringvol://node/node-a"), "%s", said);
	tls_keys_close(&keys);
	close(log);
	close(before);
	return strstr(said, "another process's") != NULL;
}

Test(tls_keys, a_certificate_of_another_process_is_warned_of)
{
	cr_assert(!is_warned_of("node-a"));
	cr_assert(is_warned_of("node-b"));
	cr_assert(is_warned_of(NULL)); /* a controller */
}
