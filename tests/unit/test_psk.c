/* SPDX-License-Identifier: Apache-2.0 */
/* TLS keys of attachments, and what is read of /proc/keys. The first vector is libnvme's (its
 * test/psk.c); the others were computed by another program. */
#include "attach/keyring.h"
#include "attach/psk.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SUBSYSTEM ATTACH_NQN_PREFIX "0123.abc"
#define HOST      ATTACH_HOST_NQN_PREFIX "b.0123"
#define KEY       "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:"

static const char *hex(const uint8_t *bytes)
{
	static char text[2 * PSK_BYTES + 1];
	for (unsigned i = 0; i < PSK_BYTES; i++)
		sprintf(text + 2 * i, "%02x", bytes[i]);
	return text;
}

Test(psk, steps_are_those_of_the_specification)
{
	static const uint8_t configured[] = {0x55, 0x12, 0xdb, 0xb6, 0x73, 0x7d, 0x01, 0x06, 0xf6,
		0x59, 0x75, 0xb7, 0x73, 0xdf, 0xb0, 0x11, 0xff, 0xc3, 0x44, 0xbc, 0xf4, 0x42, 0xe2,
		0xdd, 0x6d, 0x8b, 0xc4, 0x87, 0x0b, 0x5d, 0x5b, 0x03};
	static const char text[] = "nqn.psk-test-host nqn.psk-test-subsys NVMe-over-Fabrics";
	uint8_t key[PSK_BYTES], digest[PSK_BYTES];
	char base64[64];
	unsigned len = 0;
	cr_assert_eq(
		psk_step(configured, sizeof(configured), "HostNQN", "nqn.psk-test-host", key), 0);
	/* What an identity of version 1 has of the retained key. */
	cr_assert_not_null(HMAC(
		EVP_sha256(), key, sizeof(key), (const uint8_t *)text, strlen(text), digest, &len));
	EVP_EncodeBlock((uint8_t *)base64, digest, sizeof(digest));
	cr_expect_str_eq(base64, "iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU=");
	cr_assert_eq(psk_step(key, sizeof(key), "nvme-tls-psk",
			     "NVMe0R01 nqn.psk-test-host nqn.psk-test-subsys", key),
		0);
	cr_expect_str_eq(
		hex(key), "05c6503551ad136e6ee32e6eeb3f6d500b69701d84ec71e328f65c7f51566f68");
}

Test(psk, of_an_attachment)
{
	static char name[UINT8_MAX + 2];
	struct psk psk;
	cr_assert_eq(psk_make(KEY, HOST, SUBSYSTEM, &psk), 0);
	cr_expect_str_eq(psk.identity,
		"NVMe0R01 47ad72eb1971c4aa5d77733dcab7ca1fa4b1efee39907f06935b9ab99c599f19",
		"no name is in it");
	cr_expect_str_eq(
		hex(psk.key), "911171ecb7c7a7f4d88e50058f1ab2b0588088c75ab26c435b63f44da4883fd0");
	cr_expect_eq(psk_make("", HOST, SUBSYSTEM, &psk), -EINVAL);
	cr_expect_eq(psk_make("DHHC-1:00:", HOST, SUBSYSTEM, &psk), -EINVAL);
	cr_expect_eq(psk_make("DHHC-1:00:ia6z:", HOST, SUBSYSTEM, &psk), -EINVAL);
	cr_expect_eq(psk_make(KEY "x", "", "", &psk), 0, "nothing is read behind the secret");
	memset(name, 'a', sizeof(name) - 1);
	cr_expect_eq(psk_make(KEY, name, SUBSYSTEM, &psk), -E2BIG);
	cr_expect_eq(psk_step(psk.key, PSK_BYTES, "x", name, psk.key), -E2BIG);
}

static void put(const char *dir, const char *name, const char *text)
{
	char path[256];
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	FILE *f = fopen(path, "we");
	cr_assert_not_null(f);
	fputs(text, f);
	fclose(f);
}

/* What is missing is told one after the other. */
Test(psk, a_node_without_tls_says_what_it_lacks)
{
	char dir[] = "/tmp/ringvol-psk-XXXXXX", keys[64], path[128];
	struct err err = {0};
	cr_assert_not_null(mkdtemp(dir));
	snprintf(keys, sizeof(keys), "%s/keys", dir);
	keyring_set_roots(keys, dir);
	err_clear(&err);
	cr_expect_lt(keyring_check("nvmet_tcp", &err), 0);
	cr_expect_not_null(strstr(err.message, "modprobe nvmet-tcp"), "%s", err.message);
	for (const char *const *at = (const char *const[]){"module", "module/nvmet_tcp",
		     "module/nvmet_tcp/parameters", NULL};
		*at != NULL; at++) {
		snprintf(path, sizeof(path), "%s/%s", dir, *at);
		cr_assert_eq(mkdir(path, 0700), 0);
	}
	err_clear(&err);
	cr_expect_lt(keyring_check("nvmet_tcp", &err), 0);
	cr_expect_not_null(strstr(err.message, "6.7"), "%s", err.message);
	put(dir, "module/nvmet_tcp/parameters/tls_handshake_timeout", "10\n");
	err_clear(&err);
	cr_expect_lt(keyring_check("nvmet_tcp", &err), 0);
	cr_expect_not_null(strstr(err.message, "nvme-keyring"), "%s", err.message);
	put(dir, "keys",
		"01234567 I--Q---     1 perm 1f3f0000     0 65534 keyring   _uid.0: empty\n"
		"11234567 IR-Q---     1 perm 1f3f0000     0     0 keyring   .nvme: empty\n");
	cr_expect_lt(keyring_check("nvmet_tcp", &err), 0, "a revoked one is none");
	cr_expect_lt(keyring_give("nvmet_tcp", KEY, HOST, SUBSYSTEM, &err), 0);
	cr_expect_eq(err.code, ERR_PRECONDITION);
	cr_expect_eq(keyring_drop(SUBSYSTEM), 0);
	put(dir, "keys",
		"11234567 I------     1 perm 1f3f0000     0     0 keyring   .nvme: empty\n");
	cr_expect_eq(keyring_check("nvmet_tcp", &err), 0, "%s", err.message);
	err_clear(&err);
	cr_expect_lt(keyring_give("nvmet_tcp", "", HOST, SUBSYSTEM, &err), 0);
	cr_expect_eq(err.code, ERR_PRECONDITION);
	cr_expect_not_null(
		strstr(err.message, "ControllerUnpublishVolume first"), "%s", err.message);
	/* No kernel has this serial: what is asked for comes as far as that. */
	err_clear(&err);
	cr_expect_lt(keyring_give("nvmet_tcp", KEY, HOST, SUBSYSTEM, &err), 0);
	cr_expect_not_null(strstr(err.message, SUBSYSTEM), "%s", err.message);
	keyring_set_roots(NULL, NULL);
	snprintf(path, sizeof(path), "rm -rf %s", dir);
	cr_assert_eq(system(path), 0);
}
