/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Command lines of the tools. mke2fs takes only the last of several -O or -E, so the user's are
 * merged into ours; everything else of the user's goes behind ours. Fails with -E2BIG when the
 * options fit neither the memory given nor the argument table, -EINVAL when they make no sense for
 * the device.
 *
 * On a zeroed file mkfs.ext4 writes 144 KiB for 64 MiB and 664 KiB for 1 GiB with
 * assume_storage_prezeroed, against 4.2 and 33 MiB without. lazy_itable_init alone writes as
 * little, but leaves the kernel to zero the inode tables after the mount.
 */
#include "blockio/fsimg.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	MKFS_TIMEOUT_MS = 5 * 60 * 1000,
	FSCK_TIMEOUT_MS = 60 * 60 * 1000,
	/* e2fsck takes 10 MiB for small images, and for large ones some bytes for each inode, of
	 * which there is one in 16 KiB by default and one in 1 KiB at most. */
	FSCK_MEMORY_BYTES = 256 << 20,
	FSCK_SHARE = 64,
	BTRFS_MIXED_BELOW_BYTES = 256 << 20,
	E2FSCK_UNCORRECTED = 4, /* and above: not mended, or the check itself failed */
};

/* An argv that is being made, and the memory of its strings. */
struct args {
	struct proc *proc;
	unsigned count;
	char *mem;
	size_t left;
	int res; /* the first failure */
};

static void args_add(struct args *a, const char *arg)
{
	if (a->count + 1 >= PROC_ARGS_MAX) {
		a->res = -E2BIG;
		return;
	}
	a->proc->argv[a->count++] = arg;
	a->proc->argv[a->count] = NULL;
}

static void args_addf(struct args *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void args_addf(struct args *a, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	int n = vsnprintf(a->mem, a->left, fmt, ap);
	va_end(ap);
	if (n < 0 || (size_t)n >= a->left) {
		a->res = -E2BIG;
		return;
	}
	args_add(a, a->mem);
	a->mem += n + 1;
	a->left -= (size_t)n + 1;
}

/* Cuts the next word off *rest: its start, and its length in *ret_len; NULL at the end. */
static const char *next_word(const char **rest, size_t *ret_len)
{
	const char *word = *rest + strspn(*rest, " ");
	*ret_len = strcspn(word, " ");
	*rest = word + *ret_len;
	return *ret_len > 0 ? word : NULL;
}

/* The user's ext4 options that ours have to be merged with. */
struct ext4_user {
	const char *features, *extended;
	int features_len, extended_len;
	bool has_reserved, has_block_size;
	uint32_t block_size;
};

static void ext4_user_option(struct ext4_user *user, char name, const char *value, size_t len)
{
	switch (name) {
	case 'O':
		user->features = value;
		user->features_len = (int)len;
		break;
	case 'E':
		user->extended = value;
		user->extended_len = (int)len;
		break;
	case 'm':
		user->has_reserved = true;
		break;
	case 'b':
		user->has_block_size = true;
		user->block_size = (uint32_t)strtoul(value, NULL, 10);
		break;
	}
}

/* Walks the user's words; with args, adds those that are passed on as they are. */
static void ext4_walk(const char *options, struct ext4_user *user, struct args *a)
{
	const char *word;
	size_t len;
	while ((word = next_word(&options, &len)) != NULL) {
		char name = len > 1 && word[0] == '-' ? word[1] : '\0';
		const char *value = word + 2;
		size_t value_len = len > 2 ? len - 2 : 0;
		if (len == 2 && (value = next_word(&options, &value_len)) == NULL)
			return; /* the check refuses this */
		if (a == NULL)
			ext4_user_option(user, name, value, value_len);
		else if (name != 'O' && name != 'E') {
			args_addf(a, "-%c", name);
			args_addf(a, "%.*s", (int)value_len, value);
		}
	}
}

static void ext4_argv(const struct fsimg_spec *spec, const char *uuid, struct args *a)
{
	struct ext4_user user = {0};
	ext4_walk(spec->mkfs_options, &user, NULL);
	if (user.has_block_size && user.block_size < spec->block_size) {
		a->res = -EINVAL;
		return;
	}
	args_add(a, "mkfs.ext4");
	args_add(a, "-q");
	args_add(a, "-F");
	if (!user.has_block_size) {
		args_add(a, "-b");
		args_add(a, "4096");
	}
	if (!user.has_reserved) { /* a volume is no root file system: root needs no share */
		args_add(a, "-m");
		args_add(a, "0");
	}
	args_add(a, "-U");
	args_add(a, uuid);
	args_add(a, "-O");
	args_addf(a, "metadata_csum_seed%s%.*s", user.features != NULL ? "," : "",
		user.features_len, user.features != NULL ? user.features : "");
	args_add(a, "-E");
	args_addf(a, "nodiscard,%s%s%.*s",
		spec->reads_as_noise ? "lazy_itable_init=1" : "assume_storage_prezeroed=1",
		user.extended != NULL ? "," : "", user.extended_len,
		user.extended != NULL ? user.extended : "");
	ext4_walk(spec->mkfs_options, &user, a);
}

static void user_words(const char *options, struct args *a)
{
	const char *word;
	size_t len;
	while ((word = next_word(&options, &len)) != NULL)
		args_addf(a, "%.*s", (int)len, word);
}

static void xfs_argv(const struct fsimg_spec *spec, const char *uuid, struct args *a)
{
	args_add(a, "mkfs.xfs");
	args_add(a, "-q");
	args_add(a, "-f");
	args_add(a, "-K");
	args_add(a, "-s");
	args_addf(a, "size=%u", spec->block_size);
	args_add(a, "-m");
	args_addf(a, "uuid=%s", uuid);
	user_words(spec->mkfs_options, a);
}

static void btrfs_argv(const struct fsimg_spec *spec, const char *uuid, struct args *a)
{
	args_add(a, "mkfs.btrfs");
	args_add(a, "-q");
	args_add(a, "-f");
	args_add(a, "-K");
	args_add(a, "-U");
	args_add(a, uuid);
	/* With data and metadata apart and metadata twice, 128 MiB hold 47 MiB of data; together
	 * 121 MiB. Profiles of the user's are left alone. */
	if (spec->size_bytes < BTRFS_MIXED_BELOW_BYTES && spec->mkfs_options[0] == '\0')
		args_add(a, "--mixed");
	user_words(spec->mkfs_options, a);
}

static void print_uuid(const uint8_t u[16], char text[FSIMG_UUID_TEXT_BYTES])
{
	snprintf(text, FSIMG_UUID_TEXT_BYTES,
		"%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1],
		u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14],
		u[15]);
}

int fsimg_mkfs_argv(const struct fsimg_spec *spec, const char *path, const uint8_t uuid[16],
	struct proc *proc, char *mem, size_t mem_len)
{
	static void (*const make[FSIMG_TYPES])(
		const struct fsimg_spec *spec, const char *uuid, struct args *a) = {
		[FSIMG_EXT4] = ext4_argv,
		[FSIMG_XFS] = xfs_argv,
		[FSIMG_BTRFS] = btrfs_argv,
	};
	if (make[spec->type] == NULL)
		return -EINVAL;
	struct fsimg_spec full = *spec;
	if (full.mkfs_options == NULL)
		full.mkfs_options = "";

	if (mem_len < FSIMG_UUID_TEXT_BYTES)
		return -E2BIG;
	print_uuid(uuid, mem);
	struct args a = {.proc = proc,
		.mem = mem + FSIMG_UUID_TEXT_BYTES,
		.left = mem_len - FSIMG_UUID_TEXT_BYTES};
	make[spec->type](&full, mem, &a);
	args_add(&a, path);
	proc->timeout_ms = MKFS_TIMEOUT_MS;
	return a.res;
}

int fsimg_fsck_argv(enum fsimg_type type, const char *path, uint64_t size_bytes, struct proc *proc)
{
	if (type != FSIMG_EXT4)
		return -EOPNOTSUPP;
	proc->argv[0] = "e2fsck";
	proc->argv[1] = "-p";
	proc->argv[2] = path;
	proc->argv[3] = NULL;
	proc->timeout_ms = FSCK_TIMEOUT_MS;
	proc->memory_bytes = FSCK_MEMORY_BYTES + size_bytes / FSCK_SHARE;
	return 0;
}

void fsimg_retag_argv(const char *path, const uint8_t uuid[16], char text[FSIMG_UUID_TEXT_BYTES],
	struct proc *proc)
{
	print_uuid(uuid, text);
	*proc = (struct proc){
		.argv = {"btrfstune", "-f", "-M", text, path, NULL},
		.timeout_ms = FSCK_TIMEOUT_MS,
	};
}

int fsimg_fsck_result(enum fsimg_type type, int exit_status)
{
	/* e2fsck: 1 says that it mended something, 2 that a mounted root wants a reboot after it.
	 */
	if (type == FSIMG_EXT4 && exit_status >= 0 && exit_status < E2FSCK_UNCORRECTED)
		return 0;
	return -EUCLEAN;
}
