/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ringvol knows of file systems as bytes: signatures, superblocks, the tools that make and
 * mend them, their mount options. Nothing here starts a process or mounts; argv arrays go to proc,
 * option strings to mnt.
 */
#ifndef RINGVOL_BLOCKIO_FSIMG_H
#define RINGVOL_BLOCKIO_FSIMG_H

#include "base/err.h"
#include "reactor/proc.h"

#include <stdbool.h>
#include <stdint.h>

enum { FSIMG_LABEL_BYTES = 256 }; /* of an SELinux label, with its NUL */

/* The value is stored in records by name, see fsimg_name(). */
enum fsimg_type {
	FSIMG_NONE, /* raw: the tenant's bytes */
	FSIMG_EXT4,
	FSIMG_XFS,
	FSIMG_BTRFS,
	FSIMG_TYPES,
};

/* "", "ext4", "xfs", "btrfs" */
const char *fsimg_name(enum fsimg_type type);
/* 0, or -EINVAL for a name that is none of ours. "" is -EINVAL too: the default is the caller's. */
int fsimg_parse_name(const char *name, enum fsimg_type *ret);
/* Smallest image mkfs accepts, rounded up to 1 MiB (16 MiB for ext4, 300 for xfs, 256 for btrfs).
 */
uint64_t fsimg_min_bytes(enum fsimg_type type);

/* What an image (or device) holds. Blocking: reads up to a few MiB. */
struct fsimg_probe {
	char found[32];       /* blkid's type of the first signature, "" when there is none; a
				 partition table reads as "PTTYPE=gpt" */
	bool ambivalent;      /* several signatures contradict each other */
	enum fsimg_type type; /* FSIMG_NONE unless `found` is one of ours and not ambivalent */
	uint64_t fs_bytes;    /* size the superblock claims */
	uint8_t uuid[16];
	bool errors;     /* the superblock is marked as having errors: fsck before mount */
	bool dirty;      /* a journal or log tree waits to be replayed (ext4, btrfs) */
	bool needs_more; /* it names another device, for its journal, its log or its data, and so
			    counts as no file system of ours */
};
int fsimg_probe_fd(int fd, struct fsimg_probe *ret);
/* The same where one type is expected: an ext4 or XFS that is there, with nothing before it, is
 * read with one small read and nobody else asked (libblkid reads 1 MiB in 60 calls, 1.2 ms; of what
 * it could find besides, nothing is left by a tool that leaves this superblock). All else is
 * fsimg_probe_fd()'s. */
int fsimg_probe_expected(int fd, enum fsimg_type type, struct fsimg_probe *ret);

/* Why a file system that a tenant may have made is not handed to the kernel, in words that follow
 * "its file system"; NULL: it is. It could name others' devices, or pass for another btrfs. */
const char *fsimg_why_unfit(const struct fsimg_probe *probe);

struct fsimg_spec {
	enum fsimg_type type;
	uint64_t size_bytes;
	uint32_t block_size; /* logical block size of the device it will live on: 512 or 4096 */
	const char
		*mkfs_options; /* blank-separated, already checked by fsimg_check_mkfs_options() */
	/* What was never written reads as anything, and not as zeros: below an encryption. */
	bool reads_as_noise;
};
/* A blank-separated list from the allow list of that type (e.g. ext4: -m -i -I -N -O -E -J -T -b,
 * xfs: -d -i -l -m -n with safe suboptions, btrfs: -d -m -n -O -R --csum) ; anything that names
 * another device, a label file or a path is refused. */
int fsimg_check_mkfs_options(enum fsimg_type type, const char *options, struct err *err);
/* Fills proc->argv and timeout for making `spec` on the zeroed file `path`; strings live in `mem`
 * (at least 1024 bytes) and in spec. ext4 gets metadata_csum_seed (its UUID can change later) and
 * assume_storage_prezeroed, unless the file reads as noise; nothing is discarded; every type gets
 * the UUID given. */
int fsimg_mkfs_argv(const struct fsimg_spec *spec, const char *path, const uint8_t uuid[16],
	struct proc *proc, char *mem, size_t mem_len);
/* The check-and-mend command for a device or image of size_bytes that is not mounted; exit codes
 * differ by tool: pass the result to fsimg_fsck_result(). Its memory has a limit that grows with
 * the size: damage may have e2fsck ask for gigabytes for an image of 16 MiB. -EOPNOTSUPP where
 * mount does it all (xfs, btrfs). */
int fsimg_fsck_argv(enum fsimg_type type, const char *path, uint64_t size_bytes, struct proc *proc);
/* The command that gives a btrfs that is not mounted another UUID. `text` lives until its end. */
enum { FSIMG_UUID_TEXT_BYTES = 37 };
void fsimg_retag_argv(const char *path, const uint8_t uuid[16], char text[FSIMG_UUID_TEXT_BYTES],
	struct proc *proc);
/* 0 when the file system is sound now, else -EUCLEAN. */
int fsimg_fsck_result(enum fsimg_type type, int exit_status);

/* Looks a mount flag (a CSI capability's) up in the allow list of that type: none that names
 * another device or path, none that changes what a mount is (bind, remount, loop, ...).
 * Read-only ("ro") and "rw" are allowed: what "ro" means for a volume is the caller's affair. */
bool fsimg_mount_flag_ok(enum fsimg_type type, const char *flag);
/* An SELinux label as the flag context= has it: user:role:type, or with a level, which may hold
 * commas. Whether the policy knows it the kernel says. */
bool fsimg_label_ok(const char *label);

/* A UUID (version 8) derived from a volume id, so that no record of it is needed. */
void fsimg_uuid_of(const char *volume_id, uint8_t ret_uuid[16]);

#endif
