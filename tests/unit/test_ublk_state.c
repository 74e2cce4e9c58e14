/* SPDX-License-Identifier: Apache-2.0 */
/* What the data process keeps in files and says on its socket. */
#include "backends/ublk/ublkd_proto.h"
#include "ublk_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

/* ---- state files ---- */

Test(ublk_state, a_record_is_read_as_written)
{
	char path[32];
	int dir = temp_dir(path);
	struct ublk_record record = good_record(7, UBLK_PHASE_LIVE);
	struct ublk_record back;
	cr_assert_eq(ublk_state_write(dir, &record), 0);
	cr_assert_eq(ublk_state_read(dir, 7, &back), 0);
	cr_expect_eq(memcmp(&record, &back, sizeof(back)), 0);
	cr_expect_eq(ublk_state_read(dir, 8, &back), -ENOENT);

	/* Every byte that is changed is found; so is one too few. */
	int fd = openat(dir, "dev-7", O_RDWR);
	for (off_t at = 0; at < (off_t)offsetof(struct ublk_record, path) + 8; at++) {
		uint8_t byte, changed;
		cr_assert_eq(pread(fd, &byte, 1, at), 1);
		changed = byte ^ 0x10;
		cr_assert_eq(pwrite(fd, &changed, 1, at), 1);
		cr_expect_eq(ublk_state_read(dir, 7, &back), -EBADMSG, "byte %ld", (long)at);
		cr_assert_eq(pwrite(fd, &byte, 1, at), 1);
	}
	struct seen seen = {0};
	cr_assert_eq(ublk_state_each(dir, on_seen, &seen), 0);
	cr_expect(seen.good == 1 && seen.damaged == 0);
	cr_assert_eq(ftruncate(fd, sizeof(record) - 1), 0);
	seen = (struct seen){0};
	cr_assert_eq(ublk_state_each(dir, on_seen, &seen), 0);
	cr_expect(seen.good == 0 && seen.damaged == 1);
	close(fd);
	cr_expect_eq(ublk_state_remove(dir, 7), 0);
	cr_expect_eq(ublk_state_remove(dir, 7), 0);
	cr_expect_eq(ublk_state_read(dir, 7, &back), -ENOENT);
	close(dir);
	remove_dir(path);
}

/* A sum that is right does not make it sound. */
Test(ublk_state, a_record_that_nobody_writes_is_damaged)
{
	char path[32];
	int dir = temp_dir(path);
	struct ublk_record bad[8], back;
	for (unsigned i = 0; i < 8; i++)
		bad[i] = good_record(7, UBLK_PHASE_LIVE);
	bad[0].phase = 0;
	bad[1].phase = UBLK_PHASE_ENDING + 1;
	bad[2].block_size = 0;
	bad[3].queues = 0;
	bad[4].queues = UBLKD_QUEUES_MAX + 1;
	bad[5].depth = 0;
	bad[6].tag[0] = '\0';
	memset(bad[7].path, '/', sizeof(bad[7].path));
	for (unsigned i = 0; i < 8; i++) {
		cr_assert_eq(ublk_state_write(dir, &bad[i]), 0);
		cr_expect_eq(ublk_state_read(dir, 7, &back), -EBADMSG, "case %u", i);
	}
	cr_assert_eq(ublk_state_remove(dir, 7), 0);
	close(dir);
	remove_dir(path);
}

Test(ublk_state, a_directory_has_one_process_and_one_number)
{
	char path[32];
	int dir = temp_dir(path), first, second;
	uint32_t a, b;
	cr_assert_eq(ublk_state_lock(dir, &first), 0);
	cr_expect_eq(ublk_state_lock(dir, &second), -EWOULDBLOCK);
	close(first);
	cr_expect_eq(ublk_state_lock(dir, &second), 0);
	cr_assert_eq(ublk_state_instance(dir, &a), 0);
	cr_assert_eq(ublk_state_instance(dir, &b), 0);
	cr_expect_eq(a, b);
	close(second);
	close(dir);
	remove_dir(path);
}

/* ---- messages ---- */

Test(ublk_state, a_shorter_message_is_completed)
{
	struct ublkd_request r;
	memset(&r, 0xff, sizeof(r));
	r.head = (struct ublkd_head){.magic = UBLKD_MAGIC, .version = 1, .type = UBLKD_LIST};
	cr_expect_eq(ublkd_check_request(&r, sizeof(r.head)), 0);
	cr_expect(r.dev_id == 0 && r.path[0] == '\0' && r.path[UBLKD_PATH_BYTES - 1] == '\0');
	memset(r.tag, 'x', sizeof(r.tag));
	cr_expect_eq(ublkd_check_request(&r, sizeof(r)), 0);
	cr_expect_eq(strlen(r.tag), sizeof(r.tag) - 1);
	cr_expect_eq(ublkd_check_request(&r, sizeof(r.head) - 1), -EPROTO);
	r.head.magic++;
	cr_expect_eq(ublkd_check_request(&r, sizeof(r)), -EPROTO);
}

Test(ublk_state, an_error_crosses_the_socket)
{
	struct ublkd_reply reply = {.head.magic = UBLKD_MAGIC};
	struct err in = {0}, out = {0};
	int r = err_set(&in, ERR_NO_ROOM, "no room for %s", "this");
	ublkd_reply_fail(&reply, r, &in);
	cr_assert_eq(ublkd_check_reply(&reply, sizeof(reply)), 0);
	cr_expect_eq(ublkd_reply_result(&reply, &out), -ENOSPC);
	cr_expect_eq(out.code, ERR_NO_ROOM);
	cr_expect_str_eq(out.message, "no room for this");
	/* A code of a later build. */
	strcpy(reply.code, "on_fire");
	out = (struct err){0};
	cr_expect_eq(ublkd_reply_result(&reply, &out), -ENOSPC);
	cr_expect_eq(out.code, ERR_INTERNAL);
}
