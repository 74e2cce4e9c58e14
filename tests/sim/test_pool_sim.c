/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Building, removing and growing in a simulated ring, with each step and then each request failed
 * in turn: whatever fails, nothing is left behind that was not committed, nothing is held, and the
 * next attempt succeeds. The pool is in tmpfs where that can hold one, so that syncs cost nothing.
 */
#include "../unit/pool_fixture.h"

#include "pool/depart.h"
#include "pool/grow.h"
#include "pool/index.h"

#include <stdint.h>

enum { MIB = 1 << 20, SEEDS = 50 };

/* Fails the nth step of operations called `name`, or the nth request or job from now on. */
struct faults {
	const char *name;
	int step_left;     /* -1: none */
	long request_left; /* -1: none */
	bool hit, counting;
	char what[64];
};

static int step_fault(void *arg, const char *op_name, const char *step_name)
{
	struct faults *faults = arg;
	if (faults->step_left < 0 || strcmp(op_name, faults->name) != 0)
		return 0;
	if (faults->step_left-- > 0)
		return 0;
	faults->hit = true;
	snprintf(faults->what, sizeof(faults->what), "step %s", step_name);
	return -EIO;
}

static int request_fault(void *arg, uint64_t nth, const struct io_uring_sqe *sqe)
{
	struct faults *faults = arg;
	(void)nth;
	if (!faults->counting || faults->request_left < 0)
		return 0;
	if (faults->request_left-- > 0)
		return 0;
	faults->hit = true;
	snprintf(faults->what, sizeof(faults->what), "request opcode %d", sqe->opcode);
	return -EIO;
}

static int job_fault(void *arg, const char *op_name, const char *step_name)
{
	struct faults *faults = arg;
	if (!faults->counting || faults->request_left < 0)
		return 0;
	/* Too many templates are no reason to have none. */
	if (strcmp(step_name, "evict") == 0 || faults->request_left-- > 0)
		return 0;
	faults->hit = true;
	snprintf(faults->what, sizeof(faults->what), "job of %s %s", op_name, step_name);
	return -EIO;
}

struct sim {
	struct fixture f;
	struct ring_sim ring;
	struct faults faults;
};

static void sim_open(struct sim *s, uint64_t seed)
{
	*s = (struct sim){0};
	fixture_make(&s->f, FIXTURE_TMPFS, false);
	s->faults.step_left = -1;
	s->faults.request_left = -1;
	s->ring = (struct ring_sim){.seed = seed,
		.short_every = 3,
		.eintr_every = 7,
		.fault = request_fault,
		.fault_arg = &s->faults};
	fixture_open_ring(&s->f, &s->ring);
	s->f.observer = (struct op_observer){
		.before = step_fault, .before_call = job_fault, .arg = &s->faults};
	fixture_open_pools(&s->f);
	cr_assert_eq(pool_state(s->f.pool), POOL_READY, "%s", pool_why(s->f.pool));
}

/* Another seed for the same pool. */
static void sim_reopen(struct sim *s, uint64_t seed)
{
	fixture_close_pools(&s->f);
	work_close(s->f.reactor.work);
	ring_close(s->f.reactor.ring);
	s->ring.seed = seed;
	fixture_open_ring(&s->f, &s->ring);
	fixture_open_pools(&s->f);
}

struct held {
	struct pool_room room;
	unsigned fds, volumes, templates, trash;
};

static struct held look(struct sim *s)
{
	struct held h;
	s->faults.counting = false;
	h.room = fixture_room(&s->f);
	h.fds = fixture_count_fds(&s->f);
	h.volumes = fixture_count(&s->f, "volumes");
	h.templates = fixture_count(&s->f, "templates");
	h.trash = fixture_count(&s->f, "trash");
	return h;
}

static void same(struct sim *s, const struct held *before)
{
	struct held now = look(s);
	const char *what = s->faults.what;
	cr_assert_eq(now.fds, before->fds, "%s: %u fds, %u before", what, now.fds, before->fds);
	cr_assert_eq(now.volumes, before->volumes, "%s", what);
	cr_assert_eq(now.volumes, pool_count(s->f.pool, RECORD_VOLUME), "%s", what);
	cr_assert_eq(now.trash, before->trash, "%s", what);
	cr_assert_eq(now.room.provisioned_bytes, before->room.provisioned_bytes, "%s", what);
	cr_assert_eq(now.room.available_bytes, before->room.available_bytes,
		"%s: %llu, %llu before", what, (unsigned long long)now.room.available_bytes,
		(unsigned long long)before->room.available_bytes);
}

/* Arms the nth fault: first all steps, then all requests. False when it was past the last one. */
struct sweep {
	bool requests;
	int n;
};

static void arm(struct sim *s, const struct sweep *sweep, const char *name)
{
	s->faults = (struct faults){.name = name,
		.step_left = sweep->requests ? -1 : sweep->n,
		.request_left = sweep->requests ? sweep->n : -1,
		.counting = true};
}

static void disarm(struct sim *s)
{
	s->faults.step_left = -1;
	s->faults.request_left = -1;
	s->faults.counting = false;
}

/* Runs body(s, sweep) until a fault was armed that nothing met, for steps and for requests. */
static unsigned sweep_all(struct sim *s, bool (*body)(struct sim *s, const struct sweep *sweep))
{
	unsigned count = 0;
	for (int requests = 0; requests < 2; requests++)
		for (struct sweep sweep = {.requests = requests}; body(s, &sweep); sweep.n++)
			count++;
	return count;
}

static void each_seed(bool (*body)(struct sim *s, const struct sweep *sweep), unsigned at_least)
{
	struct sim s;
	sim_open(&s, 1);
	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		fprintf(stderr, seed == 1 ? "seeds %d" : " %d", (int)seed);
		sim_reopen(&s, seed);
		unsigned count = sweep_all(&s, body);
		cr_assert_geq(count, at_least, "seed %d: only %u faults", (int)seed, count);
	}
	fprintf(stderr, "\n");
	fixture_close(&s.f);
}

/* ---- build ---- */

/* One block: it is written whole or not at all. */
static int fill_run(struct op *op, int fd, void *arg)
{
	(void)arg;
	static char data[4096] __attribute__((aligned(4096)));
	memset(data, 'x', sizeof(data));
	io_uring_prep_write(op_sqe(op), fd, data, sizeof(data), 0);
	return op_submit(op);
}

static int fill_end(struct op *op, int res, void *arg)
{
	(void)op;
	(void)arg;
	return res < 0 ? res : 0;
}

static enum err_code build_erased(struct sim *s, const char *name, enum record_erase erase)
{
	struct pool_build b;
	struct record rec = fixture_volume(name, MIB);
	rec.erase = erase;
	cr_assert_eq(pool_build_init(&b, &s->f.reactor, s->f.pool, &rec), 0);
	b.fill = fill_run;
	b.fill_end = fill_end;
	b.fill_writes = true;
	enum err_code code = fixture_run(&s->f, &b.op);
	pool_build_free(&b);
	return code;
}

static enum err_code build(struct sim *s, const char *name)
{
	return build_erased(s, name, RECORD_ERASE_NONE);
}

static void remove_named(struct sim *s, const char *name)
{
	disarm(s);
	struct pool_object *o = pools_find_name(s->f.pools, RECORD_VOLUME, name);
	cr_assert_not_null(o, "%s", s->faults.what);
	cr_assert_eq(fixture_remove(&s->f, o), ERR_OK);
}

static bool build_body(struct sim *s, const struct sweep *sweep)
{
	struct held before = look(s);
	arm(s, sweep, "pool_build");
	enum err_code code = build(s, "v");
	bool hit = s->faults.hit;
	disarm(s);
	cr_assert_eq(hit, code != ERR_OK, "%s", s->faults.what);
	/* What failed after the commit is there, and found; what failed before is not. */
	struct pool_object *o = pools_find_name(s->f.pools, RECORD_VOLUME, "v");
	if (o == NULL) {
		same(s, &before);
		cr_assert_eq(build(s, "v"), ERR_OK);
	} else if (code != ERR_OK) {
		cr_assert_eq(build(s, "v"), ERR_EXISTS);
	}
	remove_named(s, "v");
	same(s, &before);
	return hit;
}

Test(sim_pool, build_fails_anywhere, .timeout = 250)
{
	each_seed(build_body, 12);
}

/* ---- remove ---- */

/* Of "v", while the operation of that name is failed. */
static enum err_code remove_under(struct sim *s, const struct sweep *sweep, const char *op_name)
{
	struct pool_remove r;
	arm(s, sweep, op_name);
	pool_remove_init(&r, &s->f.reactor, pools_find_name(s->f.pools, RECORD_VOLUME, "v"));
	return fixture_run(&s->f, &r.op);
}

/* Another removal starts what one that was failed has not, and all is as before. */
static void reclaim(struct sim *s, const struct held *before)
{
	cr_assert_eq(build(s, "w"), ERR_OK);
	remove_named(s, "w");
	same(s, before);
}

static bool remove_body(struct sim *s, const struct sweep *sweep)
{
	struct held before = look(s);
	cr_assert_eq(build(s, "v"), ERR_OK);
	struct held with = look(s);
	enum err_code code = remove_under(s, sweep, "pool_remove");
	bool hit = s->faults.hit;
	disarm(s);
	cr_assert_eq(hit, code != ERR_OK, "%s", s->faults.what);
	if (pools_find_name(s->f.pools, RECORD_VOLUME, "v") != NULL) {
		cr_assert_neq(code, ERR_OK);
		same(s, &with);
		remove_named(s, "v");
	}
	/* A step that was failed after the commit did not start the reclaim; the next one does. */
	reclaim(s, &before);
	return hit;
}

Test(sim_pool, remove_fails_anywhere, .timeout = 250)
{
	each_seed(remove_body, 8);
}

/* ---- leave, and come back ---- */

static struct pool_departure note_of(const struct pool_object *o)
{
	struct pool_departure note = {.moves = o->rec->moves + 1,
		.to = "deadbeef",
		.node_id = "node-b",
		.grant = "00112233445566778899aabbccddeeff"};
	pool_object_id(o, note.id);
	return note;
}

static enum err_code depart(struct sim *s, struct pool_object *o, const struct pool_departure *note)
{
	struct pool_depart d;
	pool_depart_init(&d, &s->f.reactor, s->f.pool, o, note);
	enum err_code code = fixture_run(&s->f, &d.op);
	pool_depart_free(&d);
	return code;
}

static enum err_code drop_note(struct sim *s)
{
	struct pool_departure_drop d;
	pool_departure_drop_init(&d, &s->f.reactor, pool_departure_next(s->f.pool, NULL));
	return fixture_run(&s->f, &d.op);
}

static enum err_code find_by_id(struct sim *s, const char *id)
{
	struct pool_object *o;
	struct err err = {0};
	pools_find_id(s->f.pools, RECORD_VOLUME, id, &o, &err);
	return err.code;
}

/* It is here, whole, or it has left: nothing between, and never gone. */
static bool depart_body(struct sim *s, const struct sweep *sweep)
{
	struct held before = look(s);
	cr_assert_eq(build(s, "v"), ERR_OK);
	struct held with = look(s);
	struct pool_object *o = pools_find_name(s->f.pools, RECORD_VOLUME, "v");
	struct pool_departure note = note_of(o);
	arm(s, sweep, "pool_depart");
	enum err_code code = depart(s, o, &note);
	bool hit = s->faults.hit;
	disarm(s);
	/* That the image does not go to the trash is no failure of the departure. */
	cr_assert(hit || code == ERR_OK, "%s", s->faults.what);
	const struct pool_departure *left = pools_departure(s->f.pools, note.id);
	cr_assert(left != NULL || code != ERR_OK, "%s", s->faults.what);
	cr_assert_eq(find_by_id(s, note.id), left != NULL ? ERR_UNAVAILABLE : ERR_OK);
	cr_assert_eq(pools_find_name(s->f.pools, RECORD_VOLUME, "v") == NULL, left != NULL);
	if (left == NULL)
		same(s, &with);
	o = pool_next_object(s->f.pool, RECORD_VOLUME, "");
	cr_assert_eq(depart(s, o, &note), ERR_OK, "%s", s->faults.what);
	cr_assert_eq(find_by_id(s, note.id), ERR_UNAVAILABLE);
	cr_assert_eq(drop_note(s), ERR_OK);
	reclaim(s, &before);
	return hit;
}

Test(sim_pool, depart_fails_anywhere, .timeout = 250)
{
	each_seed(depart_body, 8);
}

static bool drop_body(struct sim *s, const struct sweep *sweep)
{
	cr_assert_eq(build(s, "v"), ERR_OK);
	struct pool_object *o = pools_find_name(s->f.pools, RECORD_VOLUME, "v");
	struct pool_departure note = note_of(o);
	cr_assert_eq(depart(s, o, &note), ERR_OK);
	arm(s, sweep, "departure_drop");
	enum err_code code = drop_note(s);
	bool hit = s->faults.hit;
	disarm(s);
	cr_assert_eq(hit, code != ERR_OK, "%s", s->faults.what);
	cr_assert_eq(find_by_id(s, note.id), hit ? ERR_UNAVAILABLE : ERR_NOT_FOUND);
	cr_assert_eq(build(s, "v"), hit ? ERR_UNAVAILABLE : ERR_OK);
	if (hit) {
		cr_assert_eq(drop_note(s), ERR_OK);
		cr_assert_eq(build(s, "v"), ERR_OK);
	}
	remove_named(s, "v");
	return hit;
}

Test(sim_pool, note_of_a_departure_goes_or_stays, .timeout = 250)
{
	each_seed(drop_body, 2);
}

static enum err_code build_back(struct sim *s, const struct record *rec)
{
	struct pool_build b;
	struct pool_part part = {.of = "a move"};
	cr_assert_eq(pool_build_init_moved(&b, &s->f.reactor, s->f.pool, rec), 0);
	b.part = &part;
	b.fill = fill_run;
	b.fill_end = fill_end;
	b.fill_writes = true;
	enum err_code code = fixture_run(&s->f, &b.op);
	pool_build_free(&b);
	return code;
}

static const char *failed_coming_back;

/* The note counts until the volume is back, and no longer. */
static bool back_body(struct sim *s, const struct sweep *sweep)
{
	cr_assert_eq(build(s, "v"), ERR_OK);
	struct pool_object *o = pools_find_name(s->f.pools, RECORD_VOLUME, "v");
	struct pool_departure note = note_of(o);
	struct record rec = fixture_volume("v", MIB);
	memcpy(rec.random, o->rec->random, sizeof(rec.random));
	rec.created_ns = o->rec->created_ns;
	rec.moves = note.moves + 1;
	cr_assert_eq(depart(s, o, &note), ERR_OK);
	fixture_settle(&s->f);
	arm(s, sweep, failed_coming_back);
	enum err_code code = build_back(s, &rec);
	bool hit = s->faults.hit;
	disarm(s);
	o = pools_find_name(s->f.pools, RECORD_VOLUME, "v");
	cr_assert_eq(
		find_by_id(s, note.id), o != NULL ? ERR_OK : ERR_UNAVAILABLE, "%s", s->faults.what);
	cr_assert_eq(pools_departure(s->f.pools, note.id) == NULL, o != NULL);
	if (code != ERR_OK)
		cr_assert_eq(build_back(s, &rec), o != NULL ? ERR_EXISTS : ERR_OK);
	remove_named(s, "v");
	/* What is left of the note goes at a load. */
	sim_reopen(s, s->ring.seed);
	cr_assert_eq(fixture_count(&s->f, "departed"), 0, "%s", s->faults.what);
	return hit;
}

Test(sim_pool, coming_back_fails_anywhere, .timeout = 250)
{
	struct sim s;
	sim_open(&s, 1);
	failed_coming_back = "pool_build";
	cr_assert_geq(sweep_all(&s, back_body), 16);
	failed_coming_back = "departure_drop";
	cr_assert_geq(sweep_all(&s, back_body), 1 + 8);
	fixture_close(&s.f);
}

/* ---- erase ---- */

/* How the one file in trash begins: 'x' as it was built, or 0. */
static char look_into_trash(struct sim *s)
{
	char c = '?', path[160];
	cr_assert_eq(fixture_count(&s->f, "trash"), 1, "%s", s->faults.what);
	snprintf(path, sizeof(path), "%s/trash", s->f.path);
	_cleanup_dir_ DIR *dir = opendir(path);
	cr_assert_not_null(dir);
	for (struct dirent *e; (e = readdir(dir)) != NULL;) {
		if (e->d_name[0] == '.')
			continue;
		_cleanup_fd_ int fd = openat(dirfd(dir), e->d_name, O_RDONLY | O_CLOEXEC);
		cr_assert_eq(pread(fd, &c, 1, 0), 1);
	}
	return c;
}

static bool erase_body(struct sim *s, const struct sweep *sweep)
{
	struct held before = look(s);
	cr_assert_eq(build_erased(s, "v", RECORD_ERASE_ZERO), ERR_OK);
	remove_under(s, sweep, "pool_erase");
	fixture_settle(&s->f);
	bool hit = s->faults.hit;
	disarm(s);
	/* settle, zeros, sync */
	if (hit && !sweep->requests)
		cr_assert_eq(look_into_trash(s), sweep->n < 2 ? 'x' : 0, "%s", s->faults.what);
	if (pools_find_name(s->f.pools, RECORD_VOLUME, "v") != NULL)
		remove_named(s, "v");
	/* What failed is left to the next pass. */
	reclaim(s, &before);
	return hit;
}

Test(sim_pool, erase_fails_anywhere, .timeout = 250)
{
	each_seed(erase_body, 3 + 6);
}

/* A full sync of an image: directories' are the removal's, zeros are followed by one of data. */
static int settle_fault(void *arg, uint64_t nth, const struct io_uring_sqe *sqe)
{
	struct faults *faults = arg;
	struct stat st;
	(void)nth;
	if (!faults->counting || sqe->opcode != IORING_OP_FSYNC || sqe->fsync_flags != 0)
		return 0;
	cr_assert_eq(fstat(sqe->fd, &st), 0);
	if (!S_ISREG(st.st_mode))
		return 0;
	faults->hit = true;
	return -EIO;
}

/* As long as a power loss may bring the volume back, it comes back with its bytes. */
Test(sim_pool, nothing_is_erased_that_may_come_back)
{
	struct sim s;
	sim_open(&s, 1);
	struct held before = look(&s);
	s.ring.fault = settle_fault;
	cr_assert_eq(build_erased(&s, "v", RECORD_ERASE_ZERO), ERR_OK);
	s.faults.counting = true;
	struct pool_object *o = pools_find_name(s.f.pools, RECORD_VOLUME, "v");
	cr_assert_eq(fixture_remove(&s.f, o), ERR_OK);
	fixture_settle(&s.f);
	cr_assert(s.faults.hit);
	cr_assert_eq(look_into_trash(&s), 'x');
	disarm(&s);
	reclaim(&s, &before);
	fixture_close(&s.f);
}

/* ---- grow ---- */

static bool grow_body(struct sim *s, const struct sweep *sweep)
{
	struct held before = look(s);
	cr_assert_eq(build(s, "v"), ERR_OK);
	struct held with = look(s);
	struct pool_object *o = pools_find_name(s->f.pools, RECORD_VOLUME, "v");
	struct pool_grow g;
	arm(s, sweep, "pool_grow");
	pool_grow_init(&g, &s->f.reactor, o, 4 * MIB);
	enum err_code code = fixture_run(&s->f, &g.op);
	bool hit = s->faults.hit;
	disarm(s);
	cr_assert_eq(hit, code != ERR_OK, "%s", s->faults.what);
	if (code != ERR_OK) {
		cr_assert_eq(o->rec->size_bytes, MIB);
		same(s, &with);
		pool_grow_init(&g, &s->f.reactor, o, 4 * MIB);
		cr_assert_eq(fixture_run(&s->f, &g.op), ERR_OK);
	}
	cr_assert_eq(o->rec->size_bytes, 4 * MIB);
	cr_assert_eq(look(s).room.provisioned_bytes, before.room.provisioned_bytes + 4 * MIB);
	remove_named(s, "v");
	same(s, &before);
	return hit;
}

Test(sim_pool, grow_fails_anywhere, .timeout = 250)
{
	each_seed(grow_body, 10);
}

/* What was asked of the image of a volume that grows, in order. */
static char grow_asked[16];

static int note_asked(void *arg, uint64_t nth, const struct io_uring_sqe *sqe)
{
	struct stat st;
	size_t len = strlen(grow_asked);
	(void)arg;
	(void)nth;
	if (len + 1 == sizeof(grow_asked))
		return 0;
	if (sqe->opcode == IORING_OP_FSETXATTR)
		grow_asked[len] = 'r';
	else if (sqe->opcode == IORING_OP_FSYNC && fstat(sqe->fd, &st) == 0 && S_ISREG(st.st_mode))
		grow_asked[len] = sqe->fsync_flags & IORING_FSYNC_DATASYNC ? 'd' : 's';
	return 0;
}

/* Its size before its record. A sync of data alone is none of a record: ext4 leaves that out. */
Test(sim_pool, a_growth_is_durable)
{
	struct sim s;
	struct pool_grow g;
	sim_open(&s, 1);
	cr_assert_eq(build(&s, "v"), ERR_OK);
	s.ring.fault = note_asked;
	grow_asked[0] = '\0';
	pool_grow_init(&g, &s.f.reactor, pools_find_name(s.f.pools, RECORD_VOLUME, "v"), 4 * MIB);
	cr_assert_eq(fixture_run(&s.f, &g.op), ERR_OK);
	cr_assert_str_eq(grow_asked, "srs");
	disarm(&s);
	fixture_close(&s.f);
}

/* ---- clone: copied through the ring, with short transfers ---- */

static bool clone_body(struct sim *s, const struct sweep *sweep)
{
	struct held before = look(s);
	cr_assert_eq(build(s, "v"), ERR_OK);
	struct held with = look(s);
	struct pool_object *source = pools_find_name(s->f.pools, RECORD_VOLUME, "v");
	struct record rec = fixture_volume("c", 2 * MIB);
	char id[RECORD_ID_MAX];
	pool_object_id(source, id);
	rec.source = RECORD_SOURCE_VOLUME;
	rec.source_id = id;
	enum err_code code = ERR_OK;
	bool hit = false;
	for (int attempt = 0; attempt < 2; attempt++) {
		struct pool_build b;
		struct pool_clone c;
		if (attempt == 0)
			arm(s, sweep, "pool_clone");
		pool_clone_init(&c, source);
		cr_assert_eq(pool_build_init(&b, &s->f.reactor, s->f.pool, &rec), 0);
		b.fill = pool_clone_fill;
		b.fill_end = pool_clone_fill_end;
		b.fill_arg = &c;
		b.fill_writes = true;
		code = fixture_run(&s->f, &b.op);
		pool_build_free(&b);
		hit |= s->faults.hit;
		disarm(s);
		if (attempt == 0)
			cr_assert_eq(hit, code != ERR_OK, "%s", s->faults.what);
		if (code == ERR_OK || pools_find_name(s->f.pools, RECORD_VOLUME, "c") != NULL)
			break;
		same(s, &with);
		cr_assert_eq(attempt, 0, "%s", s->faults.what);
	}
	char data[2] = "";
	int fd = openat(pool_dirfd(s->f.pool, RECORD_VOLUME), "c", O_RDONLY | O_CLOEXEC);
	cr_assert_eq(pread(fd, data, 1, 4095), 1);
	cr_assert_eq(data[0], 'x');
	cr_assert_eq(pread(fd, data, 1, 4096), 1);
	cr_assert_eq(data[0], 0);
	close(fd);
	remove_named(s, "c");
	remove_named(s, "v");
	same(s, &before);
	return hit;
}

Test(sim_pool, clone_fails_anywhere, .timeout = 250)
{
	each_seed(clone_body, 10);
}

/* ---- templates and formatting ---- */

static const char *const template_ops[] = {"pool_template", "pool_format", "pool_mkfs"};
static unsigned template_op;

static enum err_code format(struct sim *s)
{
	static struct pool_format fill;
	static const uint8_t uuid[16] = {1};
	struct fsimg_spec spec = {.type = FSIMG_EXT4,
		.size_bytes = fsimg_min_bytes(FSIMG_EXT4),
		.block_size = 4096,
		.mkfs_options = ""};
	struct record rec = fixture_volume("v", spec.size_bytes);
	struct pool_build b;
	pool_format_init(&fill, s->f.pool, &spec, uuid);
	cr_assert_eq(pool_build_init(&b, &s->f.reactor, s->f.pool, &rec), 0);
	pool_build_format(&b, &fill);
	enum err_code code = fixture_run(&s->f, &b.op);
	if (code == ERR_OK) {
		struct fsimg_probe probe;
		int fd = openat(pool_dirfd(s->f.pool, RECORD_VOLUME), "v", O_RDONLY | O_CLOEXEC);
		cr_assert_eq(fsimg_probe_fd(fd, &probe), 0);
		cr_assert_eq(probe.type, FSIMG_EXT4, "%s: %s", s->faults.what, probe.found);
		close(fd);
	}
	pool_build_free(&b);
	return code;
}

static bool format_body(struct sim *s, const struct sweep *sweep)
{
	fixture_sh("rm -f %s/templates/*", s->f.path);
	struct held before = look(s);
	arm(s, sweep, template_ops[template_op]);
	enum err_code code = format(s);
	bool hit = s->faults.hit;
	disarm(s);
	cr_assert_eq(hit, code != ERR_OK, "%s", s->faults.what);
	if (pools_find_name(s->f.pools, RECORD_VOLUME, "v") == NULL)
		cr_assert_eq(format(s), ERR_OK, "%s", s->faults.what);
	cr_assert_eq(fixture_count(&s->f, "templates"), 1, "%s", s->faults.what);
	remove_named(s, "v");
	fixture_sh("rm -f %s/templates/*", s->f.path);
	same(s, &before);
	return hit;
}

Test(sim_pool, format_fails_anywhere, .timeout = 250)
{
	if (fixture_sh("command -v mkfs.ext4 >/dev/null 2>&1") != 0)
		cr_skip_test("mkfs is not installed");
	struct sim s;
	sim_open(&s, 1);
	for (unsigned seed = 1; seed <= 3; seed++)
		for (template_op = 0; template_op < 3; template_op++) {
			sim_reopen(&s, seed);
			cr_assert_geq(sweep_all(&s, format_body), 10);
		}
	fixture_close(&s.f);
}

/* ---- many at once, random faults ---- */

enum { CROWD = 32 };
static unsigned crowd_ended;

static void crowd_end(struct op *op)
{
	(void)op;
	crowd_ended++;
}

static int random_fault(void *arg, uint64_t nth, const struct io_uring_sqe *sqe)
{
	(void)nth;
	(void)sqe;
	struct sim *s = arg;
	return s->faults.counting && rand() % 10 == 0 ? -EIO : 0;
}

static int random_job_fault(void *arg, const char *op_name, const char *step_name)
{
	(void)op_name;
	(void)step_name;
	return random_fault(container_of(arg, struct sim, faults), 0, NULL);
}

Test(sim_pool, crowd, .timeout = 250)
{
	static struct pool_build builds[CROWD];
	static struct pool_remove removes[CROWD];
	struct sim s;
	sim_open(&s, 1);
	s.ring.fault = random_fault;
	s.ring.fault_arg = &s;
	s.f.observer.before_call = random_job_fault;
	for (unsigned seed = 1; seed <= SEEDS; seed++) {
		srand(seed);
		sim_reopen(&s, seed);
		struct held before = look(&s);
		snprintf(s.faults.what, sizeof(s.faults.what), "seed %u", seed);
		s.faults.counting = true;
		crowd_ended = 0;
		for (unsigned i = 0; i < CROWD; i++) {
			char name[8];
			snprintf(name, sizeof(name), "v%u", i / 2); /* each name twice */
			struct record rec = fixture_volume(name, MIB);
			cr_assert_eq(pool_build_init(&builds[i], &s.f.reactor, s.f.pool, &rec), 0);
			builds[i].fill = fill_run;
			builds[i].fill_end = fill_end;
			builds[i].op.on_end = crowd_end;
			op_start(&builds[i].op);
		}
		while (crowd_ended < CROWD)
			fixture_turn(&s.f);
		for (unsigned i = 0; i < CROWD; i++) {
			if (i % 2 == 0)
				cr_assert(builds[i].op.err.code != ERR_OK ||
						  builds[i + 1].op.err.code != ERR_OK,
					"seed %u: one name, two volumes", seed);
			if (builds[i].op.err.code == ERR_OK)
				cr_assert_not_null(builds[i].ret_object);
			pool_build_free(&builds[i]);
		}
		struct held now = look(&s);
		unsigned count = pool_count(s.f.pool, RECORD_VOLUME);
		cr_assert_eq(now.volumes, before.volumes + count, "seed %u", seed);
		cr_assert_eq(now.fds, before.fds, "seed %u", seed);
		cr_assert_eq(now.room.provisioned_bytes, (uint64_t)count * MIB, "seed %u", seed);

		for (unsigned round = 0; pool_count(s.f.pool, RECORD_VOLUME) > 0; round++) {
			s.faults.counting = round == 0;
			unsigned started = 0;
			struct pool_walk walk = {0};
			crowd_ended = 0;
			for (struct pool_object *o;
				(o = pools_next(s.f.pools, RECORD_VOLUME, &walk)) != NULL;) {
				pool_remove_init(&removes[started], &s.f.reactor, o);
				removes[started].op.on_end = crowd_end;
				op_start(&removes[started++].op);
			}
			while (crowd_ended < started)
				fixture_turn(&s.f);
		}
		s.faults.counting = false;
		/* A sync that failed kept its reclaim from starting. */
		cr_assert_eq(build(&s, "last"), ERR_OK);
		remove_named(&s, "last");
		same(&s, &before);
	}
	fixture_close(&s.f);
}
