/* SPDX-License-Identifier: Apache-2.0 */
/* The names of exports, which nobody else's are taken for, and keys as the kernel reads them. */
#include "base/address.h"
#include "export/names.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>

#define UUID "0f2e4d6c-8b0a-4192-a3b4-c5d6e7f80910"

Test(export_names, there_and_back)
{
	struct export_names names, others;
	char pool[9], uuid[UUID_BYTES];
	export_names_of("01234567", UUID, &names);
	cr_expect_str_eq(names.subsystem, "nqn.2026-11.dev.ringvol:volume.01234567." UUID);
	cr_expect_str_eq(names.host, "nqn.2026-11.dev.ringvol:host.01234567." UUID);
	cr_expect(uuid_valid(names.host_id), "%s", names.host_id);
	cr_assert(export_names_split(names.subsystem, pool, uuid));
	cr_expect_str_eq(pool, "01234567");
	cr_expect_str_eq(uuid, UUID);
	export_names_of("01234568", UUID, &others);
	cr_expect_neq(strcmp(names.host_id, others.host_id), 0);
	cr_expect_neq(strcmp(names.host_id, UUID), 0);
}

Test(export_names, of_others)
{
	static const char *const bad[] = {"", "nqn.2014-08.org.nvmexpress.discovery",
		"nqn.2026-11.dev.ringvol:host.01234567." UUID,
		"nqn.2026-11.dev.ringvol:volume.0123456." UUID,
		"nqn.2026-11.dev.ringvol:volume.0123456x." UUID,
		"nqn.2026-11.dev.ringvol:volume.01234567-" UUID,
		"nqn.2026-11.dev.ringvol:volume.01234567." UUID "x",
		"nqn.2026-11.dev.ringvol:volume.01234567.0f2e4d6c-8b0a-4192-a3b4-c5d6e7f8091x"};
	char pool[9], uuid[UUID_BYTES];
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		cr_expect_not(export_names_split(bad[i], pool, uuid), "%s", bad[i]);
}

static int value_of(char c)
{
	static const char digits[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	const char *at = strchr(digits, c);
	return at != NULL && c != '\0' ? (int)(at - digits) : -1;
}

/* The CRC-32 over a text and its own CRC-32 is always this. */
Test(export_names, a_key_has_its_sum)
{
	char key[ATTACH_KEY_BYTES], before[ATTACH_KEY_BYTES] = "";
	for (unsigned round = 0; round < 3; round++) {
		uint8_t bytes[36];
		export_key_draw(key);
		cr_assert_eq(strlen(key), 10 + 48 + 1);
		cr_assert_eq(strncmp(key, "DHHC-1:00:", 10), 0);
		cr_assert_eq(key[58], ':');
		for (unsigned i = 0; i < 36; i++) {
			unsigned bit = i * 8, at = 10 + bit / 6;
			int two = value_of(key[at]) << 6 | value_of(key[at + 1]);
			cr_assert_geq(two, 0);
			bytes[i] = (uint8_t)(two >> (4 - bit % 6));
		}
		uint32_t crc = ~0u;
		for (unsigned i = 0; i < 36; i++) {
			crc ^= bytes[i];
			for (unsigned k = 0; k < 8; k++)
				crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
		}
		cr_assert_eq(~crc, 0x2144df1cu);
		cr_assert_neq(strcmp(key, before), 0);
		strcpy(before, key);
	}
}

Test(export_names, addresses)
{
	struct sockaddr_storage parsed;
	socklen_t len;
	char text[64];
	const struct sockaddr_in *in = (const struct sockaddr_in *)&parsed;
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)&parsed;
	cr_assert_eq(address_parse("192.0.2.1:4420", &parsed, &len), 0);
	cr_assert_eq(parsed.ss_family, AF_INET);
	cr_expect_str_eq(inet_ntop(AF_INET, &in->sin_addr, text, sizeof(text)), "192.0.2.1");
	cr_expect_eq(ntohs(in->sin_port), 4420);
	cr_assert_eq(address_parse("[2001:db8::1]:1", &parsed, &len), 0);
	cr_assert_eq(parsed.ss_family, AF_INET6);
	cr_expect_str_eq(inet_ntop(AF_INET6, &in6->sin6_addr, text, sizeof(text)), "2001:db8::1");
	cr_expect_eq(ntohs(in6->sin6_port), 1);
	static const char *const bad[] = {"", ":", ":1", "1.2.3.4", "1.2.3.4:", "1.2.3.4:0",
		"1.2.3.4:65536", "1.2.3.4:x", "1.2.3:4420", "::1:4420", "[::1]", "[1.2.3.4]:4420",
		"host:4420", "[::1:4420", "1.2.3.4:123456"};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		cr_expect_eq(address_parse(bad[i], &parsed, &len), -EINVAL, "%s", bad[i]);
}
