/* SPDX-License-Identifier: Apache-2.0 */
/*
 * LUKS2 headers in a file, where neither root nor a device mapper is needed, and secrets. What
 * makes devices of them is tested in a guest.
 */
#include "backends/crypt/luks.h"
#include "backends/crypt/luks_header.h"
#include "backends/crypt/luks_lib.h"
#include "base/fd.h"
#include "blockio/luks_room.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

static char path[64];
static int image_fd = -1;
static struct luks_says says;
static const struct luks_key random_key = {"0123456789abcdef0123456789abcdef", 32},
			     passphrase = {"correct horse", 13}, wrong = {"0123456789abcdef", 16};

static void setup(void)
{
	struct err err = {0};
	if (luks_load(&err) < 0)
		cr_skip_test("%s", err.message);
	snprintf(path, sizeof(path), "/tmp/ringvol-luks-XXXXXX");
	image_fd = mkostemp(path, O_CLOEXEC);
	cr_assert(image_fd >= 0);
	cr_assert_eq(ftruncate(image_fd, (off_t)luks_image_bytes(16 << 20)), 0);
}

static void teardown(void)
{
	if (image_fd >= 0)
		unlink(path);
	fd_close(&image_fd);
}

TestSuite(luks, .init = setup, .fini = teardown, .timeout = 120);

static enum luks_code unlock(const struct luks_key *key, struct luks_shape *ret)
{
	return luks_header_unlock(path, key, ret, &says);
}

static void expect_opens(const struct luks_key *key, bool opens)
{
	struct luks_shape shape = {0};
	cr_expect_eq(unlock(key, &shape), opens ? LUKS_OK : LUKS_WRONG_KEY, "%s", says.text);
}

Test(luks, a_key_opens_what_it_made)
{
	struct luks_shape first = {0}, second = {0};
	static const struct luks_shape none;
	cr_assert_eq(luks_header_format(path, 4096, &random_key, &says), LUKS_OK, "%s", says.text);
	cr_assert_eq(unlock(&random_key, &first), LUKS_OK, "%s", says.text);
	cr_expect_eq(first.sector_bytes, 4096);
	cr_expect_neq(memcmp(first.volume_key, none.volume_key, LUKS_VOLUME_KEY_BYTES), 0);
	cr_expect_eq(unlock(&wrong, &second), LUKS_WRONG_KEY);
	cr_expect_null(strstr(says.text, wrong.bytes), "a key is in a message");
	cr_expect_eq(memcmp(&second, &none, sizeof(none)), 0);
	/* Anew: the key is drawn anew. */
	cr_assert_eq(luks_header_format(path, 512, &random_key, &says), LUKS_OK, "%s", says.text);
	cr_assert_eq(unlock(&random_key, &second), LUKS_OK);
	cr_expect_eq(second.sector_bytes, 512);
	cr_expect_neq(memcmp(first.volume_key, second.volume_key, LUKS_VOLUME_KEY_BYTES), 0);
}

Test(luks, the_header_stays_in_its_room)
{
	enum { MIB = 1 << 20 };
	static char after[MIB], then[MIB];
	struct luks_shape shape;
	memset(after, 0x5a, sizeof(after));
	cr_assert_eq(pwrite(image_fd, after, sizeof(after), LUKS_HEADER_BYTES), MIB);
	cr_assert_eq(luks_header_format(path, 4096, &random_key, &says), LUKS_OK);
	cr_assert_eq(pread(image_fd, then, sizeof(then), LUKS_HEADER_BYTES), MIB);
	cr_expect_eq(memcmp(after, then, sizeof(then)), 0);
	/* What is given back behind the key slots is not needed. */
	cr_assert_eq(pread(image_fd, then, sizeof(then), LUKS_USED_BYTES), MIB);
	memset(after, 0, sizeof(after));
	cr_expect_eq(memcmp(after, then, sizeof(then)), 0);
	cr_expect_eq(unlock(&random_key, &shape), LUKS_OK);
}

Test(luks, passphrases_are_stretched_by_argon2)
{
	char json[16 << 10];
	cr_assert_eq(luks_header_format(path, 4096, &passphrase, &says), LUKS_OK, "%s", says.text);
	expect_opens(&passphrase, true);
	expect_opens(&wrong, false);
	cr_assert_eq(pread(image_fd, json, sizeof(json) - 1, 0), (ssize_t)sizeof(json) - 1);
	json[sizeof(json) - 1] = '\0';
	const char *text = json + 4096;
	cr_expect_not_null(
		strstr(text, "\"type\":\"argon2id\",\"time\":4,\"memory\":65536,\"cpus\":1"));
}

Test(luks, keys_are_added_and_removed)
{
	struct luks_shape before, after;
	cr_assert_eq(luks_header_format(path, 4096, &random_key, &says), LUKS_OK);
	cr_assert_eq(unlock(&random_key, &before), LUKS_OK);
	cr_expect_eq(luks_header_add_key(path, &wrong, &passphrase, &says), LUKS_WRONG_KEY);
	expect_opens(&passphrase, false);
	cr_expect_eq(luks_header_add_key(path, &random_key, &passphrase, &says), LUKS_OK, "%s",
		says.text);
	expect_opens(&random_key, true);
	cr_expect_eq(luks_header_remove_key(path, &wrong, &says), LUKS_WRONG_KEY);
	cr_expect_eq(luks_header_remove_key(path, &random_key, &says), LUKS_OK, "%s", says.text);
	expect_opens(&random_key, false);
	cr_assert_eq(unlock(&passphrase, &after), LUKS_OK);
	cr_expect_eq(memcmp(&before, &after, sizeof(before)), 0, "the data stays readable");
}

/* As the library does: it tries the slots in turn, and stops at one that costs more than there is.
 */
static __typeof__(luks.crypt_volume_key_get) real_volume_key_get;

static int costly_slot_1(struct crypt_device *cd, int slot, char *volume_key, size_t *len,
	const char *key, size_t key_len)
{
	return slot == 1 || slot == CRYPT_ANY_SLOT
		       ? -ENOMEM
		       : real_volume_key_get(cd, slot, volume_key, len, key, key_len);
}

Test(luks, a_slot_that_costs_too_much_hides_none_behind_it)
{
	static const struct luks_key second = {"fedcba9876543210fedcba9876543210", 32},
				     third = {"ffffffffffffffffffffffffffffffff", 32};
	struct luks_shape before, after;
	cr_assert_eq(luks_header_format(path, 4096, &random_key, &says), LUKS_OK);
	cr_assert_eq(luks_header_add_key(path, &random_key, &third, &says), LUKS_OK);
	cr_assert_eq(luks_header_add_key(path, &random_key, &second, &says), LUKS_OK);
	cr_assert_eq(unlock(&random_key, &before), LUKS_OK);
	real_volume_key_get = luks.crypt_volume_key_get;
	luks.crypt_volume_key_get = costly_slot_1;
	cr_assert_eq(unlock(&second, &after), LUKS_OK, "%s", says.text);
	cr_expect_eq(memcmp(&before, &after, sizeof(before)), 0);
	cr_expect_eq(luks_header_add_key(path, &second, &second, &says), LUKS_OK, "%s", says.text);
	cr_expect_eq(unlock(&third, &after), LUKS_NO_MEMORY);
	cr_expect_not_null(strstr(says.text, "out of memory"), "%s", says.text);
	luks.crypt_volume_key_get = real_volume_key_get;
	expect_opens(&third, true);
}

static __typeof__(luks.crypt_activate_by_passphrase) real_activate;

static int costly_to_try(struct crypt_device *cd, const char *name, int slot, const char *key,
	size_t key_len, uint32_t flags)
{
	return slot == 1 ? -ENOMEM : real_activate(cd, name, slot, key, key_len, flags);
}

Test(luks, a_slot_that_costs_too_much_keeps_no_key_from_being_removed)
{
	static const struct luks_key costly = {"ffffffffffffffffffffffffffffffff", 32};
	cr_assert_eq(luks_header_format(path, 4096, &random_key, &says), LUKS_OK);
	cr_assert_eq(luks_header_add_key(path, &random_key, &costly, &says), LUKS_OK);
	real_activate = luks.crypt_activate_by_passphrase;
	luks.crypt_activate_by_passphrase = costly_to_try;
	cr_expect_eq(luks_header_remove_key(path, &random_key, &says), LUKS_OK, "%s", says.text);
	luks.crypt_activate_by_passphrase = real_activate;
	expect_opens(&random_key, false);
	expect_opens(&costly, true);
}

Test(luks, a_key_that_no_call_can_bring_is_not_added)
{
	static char most[4094];
	memset(most, 'k', sizeof(most));
	static const struct luks_key bad[] = {{"0123456789abcdef\000123456789abcdef", 33},
		{"\xff"
		 "0123456789abcdef",
			17},
		{most, 4094}};
	static const struct luks_key good = {most, 4093};
	cr_assert_eq(luks_header_format(path, 4096, &random_key, &says), LUKS_OK);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		cr_expect_eq(luks_header_add_key(path, &random_key, &bad[i], &says), LUKS_FAILED);
		cr_expect_not_null(strstr(says.text, "no Secret can bring"), "%s", says.text);
		expect_opens(&bad[i], false);
	}
	cr_expect_eq(
		luks_header_add_key(path, &random_key, &good, &says), LUKS_OK, "%s", says.text);
	expect_opens(&good, true);
}

Test(luks, the_last_key_stays)
{
	cr_assert_eq(luks_header_format(path, 4096, &random_key, &says), LUKS_OK);
	cr_expect_eq(luks_header_remove_key(path, &random_key, &says), LUKS_LAST_KEY);
	cr_expect_not_null(strstr(says.text, "last key"));
	/* The same key twice is one key. */
	cr_assert_eq(luks_header_add_key(path, &random_key, &random_key, &says), LUKS_OK);
	cr_expect_eq(luks_header_remove_key(path, &random_key, &says), LUKS_LAST_KEY);
	expect_opens(&random_key, true);
}

Test(luks, what_is_not_ours_is_told_apart)
{
	struct luks_shape shape;
	cr_expect_eq(unlock(&random_key, &shape), LUKS_NO_HEADER);
	cr_expect_eq(luks_header_add_key(path, &random_key, &passphrase, &says), LUKS_NO_HEADER);
	cr_expect_eq(luks_header_remove_key(path, &random_key, &says), LUKS_NO_HEADER);
	/* As any cryptsetup makes it: data elsewhere, another cipher. */
	struct crypt_device *cd = NULL;
	const struct crypt_pbkdf_type quick = {.type = CRYPT_KDF_PBKDF2,
		.hash = "sha256",
		.iterations = 1000,
		.flags = CRYPT_PBKDF_NO_BENCHMARK};
	struct crypt_params_luks2 params = {.pbkdf = &quick, .sector_size = 512};
	cr_assert_eq(luks.crypt_init(&cd, path), 0);
	cr_assert_eq(luks.crypt_format(
			     cd, CRYPT_LUKS2, "aes", "cbc-essiv:sha256", NULL, NULL, 32, &params),
		0);
	luks.crypt_free(cd);
	cr_expect_eq(unlock(&random_key, &shape), LUKS_OTHER_SHAPE);
	cr_expect_not_null(strstr(says.text, "as ringvol makes it"));
}

Test(luks, a_reencryption_that_was_not_finished_is_refused)
{
	struct luks_shape shape;
	char command[512];
	cr_assert_eq(luks_header_format(path, 512, &random_key, &says), LUKS_OK, "%s", says.text);
	snprintf(command, sizeof(command),
		"printf %%s '%s' | cryptsetup reencrypt --init-only --disable-locks --force-password"
		" --key-file - -q --pbkdf pbkdf2 --pbkdf-force-iterations 1000 %s 2>&1",
		(const char *)random_key.bytes, path);
	if (system(command) != 0)
		cr_skip_test("no cryptsetup that begins a re-encryption of a file");
	cr_expect_eq(unlock(&random_key, &shape), LUKS_OTHER_SHAPE, "%s", says.text);
	cr_expect_not_null(
		strstr(says.text, "cryptsetup reencrypt --resume-only"), "%s", says.text);
	cr_expect_eq(luks_header_add_key(path, &random_key, &passphrase, &says), LUKS_OTHER_SHAPE);
	cr_expect_eq(luks_header_remove_key(path, &random_key, &says), LUKS_OTHER_SHAPE);
}

Test(luks, one_copy_of_the_header_is_enough)
{
	struct luks_shape shape;
	static const char damage[4096];
	cr_assert_eq(luks_header_format(path, 4096, &random_key, &says), LUKS_OK);
	cr_assert_eq(pwrite(image_fd, damage, sizeof(damage), 0), (ssize_t)sizeof(damage));
	cr_expect_eq(unlock(&random_key, &shape), LUKS_OK, "%s", says.text);
}

Test(luks, an_image_that_is_gone_is_told)
{
	struct luks_shape shape;
	cr_assert_eq(unlink(path), 0);
	cr_expect_eq(unlock(&random_key, &shape), LUKS_FAILED);
	cr_expect_neq(says.text[0], '\0');
	cr_expect_eq(luks_header_format(path, 4096, &random_key, &says), LUKS_FAILED);
}

Test(luks, a_lock_is_taken_once)
{
	cr_expect_eq(luks_header_lock(image_fd, &says), LUKS_OK);
	_cleanup_fd_ int other = open(path, O_RDWR | O_CLOEXEC);
	cr_expect_lt(flock(other, LOCK_EX | LOCK_NB), 0);
	cr_expect_eq(luks_header_lock(-1, &says), LUKS_FAILED);
}

/* ---- secrets ---- */

Test(secret, is_a_copy)
{
	char key[] = "a key";
	struct secret *secret = secret_new(key, sizeof(key));
	cr_assert_not_null(secret);
	secret_wipe(key, sizeof(key));
	cr_expect_eq(memcmp(key, "\0\0\0\0\0", sizeof(key)), 0);
	cr_expect_eq(secret_len(secret), sizeof(key));
	cr_expect_str_eq((const char *)secret_bytes(secret), "a key");
	secret_free(secret);
	secret_free(NULL);
}

Test(secret, has_its_bounds)
{
	static char most[SECRET_BYTES_MAX + 1];
	struct secret *secret = secret_new(most, SECRET_BYTES_MAX);
	cr_expect_not_null(secret);
	secret_free(secret);
	cr_expect_null(secret_new(most, SECRET_BYTES_MAX + 1));
	secret = secret_new(NULL, 0);
	cr_expect_eq(secret_len(secret), 0);
	secret_free(secret);
}

/* As /proc has it: left out of core dumps ("dd"), empty in children ("wf"). */
Test(secret, is_in_no_core_dump_and_no_child)
{
	char line[512], flags[256] = "";
	bool there = false;
	struct secret *secret = secret_new("a key", 5);
	FILE *smaps = fopen("/proc/self/smaps", "re");
	cr_assert_not_null(smaps);
	while (fgets(line, sizeof(line), smaps) != NULL) {
		unsigned long from, to;
		if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
			there = (uintptr_t)secret >= from && (uintptr_t)secret < to;
		else if (there && strncmp(line, "VmFlags:", 8) == 0)
			snprintf(flags, sizeof(flags), "%.255s", line);
	}
	fclose(smaps);
	cr_expect_not_null(strstr(flags, " dd"), "%s", flags);
	cr_expect_not_null(strstr(flags, " wf"), "%s", flags);
	secret_free(secret);
}

/* ---- a driver that has died ---- */

/* Its child has another parent then, and does nothing. */
Test(luks, does_nothing_for_a_driver_that_has_ended)
{
	uint8_t head[LUKS_HEAD_BYTES];
	char said[256] = "";
	int out[2], order[2], status;
	cr_assert_eq(pipe(out), 0);
	cr_assert_eq(pipe(order), 0);
	luks_order_print(&(struct luks_order){.what = LUKS_GROW,
				 .driver = getppid(),
				 .sector_bytes = 512,
				 .path = "/dev/null",
				 .name = "name",
				 .uuid = "uuid"},
		head);
	cr_assert_eq(write(order[1], head, sizeof(head)), (ssize_t)sizeof(head));
	close(order[1]);
	pid_t pid = fork();
	if (pid == 0) {
		dup2(out[1], STDOUT_FILENO);
		_exit(luks_main(order[0]) == LUKS_FAILED && fflush(stdout) == 0 ? 0 : 1);
	}
	cr_assert_gt(pid, 0);
	close(out[1]);
	cr_expect_gt(read(out[0], said, sizeof(said) - 1), 0);
	cr_expect_not_null(strstr(said, "has ended"), "%s", said);
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x", status);
}
