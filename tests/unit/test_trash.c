/* SPDX-License-Identifier: Apache-2.0 */
/* A deleted volume whose blocks are to be discarded stays in the trash until the disk has done so,
 * whatever it says and whenever the driver ends. The disk answers as the test has it. Whatever the
 * kernel refuses, a file stays until it is given back. */
#include "pool_fixture.h"
#include "refused.h"

#include "blockio/trim.h"
#include "pool/private.h"
#include "pool/trash.h"

#include <malloc.h>
#include <semaphore.h>
#include <sys/xattr.h>

enum { MIB = 1 << 20 };

static struct fixture f;
static char said[256];
static unsigned rounds; /* of trim_settle() until all is discarded */
static unsigned rounds_left;
static int punch_fails, settle_fails, disk_fails;
static unsigned disk_pieces; /* until the end of the disk */
static bool unmarked;        /* there was no room for the mark */
static bool waits;           /* a punch does, until it goes on */
static sem_t waiting, goes_on;

enum call { NOTHING, UNLINK, MARK, CUT, UNPARK };

#define TRASH_MARK "trusted.ringvol.punched"

int __real_unlinkat(int dir, const char *name, int flags);
int __wrap_unlinkat(int dir, const char *name, int flags);
int __wrap_unlinkat(int dir, const char *name, int flags)
{
	return trash_name_valid(name) && refuses(UNLINK) ? -1 : __real_unlinkat(dir, name, flags);
}

int __real_fsetxattr(int fd, const char *name, const void *value, size_t size, int flags);
int __wrap_fsetxattr(int fd, const char *name, const void *value, size_t size, int flags);
int __wrap_fsetxattr(int fd, const char *name, const void *value, size_t size, int flags)
{
	return strcmp(name, TRASH_MARK) == 0 && refuses(MARK)
		       ? -1
		       : __real_fsetxattr(fd, name, value, size, flags);
}

int __real_ftruncate64(int fd, off_t size);
int __wrap_ftruncate64(int fd, off_t size);
int __wrap_ftruncate64(int fd, off_t size)
{
	return size == 0 && refuses(CUT) ? -1 : __real_ftruncate64(fd, size);
}

int __real_renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags);
int __wrap_renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags);
int __wrap_renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
	return strncmp(from, TRASH_PARKED, strlen(TRASH_PARKED)) == 0 && refuses(UNPARK)
		       ? -1
		       : __real_renameat2(from_dir, from, to_dir, to, flags);
}

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
	cr_assert_eq(fgetxattr(fd, TRASH_MARK, NULL, 0) >= 0, !unmarked);
	cr_assert_lt(*at, size);
	say('p');
	if (waits) {
		sem_post(&waiting);
		sem_wait(&goes_on);
	}
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
	cr_assert_eq(fsetxattr(fd, TRASH_MARK, "", 0, 0), 0);
	close(fd);
	memset(said, 0, sizeof(said));
	disk_fails = -EOPNOTSUPP;
	fixture_open_pools(&f);
	fixture_settle(&f);
	expect("d", 0);
}

/* ---- what the kernel refuses ---- */

Test(trash, stays_where_it_cannot_be_cut_or_unlinked)
{
	rounds = 0;
	refuse(CUT, 0, 1, EIO);
	delete_volume();
	expect("pp", 1);
	restart();
	expect("ppddd", 0);
	memset(said, 0, sizeof(said));
	refuse(UNLINK, 0, 1, EIO);
	delete_volume();
	expect("pp", 1);
	restart();
	expect("ddd", 0);
}

/* A full disk must not keep what would make room; another failure leaves the file as it was. */
Test(trash, of_which_no_mark_can_be_made)
{
	rounds = 0;
	unmarked = true;
	refuse(MARK, 0, 2, ENOSPC);
	delete_volume();
	expect("pp", 0);
	unmarked = false;
	memset(said, 0, sizeof(said));
	refuse(MARK, 0, 1, EIO);
	delete_volume();
	expect("", 1);
	restart();
	expect("pp", 0);
}

Test(trash, that_is_no_file_stays)
{
	unsigned fds = fixture_count_fds(&f);
	f.pool->features.direct_io = false; /* with which nobody opens it */
	cr_assert_eq(mkfifoat(f.pool->fds[POOL_FD_TRASH], "0123456789abcdef", 0600), 0);
	cr_assert_eq(fixture_remove(&f, fixture_make_volume(&f, "v", MIB)), ERR_OK);
	fixture_settle(&f);
	expect("", 1);
	cr_assert_eq(faccessat(f.pool->fds[POOL_FD_TRASH], "0123456789abcdef", F_OK, 0), 0);
	cr_assert_eq(fixture_count_fds(&f), fds);
}

/* A pass of which nothing went is not followed by another one, which would meet the same. */
Test(trash, of_which_nothing_goes_is_left)
{
	enum { OF_A_PASS = 1024, MANY = 5 * OF_A_PASS };
	for (unsigned i = 0; i < OF_A_PASS; i++) {
		char name[TRASH_NAME_BYTES];
		snprintf(name, sizeof(name), "%016x", i);
		int fd = openat(
			f.pool->fds[POOL_FD_TRASH], name, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
		cr_assert_geq(fd, 0);
		close(fd);
	}
	refuse(UNLINK, 0, MANY, EIO);
	restart();
	expect("", OF_A_PASS);
	cr_assert_eq(refused.times, MANY - OF_A_PASS);
	refuse(NOTHING, 0, 0, 0);
	restart();
	expect("", 0);
}

/* What was parked: a pool whose disk fails is not served, and one that is read-only is. */
Test(trash, that_was_parked_goes_or_waits)
{
	static const struct {
		int with;
		enum pool_state state;
		unsigned left;
	} all[] = {{EIO, POOL_SICK, 1}, {EROFS, POOL_READY, 1}, {EEXIST, POOL_READY, 1},
		{0, POOL_READY, 0}};
	char path[160];
	snprintf(path, sizeof(path), "%s/trash/" TRASH_PARKED "0123456789abcdef", f.path);
	close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		fixture_close_pools(&f);
		refuse(UNPARK, 0, all[i].with != 0, all[i].with);
		fixture_open_pools(&f);
		cr_assert_eq(pool_state(f.pool), all[i].state, "%u: %s", i, pool_why(f.pool));
		if (all[i].state == POOL_SICK)
			cr_assert_not_null(
				strstr(pool_why(f.pool), "trash"), "%s", pool_why(f.pool));
		fixture_settle(&f);
		expect("", all[i].left);
	}
}

/* ---- how far it is ---- */

static uint64_t done_at[2], size_at[2];

static int look_at_zeros(void *arg, const char *op_name, const char *step_name)
{
	unsigned i = strcmp(step_name, "sync") == 0;
	(void)arg;
	if (strcmp(op_name, "pool_erase") == 0)
		cr_assert(pool_erasing(f.pool, &done_at[i], &size_at[i]));
	return 0;
}

Test(trash, says_how_much_is_erased)
{
	uint64_t done, size;
	struct record rec = fixture_volume("secret", 2 * MIB);
	struct pool_object *o;
	rec.erase = RECORD_ERASE_ZERO;
	cr_assert_eq(fixture_build(&f, &rec, NULL, &o), ERR_OK);
	cr_assert_not(pool_erasing(f.pool, &done, &size));
	f.observer.before = look_at_zeros;
	cr_assert_eq(fixture_remove(&f, o), ERR_OK);
	fixture_settle(&f);
	cr_assert_not(pool_erasing(f.pool, &done, &size));
	for (unsigned i = 0; i < 2; i++) {
		cr_assert_eq(size_at[i], 2 * MIB);
		cr_assert_eq(done_at[i], i * 2 * MIB);
	}
	expect("", 0);
}

/* ---- a job that does not end ---- */

static bool is_open(const char *name)
{
	char path[288], target[288];
	bool found = false;
	DIR *dir = opendir("/proc/self/fd");
	for (const struct dirent *e; (e = readdir(dir)) != NULL && !found;) {
		snprintf(path, sizeof(path), "/proc/self/fd/%s", e->d_name);
		ssize_t len = readlink(path, target, sizeof(target) - 1);
		target[len > 0 ? len : 0] = '\0';
		found = strstr(target, name) != NULL;
	}
	closedir(dir);
	return found;
}

/* The driver does not wait for it. What it has goes when it ends after all. */
Test(trash, outlives_its_pool, .timeout = 60)
{
	struct record rec = fixture_volume("secret", 2 * MIB);
	struct pool_object *o;
	rec.erase = RECORD_ERASE_DISCARD;
	cr_assert_eq(fixture_build(&f, &rec, NULL, &o), ERR_OK);
	cr_assert(sem_init(&waiting, 0, 0) == 0 && sem_init(&goes_on, 0, 0) == 0);
	waits = true;
	cr_assert_eq(fixture_remove(&f, o), ERR_OK);
	while (sem_trywait(&waiting) < 0)
		cr_assert_eq(ring_turn(f.reactor.ring, false), 0);
	cr_assert(is_open("/trash/"));
	/* What is freed does not look as before. Sanitizers see to it themselves, and say 0. */
	(void)mallopt(M_PERTURB, 0x5a);
	pools_close(f.pools);
	f.pools = NULL;
	cr_assert(is_open("/trash/"));
	sem_post(&goes_on);
	while (is_open("/trash/"))
		fixture_turn(&f);
	cr_assert_eq(fixture_count(&f, "trash"), 1, "the next run goes on with it");
	waits = false;
	memset(said, 0, sizeof(said));
	rounds = 0;
	fixture_open_pools(&f);
	cr_assert_eq(pool_state(f.pool), POOL_MISSING, "its numbers stay open, and its lock");
}
