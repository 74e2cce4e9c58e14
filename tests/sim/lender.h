/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Another node that gives a volume to the world's (far): the calls of attach are the test's own. In
 * the place of a connection and its cover stands a loop device, and what was opened over that is
 * another one, which a script makes in the place of `ringvol luks`.
 */
#ifndef RINGVOL_TESTS_LENDER_H
#define RINGVOL_TESTS_LENDER_H

#include "answers.h"

#include "attach/borrowed.h"

#define ID  "fedcba98.far.0badcafe"
#define TAG "ringvol:fedcba98:0badcafe"
#define KEY "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:"

extern struct far {
	bool connected;
	char path[32]; /* of the loop device, while it is */
	unsigned takes, gives;
	int fail_take, fail_give, fail_opened; /* -errno of the next one */
	enum err_code code;
	const char *state;
	bool lost; /* its device is gone */
	char key[ATTACH_KEY_BYTES];
	bool read_only, probe;
	bool local, suspended; /* it has moved here; is about to */
	bool encrypted;
	bool errors;       /* its file system says so of itself */
	uint64_t fs_bytes; /* 0: as large as its device */
	uint8_t uuid[16];  /* of its file system, as it says */
	char tag[ATTACH_TAG_BYTES];
} far;

enum { PAIRS = 10, MODE = PAIRS - 2 }; /* where the volume's mode is; its fs_type comes next */
/* What publish_context says; one more of encrypted volumes. */
extern struct attach_pair pairs[PAIRS + 1];

void sh(const char *fmt, const char *arg);
/* As a look finds it. */
void fill(struct attach_info *info);
/* The device that the child has made over the cover, as it left its name. */
bool opened(char ret[32]);
void use_fakes(void);
/* A script that the child runs before it does anything. */
void child_does(const char *script);

/* A world with the volume ID of node-2, which is not in use here yet. */
void open_far(uint64_t seed, bool as_block);
void encrypt_far(bool as_block);
/* Nothing of it is in use any more. */
void close_far(void);
struct borrowed *entry(void);

/* Calls about it, as lines. */
const char *expands_at(const char *path, int64_t required, int64_t limit);
const char *asks_health_at(const char *publish_path, const char *staging);
/* The path is put in the place of the only %s. */
void says_at(const char *got, const char *fmt, const char *path);
/* Nothing is left of an attempt. */
void is_released(void);

#define HANGS(what) "4: volume " ID ": " what " of %s hangs; see the kernel log for its device"

#endif
