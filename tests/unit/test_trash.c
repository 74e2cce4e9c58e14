/* SPDX-License-Identifier: Apache-2.0 */
/* A deleted volume whose blocks are to be discarded stays in the trash until the disk has done so,
 * whatever it says and whenever the driver ends. The disk answers as the test has it. */
#include "pool_fixture.h"

#include "blockio/trim.h"

#include <sys/xattr.h>

enum { MIB = 1 << 20 };

static struct fixture f;
static char said[256];
static unsigned rounds; /* of trim_settle() until all is discarded */
static unsigned rounds_left;
static int punch_fails, settle_fails, disk_fails;
static unsigned disk_pieces; /* until the end of the disk */

int __wrap_trim_punch(int fd, uint64_t *at, uint64_t size, struct trim_asked *asked);
int __wrap_trim_disk(int fd, uint64_t *at, struct trim_asked *asked);
int __wrap_trim_settle(int fd, struct trim_asked *asked);

static void say(char what)
{
	size_t len = strlen(said);
	cr_assert_lt(len, sizeof(said) - 1);
	said[len] = what;
	cr_assert_eq(fixture_count(&f, "trash"), 1, "it is there, after %s", said);
}

static void ask(struct trim_asked *asked)
{
	cr_assert_eq(asked->count, 0, "what was asked for before is over: %s", said);
	asked->count = rounds > 0;
	rounds_left = rounds;
}

int __wrap_trim_punch(int fd, uint64_t *at, uint64_t size, struct trim_asked *asked)
{
	cr_assert_geq(fgetxattr(fd, "trusted.ringvol.punched", NULL, 0), 0);
	cr_assert_lt(*at, size);
	say('p');
	if (punch_fails < 0)
		return punch_fails;
	*at = *at + MIB < size ? *at + MIB : size;
	ask(asked);
	return 0;
}

int __wrap_trim_disk(int fd, uint64_t *at, struct trim_asked *asked)
{
	(void)fd;
	cr_assert_neq(*at, UINT64_MAX);
	say('d');
	if (disk_fails < 0)
		return disk_fails;
	*at = *at + 1 < disk_pieces ? *at + 1 : UINT64_MAX;
	if (*at != UINT64_MAX)
		ask(asked);
	return 0;
}

int __wrap_trim_settle(int fd, struct trim_asked *asked)
{
	(void)fd;
	cr_assert_gt(asked->count, 0);
	say('s');
	if (settle_fails < 0)
		return settle_fails;
	if (--rounds_left > 0)
		return 0;
	asked->count = 0;
	return 1;
}

static void open_pool(void)
{
	fixture_open(&f, FIXTURE_DIR);
	rounds = 3;
	disk_pieces = 3;
}

static void close_pool(void)
{
	fixture_close(&f);
}

/* Of two pieces. */
static void delete_volume(void)
{
	struct record rec = fixture_volume("secret", 2 * MIB);
	struct pool_object *o;
	rec.erase = RECORD_ERASE_DISCARD;
	cr_assert_eq(fixture_build(&f, &rec, NULL, &o), ERR_OK);
	cr_assert_eq(fixture_remove(&f, o), ERR_OK);
	fixture_settle(&f);
}

static void expect(const char *calls, unsigned left)
{
	cr_assert_str_eq(said, calls);
	cr_assert_eq(fixture_count(&f, "trash"), left);
}

/* The driver is started again. */
static void restart(void)
{
	said[0] = '\0';
	memset(said, 0, sizeof(said));
	fixture_reopen_pools(&f);
	fixture_settle(&f);
}

TestSuite(trash, .init = open_pool, .fini = close_pool);

Test(trash, goes_when_the_disk_has_discarded_each_piece)
{
	delete_volume();
	expect("psss"
	       "psss",
		0);
}

Test(trash, goes_at_once_where_the_file_system_waits)
{
	rounds = 0;
	delete_volume();
	expect("pp", 0);
}

/* A disk that takes no discards keeps nothing from being given back. */
Test(trash, goes_where_discards_are_refused)
{
	punch_fails = -EOPNOTSUPP;
	delete_volume();
	expect("p", 0);
}

Test(trash, goes_where_later_passes_are_refused)
{
	settle_fails = -EOPNOTSUPP;
	delete_volume();
	expect("ps", 0);
}

/* Where its blocks were is not known after that: the whole disk is asked. */
Test(trash, stays_where_the_disk_fails_until_all_of_the_disk_is_discarded)
{
	static int *const fails[] = {&punch_fails, &settle_fails};
	for (unsigned i = 0; i < 2; i++) {
		memset(said, 0, sizeof(said));
		*fails[i] = -EIO;
		delete_volume();
		expect(i == 0 ? "p" : "ps", 1);
		*fails[i] = 0;
		disk_fails = -EIO;
		restart();
		expect("psss"
		       "psss"
		       "d",
			1);
		disk_fails = 0;
		restart();
		expect("psss"
		       "psss"
		       "dsssdsssd",
			0);
	}
}

/* A kill came between: the mark is there, and the file is empty. */
Test(trash, an_empty_one_that_was_punched_has_the_disk_discarded)
{
	delete_volume();
	char path[160];
	snprintf(path, sizeof(path), "%s/trash/0123456789abcdef", f.path);
	fixture_close_pools(&f);
	struct record rec = fixture_volume("secret", MIB);
	rec.erase = RECORD_ERASE_DISCARD;
	char text[RECORD_BYTES_MAX + 1];
	int fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	cr_assert_geq(fd, 0);
	int len = record_print(&rec, text, sizeof(text));
	cr_assert_gt(len, 0);
	cr_assert_eq(fsetxattr(fd, RECORD_XATTR, text, (size_t)len, 0), 0);
	cr_assert_eq(fsetxattr(fd, "trusted.ringvol.punched", "", 0, 0), 0);
	close(fd);
	memset(said, 0, sizeof(said));
	disk_fails = -EOPNOTSUPP;
	fixture_open_pools(&f);
	fixture_settle(&f);
	expect("d", 0);
}
