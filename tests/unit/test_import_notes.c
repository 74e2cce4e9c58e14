/* SPDX-License-Identifier: Apache-2.0 */
/* What `ringvol import` makes of the notes that an import before it has left, and of its own, where
 * the driver does not make the volume: the calls are answered here. */
#include "base/fd.h"
#include "tools/import_calls.h"
#include "tools/tool.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LEFT "import.golden.00000001"

/* ---- the driver ---- */

static enum err_code left_code, own_code; /* of a CreateVolume of LEFT, and of another */
static bool left_is_made;                 /* by an older call, which is over when another ends */
static unsigned left_creates, own_creates, deletes;
static bool there;

int __wrap_import_create(struct import_calls *calls, struct import_volume *v, struct err *err);
int __wrap_import_create(struct import_calls *calls, struct import_volume *v, struct err *err)
{
	bool left = strcmp(v->name, LEFT) == 0;
	calls->answered = true;
	cr_assert_geq(v->bytes, 1 << 20);
	if (left)
		left_creates++;
	else
		own_creates++;
	there |= left && left_is_made;
	return err_set(err, left ? left_code : own_code, "no %s", left ? "older one" : "new one");
}

int __wrap_import_find(struct import_calls *calls, bool snapshot, const char *key,
	char ret_id[RECORD_ID_MAX], struct err *err);
int __wrap_import_find(struct import_calls *calls, bool snapshot, const char *key,
	char ret_id[RECORD_ID_MAX], struct err *err)
{
	(void)err;
	calls->answered = true;
	ret_id[0] = '\0';
	if (!snapshot && there && strcmp(key, LEFT) == 0)
		strcpy(ret_id, "01234567." LEFT ".89abcdef");
	return 0;
}

int __wrap_import_down(struct import_calls *calls, const char *id, const char *staging,
	const char *target, struct err *err);
int __wrap_import_down(struct import_calls *calls, const char *id, const char *staging,
	const char *target, struct err *err)
{
	(void)calls;
	(void)id;
	(void)staging;
	(void)target;
	(void)err;
	return 0;
}

int __wrap_import_delete(struct import_calls *calls, const char *id, struct err *err);
int __wrap_import_delete(struct import_calls *calls, const char *id, struct err *err)
{
	(void)calls;
	(void)err;
	cr_assert_str_eq(id, "01234567." LEFT ".89abcdef");
	there = false;
	deletes++;
	return 0;
}

/* ---- the command ---- */

static char top[32];

static void setup(void)
{
	char path[96];
	strcpy(top, "/tmp/ringvol-notes.XXXXXX");
	cr_assert_not_null(mkdtemp(top));
	snprintf(path, sizeof(path), "%s/source", top);
	_cleanup_fd_ int source = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	cr_assert_eq(ftruncate(source, 1 << 20), 0);
	snprintf(path, sizeof(path), "%s/golden", top);
	cr_assert_eq(mkdir(path, 0700), 0);
	snprintf(path, sizeof(path), "%s/golden/" LEFT, top);
	_cleanup_fd_ int left = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	cr_assert_geq(left, 0);
}

static void teardown(void)
{
	char command[64];
	snprintf(command, sizeof(command), "rm -rf %s", top);
	cr_assert_eq(system(command), 0);
}

TestSuite(import_notes, .init = setup, .fini = teardown);

/* It fails, as nothing is made. How many notes are there then. */
static unsigned notes_after_import(void)
{
	char source[64], dir[64];
	unsigned count = 0;
	snprintf(source, sizeof(source), "%s/source", top);
	char *const argv[] = {"--work-dir", top, source, "golden", NULL};
	cr_assert_eq(tool_main(&import_tool, 4, argv), TOOL_FAILED);
	snprintf(dir, sizeof(dir), "%s/golden", top);
	DIR *notes = opendir(dir);
	if (notes == NULL)
		return 0;
	for (const struct dirent *e; (e = readdir(notes)) != NULL;)
		count += strncmp(e->d_name, "import.", 7) == 0;
	closedir(notes);
	return count;
}

/* What the driver refuses it does not make. The new volume's refusal is not asked for again. */
Test(import_notes, go_where_the_driver_refuses)
{
	left_code = own_code = ERR_INVALID;
	cr_expect_eq(notes_after_import(), 0);
	cr_expect_eq(left_creates, 1);
	cr_expect_eq(own_creates, 1);
	cr_expect_eq(deletes, 0);
}

/* Its request was under way, and it is there when ours is answered. */
Test(import_notes, bring_back_what_came_meanwhile)
{
	left_code = ERR_EXISTS;
	own_code = ERR_INVALID;
	left_is_made = true;
	cr_expect_eq(notes_after_import(), 0);
	cr_expect_eq(deletes, 1);
	cr_expect_not(there);
}

/* The driver may make it yet: nothing new begins. */
Test(import_notes, stay_where_the_driver_does_not_answer)
{
	static const enum err_code codes[] = {ERR_PENDING, ERR_TIMEOUT, ERR_UNAVAILABLE};
	for (unsigned i = 0; i < 3; i++) {
		left_code = codes[i];
		cr_expect_eq(notes_after_import(), 1);
		cr_expect_eq(left_creates, i + 1);
		cr_expect_eq(own_creates, 0);
	}
}

/* Of its own, too: the next import of the name sees to it. */
Test(import_notes, of_its_own_stay_where_the_driver_does_not_answer)
{
	left_code = ERR_INVALID;
	own_code = ERR_UNAVAILABLE;
	cr_expect_eq(notes_after_import(), 1);
	cr_expect_eq(left_creates, 1);
	cr_expect_eq(own_creates, 2);
}
