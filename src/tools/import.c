/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ringvol import`: a golden image, which is a snapshot like others, or a volume, out of a raw
 * image, a block device, a directory or a tar archive.
 *
 * Happy path: the source is looked at -> a volume of a name that nobody else has is made, staged
 * and published by the driver, like any other -> filled, and flushed -> taken down -> the snapshot
 * (or clone) NAME is taken of it -> it is deleted. So NAME is there whole, or not at all, and the
 * command needs nothing of a pool but what the driver does for everybody.
 *
 * It fails (1) when the driver refuses, when NAME is there already, when the source cannot be read
 * or does not fit, or on a signal. It takes back what it made. Where it cannot (kill -9, a driver
 * that is away), the next import of NAME does so first: an empty file in the work directory notes
 * the name of each volume before it is made, and nothing without a note is deleted.
 */
#include "tools/import_source.h"

#include "base/fd.h"
#include "blockio/fsimg.h"
#include "pool/golden.h"
#include "tools/import_calls.h"
#include "tools/tool.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define WORK_DIR "/var/lib/kubelet/plugins/csi.ringvol.dev/import"

struct import_args {
	struct tool_args args;
	const char *pool, *work_dir;
	uint64_t size_bytes;   /* 0: as the source says */
	unsigned fs;           /* enum fsimg_type, of a tree */
	unsigned block_size;   /* 0: as the source says */
	unsigned provisioning; /* a place in provisionings */
	bool volume;
	/* ---- of the run ---- */
	struct import_calls calls;
	struct import_source source;
	struct import_volume made;            /* what is filled */
	char made_name[64], mounted_name[64]; /* of that, and of its copy that is mounted */
	char dir[PATH_MAX], staging[PATH_MAX], target[PATH_MAX];
	int lock_fd;
};

static const char *const provisionings[] = {NULL, "thin", "thick"};
static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
	(void)number;
	interrupted = 1;
}

/* Signals are taken while bytes are copied; else they wait, since what the driver was asked for may
 * happen. */
static void take_signals(bool take)
{
	struct sigaction action = {.sa_handler = on_signal}; /* calls end with EINTR */
	sigset_t ours;
	sigemptyset(&ours);
	const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
	for (unsigned i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		sigaddset(&ours, numbers[i]);
		sigaction(numbers[i], &action, NULL);
	}
	sigprocmask(take ? SIG_UNBLOCK : SIG_BLOCK, &ours, NULL);
}

/* ---- where it is published ---- */

static int name_check(const char *name, struct err *err)
{
	if (!golden_name_valid(name))
		return err_set(err, ERR_INVALID,
			"the name '%.64s' will not do: a letter or digit, then letters, digits, '.', '_' and '-', %d at most",
			name, GOLDEN_NAME_MAX);
	return 0;
}

/* Nobody else's volumes have these names. */
static int make_names(struct import_args *im, struct err *err)
{
	uint32_t random;
	if (getrandom(&random, sizeof(random), 0) != sizeof(random))
		return err_sys(err, -errno, "getrandom");
	snprintf(im->made_name, sizeof(im->made_name), GOLDEN_IMPORT_PREFIX "%s.%08x",
		im->args.operands[1], random);
	snprintf(im->mounted_name, sizeof(im->mounted_name), GOLDEN_IMPORT_PREFIX "%s.%08x.fs",
		im->args.operands[1], random);
	return 0;
}

static int is_note(const struct dirent *entry)
{
	return strncmp(entry->d_name, GOLDEN_IMPORT_PREFIX, strlen(GOLDEN_IMPORT_PREFIX)) == 0;
}

static int make_dir(const char *path, struct err *err)
{
	return mkdir(path, 0700) == 0 || errno == EEXIST ? 0
							 : err_sys(err, -errno, "mkdir %s", path);
}

/* All of its parents are made as well. */
static int make_dirs(const char *path, struct err *err)
{
	char part[PATH_MAX];
	if ((size_t)snprintf(part, sizeof(part), "%s", path) >= sizeof(part))
		return err_set(err, ERR_INVALID, "--work-dir: the path is too long");
	for (char *slash = strchr(part + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		if (mkdir(part, 0755) < 0 && errno != EEXIST)
			return err_sys(err, -errno, "mkdir %s", part);
		*slash = '/';
	}
	return make_dir(part, err);
}

/* A directory for NAME alone, and its lock: nobody else imports that name meanwhile. */
static int take_place(struct import_args *im, struct err *err)
{
	const char *name = im->args.operands[1];
	int r = make_dirs(im->work_dir, err);
	if (r < 0)
		return r;
	int len = snprintf(im->dir, sizeof(im->dir), "%s/%s", im->work_dir, name);
	if (len < 0 || (size_t)len + sizeof("/staging") > sizeof(im->dir))
		return err_set(err, ERR_INVALID, "--work-dir: the path is too long");
	snprintf(im->staging, sizeof(im->staging), "%s/%s/staging", im->work_dir, name);
	snprintf(im->target, sizeof(im->target), "%s/%s/target", im->work_dir, name);
	r = make_dir(im->dir, err);
	if (r < 0)
		return r;
	im->lock_fd = open(im->dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (im->lock_fd < 0)
		return err_sys(err, -errno, "opening %s", im->dir);
	if (flock(im->lock_fd, LOCK_EX | LOCK_NB) < 0) {
		fd_close(&im->lock_fd); /* what is in there is the other's */
		return err_set(err, ERR_PENDING, "another 'ringvol import' of %s is running", name);
	}
	return make_dir(im->staging, err);
}

static void leave_place(struct import_args *im)
{
	if (im->lock_fd < 0)
		return;
	rmdir(im->staging);
	rmdir(im->dir);
	fd_close(&im->lock_fd);
}

/* ---- volumes on the way ---- */

/* Durable before the volume is made. */
static int note(struct import_args *im, const char *name, struct err *err)
{
	int fd = openat(im->lock_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0 || fsync(im->lock_fd) < 0) {
		int r = -errno;
		fd_close(&fd);
		return err_sys(err, r, "making %s/%s", im->dir, name);
	}
	fd_close(&fd);
	return 0;
}

/* Asks for a note's volume as the import may have done that noted it. The answer comes when that
 * request is over, so the volume is there then, or will never be: an error is an answer, too. */
static int settle(struct import_args *im, const char *name, struct err *err)
{
	struct import_volume again = im->made;
	struct err said = {0};
	again.name = name;
	if (import_create(&im->calls, &again, &said) == 0 || !import_unanswered(&said))
		return 0;
	*err = said;
	return -1;
}

/* The volume of a note, if it is there, and the note. doubt: it may be under way yet. */
static int take_back(struct import_args *im, const char *name, bool doubt, struct err *err)
{
	char key[RECORD_KEY_MAX], id[RECORD_ID_MAX];
	record_key(name, key);
	int r = import_find(&im->calls, false, key, id, err);
	if (r == 0 && id[0] == '\0' && doubt) {
		r = settle(im, name, err);
		if (r == 0)
			r = import_find(&im->calls, false, key, id, err);
	}
	if (r == 0 && id[0] != '\0')
		r = import_down(&im->calls, id, im->staging, im->target, err);
	if (r == 0 && id[0] != '\0')
		r = import_delete(&im->calls, id, err);
	if (r == 0)
		unlinkat(im->lock_fd, name, 0);
	return r;
}

/* What an attempt that was cut short has left. */
static int take_back_all(struct import_args *im, bool doubt, struct err *err)
{
	struct dirent **notes;
	int r = 0, count = scandir(im->dir, &notes, is_note, NULL);
	if (count < 0)
		return err_sys(err, -errno, "reading %s", im->dir);
	for (int i = 0; i < count; i++) {
		if (r == 0)
			r = take_back(im, notes[i]->d_name, doubt, err);
		free(notes[i]);
	}
	free(notes);
	return r;
}

static int name_is_free(struct import_args *im, struct err *err)
{
	const char *name = im->args.operands[1];
	char key[RECORD_KEY_MAX], id[RECORD_ID_MAX];
	record_key(name, key);
	int r = import_find(&im->calls, !im->volume, key, id, err);
	if (r == 0 && id[0] != '\0')
		r = err_set(err, ERR_EXISTS,
			"%s %s is there already (%s): choose another name, or delete it first",
			im->volume ? "volume" : "snapshot", name, id);
	return r;
}

/* ---- the import ---- */

static int choose_size(struct import_args *im, struct err *err)
{
	const struct import_source *s = &im->source;
	enum fsimg_type fs = s->kind == IMPORT_RAW ? FSIMG_NONE : (enum fsimg_type)im->fs;
	uint64_t least = fsimg_min_bytes(fs);
	if (im->size_bytes == 0 && s->need_bytes == 0)
		return err_set(err, ERR_INVALID,
			"how much %s unpacks to is not known before: say --size BYTES", s->path);
	if (s->kind == IMPORT_RAW && im->size_bytes != 0 && im->size_bytes < s->need_bytes)
		return err_set(err, ERR_RANGE, "--size: %s has %llu bytes", s->path,
			(unsigned long long)s->need_bytes);
	im->made.bytes = im->size_bytes != 0 ? im->size_bytes : s->need_bytes;
	if (im->made.bytes < least)
		im->made.bytes = least;
	im->made.fs = fs == FSIMG_NONE ? NULL : fsimg_name(fs);
	im->made.block_size = im->block_size != 0 ? im->block_size : s->block_size;
	return 0;
}

static int fill(struct import_args *im, struct err *err)
{
	int r = note(im, im->made.name, err);
	if (r == 0)
		r = import_create(&im->calls, &im->made, err);
	if (r == 0)
		r = import_up(&im->calls, &im->made, im->staging, im->target, err);
	if (r == 0)
		r = import_source_check_target(&im->source, im->target, err);
	if (r == 0) {
		take_signals(true);
		r = import_source_write(&im->source, im->target, &interrupted, err);
		take_signals(false);
	}
	return r < 0 ? r : import_down(&im->calls, im->made.id, im->staging, im->target, err);
}

/* The raw image's own file system makes it a volume that is mounted. */
static int name_it(struct import_args *im, char ret_id[RECORD_ID_MAX], struct err *err)
{
	const char *name = im->args.operands[1];
	const char *fs = im->source.kind == IMPORT_RAW && im->source.fs != FSIMG_NONE
				 ? fsimg_name(im->source.fs)
				 : im->made.fs;
	bool other_mode = (fs == NULL) != (im->made.fs == NULL);
	struct import_volume named = {.name = name,
		.pool = im->pool,
		.provisioning = im->made.provisioning,
		.fs = fs,
		.bytes = im->made.bytes,
		.clone = im->made.id,
		.changes_mode = other_mode};
	if (!im->volume && !other_mode)
		return import_snapshot(&im->calls, im->made.id, name, ret_id, err);
	int r = 0;
	if (!im->volume) {
		named.name = im->mounted_name;
		r = note(im, named.name, err);
	}
	if (r == 0)
		r = import_create(&im->calls, &named, err);
	if (r < 0 || im->volume) {
		memcpy(ret_id, named.id, RECORD_ID_MAX);
		return r;
	}
	return import_snapshot(&im->calls, named.id, name, ret_id, err);
}

static int import(struct import_args *im, char ret_id[RECORD_ID_MAX], struct err *err)
{
	int r = choose_size(im, err);
	if (r == 0)
		r = take_place(im, err);
	if (r == 0)
		r = take_back_all(im, true, err);
	bool ours = r == 0; /* what is noted from now on */
	if (r == 0)
		r = name_is_free(im, err);
	if (r == 0)
		r = fill(im, err);
	if (r == 0)
		r = name_it(im, ret_id, err);
	struct err late = {0};
	bool doubt = r < 0 && import_unanswered(err);
	if (ours && im->calls.answered && take_back_all(im, doubt, &late) < 0)
		fprintf(stderr, "a volume is left that the next import of %s deletes: %s\n",
			im->args.operands[1], late.message);
	return r;
}

static int run(struct tool_args *args)
{
	struct import_args *im = container_of(args, struct import_args, args);
	char id[RECORD_ID_MAX] = "";
	struct err err = {0};
	im->lock_fd = -1;
	im->calls = (struct import_calls){.endpoint = args->endpoint};
	im->made = (struct import_volume){.name = im->made_name,
		.pool = im->pool,
		.provisioning = provisionings[im->provisioning]};
	take_signals(false);
	int r = name_check(args->operands[1], &err);
	if (r == 0)
		r = make_names(im, &err);
	if (r == 0)
		r = import_source_open(&im->source, args->operands[0], &err);
	if (r == 0)
		r = import(im, id, &err);
	import_source_close(&im->source);
	import_calls_close(&im->calls);
	leave_place(im);
	if (r < 0)
		return tool_fail(args, err.message);
	puts(id);
	return fflush(stdout) == 0 ? 0 : tool_fail(args, "standard output cannot be written");
}

static int set_pool(void *args, const char *value, struct err *err)
{
	(void)err;
	((struct import_args *)args)->pool = value;
	return 0;
}

static int set_size(void *target, const char *value, struct err *err)
{
	uint64_t size;
	if (!options_quantity(value, &size) || size == 0 || size > INT64_MAX)
		return err_set(err, ERR_INVALID,
			"a size is bytes, as 1073741824, or with k, M, G, T, P, Ki, Mi, Gi, Ti or Pi behind the number");
	((struct import_args *)target)->size_bytes = size;
	return 0;
}

static const struct option_row rows[] = {
	TOOL_ENDPOINT_ROW,
	{"--pool", "NAME", .fallback_help = "as the driver chooses",
		.help = "which of the driver's pools it goes into", .set = set_pool},
	{"--volume", .help = "make a volume, and no golden image", .kind = OPTION_FLAG,
		OPTION_IN(struct import_args, volume)},
	{"--size", "BYTES",
		.fallback_help = "the image's; of a tree, what its files take and a quarter more",
		.help = "how large it is to be: 1073741824, 1Gi", .set = set_size},
	{"--fs", "ext4|xfs|btrfs", .fallback = "ext4",
		.help = "the file system for a tree or an archive", .kind = OPTION_CHOICE,
		OPTION_IN(struct import_args, fs), .numbers = {FSIMG_EXT4, FSIMG_XFS, FSIMG_BTRFS}},
	{"--provisioning", "thin|thick", .fallback_help = "as the pool has it",
		.help = "whether it takes its room when it is written to, or at once",
		.kind = OPTION_CHOICE, OPTION_IN(struct import_args, provisioning),
		.numbers = {1, 2}},
	{"--block-size", "512|4096",
		.fallback_help = "a block device's; 512 of a raw image; of a tree, the pool's",
		.help = "logical block size of the volume", .kind = OPTION_CHOICE,
		OPTION_IN(struct import_args, block_size), .numbers = {512, 4096}},
	{"--work-dir", "DIR", .fallback = WORK_DIR,
		.help = "where it is mounted meanwhile; the driver's --target-root has to allow it",
		.kind = OPTION_PATH, OPTION_IN(struct import_args, work_dir)},
	{NULL},
};

const struct tool import_tool = {
	.command =
		{
			.name = "import",
			.operands = {"SOURCE", "NAME"},
			.summary =
				"Makes a golden image: a snapshot NAME that volumes are made of.\n"
				"SOURCE is a raw image, a block device, a directory, a tar archive,\n"
				"or '-' for a tar archive on standard input. The driver has to run.\n"
				"Prints the id.",
			.options = rows,
		},
	.size = sizeof(struct import_args),
	.run = run,
};
