/* SPDX-License-Identifier: Apache-2.0 */
/* SipHash with one round for each word and three at the end. It cannot fail. */
#include "base/siphash.h"

#include "base/clock.h"

#include <string.h>
#include <sys/random.h>

struct state {
	uint64_t v0, v1, v2, v3;
};

static inline uint64_t rotate(uint64_t v, unsigned by)
{
	return v << by | v >> (64 - by);
}

static inline void round_once(struct state *s)
{
	s->v0 += s->v1;
	s->v1 = rotate(s->v1, 13) ^ s->v0;
	s->v0 = rotate(s->v0, 32);
	s->v2 += s->v3;
	s->v3 = rotate(s->v3, 16) ^ s->v2;
	s->v0 += s->v3;
	s->v3 = rotate(s->v3, 21) ^ s->v0;
	s->v2 += s->v1;
	s->v1 = rotate(s->v1, 17) ^ s->v2;
	s->v2 = rotate(s->v2, 32);
}

static inline void take(struct state *s, uint64_t word)
{
	s->v3 ^= word;
	round_once(s);
	s->v0 ^= word;
}

void siphash_key_new(struct siphash_key *ret)
{
	if (getrandom(ret, sizeof(*ret), 0) == (ssize_t)sizeof(*ret))
		return;
	ret->k0 = clock_now_ns();
	ret->k1 = clock_monotonic_ns();
}

/* The words are read as the machine has them: the hash stays inside the process. */
uint64_t siphash(const struct siphash_key *key, const void *data, size_t len)
{
	struct state s = {
		.v0 = key->k0 ^ 0x736f6d6570736575,
		.v1 = key->k1 ^ 0x646f72616e646f6d,
		.v2 = key->k0 ^ 0x6c7967656e657261,
		.v3 = key->k1 ^ 0x7465646279746573,
	};
	const uint8_t *p = data;
	uint64_t word;
	size_t left = len;
	for (; left >= sizeof(word); p += sizeof(word), left -= sizeof(word)) {
		memcpy(&word, p, sizeof(word));
		take(&s, word);
	}
	word = 0;
	if (left > 0)
		memcpy(&word, p, left);
	take(&s, word | (uint64_t)len << 56);
	s.v2 ^= 0xff;
	round_once(&s);
	round_once(&s);
	round_once(&s);
	return s.v0 ^ s.v1 ^ s.v2 ^ s.v3;
}
