/* SPDX-License-Identifier: Apache-2.0 */
/* State directories for tests of the data process. */
#ifndef RINGVOL_TESTS_UBLK_DIR_H
#define RINGVOL_TESTS_UBLK_DIR_H

#include "backends/ublk/ublk_state.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline int temp_dir(char path[32])
{
	strcpy(path, "/tmp/ublk-unit-XXXXXX");
	cr_assert_not_null(mkdtemp(path));
	int fd = ublk_state_open_dir(path, true);
	cr_assert_geq(fd, 0);
	return fd;
}

static inline void remove_dir(const char *path)
{
	char command[64];
	snprintf(command, sizeof(command), "rm -r %s", path);
	cr_assert_eq(system(command), 0);
}

struct seen {
	unsigned good, damaged;
};

static inline struct ublk_record good_record(uint32_t dev_id, enum ublk_phase phase)
{
	return (struct ublk_record){.phase = phase,
		.dev_id = dev_id,
		.block_size = 512,
		.queues = 1,
		.depth = 64,
		.tag = "ringvol:0:1",
		.path = "/x/y"};
}

static inline void on_seen(void *arg, uint32_t dev_id, const struct ublk_record *record)
{
	struct seen *seen = arg;
	cr_expect(record == NULL || record->dev_id == dev_id);
	if (record != NULL)
		seen->good++;
	else
		seen->damaged++;
}

#endif
