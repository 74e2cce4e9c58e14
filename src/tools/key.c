/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ringvol key add` and `ringvol key remove`: the keys of an encrypted volume, each in a slot of
 * the LUKS2 header at the start of its image.
 *
 * Happy path: the keys are read -> the volume is found in its pool -> its header is opened where it
 * can be written: through the device that is bound to the image, below dm-crypt, or in the image
 * itself -> it is locked against others -> changed, and made durable. A volume in use stays so. It
 * fails (1) as luks_header.h says, and when the volume or its device cannot be found.
 *
 * Whether a device is bound is looked at before the lock; a volume that is staged in between keeps
 * the image's lock, and the command says that somebody has it.
 */
#include "backends/crypt/luks_child.h"
#include "backends/crypt/luks_header.h"
#include "backends/crypt/luks_lib.h"
#include "base/fd.h"
#include "base/process.h"
#include "blockio/blkdev.h"
#include "blockio/image_map.h"
#include "pool/survey.h"
#include "tools/devices.h"
#include "tools/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

struct key_options {
	struct tool_args args;
	const char *key_file, *new_key_file;
};

static int set_key_file(void *options, const char *value, struct err *err)
{
	(void)err;
	((struct key_options *)options)->key_file = value;
	return 0;
}

static int set_new_key_file(void *options, const char *value, struct err *err)
{
	(void)err;
	((struct key_options *)options)->new_key_file = value;
	return 0;
}

/* ---- keys ---- */

/* All bytes of the file, a newline at its end as well; "-": standard input. NULL: *why says it. */
static struct secret *read_key(struct tool_args *args, const char *file, const char **why)
{
	uint8_t bytes[SECRET_BYTES_MAX + 1];
	size_t len = 0;
	ssize_t n = 1;
	bool is_input = strcmp(file, "-") == 0;
	_cleanup_fd_ int opened = is_input ? -1 : open(file, O_RDONLY | O_CLOEXEC);
	int fd = is_input ? STDIN_FILENO : opened;
	while (fd >= 0 && len < sizeof(bytes) && n > 0) {
		n = read(fd, bytes + len, sizeof(bytes) - len);
		len += n > 0 ? (size_t)n : 0;
	}
	if (fd < 0 || n < 0)
		*why = tool_text(args, "the key file %s: %s", file, strerrordesc_np(errno));
	else if (len == 0)
		*why = tool_text(args, "the key file %s is empty", file);
	else if (len > SECRET_BYTES_MAX)
		*why = tool_text(
			args, "the key file %s has more than %d bytes", file, SECRET_BYTES_MAX);
	struct secret *secret = fd < 0 || n < 0 || len == 0 || len > SECRET_BYTES_MAX
					? NULL
					: secret_new(bytes, len);
	if (secret == NULL && *why == NULL)
		*why = "out of memory";
	secret_wipe(bytes, sizeof(bytes));
	return secret;
}

/* ---- the volume ---- */

/* Where its header is. */
struct header {
	const char *id;
	uint64_t image_dev, image_ino;
	int fd; /* of the image, or of the device that it is bound to */
};

/* Whether an object of a pool is the one that was asked for. */
static bool is_named(const struct survey *survey, const struct record *rec, const char *name)
{
	char uuid8[9], id[RECORD_ID_MAX];
	snprintf(uuid8, sizeof(uuid8), "%.8s", survey->uuid);
	record_id_print(uuid8, rec, id);
	return strcmp(id, name) == 0 || strcmp(rec->name, name) == 0;
}

/* What keeps a volume from having keys, if anything does. */
static const char *refusal(struct tool_args *args, const struct record *rec)
{
	if (rec->encryption == RECORD_PLAIN)
		return tool_text(args, "volume %s is not encrypted", rec->name);
	if (rec->unformatted)
		return tool_text(args,
			"volume %s has no key yet: the first stage gives it that of its secret",
			rec->name);
	return NULL;
}

/* Opens the image of the volume, if that pool has it. Whether it does. */
static bool find_in(
	struct tool_args *args, const struct survey *survey, struct header *ret, const char **why)
{
	struct pool_found *found = NULL;
	size_t count = 0;
	bool is_here = false;
	/* On a raw disk the header is in no file, and these are mounted read-only. */
	int flags = survey->disk != NULL ? O_RDONLY : O_RDWR;
	if (survey_objects(survey, RECORD_VOLUME, &found, &count) < 0)
		*why = tool_text(args, "the pool at %s cannot be read", survey->path);
	for (size_t i = 0; i < count; i++) {
		const struct record *rec = found[i].rec;
		if (rec != NULL && !is_here && is_named(survey, rec, args->operands[0])) {
			is_here = true;
			*why = refusal(args, rec);
			ret->image_dev = found[i].image_dev;
			ret->image_ino = found[i].image_ino;
			ret->id = args->operands[0];
			ret->fd = openat(survey->fds[SURVEY_VOLUMES], rec->key,
				flags | O_NOFOLLOW | O_CLOEXEC);
			if (ret->fd < 0 && *why == NULL)
				*why = tool_text(args, "the image of %s: %s", rec->name,
					strerrordesc_np(errno));
		}
	}
	survey_objects_free(found, count);
	return is_here;
}

static const char *find_volume(struct tool_args *args, struct header *ret)
{
	const char *unread = NULL;
	for (unsigned i = 0; i < args->pool_count; i++) {
		struct survey survey;
		const char *why = NULL;
		survey_open(&survey, args->pools[i].path, SURVEY_LOOK);
		if (survey.state != POOL_READY)
			unread = tool_text(args, "the pool at %s: %s", survey.path, survey.why);
		bool is_here = survey.state == POOL_READY && find_in(args, &survey, ret, &why);
		survey_close(&survey);
		if (is_here)
			return why;
		unread = why != NULL ? why : unread;
	}
	return unread != NULL
		       ? unread
		       : tool_text(args, "there is no volume %s in the pools that were given",
				 args->operands[0]);
}

/* ---- its device ---- */

/* The node of the device that the image is bound to, opened in the image's place. */
static const char *use_device(
	struct tool_args *args, const struct backend_dev *dev, struct header *header)
{
	char name[64] = "";
	uint32_t dev_major, dev_minor;
	struct stat st;
	backend_dev_below(dev, &dev_major, &dev_minor);
	(void)blkdev_name(dev_major, dev_minor, name, sizeof(name));
	const char *node = tool_text(args, "/dev/%s", name);
	fd_close(&header->fd);
	header->fd = open(node, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
	if (header->fd >= 0 && fstat(header->fd, &st) == 0 && S_ISBLK(st.st_mode) &&
		st.st_rdev == makedev(dev_major, dev_minor))
		return NULL;
	return tool_text(args, "the device %u:%u that has the volume's image cannot be opened (%s)",
		dev_major, dev_minor, node);
}

static const char *open_header(struct tool_args *args, struct header *ret)
{
	struct devices devices = {0};
	const char *why = find_volume(args, ret);
	if (why != NULL)
		return why;
	int r = devices_scan(&devices);
	if (r < 0)
		why = tool_text(args, "the devices of this node cannot be looked through: %s",
			strerrordesc_np(-r));
	const struct device *device = devices_find(&devices, ret->image_dev, ret->image_ino);
	if (why == NULL && device != NULL)
		why = use_device(args, &device->dev, ret);
	else if (why == NULL && fgetxattr(ret->fd, IMAGE_MAP_XATTR, NULL, 0) > 0)
		why = "the volume is on a raw disk and not staged: use it while a pod has it";
	devices_free(&devices);
	return why;
}

/* ---- the commands ---- */

static enum luks_code change(const struct header *header, const struct luks_key *key,
	const struct luks_key *new_key, struct luks_says *says)
{
	char path[32];
	snprintf(path, sizeof(path), "/proc/self/fd/%d", header->fd);
	enum luks_code code = luks_header_lock(header->fd, says);
	if (code == LUKS_OK)
		code = new_key != NULL ? luks_header_add_key(path, key, new_key, says)
				       : luks_header_remove_key(path, key, says);
	if (code == LUKS_OK && fsync(header->fd) < 0) {
		snprintf(says->text, sizeof(says->text), "making it durable: %s",
			strerrordesc_np(errno));
		return LUKS_FAILED;
	}
	return code;
}

static const char *run_with(struct tool_args *args, const struct secret *secret,
	const struct secret *new_secret, struct header *header)
{
	struct err err = {0};
	struct luks_says says = {""};
	const struct luks_key key = {secret_bytes(secret), secret_len(secret)};
	struct luks_key new_key = {0};
	if (new_secret != NULL)
		new_key = (struct luks_key){secret_bytes(new_secret), secret_len(new_secret)};
	if (luks_load(&err) < 0)
		return tool_text(args, "%s", err.message);
	const char *why = open_header(args, header);
	if (why != NULL)
		return why;
	return change(header, &key, new_secret != NULL ? &new_key : NULL, &says) == LUKS_OK
		       ? NULL
		       : tool_text(args, "volume %s: %s", header->id, says.text);
}

/* What it reads may have been made to cost any amount. AddressSanitizer's own memory counts, too.
 */
static void bound_memory(void)
{
#ifndef __SANITIZE_ADDRESS__
	const struct rlimit memory = {LUKS_MEMORY_BYTES, LUKS_MEMORY_BYTES};
	(void)setrlimit(RLIMIT_DATA, &memory);
#endif
}

static int run(struct key_options *options, bool adds)
{
	struct tool_args *args = &options->args;
	struct header header = {.fd = -1};
	struct secret *secret = NULL, *new_secret = NULL;
	const char *why = NULL;
	bound_memory();
	process_hide_memory();
	if (options->key_file == NULL || (adds && options->new_key_file == NULL)) {
		tool_fail(args, adds ? "--key-file and --new-key-file are needed; see --help"
				     : "--key-file is needed; see --help");
		return TOOL_USAGE;
	}
	if (adds && strcmp(options->key_file, "-") == 0 &&
		strcmp(options->new_key_file, "-") == 0) {
		tool_fail(args, "standard input holds one of the keys, not both");
		return TOOL_USAGE;
	}
	secret = read_key(args, options->key_file, &why);
	if (secret != NULL && adds)
		new_secret = read_key(args, options->new_key_file, &why);
	if (why == NULL)
		why = run_with(args, secret, new_secret, &header);
	fd_close(&header.fd);
	secret_free(secret);
	secret_free(new_secret);
	if (why != NULL)
		return tool_fail(args, why);
	printf("%s: the key is %s\n", args->operands[0], adds ? "added" : "removed");
	return 0;
}

static int run_add(struct tool_args *args)
{
	return run((struct key_options *)args, true);
}

static int run_remove(struct tool_args *args)
{
	return run((struct key_options *)args, false);
}

#define KEY_ROW(about)                                                                             \
	{                                                                                          \
		"--key-file", "FILE", .help = about, .set = set_key_file                           \
	}
#define POOL_ROW TOOL_POOL_ROW(";\nthe volume is in one of them")

static const struct option_row add_rows[] = {
	KEY_ROW("a key that the volume has: all bytes of the file, a newline at its\n"
		"end as well; '-' is standard input"),
	{"--new-key-file", "FILE", .help = "the key that it is to have besides",
		.set = set_new_key_file},
	POOL_ROW,
	{NULL},
};
static const struct option_row remove_rows[] = {
	KEY_ROW("the key that the volume is not to have any more: all bytes of the\n"
		"file, a newline at its end as well; '-' is standard input"),
	POOL_ROW,
	{NULL},
};

static const struct tool add_tool = {
	.command = {.name = "key add",
		.operands = {"VOLUME"},
		.summary = "Adds a key to an encrypted volume, named by its id or name. It may be "
			   "in use.\n"
			   "Snapshots and copies that were made before keep the keys that they "
			   "have.",
		.options = add_rows},
	.size = sizeof(struct key_options),
	.run = run_add,
};
static const struct tool remove_tool = {
	.command = {.name = "key remove",
		.operands = {"VOLUME"},
		.summary =
			"Removes a key from an encrypted volume, named by its id or name; never "
			"the\n"
			"last one. It may be in use. Snapshots and copies that were made before "
			"keep the\n"
			"keys that they have, and who has had the key may have kept the volume's.",
		.options = remove_rows},
	.size = sizeof(struct key_options),
	.run = run_remove,
};

static const char help[] = "usage: ringvol key COMMAND\n"
			   "\n"
			   "commands:\n"
			   "  add VOLUME     adds a key to an encrypted volume\n"
			   "  remove VOLUME  removes one, but for the last\n";

int key_main(int argc, char *const *argv)
{
	const char *word = argc == 0 ? "" : argv[0];
	if (strcmp(word, "add") == 0)
		return tool_main(&add_tool, argc - 1, argv + 1);
	if (strcmp(word, "remove") == 0)
		return tool_main(&remove_tool, argc - 1, argv + 1);
	if (strcmp(word, "--help") == 0) {
		fputs(help, stdout);
		return 0;
	}
	if (argc == 0)
		fprintf(stderr, "ringvol key: no command; see 'ringvol key --help'\n");
	else
		fprintf(stderr, "ringvol key: unknown command '%s'; see 'ringvol key --help'\n",
			word);
	return TOOL_USAGE;
}
