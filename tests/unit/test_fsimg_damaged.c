/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Damaged ext4 images whose checksums are right, on the way that NodeStage takes: probe, e2fsck as
 * the driver starts it, probe again. What must hold: each answer is one of those that are defined,
 * the checker ends, and nobody makes the file system anew. No image is mounted: this runs on the
 * machine's own kernel.
 */
#include "blockio/fsimg.h"
#include "reactor/spawn.h"

#include "../fuzz/fsimg_sums.h"
#include "blockio_env.h"

#include <poll.h>
#include <sys/resource.h>

enum {
	MIB = 1 << 20,
	IMAGE_BYTES = 16 * MIB,
	SEEDS = 120,
	INODES = 24,
	CHECKER_HANGS_MS = 120 * 1000,  /* one of this size takes 10 ms */
	MADE_AT = SUMS_EXT4_AT + 0x108, /* when mkfs made it */
	UUID_AT = SUMS_EXT4_AT + 0x68,
};

TestSuite(fsimg_damaged, .init = env_open, .fini = env_close);

static uint8_t *pristine, *image;

/* xorshift: the same numbers everywhere. */
static uint32_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return (uint32_t)(*state >> 16);
}

static uint8_t *read_image(const char *name)
{
	uint8_t *bytes = malloc(IMAGE_BYTES);
	int fd = openat(env.dirfd, name, O_RDONLY | O_CLOEXEC);
	cr_assert(bytes != NULL && fd >= 0 && pread(fd, bytes, IMAGE_BYTES, 0) == IMAGE_BYTES);
	close(fd);
	return bytes;
}

static void write_image(const char *name, const uint8_t *bytes)
{
	int fd = openat(env.dirfd, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	cr_assert(fd >= 0 && pwrite(fd, bytes, IMAGE_BYTES, 0) == IMAGE_BYTES);
	close(fd);
}

/* What says who it is, and that it has errors (or nobody would check it), stays as it is. */
static bool is_kept(size_t at)
{
	return (at >= UUID_AT && at < UUID_AT + 16) || (at >= MADE_AT && at < MADE_AT + 4) ||
	       (at >= SUMS_EXT4_AT + 0x38 && at < SUMS_EXT4_AT + 0x3c);
}

/* A place in the superblock, the group, an inode or the root directory. */
static size_t choose_place(uint64_t *state)
{
	uint32_t kind = next_random(state) % 8, where = next_random(state);
	uint8_t *inode = sums_ext4_inode_at(pristine, IMAGE_BYTES, 1 + where % INODES);
	cr_assert_not_null(inode);
	switch (kind) {
	case 0:
	case 1:
		return SUMS_EXT4_AT + where % 0x3fc;
	case 2:
		return SUMS_GROUP_AT + where % 0x40;
	case 3:
	case 4:
		inode = sums_ext4_inode_at(pristine, IMAGE_BYTES, SUMS_ROOT);
		return sums_get(inode + 0x28 + 20, 4) * SUMS_BLOCK + where % 128;
	default:
		return (size_t)(inode - pristine) + next_random(state) % 160;
	}
}

static void damage(uint64_t seed)
{
	static const uint8_t values[] = {0, 1, 2, 0x7f, 0x80, 0xff};
	uint64_t state = seed * 0x9e3779b97f4a7c15 + 1;
	memcpy(image, pristine, IMAGE_BYTES);
	image[SUMS_EXT4_AT + 0x3a] |= 2; /* it has errors */
	unsigned changes = 1 + next_random(&state) % 4;
	while (changes-- > 0) {
		size_t at = choose_place(&state);
		uint32_t how = next_random(&state);
		if (is_kept(at) || at >= IMAGE_BYTES)
			continue;
		image[at] = how % 2 != 0 ? values[how / 2 % sizeof values]
					 : (uint8_t)(image[at] ^ 1 << how / 2 % 8);
	}
	sums_ext4_image(image, IMAGE_BYTES, INODES);
}

static struct fsimg_probe probe(const char *name, uint64_t seed)
{
	struct fsimg_probe full, expected;
	int fd = openat(env.dirfd, name, O_RDONLY | O_CLOEXEC);
	cr_assert(fd >= 0);
	cr_assert_eq(fsimg_probe_fd(fd, &full), 0, "seed %lu", seed);
	cr_assert_eq(fsimg_probe_expected(fd, FSIMG_EXT4, &expected), 0, "seed %lu", seed);
	close(fd);
	cr_assert(expected.type == FSIMG_NONE || expected.type == FSIMG_EXT4, "seed %lu", seed);
	cr_assert(full.type == FSIMG_NONE || full.type == expected.type, "seed %lu", seed);
	return expected;
}

static uint64_t most_memory, most_memory_seed;

/* The exit status, or -EINTR as proc has it when a signal ended the tool. */
static int run_checker(const char *name, uint64_t seed)
{
	struct proc proc = {0};
	pid_t pid;
	int status;
	cr_assert_eq(fsimg_fsck_argv(FSIMG_EXT4, env_path(name), IMAGE_BYTES, &proc), 0);
	cr_assert(proc.timeout_ms > 0, "it may not run for ever");
	struct spawn how = {
		.program = proc.argv[0],
		.argv = proc.argv,
		.env = environ,
		.fds = {SPAWN_NULL, SPAWN_NULL, SPAWN_NULL},
		.fd_count = 3,
		.memory_bytes = getenv("RINGVOL_FUZZ_NO_LIMIT") == NULL ? proc.memory_bytes : 0,
	};
	struct pollfd end = {.events = POLLIN};
	cr_assert_eq(spawn(&how, &pid, &end.fd), 0);
	int ended = poll(&end, 1, CHECKER_HANGS_MS);
	if (ended == 0)
		kill(pid, SIGKILL);
	close(end.fd);
	struct rusage usage, own;
	cr_assert(wait4(pid, &status, 0, &usage) == pid);
	uint64_t memory = (uint64_t)usage.ru_maxrss << 10;
	/* The kernel counts what this program had when it started the tool as the tool's. */
	cr_assert_eq(getrusage(RUSAGE_SELF, &own), 0);
	if (usage.ru_maxrss <= own.ru_maxrss)
		memory = 0;
	if (memory > most_memory)
		most_memory = memory, most_memory_seed = seed;
	/* Its program and libraries count here, too. */
	cr_assert(memory < proc.memory_bytes + 16 * MIB, "seed %lu: %lu bytes", seed, memory);
	cr_assert_eq(ended, 1, "seed %lu: e2fsck does not end", seed);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -EINTR;
}

static unsigned counts[3]; /* not an ext4 any more, mended, not mended */

static void check(uint64_t seed)
{
	damage(seed);
	write_image("damaged", image);
	struct fsimg_probe before = probe("damaged", seed);
	if (before.type != FSIMG_EXT4) {
		counts[0]++;
		return;
	}
	int status = run_checker("damaged", seed);
	int result = fsimg_fsck_result(FSIMG_EXT4, status);
	cr_assert(result == 0 || result == -EUCLEAN, "seed %lu: %d", seed, result);
	counts[result == 0 ? 1 : 2]++;
	uint8_t *after = read_image("damaged");
	/* An image that was formatted anew has another time, and one of ours another UUID. */
	cr_assert(memcmp(after + MADE_AT, pristine + MADE_AT, 4) == 0 || result != 0,
		"seed %lu: it was made anew", seed);
	cr_assert(memcmp(after + UUID_AT, pristine + UUID_AT, 16) == 0 || result != 0,
		"seed %lu: it has another UUID", seed);
	free(after);
	/* Sound is what the next stage takes for sound: no checker is started again. */
	struct fsimg_probe p = probe("damaged", seed);
	if (result == 0)
		cr_assert(p.type == FSIMG_EXT4 && !p.errors, "seed %lu", seed);
}

Test(fsimg_damaged, ext4_with_right_sums, .timeout = 600)
{
	env_image("img", IMAGE_BYTES);
	env_mkfs("img", FSIMG_EXT4, IMAGE_BYTES, "");
	pristine = read_image("img");
	image = malloc(IMAGE_BYTES);
	cr_assert_not_null(image);
	/* The sums here are mkfs's: an image that nobody changed stays as it is. */
	memcpy(image, pristine, IMAGE_BYTES);
	sums_ext4_image(image, IMAGE_BYTES, 11);
	cr_assert_eq(memcmp(image, pristine, IMAGE_BYTES), 0);

	const char *first = getenv("RINGVOL_FUZZ_SEED");
	const char *many = getenv("RINGVOL_FUZZ_RUNS");
	uint64_t from = first != NULL ? strtoull(first, NULL, 10) : 1;
	uint64_t runs = many != NULL ? strtoull(many, NULL, 10) : SEEDS;
	for (uint64_t seed = from; seed < from + runs; seed++)
		check(seed);
	/* What once went wrong. */
	static const uint64_t found[] = {26663 /* 2 GiB for an image of 16 MiB */};
	for (size_t i = 0; i < sizeof found / sizeof *found; i++)
		check(found[i]);
	fprintf(stderr, "seeds %lu to %lu: %u are no ext4, %u mended, %u not mended\n", from,
		from + runs - 1, counts[0], counts[1], counts[2]);
	fprintf(stderr, "most memory: %lu MiB (seed %lu)\n", most_memory >> 20, most_memory_seed);
	/* Else the sums are wrong and nothing but them was tested. */
	cr_assert(runs < SEEDS || (counts[1] > runs / 10 && counts[2] > runs / 10));
	free(pristine);
	free(image);
}
