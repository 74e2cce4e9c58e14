/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Templates: formatted empty images, one for each (file system, size, block size, options), made by
 * mkfs on an unnamed file and linked when whole and durable. The first operation that wants one
 * claims it, and opens or makes it. Others that come meanwhile wait, and get a descriptor of the
 * same file, or the same error. A file that was there before us is looked at once: it must have the
 * right size and a file system of the right type without errors, or it is made again. The directory
 * is a cache: beyond POOL_TEMPLATES_MAX the least recently used go.
 *
 * mkfs is a child operation: the tool runs on the open image, which is then read back to see
 * whether the tool made what it was asked for. A failure is told with the tool's last words.
 */
#include "pool/template.h"

#include "base/buf.h"
#include "blockio/image.h"
#include "pool/private.h"
#include "pool/raw.h"

#include <errno.h>
#include <fcntl.h>
#include <sha256.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Raise it when mkfs is called with other arguments: old templates are then no longer found, and
 * age out. */
#define TEMPLATE_VERSION 1

/* ---- mkfs: the tool, and what it made read back ---- */

static struct pool_mkfs *mkfs_of(struct op *op)
{
	return container_of(op, struct pool_mkfs, op);
}

/* What the tool said last, printable. */
static void last_line(const struct proc *proc, char *line, size_t cap)
{
	size_t len = proc->output_len, from;
	while (len > 0 && (proc->output[len - 1] == '\n' || proc->output[len - 1] == ' '))
		len--;
	for (from = len; from > 0 && proc->output[from - 1] != '\n'; from--)
		;
	size_t n = len - from < cap - 1 ? len - from : cap - 1;
	for (size_t i = 0; i < n; i++) {
		char c = proc->output[from + i];
		line[i] = c >= 0x20 && c < 0x7f ? c : '?';
	}
	line[n] = '\0';
}

static int tool_end(struct op *op, int res)
{
	static const char *const packages[FSIMG_TYPES] = {[FSIMG_EXT4] = "e2fsprogs",
		[FSIMG_XFS] = "xfsprogs",
		[FSIMG_BTRFS] = "btrfs-progs"};
	const struct pool_mkfs *m = mkfs_of(op);
	const struct proc *proc = &m->proc;
	char line[200];
	last_line(proc, line, sizeof(line));
	if (res == 0)
		return 0;
	if (res == -ENOENT)
		return op_fail(op, ERR_PRECONDITION,
			"%s is not installed: install the Debian package %s", proc->argv[0],
			packages[m->spec->type]);
	if (res == -ETIMEDOUT)
		return op_fail(op, ERR_TIMEOUT, "%s took longer than %llu s", proc->argv[0],
			(unsigned long long)proc->timeout_ms / 1000);
	if (res == -EINTR)
		return op_fail(op, ERR_INTERNAL, "%s was killed by signal %d: %s", proc->argv[0],
			proc->signal, line);
	if (res < 0)
		return op_fail_sys(op, res, "running %s", proc->argv[0]);
	return op_fail(
		op, ERR_INTERNAL, "%s failed with exit status %d: %s", proc->argv[0], res, line);
}

static int tool_run(struct op *op)
{
	struct pool_mkfs *m = mkfs_of(op);
	m->proc = (struct proc){.files = {m->fd}, .file_count = 1};
	int r = fsimg_mkfs_argv(m->spec, PROC_FILE_PATH, m->uuid, &m->proc, m->mem, sizeof(m->mem));
	if (r < 0)
		return op_fail(op, ERR_INVALID, "the mkfs options for %s cannot be used: %s",
			fsimg_name(m->spec->type), strerrordesc_np(-r));
	r = op_proc(op, &m->proc);
	return r < 0 ? tool_end(op, r) : r;
}

static int verify_call(struct op *op)
{
	struct pool_mkfs *m = mkfs_of(op);
	return fsimg_probe_fd(m->fd, &m->probe);
}

static int verify_end(struct op *op, int res)
{
	const struct pool_mkfs *m = mkfs_of(op);
	const char *fs = fsimg_name(m->spec->type);
	if (res < 0)
		return op_fail_sys(op, res, "reading back what mkfs.%s made", fs);
	if (m->probe.type != m->spec->type || m->probe.ambivalent)
		return op_fail(op, ERR_INTERNAL,
			"mkfs.%s said it was done, but there is no %s; is it the real one?", fs,
			fs);
	return 0;
}

static const struct op_step mkfs_steps[] = {
	{"tool", .run = tool_run, .end = tool_end},
	{"verify", .call = verify_call, .end = verify_end},
	{NULL},
};

void pool_mkfs_init(struct pool_mkfs *m, struct reactor *reactor, const struct fsimg_spec *spec,
	int fd, const uint8_t uuid[16])
{
	*m = (struct pool_mkfs){.spec = spec, .fd = fd, .uuid = uuid};
	op_init(&m->op, reactor, "pool_mkfs", mkfs_steps, NULL);
}

/* ---- templates ---- */

/* One that was used lately, or is being checked or made. */
struct template_entry {
	struct list link; /* on pool->templates */
	char name[RECORD_KEY_MAX];
	bool checked;        /* known to be good */
	bool busy;           /* somebody checks or makes it */
	struct list waiters; /* pool_template_state.link */
};

struct pool_template_state {
	struct op *op;
	struct list link;             /* waiting for another's */
	struct template_entry *entry; /* claimed by this one */
	struct fsimg_spec spec;
	int dirfd;
	bool direct_io, checked, made;
	int fd;
	char name[RECORD_KEY_MAX];
	uint8_t uuid[16];
	struct pool_mkfs mkfs;
	unsigned keep_count;
	char keep[POOL_TEMPLATES_MAX][RECORD_KEY_MAX]; /* used lately */
};

static struct pool_template *template_of(struct op *op)
{
	return container_of(op, struct pool_template, op);
}

static struct pool_template_state *state_of(struct op *op)
{
	return template_of(op)->state;
}

void pool_template_name(const struct fsimg_spec *spec, char name[RECORD_KEY_MAX])
{
	char text[RECORD_OPTIONS_MAX + 128], hex[SHA256_DIGEST_STRING_LENGTH];
	int len = snprintf(text, sizeof(text), "%d %s %llu %u %s", TEMPLATE_VERSION,
		fsimg_name(spec->type), (unsigned long long)spec->size_bytes, spec->block_size,
		spec->mkfs_options != NULL ? spec->mkfs_options : "");
	if ((size_t)len >= sizeof(text))
		len = sizeof(text) - 1;
	SHA256Data((const uint8_t *)text, (size_t)len, hex);
	snprintf(name, RECORD_KEY_MAX, "%s-%.40s", fsimg_name(spec->type), hex);
}

/* ---- the list ---- */

static struct template_entry *entry_find(struct pool *pool, const char *name)
{
	list_for_each (l, &pool->templates) {
		struct template_entry *e = container_of(l, struct template_entry, link);
		if (strcmp(e->name, name) == 0)
			return e;
	}
	return NULL;
}

static void entry_forget(struct pool *pool, struct template_entry *e)
{
	list_remove(&e->link);
	pool->template_count--;
	free(e);
}

/* Found or new, and now the most recently used. */
static struct template_entry *entry_use(struct pool *pool, const char *name)
{
	struct template_entry *e = entry_find(pool, name);
	if (e == NULL) {
		e = calloc(1, sizeof(*e));
		if (e == NULL)
			return NULL;
		strcpy(e->name, name);
		list_init(&e->waiters);
		list_init(&e->link);
		pool->template_count++;
	}
	list_remove(&e->link);
	list_push(&pool->templates, &e->link);
	list_for_each_safe (l, &pool->templates) {
		struct template_entry *old = container_of(l, struct template_entry, link);
		if (pool->template_count > POOL_TEMPLATES_MAX && !old->busy && old != e)
			entry_forget(pool, old);
	}
	return e;
}

/* The claim ends. Those that waited get what the claimer got. */
static void entry_release(struct op *op, int res)
{
	struct pool_template_state *st = state_of(op);
	struct template_entry *e = st->entry;
	e->busy = false;
	for (struct list *l; (l = list_pop(&e->waiters)) != NULL;) {
		struct pool_template_state *waiter =
			container_of(l, struct pool_template_state, link);
		int r = res;
		if (res == 0) {
			waiter->fd = fcntl(st->fd, F_DUPFD_CLOEXEC, 0);
			r = waiter->fd < 0 ? -errno : 0;
		} else {
			waiter->op->err = op->err;
		}
		op_complete(waiter->op, r);
	}
	st->entry = NULL;
	if (res < 0)
		entry_forget(template_of(op)->pool, e);
}

static void state_free(struct op *op)
{
	struct pool_template *t = template_of(op);
	if (t->state != NULL)
		fd_close(&t->state->fd);
	free(t->state);
	t->state = NULL;
}

/* ---- claim ---- */

static int claim_run(struct op *op)
{
	struct pool_template *t = template_of(op);
	struct pool *pool = t->pool;
	int r = pool_check_ready(pool, &op->err);
	if (r < 0)
		return r;
	struct pool_template_state *st = calloc(1, sizeof(*st));
	if (st == NULL)
		return op_fail_sys(op, -ENOMEM, "formatting");
	t->state = st;
	st->op = op;
	st->fd = -1;
	list_init(&st->link);
	st->spec = t->spec;
	st->dirfd = pool->fds[POOL_FD_TEMPLATES];
	st->direct_io = pool->features.direct_io;
	pool_template_name(&t->spec, st->name);
	struct template_entry *e = entry_use(pool, st->name);
	if (e == NULL) {
		state_free(op);
		return op_fail_sys(op, -ENOMEM, "formatting");
	}
	if (e->busy) {
		list_push(&e->waiters, &st->link);
		return op_wait(op);
	}
	e->busy = true;
	st->entry = e;
	st->checked = e->checked;
	return 0;
}

static int claim_end(struct op *op, int res)
{
	if (res < 0)
		state_free(op);
	return res;
}

static int claim_undo(struct op *op)
{
	if (state_of(op)->entry != NULL)
		entry_release(op, op->err.errnum > 0 ? -op->err.errnum : -EIO);
	state_free(op);
	return 0;
}

static bool have_one(struct op *op)
{
	return state_of(op)->fd >= 0;
}

/* ---- open one that is there ---- */

static bool is_sound(struct pool_template_state *st)
{
	struct stat file;
	struct fsimg_probe probe;
	/* Without O_DIRECT, which would ask for aligned buffers. */
	_cleanup_fd_ int fd = openat(st->dirfd, st->name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &file) < 0 || !S_ISREG(file.st_mode) ||
		(uint64_t)file.st_size != st->spec.size_bytes)
		return false;
	if (st->checked)
		return true;
	return fsimg_probe_fd(fd, &probe) == 0 && probe.type == st->spec.type &&
	       !probe.ambivalent && !probe.errors && !probe.dirty;
}

static int open_call(struct op *op)
{
	struct pool_template_state *st = state_of(op);
	struct stat there;
	if (fstatat(st->dirfd, st->name, &there, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (!is_sound(st))
		return unlinkat(st->dirfd, st->name, 0) < 0 ? -errno : 0;
	st->fd = openat(st->dirfd, st->name,
		O_RDONLY | O_NOFOLLOW | O_CLOEXEC | (st->direct_io ? O_DIRECT : 0));
	return st->fd < 0 ? -errno : 0;
}

static int open_end(struct op *op, int res)
{
	return res < 0 ? op_fail_sys(op, res, "opening a template of pool %s",
				 pool_name(template_of(op)->pool))
		       : 0;
}

/* ---- make one ---- */

static int make_call(struct op *op)
{
	struct pool_template_state *st = state_of(op);
	st->fd = openat(st->dirfd, ".",
		O_TMPFILE | O_RDWR | O_CLOEXEC | (st->direct_io ? O_DIRECT : 0), 0600);
	if (st->fd < 0)
		return -errno;
	int r = image_resize(st->fd, st->spec.size_bytes, false);
	if (r < 0)
		fd_close(&st->fd);
	return r;
}

static int make_end(struct op *op, int res)
{
	if (res < 0)
		return pool_fail_sys(template_of(op)->pool, &op->err, res,
			"making a template in pool %s", pool_name(template_of(op)->pool));
	state_of(op)->made = true;
	return 0;
}

static bool is_found(struct op *op)
{
	return !state_of(op)->made;
}

static int format_run(struct op *op)
{
	struct pool_template_state *st = state_of(op);
	/* Its own UUID each volume gets later; this one is the same for the same template. */
	fsimg_uuid_of(st->name, st->uuid);
	pool_mkfs_init(&st->mkfs, op->reactor, &st->spec, st->fd, st->uuid);
	return op_child(op, &st->mkfs.op);
}

/* The records of a raw pool are small, and mkfs allocates a log ahead. */
static bool punch_done(struct op *op)
{
	return is_found(op) || template_of(op)->pool->raw == NULL;
}

static int punch_call(struct op *op)
{
	const struct pool_template_state *st = state_of(op);
	return image_punch_unwritten(st->fd, st->spec.size_bytes);
}

/* A template that is larger than need be is as good. */
static int punch_end(struct op *op, int res)
{
	(void)op;
	(void)res;
	return 0;
}

static int sync_run(struct op *op)
{
	io_uring_prep_fsync(op_sqe(op), state_of(op)->fd, 0);
	return op_submit(op);
}

static int link_call(struct op *op)
{
	const struct pool_template_state *st = state_of(op);
	return fd_link(st->fd, st->dirfd, st->name);
}

static int link_end(struct op *op, int res)
{
	/* -EEXIST: somebody put one there. Ours, without a name, is as good. */
	return res < 0 && res != -EEXIST ? op_fail_sys(op, res, "naming a template in pool %s",
						   pool_name(template_of(op)->pool))
					 : 0;
}

/* ---- evict ---- */

struct old_template {
	char name[RECORD_KEY_MAX];
	struct timespec used;
};

static int compare_old(const void *a, const void *b)
{
	const struct timespec *x = &((const struct old_template *)a)->used;
	const struct timespec *y = &((const struct old_template *)b)->used;
	if (x->tv_sec != y->tv_sec)
		return x->tv_sec < y->tv_sec ? -1 : 1;
	return x->tv_nsec < y->tv_nsec ? -1 : x->tv_nsec > y->tv_nsec;
}

static bool is_kept(const struct pool_template_state *st, const char *name)
{
	for (unsigned i = 0; i < st->keep_count; i++)
		if (strcmp(st->keep[i], name) == 0)
			return true;
	return false;
}

/* Files beyond the limit: of those not used since we started, the ones made first. */
static int evict_job(void *arg)
{
	struct pool_template_state *st = arg;
	size_t count = 0, total = 0, cap = 0;
	_cleanup_free_ struct old_template *old = NULL;
	_cleanup_dir_ DIR *dir = NULL;
	int opened = fd_open_dir(st->dirfd, &dir);
	if (opened < 0)
		return opened;
	for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
		struct stat file;
		if (entry->d_name[0] == '.' || strlen(entry->d_name) >= RECORD_KEY_MAX ||
			thin_template_name_is(entry->d_name))
			continue;
		total++;
		if (is_kept(st, entry->d_name) ||
			fstatat(st->dirfd, entry->d_name, &file, AT_SYMLINK_NOFOLLOW) < 0)
			continue;
		if (array_grow(&old, &cap, count, sizeof(*old)) < 0)
			return -ENOMEM;
		strcpy(old[count].name, entry->d_name);
		old[count++].used = file.st_mtim;
	}
	if (count > 0)
		qsort(old, count, sizeof(*old), compare_old);
	for (size_t i = 0; i < count && total > POOL_TEMPLATES_MAX; i++)
		if (unlinkat(st->dirfd, old[i].name, 0) == 0)
			total--;
	return 0;
}

static int evict_run(struct op *op)
{
	struct pool_template_state *st = state_of(op);
	list_for_each (l, &template_of(op)->pool->templates)
		if (st->keep_count < POOL_TEMPLATES_MAX)
			strcpy(st->keep[st->keep_count++],
				container_of(l, struct template_entry, link)->name);
	return op_work(op, evict_job, st);
}

static int evict_end(struct op *op, int res)
{
	(void)op;
	(void)res; /* too many templates are no reason to have none */
	return 0;
}

static int hand_over_run(struct op *op)
{
	struct pool_template_state *st = state_of(op);
	if (st->entry != NULL) {
		st->entry->checked = true;
		entry_release(op, 0);
	}
	template_of(op)->fd = st->fd;
	st->fd = -1;
	state_free(op);
	return 0;
}

static const struct op_step template_steps[] = {
	{"claim", .run = claim_run, .end = claim_end, .undo = claim_undo},
	{"open", .call = open_call, .end = open_end, .done = have_one},
	{"make", .call = make_call, .end = make_end, .done = have_one},
	{"mkfs", .run = format_run, .done = is_found},
	{"punch", .call = punch_call, .end = punch_end, .done = punch_done},
	{"sync", .run = sync_run, .done = is_found},
	{"link", .call = link_call, .end = link_end, .done = is_found},
	{"evict", .run = evict_run, .end = evict_end, .done = is_found},
	{"hand_over", .run = hand_over_run},
	{NULL},
};

bool pool_template_known(
	struct pool *pool, const struct fsimg_spec *spec, char ret_name[RECORD_KEY_MAX])
{
	char name[RECORD_KEY_MAX];
	if (!pool->features.reflink || spec->type == FSIMG_BTRFS)
		return false;
	pool_template_name(spec, name);
	struct template_entry *e = entry_find(pool, name);
	if (e == NULL || !e->checked || e->busy)
		return false;
	entry_use(pool, name);
	strcpy(ret_name, name);
	return true;
}

void pool_templates_free(struct pool *pool)
{
	for (struct list *l; (l = list_pop(&pool->templates)) != NULL;)
		free(container_of(l, struct template_entry, link));
}

void pool_template_init(struct pool_template *t, struct reactor *reactor, struct pool *pool,
	const struct fsimg_spec *spec)
{
	*t = (struct pool_template){.pool = pool, .spec = *spec, .fd = -1};
	op_init(&t->op, reactor, "pool_template", template_steps, NULL);
	t->op.lane = t->pool->lane;
}
