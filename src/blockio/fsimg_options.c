/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allow lists: what a StorageClass may say to mkfs and a capability to mount. Tenants write these,
 * the tools run as root: so everything not listed is refused, and values have no slash, blank or
 * comma. An entry is a word; what follows the word in a table says what its value may be.
 */
#include "blockio/fsimg.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum {
	OPTIONS_BYTES_MAX = 512, /* so that an argv fits the 1024 bytes promised to it */
	OPTIONS_WORDS_MAX = 32,
};

enum value {
	VALUE_NONE,     /* a bare word */
	VALUE_NUMBER,   /* digits, a size suffix */
	VALUE_WORD,     /* letters, digits, and _ - . : + ^ */
	VALUE_OPTIONAL, /* bare, or with a word */
	VALUE_SUBS,     /* a comma list of suboptions, in `subs` */
};

struct word {
	const char *name;
	enum value value;
	const struct word *subs;
	const char *only; /* if set, the only value; a "|" between alternatives */
};

/* ---- mkfs: ext4 ---- */

static const struct word ext4_features[] = {{"64bit"}, {"bigalloc"}, {"casefold"}, {"dir_index"},
	{"^dir_index"}, {"dir_nlink"}, {"ea_inode"}, {"encrypt"}, {"ext_attr"}, {"extent"},
	{"extents"}, {"extra_isize"}, {"fast_commit"}, {"^fast_commit"}, {"filetype"}, {"flex_bg"},
	{"has_journal"}, {"huge_file"}, {"^huge_file"}, {"inline_data"}, {"large_dir"},
	{"large_file"}, {"metadata_csum"}, {"metadata_csum_seed"}, {"orphan_file"},
	{"^orphan_file"}, {"project"}, {"quota"}, {"resize_inode"}, {"sparse_super"},
	{"stable_inodes"}, {"verity"}, {NULL}};

static const struct word ext4_extended[] = {{"assume_storage_prezeroed", VALUE_NUMBER, .only = "1"},
	{"hash_seed", VALUE_WORD}, {"lazy_itable_init", VALUE_NUMBER},
	{"lazy_journal_init", VALUE_NUMBER}, {"nodiscard"}, {"num_backup_sb", VALUE_NUMBER},
	{"packed_meta_blocks", VALUE_NUMBER}, {"quotatype", VALUE_WORD}, {"resize", VALUE_NUMBER},
	{"root_owner", VALUE_OPTIONAL}, {"root_perms", VALUE_NUMBER}, {"stride", VALUE_NUMBER},
	{"stripe-width", VALUE_NUMBER}, {"stripe_width", VALUE_NUMBER}, {NULL}};

static const struct word ext4_journal[] = {
	{"fast_commit_size", VALUE_NUMBER}, {"size", VALUE_NUMBER}, {NULL}};

static const struct word ext4_types[] = {{"big"}, {"default"}, {"floppy"}, {"huge"}, {"largefile"},
	{"largefile4"}, {"news"}, {"small"}, {NULL}};

static const struct word ext4_mkfs[] = {{"-E", VALUE_SUBS, ext4_extended}, {"-I", VALUE_NUMBER},
	{"-J", VALUE_SUBS, ext4_journal}, {"-N", VALUE_NUMBER}, {"-O", VALUE_SUBS, ext4_features},
	{"-T", VALUE_SUBS, ext4_types}, {"-b", VALUE_NUMBER, .only = "1024|2048|4096"},
	{"-i", VALUE_NUMBER}, {"-m", VALUE_NUMBER}, {NULL}};

/* ---- mkfs: xfs ---- */

static const struct word xfs_data[] = {{"agcount", VALUE_NUMBER}, {"agsize", VALUE_NUMBER},
	{"cowextsize", VALUE_NUMBER}, {"extszinherit", VALUE_NUMBER}, {"noalign"},
	{"su", VALUE_NUMBER}, {"sunit", VALUE_NUMBER}, {"sw", VALUE_NUMBER},
	{"swidth", VALUE_NUMBER}, {NULL}};

static const struct word xfs_inode[] = {{"align", VALUE_NUMBER}, {"maxpct", VALUE_NUMBER},
	{"nrext64", VALUE_NUMBER}, {"size", VALUE_NUMBER}, {"sparse", VALUE_NUMBER}, {NULL}};

static const struct word xfs_log[] = {{"lazy-count", VALUE_NUMBER}, {"size", VALUE_NUMBER},
	{"su", VALUE_NUMBER}, {"sunit", VALUE_NUMBER}, {NULL}};

static const struct word xfs_metadata[] = {{"bigtime", VALUE_NUMBER}, {"finobt", VALUE_NUMBER},
	{"inobtcount", VALUE_NUMBER}, {"reflink", VALUE_NUMBER}, {"rmapbt", VALUE_NUMBER}, {NULL}};

static const struct word xfs_naming[] = {{"ftype", VALUE_NUMBER}, {"size", VALUE_NUMBER}, {NULL}};

static const struct word xfs_mkfs[] = {{"-d", VALUE_SUBS, xfs_data}, {"-i", VALUE_SUBS, xfs_inode},
	{"-l", VALUE_SUBS, xfs_log}, {"-m", VALUE_SUBS, xfs_metadata},
	{"-n", VALUE_SUBS, xfs_naming}, {NULL}};

/* ---- mkfs: btrfs ---- */

static const struct word btrfs_features[] = {{"block-group-tree"}, {"extref"}, {"free-space-tree"},
	{"^free-space-tree"}, {"mixed-bg"}, {"no-holes"}, {"^no-holes"}, {"quota"},
	{"skinny-metadata"}, {"squota"}, {NULL}};

#define BTRFS_CSUMS "crc32c|xxhash|sha256|blake2"

static const struct word btrfs_mkfs[] = {{"--csum", VALUE_WORD, .only = BTRFS_CSUMS}, {"--mixed"},
	{"-M"}, {"-O", VALUE_SUBS, btrfs_features}, {"-R", VALUE_SUBS, btrfs_features},
	{"-d", VALUE_WORD, .only = "single|dup"}, {"-m", VALUE_WORD, .only = "single|dup"},
	{"-n", VALUE_NUMBER}, {NULL}};

/* ---- mount ---- */

static const struct word any_mount[] = {{"async"}, {"atime"}, {"defaults"}, {"dev"}, {"diratime"},
	{"dirsync"}, {"exec"}, {"lazytime"}, {"noatime"}, {"nodev"}, {"nodiratime"}, {"noexec"},
	{"nolazytime"}, {"nosuid"}, {"nosymfollow"}, {"relatime"}, {"ro"}, {"rw"}, {"strictatime"},
	{"suid"}, {"sync"}, {NULL}};

static const struct word ext4_mount[] = {{"acl"}, {"auto_da_alloc", VALUE_OPTIONAL},
	{"barrier", VALUE_OPTIONAL}, {"block_validity"}, {"bsddf"}, {"bsdgroups"},
	{"commit", VALUE_NUMBER}, {"data", VALUE_WORD, .only = "ordered|writeback|journal"},
	{"data_err", VALUE_WORD}, {"delalloc"}, {"dioread_lock"}, {"dioread_nolock"}, {"discard"},
	{"errors", VALUE_WORD, .only = "continue|remount-ro"}, {"grpid"}, {"grpquota"},
	{"init_itable", VALUE_OPTIONAL}, {"inode_readahead_blks", VALUE_NUMBER},
	{"journal_async_commit"}, {"journal_checksum"}, {"journal_ioprio", VALUE_NUMBER},
	{"max_batch_time", VALUE_NUMBER}, {"max_dir_size_kb", VALUE_NUMBER},
	{"mb_optimize_scan", VALUE_NUMBER}, {"min_batch_time", VALUE_NUMBER}, {"minixdf"},
	{"noacl"}, {"noauto_da_alloc"}, {"nobarrier"}, {"noblock_validity"}, {"nodelalloc"},
	{"nodiscard"}, {"nogrpid"}, {"noinit_itable"}, {"nojournal_checksum"}, {"noload"},
	{"nombcache"}, {"noquota"}, {"norecovery"}, {"nouser_xattr"}, {"prjquota"}, {"quota"},
	{"resgid", VALUE_NUMBER}, {"resuid", VALUE_NUMBER}, {"stripe", VALUE_NUMBER},
	{"sysvgroups"}, {"user_xattr"}, {"usrquota"}, {NULL}};

static const struct word xfs_mount[] = {{"allocsize", VALUE_NUMBER}, {"attr2"}, {"bsdgroups"},
	{"discard"}, {"filestreams"}, {"gqnoenforce"}, {"gquota"}, {"grpid"}, {"grpquota"},
	{"ikeep"}, {"inode32"}, {"inode64"}, {"largeio"}, {"logbsize", VALUE_NUMBER},
	{"logbufs", VALUE_NUMBER}, {"noalign"}, {"nodiscard"}, {"nogrpid"}, {"noikeep"},
	{"nolargeio"}, {"noquota"}, {"norecovery"}, {"nouuid"}, {"pqnoenforce"}, {"pquota"},
	{"prjquota"}, {"quota"}, {"sunit", VALUE_NUMBER}, {"swalloc"}, {"swidth", VALUE_NUMBER},
	{"sysvgroups"}, {"uqnoenforce"}, {"uquota"}, {"usrquota"}, {"wsync"}, {NULL}};

static const struct word btrfs_mount[] = {{"acl"}, {"autodefrag"}, {"barrier"},
	{"commit", VALUE_NUMBER}, {"compress", VALUE_OPTIONAL}, {"compress-force", VALUE_OPTIONAL},
	{"datacow"}, {"datasum"}, {"discard", VALUE_OPTIONAL, .only = "sync|async"},
	{"enospc_debug"}, {"flushoncommit"}, {"max_inline", VALUE_NUMBER},
	{"metadata_ratio", VALUE_NUMBER}, {"noacl"}, {"noautodefrag"}, {"nobarrier"}, {"nodatacow"},
	{"nodatasum"}, {"nodiscard"}, {"noenospc_debug"}, {"noflushoncommit"}, {"nospace_cache"},
	{"nossd"}, {"notreelog"}, {"skip_balance"},
	{"space_cache", VALUE_OPTIONAL, .only = "v1|v2"}, {"ssd"}, {"ssd_spread"},
	{"thread_pool", VALUE_NUMBER}, {"treelog"}, {"user_subvol_rm_allowed"}, {NULL}};

static const struct {
	const struct word *mkfs, *mount;
} lists[FSIMG_TYPES] = {
	[FSIMG_EXT4] = {ext4_mkfs, ext4_mount},
	[FSIMG_XFS] = {xfs_mkfs, xfs_mount},
	[FSIMG_BTRFS] = {btrfs_mkfs, btrfs_mount},
};

/* ---- checking; strings are (start, length) ---- */

struct span {
	const char *s;
	size_t len;
};

static bool span_is(struct span span, const char *word)
{
	return strlen(word) == span.len && memcmp(span.s, word, span.len) == 0;
}

static bool all_of(struct span span, const char *accept)
{
	if (span.len == 0)
		return false;
	for (size_t i = 0; i < span.len; i++)
		if (span.s[i] == '\0' || strchr(accept, span.s[i]) == NULL)
			return false;
	return true;
}

#define DIGITS  "0123456789"
#define LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

/* Is `span` one of the words in "a|b|c"? */
static bool one_of(struct span span, const char *alternatives)
{
	for (const char *p = alternatives; *p != '\0';) {
		size_t len = strcspn(p, "|");
		if (len == span.len && memcmp(p, span.s, len) == 0)
			return true;
		p += len + (p[len] == '|');
	}
	return false;
}

static const struct word *find_word(const struct word *list, struct span name)
{
	for (; list->name != NULL; list++)
		if (span_is(name, list->name))
			return list;
	return NULL;
}

static bool check_list(const struct word *list, struct span text);

/* value.s == NULL: there is none. */
static bool check_value(const struct word *word, struct span value)
{
	if (value.s == NULL)
		return word->value == VALUE_NONE || word->value == VALUE_OPTIONAL;
	if (word->only != NULL && !one_of(value, word->only))
		return false;
	switch (word->value) {
	case VALUE_NONE:
		return false;
	case VALUE_NUMBER:
		return all_of(value, DIGITS "kKmMgGtTsSbB.") && strchr(DIGITS, value.s[0]) != NULL;
	case VALUE_WORD:
	case VALUE_OPTIONAL:
		return all_of(value, DIGITS LETTERS "_-.:+");
	case VALUE_SUBS:
		return check_list(word->subs, value);
	}
	return false;
}

/* "name" or "name=value" */
static bool check_pair(const struct word *list, struct span text)
{
	const char *eq = memchr(text.s, '=', text.len);
	struct span name = text, value = {NULL, 0};
	if (eq != NULL) {
		name.len = (size_t)(eq - text.s);
		value.s = eq + 1;
		value.len = text.len - name.len - 1;
	}
	const struct word *word = find_word(list, name);
	return word != NULL && check_value(word, value);
}

/* Pairs with commas between them, none empty. */
static bool check_list(const struct word *list, struct span text)
{
	for (;;) {
		const char *comma = memchr(text.s, ',', text.len);
		struct span pair = text;
		if (comma != NULL)
			pair.len = (size_t)(comma - text.s);
		if (!check_pair(list, pair))
			return false;
		if (comma == NULL)
			return true;
		text.s += pair.len + 1;
		text.len -= pair.len + 1;
	}
}

static bool next_span(const char **rest, struct span *ret)
{
	ret->s = *rest + strspn(*rest, " ");
	ret->len = strcspn(ret->s, " ");
	*rest = ret->s + ret->len;
	return ret->len > 0;
}

/* One option, with its value attached ("-m0", "--csum=x"), or the next word, or none. */
static bool check_option(const struct word *list, struct span text, const char **rest)
{
	struct span name = text, value = {NULL, 0};
	bool is_long = text.len > 2 && text.s[1] == '-';
	if (is_long) {
		const char *eq = memchr(text.s, '=', text.len);
		if (eq != NULL) {
			name.len = (size_t)(eq - text.s);
			value = (struct span){eq + 1, text.len - name.len - 1};
		}
	} else if (text.len > 2) {
		name.len = 2;
		value = (struct span){text.s + 2, text.len - 2};
	}
	const struct word *word = find_word(list, name);
	if (word == NULL)
		return false;
	if (value.s == NULL && word->value != VALUE_NONE && !next_span(rest, &value))
		return false;
	return check_value(word, value);
}

static int refuse(struct err *err, enum fsimg_type type, struct span text)
{
	/* What a tenant wrote goes into the message only as far as it is plain text. */
	int len = all_of(text, DIGITS LETTERS " _-.:+^=,/%") && text.len < 100 ? (int)text.len : 0;
	return err_set(err, ERR_INVALID, "mkfsOptions: \"%.*s\" is not allowed for %s", len, text.s,
		type == FSIMG_NONE ? "a raw block volume" : fsimg_name(type));
}

int fsimg_check_mkfs_options(enum fsimg_type type, const char *options, struct err *err)
{
	const struct word *list = lists[type].mkfs;
	unsigned seen = 0;
	if (strlen(options) > OPTIONS_BYTES_MAX)
		return err_set(
			err, ERR_INVALID, "mkfsOptions is longer than %d bytes", OPTIONS_BYTES_MAX);
	for (struct span word; next_span(&options, &word);) {
		const char *before = word.s;
		if (list == NULL || !check_option(list, word, &options))
			return refuse(err, type, (struct span){before, (size_t)(options - before)});
		if (++seen > OPTIONS_WORDS_MAX / 2)
			return err_set(err, ERR_INVALID, "mkfsOptions has more than %d options",
				OPTIONS_WORDS_MAX / 2);
	}
	return 0;
}

bool fsimg_mount_flag_ok(enum fsimg_type type, const char *flag)
{
	struct span text = {flag, strlen(flag)};
	return lists[type].mount != NULL &&
	       (check_pair(any_mount, text) || check_pair(lists[type].mount, text));
}

bool fsimg_label_ok(const char *label)
{
	enum { FIELDS = 3 };
	if (strlen(label) >= FSIMG_LABEL_BYTES)
		return false;
	for (unsigned i = 0; i < FIELDS; i++) {
		struct span field = {label, strcspn(label, ":")};
		if (!all_of(field, DIGITS LETTERS "_-."))
			return false;
		label += field.len;
		if (*label == '\0')
			return i == FIELDS - 1;
		label++;
	}
	return all_of((struct span){label, strlen(label)}, DIGITS LETTERS "_-.,:");
}
