/* SPDX-License-Identifier: Apache-2.0 */
#include "blockio/fsimg.h"

#include "../fuzz/fsimg_sums.h"
#include "blockio_env.h"

enum { MIB = 1 << 20 };

TestSuite(fsimg, .init = env_open, .fini = env_close);

Test(fsimg, names)
{
	enum fsimg_type type = FSIMG_NONE;
	for (enum fsimg_type t = FSIMG_EXT4; t < FSIMG_TYPES; t++) {
		cr_assert(fsimg_parse_name(fsimg_name(t), &type) == 0 && type == t);
		cr_assert(fsimg_min_bytes(t) % MIB == 0);
	}
	type = FSIMG_XFS;
	const char *bad[] = {"", "ext", "ext44", "EXT4", "ntfs", "ext4 "};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		cr_assert(fsimg_parse_name(bad[i], &type) == -EINVAL && type == FSIMG_XFS);
	cr_assert_str_eq(fsimg_name(FSIMG_NONE), "");
}

Test(fsimg, uuid_is_stable_and_well_formed)
{
	uint8_t a[16], b[16];
	fsimg_uuid_of("0011.pvc-1.aabb", a);
	fsimg_uuid_of("0011.pvc-1.aabb", b);
	cr_assert(memcmp(a, b, 16) == 0);
	cr_assert((a[6] & 0xf0) == 0x80 && (a[8] & 0xc0) == 0x80);
	fsimg_uuid_of("0011.pvc-1.aabc", b);
	cr_assert(memcmp(a, b, 16) != 0);
}

static struct fsimg_probe probe(const char *name)
{
	struct fsimg_probe p;
	/* Direct, for that is how images are opened. */
	int fd = openat(env.dirfd, name, O_RDWR | O_DIRECT | O_CLOEXEC);
	cr_assert(fd >= 0);
	int r = fsimg_probe_fd(fd, &p);
	cr_assert(r == 0, "%d", r);
	close(fd);
	return p;
}

/* Whatever is expected, it is found out what the full probe finds. */
static void check_expected(const char *name, enum fsimg_type type, const struct fsimg_probe *want)
{
	struct fsimg_probe p;
	int fd = openat(env.dirfd, name, O_RDONLY | O_CLOEXEC);
	cr_assert(fsimg_probe_expected(fd, type, &p) == 0);
	close(fd);
	cr_assert_str_eq(p.found, want->found);
	cr_assert(p.type == want->type && p.ambivalent == want->ambivalent);
	cr_assert(p.fs_bytes == want->fs_bytes && memcmp(p.uuid, want->uuid, 16) == 0);
	cr_assert(p.errors == want->errors && p.dirty == want->dirty);
}

/* Every type, really made, at its least size, and found again. */
Test(fsimg, mkfs_and_probe)
{
	static const struct {
		enum fsimg_type type;
		uint64_t mib;
		const char *options;
	} cases[] = {
		{FSIMG_EXT4, 16, ""},
		{FSIMG_EXT4, 64, "-m 1 -i 8192 -E stride=16,stripe_width=32 -O quota,project"},
		{FSIMG_EXT4, 64, "-b1024 -I 256 -J size=4 -T default"},
		{FSIMG_XFS, 300, ""},
		{FSIMG_XFS, 320, "-d agcount=2 -i size=512,maxpct=10 -m reflink=0 -n size=8192"},
		{FSIMG_BTRFS, 128, ""},
		{FSIMG_BTRFS, 256, ""},
		{FSIMG_BTRFS, 256, "-d single -m dup -n 16384 --csum xxhash -O no-holes"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char name[16];
		uint8_t uuid[16];
		snprintf(name, sizeof name, "img%zu", i);
		env_image(name, cases[i].mib * MIB);
		struct fsimg_probe p = probe(name);
		cr_assert(p.found[0] == '\0' && !p.ambivalent && p.type == FSIMG_NONE);
		env_mkfs(name, cases[i].type, cases[i].mib * MIB, cases[i].options);
		p = probe(name);
		cr_assert_str_eq(p.found, fsimg_name(cases[i].type));
		cr_assert(p.type == cases[i].type && !p.ambivalent && !p.errors && !p.dirty);
		cr_assert(p.fs_bytes == cases[i].mib * MIB, "%llu", (unsigned long long)p.fs_bytes);
		env_uuid(name, uuid);
		cr_assert(memcmp(uuid, p.uuid, 16) == 0);
		for (enum fsimg_type type = FSIMG_NONE; type < FSIMG_TYPES; type++)
			check_expected(name, type, &p);
	}
}

static uint64_t mkfs_allocates(const char *name, enum fsimg_type type, uint64_t size)
{
	struct stat st;
	env_image(name, size);
	env_mkfs(name, type, size, "");
	cr_assert(fstatat(env.dirfd, name, &st, 0) == 0);
	return (uint64_t)st.st_blocks * 512;
}

Test(fsimg, mkfs_of_ext4_writes_little)
{
	cr_assert(mkfs_allocates("a", FSIMG_EXT4, 64 * MIB) < 512 * 1024);
	cr_assert(mkfs_allocates("b", FSIMG_EXT4, 1024LL * MIB) < 2 * MIB);
	cr_assert(env_runs("e2fsck", "-fn", env_path("b")) == 0);
}

static void write_at(const char *name, off_t at, const void *data, size_t len)
{
	int fd = openat(env.dirfd, name, O_WRONLY | O_CLOEXEC);
	cr_assert(fd >= 0 && pwrite(fd, data, len, at) == (ssize_t)len);
	close(fd);
}

/* Changes a superblock and makes its checksum right. */
static void change_superblock(const char *name, off_t at, size_t bytes, size_t field,
	const void *value, size_t len, void (*sum)(uint8_t *))
{
	uint8_t sb[SUMS_BTRFS_BYTES];
	int fd = openat(env.dirfd, name, O_RDONLY | O_CLOEXEC);
	cr_assert(fd >= 0 && pread(fd, sb, bytes, at) == (ssize_t)bytes);
	close(fd);
	memcpy(sb + field, value, len);
	sum(sb);
	write_at(name, at, sb, bytes);
}

/* A file system that would have the kernel open another device of the node is nobody's: neither
 * mounted nor checked. */
Test(fsimg, a_superblock_that_names_other_devices)
{
	const uint32_t journal_dev = 0x0801; /* /dev/sda1 */
	const uint64_t devices = 2;
	env_image("ext4", 64 * MIB);
	env_mkfs("ext4", FSIMG_EXT4, 64 * MIB, "");
	cr_assert(probe("ext4").type == FSIMG_EXT4);
	change_superblock("ext4", SUMS_EXT4_AT, SUMS_EXT4_BYTES, 0xe4, &journal_dev,
		sizeof journal_dev, sums_ext4);
	struct fsimg_probe p = probe("ext4");
	cr_assert(p.type == FSIMG_NONE);
	cr_assert_str_eq(p.found, "ext4");
	check_expected("ext4", FSIMG_EXT4, &p);

	env_image("btrfs", 128 * MIB);
	env_mkfs("btrfs", FSIMG_BTRFS, 128 * MIB, "");
	cr_assert(probe("btrfs").type == FSIMG_BTRFS);
	change_superblock("btrfs", SUMS_BTRFS_AT, SUMS_BTRFS_BYTES, 0x88, &devices, sizeof devices,
		sums_btrfs);
	p = probe("btrfs");
	cr_assert(p.type == FSIMG_NONE);
	cr_assert_str_eq(p.found, "btrfs");
	check_expected("btrfs", FSIMG_BTRFS, &p);
}

static uint32_t crc32_of(const uint8_t *data, size_t len)
{
	uint32_t crc = ~0u;
	for (size_t i = 0; i < len; i++) {
		crc ^= data[i];
		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
	}
	return ~crc;
}

static void put32(uint8_t *at, uint32_t value)
{
	memcpy(at, &value, sizeof value); /* tests run on little-endian machines */
}

Test(fsimg, probe_finds_partition_tables)
{
	enum { SECTORS = 64 * MIB / 512, ENTRIES_BYTES = 128 * 128 };
	uint8_t mbr[512] = {0}, header[512] = {0};
	static uint8_t entries[ENTRIES_BYTES];
	mbr[446 + 4] = 0x83;
	put32(mbr + 446 + 8, 2048);
	put32(mbr + 446 + 12, SECTORS - 2048);
	mbr[510] = 0x55;
	mbr[511] = 0xaa;
	env_image("dos", 64 * MIB);
	write_at("dos", 0, mbr, sizeof mbr);
	cr_assert_str_eq(probe("dos").found, "PTTYPE=dos");
	cr_assert(probe("dos").type == FSIMG_NONE);

	mbr[446 + 4] = 0xee;
	put32(mbr + 446 + 8, 1);
	put32(mbr + 446 + 12, SECTORS - 1);
	memset(entries, 0x11, 32);
	put32(entries + 32, 2048);
	put32(entries + 40, 4096);
	memcpy(header, "EFI PART", 8);
	put32(header + 8, 0x10000);
	put32(header + 12, 92);
	put32(header + 24, 1);           /* this header */
	put32(header + 32, SECTORS - 1); /* the other */
	put32(header + 40, 34);
	put32(header + 48, SECTORS - 34);
	memset(header + 56, 0x22, 16);
	put32(header + 72, 2); /* the entries */
	put32(header + 80, 128);
	put32(header + 84, 128);
	put32(header + 88, crc32_of(entries, sizeof entries));
	put32(header + 16, crc32_of(header, 92));
	env_image("gpt", 64 * MIB);
	write_at("gpt", 0, mbr, sizeof mbr);
	write_at("gpt", 512, header, sizeof header);
	write_at("gpt", 1024, entries, sizeof entries);
	cr_assert_str_eq(probe("gpt").found, "PTTYPE=gpt");
}

static void read_at(const char *name, off_t at, void *data, size_t len)
{
	int fd = openat(env.dirfd, name, O_RDONLY | O_CLOEXEC);
	cr_assert(fd >= 0 && pread(fd, data, len, at) == (ssize_t)len);
	close(fd);
}

Test(fsimg, probe_of_other_things)
{
	/* Swap: a signature that is none of ours, and no crash on it. */
	env_image("swap", 16 * MIB);
	cr_assert(env_runs("mkswap", env_path("swap")) == 0);
	cr_assert_str_eq(probe("swap").found, "swap");
	cr_assert(probe("swap").type == FSIMG_NONE);

	/* Garbage without a signature reads as nothing. */
	uint8_t noise[65536];
	srand(1);
	for (size_t i = 0; i < sizeof noise; i++)
		noise[i] = (uint8_t)(1 + rand() % 200);
	env_image("noise", 16 * MIB);
	for (int i = 0; i < 16; i++)
		write_at("noise", i * (off_t)sizeof noise, noise, sizeof noise);
	printf("noise reads as \"%s\"\n", probe("noise").found);
	cr_assert(probe("noise").type == FSIMG_NONE);

	/* An image too small for anything. */
	env_image("tiny", 4096);
	cr_assert(probe("tiny").found[0] == '\0');
	env_image("empty", 0);
	struct fsimg_probe p;
	int fd = openat(env.dirfd, "empty", O_RDONLY | O_CLOEXEC);
	int r = fsimg_probe_fd(fd, &p);
	cr_assert(r < 0 || p.found[0] == '\0');
	close(fd);
	cr_assert(fsimg_probe_fd(-1, &p) < 0);
}

/* An ext4 in a file that held an XFS of which the second superblock sector is still there. */
Test(fsimg, probe_of_contradictions)
{
	uint8_t sb[4096];
	env_image("a", 300LL * MIB);
	env_mkfs("a", FSIMG_EXT4, 300LL * MIB, "");
	env_image("x", 300LL * MIB);
	env_mkfs("x", FSIMG_XFS, 300LL * MIB, "");
	read_at("x", 0, sb, 1024);
	write_at("a", 0, sb, 1024);
	struct fsimg_probe p = probe("a");
	cr_assert(p.ambivalent && p.found[0] != '\0' && p.type == FSIMG_NONE);
	check_expected("a", FSIMG_EXT4, &p);
	check_expected("a", FSIMG_XFS, &p);
}

/* What tools leave when they are let loose on an ext4 that they do not wipe. */
Test(fsimg, signatures_before_the_expected)
{
	static const struct {
		long offset;
		const char *bytes;
	} cases[] = {{510, "\x55\xaa"}, {512, "EFI PART"}, {512, "LABELONE"}, {0, "LUKS"}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char name[16];
		snprintf(name, sizeof name, "img%zu", i);
		env_image(name, 32 * MIB);
		env_mkfs(name, FSIMG_EXT4, 32 * MIB, "");
		write_at(name, cases[i].offset, (const uint8_t *)cases[i].bytes,
			strlen(cases[i].bytes));
		struct fsimg_probe p = probe(name);
		check_expected(name, FSIMG_EXT4, &p);
	}
}

Test(fsimg, ext4_errors_and_fsck)
{
	static struct proc proc;
	uint8_t state[2];
	env_image("a", 32 * MIB);
	env_mkfs("a", FSIMG_EXT4, 32 * MIB, "");
	cr_assert(env_runs("debugfs", "-w", "-R", "set_super_value state 3", env_path("a")) == 0);
	read_at("a", 1024 + 0x3a, state, 2);
	cr_assert(state[0] == 3);
	struct fsimg_probe p = probe("a");
	cr_assert(p.errors);
	check_expected("a", FSIMG_EXT4, &p);
	cr_assert(fsimg_fsck_argv(FSIMG_EXT4, env_path("a"), 16 * MIB, &proc) == 0);
	int r = env_run(proc.argv);
	cr_assert(fsimg_fsck_result(FSIMG_EXT4, r) == 0);
	cr_assert(!probe("a").errors);
	cr_assert(env_run(proc.argv) == 0);

	/* Something a preening check does not dare to mend: two inodes claim one block. */
	cr_assert(fsimg_fsck_result(FSIMG_EXT4, 0) == 0);
	cr_assert(fsimg_fsck_result(FSIMG_EXT4, 3) == 0);
	cr_assert(fsimg_fsck_result(FSIMG_XFS, 0) == -EUCLEAN);
	cr_assert(fsimg_fsck_result(FSIMG_EXT4, 4) == -EUCLEAN);
	cr_assert(fsimg_fsck_result(FSIMG_EXT4, 8) == -EUCLEAN);
	cr_assert(fsimg_fsck_result(FSIMG_EXT4, -ETIMEDOUT) == -EUCLEAN);
	env_image("zero", 32 * MIB);
	cr_assert(fsimg_fsck_argv(FSIMG_EXT4, env_path("zero"), 16 * MIB, &proc) == 0);
	cr_assert(fsimg_fsck_result(FSIMG_EXT4, env_run(proc.argv)) == -EUCLEAN);
	cr_assert(fsimg_fsck_argv(FSIMG_XFS, "x", 16 * MIB, &proc) == -EOPNOTSUPP);
	cr_assert(fsimg_fsck_argv(FSIMG_BTRFS, "x", 16 * MIB, &proc) == -EOPNOTSUPP);
}

/* A crash of a mounted ext4: the journal waits, and the probe says so. */
Test(fsimg, ext4_dirty_journal)
{
	ENV_NEEDS_LOOP();
	struct lodev dev = env_fresh("a", FSIMG_EXT4, 32 * MIB, "mnt0");
	int fd = openat(env.dirfd, "mnt0/f", O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	cr_assert(fd >= 0 && write(fd, "x", 1) == 1 && fsync(fd) == 0);
	close(fd);
	cr_assert(env_runs("cp", "--sparse=always", env_path("a"), env_path("copy")) == 0);
	cr_assert(probe("copy").dirty && probe("copy").type == FSIMG_EXT4);
	struct mnt_result result;
	cr_assert(env_unmount(env_path("mnt0"), &dev, false, &result) == 0);
	cr_assert(!probe("a").dirty);
	env_detach(&dev);
}

/* ---- options ---- */

static bool mkfs_ok(enum fsimg_type type, const char *options)
{
	struct err err = {0};
	int r = fsimg_check_mkfs_options(type, options, &err);
	cr_assert((r == 0) == (err.code == ERR_OK));
	cr_assert(r == 0 || err.message[0] != '\0');
	return r == 0;
}

Test(fsimg, mkfs_options_allowed)
{
	cr_assert(mkfs_ok(FSIMG_EXT4, ""));
	cr_assert(mkfs_ok(FSIMG_EXT4, "  -m 0   -i  16384 "));
	cr_assert(mkfs_ok(FSIMG_EXT4, "-m0 -I256 -N 1000 -O ^dir_index,quota -b 4096"));
	cr_assert(mkfs_ok(FSIMG_EXT4, "-E lazy_itable_init=0,root_owner=1000:1000 -J size=8"));
	cr_assert(mkfs_ok(FSIMG_XFS, "-d su=64k,sw=2 -i size=1024 -l size=64m -m rmapbt=1"));
	cr_assert(mkfs_ok(FSIMG_BTRFS, "--csum=sha256 --mixed -d dup -O ^no-holes -R quota"));
	cr_assert(mkfs_ok(FSIMG_NONE, ""));
}

Test(fsimg, mkfs_options_refused)
{
	static const char *const ext4[] = {"-J device=/dev/sda", "-J location=3", "-F", "-n", "-S",
		"-E discard", "-E offset=1", "-E test_fs", "-E", "-m", "-m a", "-m -F", "-d /etc",
		"-L label", "-U clear", "-l /etc/passwd", "/dev/sda", "--", "-", "-O", "-O none",
		"-O ^has_journal", "-O journal_dev", "-O dir_index,", "-O ,dir_index", "-b 65536",
		"-E stride=1/2", "-E root_owner=$(id)", "-T ../x", "-O dir_index=1",
		"-E nodiscard=1", "-m 0 extra", "-i 1,2", "-E hash_seed"};
	static const char *const xfs[] = {"-d file=1", "-d name=/dev/sda", "-l logdev=/dev/sda",
		"-r rtdev=/dev/sda", "-L x", "-p /etc/proto", "-m uuid=1", "-d agcount", "-f", "-N",
		"-l internal=0", "-m crc=0", "-c options=/etc/x", "-i size=../x", "-d size=1g"};
	static const char *const btrfs[] = {"-r /etc", "--rootdir=/etc", "-L x", "--csum",
		"--csum md5", "-d raid1", "/dev/sda", "-O zoned", "-U x", "-b 1g", "-f",
		"--mixed=1"};
	for (size_t i = 0; i < sizeof ext4 / sizeof *ext4; i++)
		cr_assert(!mkfs_ok(FSIMG_EXT4, ext4[i]), "%s", ext4[i]);
	for (size_t i = 0; i < sizeof xfs / sizeof *xfs; i++)
		cr_assert(!mkfs_ok(FSIMG_XFS, xfs[i]), "%s", xfs[i]);
	for (size_t i = 0; i < sizeof btrfs / sizeof *btrfs; i++)
		cr_assert(!mkfs_ok(FSIMG_BTRFS, btrfs[i]), "%s", btrfs[i]);
	cr_assert(!mkfs_ok(FSIMG_NONE, "-m 0"));
	char many[2048] = "";
	for (int i = 0; i < 17; i++)
		strcat(many, "-m0 ");
	cr_assert(!mkfs_ok(FSIMG_EXT4, many));
	memset(many, ' ', 600);
	many[600] = '\0';
	cr_assert(!mkfs_ok(FSIMG_EXT4, many));
}

/* What passes the check fits the memory promised, at the limit too. */
Test(fsimg, longest_options_fit)
{
	static struct proc proc;
	char options[600] = "-E ", mem[1024];
	uint8_t uuid[16] = {0};
	while (strlen(options) + 10 < 400)
		strcat(options, "stride=16,");
	strcat(options, "nodiscard -m0 -m0 -m0 -m0 -m0 -m0 -m0 -m0 -m0 -m0 -m0 -m0");
	cr_assert(strlen(options) <= 512 && mkfs_ok(FSIMG_EXT4, options));
	struct fsimg_spec spec = {FSIMG_EXT4, 64 * MIB, 512, options};
	cr_assert(fsimg_mkfs_argv(&spec, "/x", uuid, &proc, mem, sizeof mem) == 0);
	unsigned argc = 0;
	while (proc.argv[argc] != NULL)
		argc++;
	cr_assert_str_eq(proc.argv[argc - 1], "/x");
	cr_assert(fsimg_mkfs_argv(&spec, "/x", uuid, &proc, mem, 64) == -E2BIG);
	spec.mkfs_options = "-b 1024";
	spec.block_size = 4096;
	cr_assert(fsimg_mkfs_argv(&spec, "/x", uuid, &proc, mem, sizeof mem) == -EINVAL);
	spec.type = FSIMG_NONE;
	cr_assert(fsimg_mkfs_argv(&spec, "/x", uuid, &proc, mem, sizeof mem) == -EINVAL);
}

/* The words of a command line, with blanks between them. */
static const char *words_of(const struct proc *proc)
{
	static char words[2048];
	size_t len = 0;
	words[0] = '\0';
	for (unsigned i = 0; proc->argv[i] != NULL; i++)
		len += (size_t)snprintf(
			words + len, sizeof words - len, "%s%s", i > 0 ? " " : "", proc->argv[i]);
	return words;
}

#define UUID "00112233-4455-6677-8899-aabbccddeeff"

/* What a user says is merged into what ringvol says, or goes behind it. */
Test(fsimg, the_command_lines_of_the_tools)
{
	static const struct {
		struct fsimg_spec spec;
		const char *words;
	} cases[] = {
		{{FSIMG_EXT4, 64 * MIB, 512, NULL},
			"mkfs.ext4 -q -F -b 4096 -m 0 -U " UUID " -O metadata_csum_seed"
			" -E nodiscard,assume_storage_prezeroed=1 /x"},
		{{FSIMG_EXT4, 64 * MIB, 4096, "-m 5 -b 4096 -O quota,project -E stride=2"},
			"mkfs.ext4 -q -F -U " UUID " -O metadata_csum_seed,quota,project"
			" -E nodiscard,assume_storage_prezeroed=1,stride=2 -m 5 -b 4096 /x"},
		{{FSIMG_EXT4, 64 * MIB, 512, " -Oquota  -m7 -I 256 ", true},
			"mkfs.ext4 -q -F -b 4096 -U " UUID " -O metadata_csum_seed,quota"
			" -E nodiscard,lazy_itable_init=1 -m 7 -I 256 /x"},
		{{FSIMG_EXT4, 64 * MIB, 512, "-b 2048 -N"}, /* the check has refused this */
			"mkfs.ext4 -q -F -m 0 -U " UUID " -O metadata_csum_seed"
			" -E nodiscard,assume_storage_prezeroed=1 -b 2048 /x"},
		{{FSIMG_XFS, 300LL * MIB, 4096, "-m reflink=0  -i size=512"},
			"mkfs.xfs -q -f -K -s size=4096 -m uuid=" UUID
			" -m reflink=0 -i size=512 /x"},
		{{FSIMG_BTRFS, 256LL * MIB - 1, 512, ""},
			"mkfs.btrfs -q -f -K -U " UUID " --mixed /x"},
		{{FSIMG_BTRFS, 256LL * MIB, 512, ""}, "mkfs.btrfs -q -f -K -U " UUID " /x"},
		{{FSIMG_BTRFS, 128 * MIB, 512, "-d single"},
			"mkfs.btrfs -q -f -K -U " UUID " -d single /x"},
	};
	static struct proc proc;
	uint8_t uuid[16];
	char mem[1024], text[FSIMG_UUID_TEXT_BYTES];
	for (unsigned i = 0; i < 16; i++)
		uuid[i] = (uint8_t)(i * 0x11);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		cr_assert(fsimg_mkfs_argv(&cases[i].spec, "/x", uuid, &proc, mem, sizeof mem) == 0);
		cr_assert_str_eq(words_of(&proc), cases[i].words);
		cr_assert_eq(proc.timeout_ms, 5 * 60 * 1000);
	}
	proc.memory_bytes = 1;
	fsimg_retag_argv("/x", uuid, text, &proc);
	cr_assert_str_eq(words_of(&proc), "btrfstune -f -M " UUID " /x");
	cr_assert(proc.timeout_ms == 60 * 60 * 1000 && proc.memory_bytes == 0);
	cr_assert(fsimg_fsck_argv(FSIMG_EXT4, "/y", 64LL << 30, &proc) == 0);
	cr_assert_str_eq(words_of(&proc), "e2fsck -p /y");
	cr_assert_eq(proc.timeout_ms, 60 * 60 * 1000);
	cr_assert_eq(proc.memory_bytes, (256LL << 20) + (1LL << 30));
}

/* No more memory is used than there is, and no more arguments. */
Test(fsimg, what_fits_no_command_line_is_refused)
{
	static struct proc proc;
	char mem[1024], many[512] = "";
	uint8_t uuid[16] = {0};
	struct fsimg_spec spec = {FSIMG_XFS, 300LL * MIB, 512, "-i size=512"};
	size_t least = 0;
	memset(mem, '#', sizeof mem);
	while (fsimg_mkfs_argv(&spec, "/x", uuid, &proc, mem, least) == -E2BIG) {
		cr_assert_eq(mem[least], '#', "%zu bytes", least);
		least++;
	}
	cr_assert_eq(least, FSIMG_UUID_TEXT_BYTES + sizeof "size=512" +
				    sizeof "uuid=00000000-0000-0000-0000-000000000000" +
				    sizeof "-i" + sizeof "size=512");
	cr_assert_eq(mem[least], '#');
	/* The program, eight of ours, the path, and the end. */
	for (unsigned words = PROC_ARGS_MAX - 11; words <= PROC_ARGS_MAX - 9; words++) {
		many[0] = '\0';
		for (unsigned i = 0; i < words; i++)
			strcat(many, " -q");
		spec.mkfs_options = many;
		int r = fsimg_mkfs_argv(&spec, "/x", uuid, &proc, mem, sizeof mem);
		cr_assert_eq(r, words <= PROC_ARGS_MAX - 10 ? 0 : -E2BIG, "%u words: %d", words, r);
	}
}

/* What lies below an encryption reads as noise: the tool must not take it for zeros. */
Test(fsimg, nothing_is_taken_for_zeros_that_reads_as_noise)
{
	static struct proc proc;
	char mem[1024];
	uint8_t uuid[16] = {0};
	struct fsimg_spec spec = {FSIMG_EXT4, 64 * MIB, 4096, "-E stride=16"};
	for (int noise = 0; noise < 2; noise++) {
		bool zeros = false, lazy = false, users = false;
		spec.reads_as_noise = noise;
		cr_assert(fsimg_mkfs_argv(&spec, "/x", uuid, &proc, mem, sizeof mem) == 0);
		for (unsigned i = 0; proc.argv[i] != NULL; i++) {
			zeros |= strstr(proc.argv[i], "assume_storage_prezeroed") != NULL;
			lazy |= strstr(proc.argv[i], "lazy_itable_init=1") != NULL;
			users |= strstr(proc.argv[i], "stride=16") != NULL;
		}
		cr_assert(users);
		cr_assert(zeros == !noise && lazy == noise);
	}
}

Test(fsimg, mount_flags)
{
	static const char *const good[] = {"ro", "rw", "noatime", "nosuid", "nodev", "noexec",
		"relatime", "sync", "discard", "lazytime", "defaults"};
	static const char *const bad[] = {"", "bind", "rbind", "remount", "loop", "move", "shared",
		"rshared", "private", "nofail", "_netdev", "x-systemd.automount", "user",
		"logdev=/dev/sda", "rtdev=/dev/sda", "journal_path=/x", "journal_dev=8", "sb=1",
		"device=/dev/sda", "subvol=/", "context=x", "errors=panic", "ro,bind", "ro ", " ro",
		"noatime=1", "usrjquota=/etc/passwd", "rescue=all", "abort", "offset=1",
		"source=/x"};
	for (enum fsimg_type type = FSIMG_EXT4; type < FSIMG_TYPES; type++) {
		for (size_t i = 0; i < sizeof good / sizeof *good; i++)
			cr_assert(fsimg_mount_flag_ok(type, good[i]), "%s", good[i]);
		for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
			cr_assert(!fsimg_mount_flag_ok(type, bad[i]), "%s", bad[i]);
	}
	cr_assert(fsimg_mount_flag_ok(FSIMG_EXT4, "data=ordered") &&
		  fsimg_mount_flag_ok(FSIMG_EXT4, "commit=5"));
	cr_assert(!fsimg_mount_flag_ok(FSIMG_EXT4, "commit=") &&
		  !fsimg_mount_flag_ok(FSIMG_EXT4, "commit=a"));
	cr_assert(fsimg_mount_flag_ok(FSIMG_XFS, "allocsize=64k") &&
		  fsimg_mount_flag_ok(FSIMG_XFS, "nouuid"));
	cr_assert(!fsimg_mount_flag_ok(FSIMG_EXT4, "nouuid"));
	cr_assert(fsimg_mount_flag_ok(FSIMG_BTRFS, "compress=zstd:3") &&
		  fsimg_mount_flag_ok(FSIMG_BTRFS, "compress"));
	cr_assert(!fsimg_mount_flag_ok(FSIMG_NONE, "ro"));
}

/* ---- what is not mounted when a tenant may have made it ---- */

static void poke(const char *name, off_t at, const void *data, size_t len)
{
	int fd = openat(env.dirfd, name, O_WRONLY | O_CLOEXEC);
	cr_assert(pwrite(fd, data, len, at) == (ssize_t)len);
	close(fd);
}

Test(fsimg, other_devices_are_not_named)
{
	static const struct {
		enum fsimg_type type;
		uint64_t mib;
		off_t at; /* what says where the journal or log begins, or how many devices there
			     are */
		uint8_t bytes[8];
		size_t len;
	} cases[] = {
		{FSIMG_EXT4, 32, 1024 + 0xe0, {0}, 4},
		{FSIMG_XFS, 300, 48, {0}, 8},
		{FSIMG_XFS, 300, 16, {0, 0, 0, 0, 0, 0, 0, 9}, 8},
		{FSIMG_BTRFS, 256, 65536 + 0x88, {2}, 8},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		env_image("img", cases[i].mib * MIB);
		env_mkfs("img", cases[i].type, cases[i].mib * MIB, "");
		struct fsimg_probe p = probe("img");
		cr_assert(!p.needs_more && fsimg_why_unfit(&p) == NULL);
		int fd = openat(env.dirfd, "img", O_RDONLY | O_CLOEXEC);
		poke("img", cases[i].at, cases[i].bytes, cases[i].len);
		/* Its sum is wrong by now, so blkid may not know it. */
		struct fsimg_probe poked = {0};
		cr_assert(fsimg_probe_expected(fd, cases[i].type, &poked) == 0);
		close(fd);
		cr_assert(poked.needs_more || poked.type == FSIMG_NONE, "case %zu", i);
		cr_assert(poked.type == FSIMG_NONE || fsimg_why_unfit(&poked) != NULL);
		cr_assert(unlinkat(env.dirfd, "img", 0) == 0);
	}
	struct fsimg_probe dirty = {.type = FSIMG_BTRFS, .dirty = true};
	cr_assert_not_null(fsimg_why_unfit(&dirty));
	dirty.type = FSIMG_EXT4; /* which the mount replays */
	cr_assert_null(fsimg_why_unfit(&dirty));
}
