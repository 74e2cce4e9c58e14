/* SPDX-License-Identifier: Apache-2.0 */
/* What a process of a cluster tells of its certificate, and of those who come to it. */
#include "metrics/private.h"

#include "base/clock.h"
#include "rpc/tls.h"

static bool render_expiry(struct scrape *s, const struct family *f, struct text *t)
{
	const struct tls *tls = s->metrics->tls;
	if (tls != NULL && tls_self(tls) != NULL)
		text_u64(t, f->name, NULL, NULL, (uint64_t)tls_not_after(tls));
	return true;
}

static bool render_good(struct scrape *s, const struct family *f, struct text *t)
{
	const struct tls *tls = s->metrics->tls;
	int64_t now = (int64_t)(clock_now_ns() / 1000000000);
	if (tls != NULL)
		text_u64(t, f->name, NULL, NULL,
			tls_self(tls) != NULL && tls_time(tls, now, NULL) == TLS_TIME_GOOD);
	return true;
}

static bool render_handshakes(struct scrape *s, const struct family *f, struct text *t)
{
	if (s->metrics->tls == NULL)
		return true;
	const struct tls_stats *stats = tls_stats(s->metrics->tls);
	text_u64(t, f->name, "result=\"good\"", NULL, stats->handshakes);
	text_u64(t, f->name, "result=\"refused\"", NULL, stats->refused);
	return true;
}

static bool render_revoked(struct scrape *s, const struct family *f, struct text *t)
{
	if (s->metrics->tls != NULL)
		text_u64(t, f->name, NULL, NULL, tls_stats(s->metrics->tls)->revoked);
	return true;
}

const struct family tls_families[] = {
	{"ringvol_tls_certificate_expiry_timestamp_seconds", "gauge",
		"When our certificate ends, Unix time.", render_expiry},
	{"ringvol_tls_certificate_good", "gauge",
		"1 if our certificate is valid and more than a tenth of its time is left.",
		render_good},
	{"ringvol_tls_handshakes_total", "counter", "Handshakes with others, by their end.",
		render_handshakes},
	{"ringvol_tls_revoked_total", "counter",
		"Connections that were ended as a new trust did not cover their peer.",
		render_revoked},
	{NULL},
};
