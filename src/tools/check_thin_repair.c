/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Repairing the metadata of a thin pool. Happy path: pieces of the area for a new image, named
 * thin/repair; devices over the old and the new one; thin_repair from the one into the other;
 * thin_check of the new one, and every image's id has to be in it; the two names are exchanged,
 * which is the commit; the old image goes to the trash.
 *
 * Nothing is written to the old image. Whatever fails, it has its name still, and the new one keeps
 * the name thin/repair until the next load, the driver's or that of another repair, makes trash of
 * it. The caller has the pool's lock, so no driver is in the way.
 */
#include "tools/check_thin_repair.h"

#include "base/fd.h"
#include "disk/mapped.h"
#include "disk/thin_pool.h"
#include "disk/thin_tree.h"
#include "pool/raw_load.h"
#include "pool/trash.h"
#include "tools/check_thin_files.h"
#include "tools/run.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REPAIR_FILE "repair"

enum {
	TOOL_TIMEOUT_MS = 3600 * 1000,
	SAID_BYTES = 2048,
	DEVICES = 2, /* the old and the new metadata */
	OLD = 0,
	NEW = 1,
};

struct repair {
	struct check *c;
	int dirfd;
	struct image_map maps[DEVICES], data;
	struct dm dm;
	char uuids[DEVICES][DM_UUID_LEN], paths[DEVICES][32];
	char said[SAID_BYTES];
	struct err err;
};

/* Why it failed, for a person. */
static int because(struct repair *r, int res, const char *why)
{
	r->c->repair_why = tool_text(r->c->args, "%s", why);
	return res;
}

/* ---- the new image ---- */

/* What no map has, as a load finds it. */
static int take_pieces(struct repair *r)
{
	struct check *c = r->c;
	struct pool_raw *raw = NULL;
	int fds[POOL_FDS];
	memset(fds, 0xff, sizeof(fds));
	fds[POOL_FD_ROOT] = c->survey.fds[SURVEY_ROOT];
	fds[POOL_FD_VOLUMES] = c->survey.fds[SURVEY_VOLUMES];
	fds[POOL_FD_SNAPSHOTS] = c->survey.fds[SURVEY_SNAPSHOTS];
	fds[POOL_FD_TEMPLATES] = c->survey.fds[SURVEY_TEMPLATES];
	fds[POOL_FD_TRASH] = c->survey.fds[SURVEY_TRASH];
	fds[POOL_FD_COPIES] = c->survey.fds[SURVEY_COPIES];
	fds[POOL_FD_THIN] = r->dirfd;
	struct disk *disk = disk_ref(c->survey.disk);
	int res = pool_raw_load(disk, fds, NULL, 0, &raw, &r->err);
	if (res < 0) {
		disk_unref(disk);
		return because(r, res, r->err.message);
	}
	if (raw->overlaps || raw->unread[0] != '\0')
		res = because(r, -EUCLEAN, "which parts of the disks are free is not known");
	else if ((res = area_take(raw->area, image_map_bytes(&r->maps[OLD]), &r->maps[NEW])) < 0)
		(void)because(r, res,
			"the disks have no room for new metadata: delete a volume, or add a disk");
	pool_raw_free(raw);
	return res;
}

static int sync_fd(int fd)
{
	return fsync(fd) < 0 ? -errno : 0;
}

/* Under its name, durable: from here on its pieces are its own, whatever comes. */
static int name_new(struct repair *r)
{
	_cleanup_fd_ int fd = openat(r->dirfd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	int res = image_map_write(fd, &r->maps[NEW]);
	if (res == 0 && ftruncate(fd, (off_t)image_map_bytes(&r->maps[NEW])) < 0)
		res = -errno;
	if (res == 0)
		res = fd_link(fd, r->dirfd, REPAIR_FILE);
	if (res == 0)
		res = sync_fd(fd);
	return res == 0 ? sync_fd(r->dirfd) : res;
}

/* ---- devices ---- */

static int make_device(struct repair *r, unsigned which)
{
	static const char *const what[] = {[OLD] = "thinold", [NEW] = "thinnew"};
	char name[DM_NAME_LEN];
	struct mapped mapped;
	const struct mapped_spec spec = {.disk = r->c->survey.disk,
		.map = &r->maps[which],
		.size_bytes = image_map_bytes(&r->maps[which])};
	snprintf(name, sizeof(name), "ringvol-%s-%.8s", what[which], r->c->survey.uuid);
	snprintf(r->uuids[which], sizeof(r->uuids[which]), DM_OUR_UUID "%s-%s", what[which],
		r->c->survey.uuid);
	bool waits;
	int res = dm_remove(&r->dm, r->uuids[which], &waits); /* of one that was killed */
	if (res == 0)
		res = mapped_make_named(&r->dm, name, r->uuids[which], &spec, &mapped, &r->err);
	if (res < 0)
		return because(r, res, r->err.message);
	snprintf(r->paths[which], sizeof(r->paths[which]), "/dev/dm-%u", mapped.minor);
	return 0;
}

static void remove_devices(struct repair *r)
{
	bool waits;
	for (unsigned i = 0; i < DEVICES; i++)
		if (r->uuids[i][0] != '\0')
			(void)dm_remove(&r->dm, r->uuids[i], &waits);
}

/* ---- tools ---- */

static int run(struct repair *r, char *const argv[])
{
	int status = tool_run(argv, -1, TOOL_TIMEOUT_MS, r->said, sizeof(r->said));
	if (status == 0)
		return 0;
	if (status == -ENOENT)
		return because(r, status,
			tool_text(r->c->args, "no %s: install the package thin-provisioning-tools",
				argv[0]));
	if (status == -EINTR)
		return because(r, status,
			tool_text(r->c->args,
				"a signal has killed %s, which its version 0.9.0 does to itself where the first block is lost: try a later one",
				argv[0]));
	r->said[strcspn(r->said, "\n")] = '\0';
	return because(r, status < 0 ? status : -EUCLEAN,
		tool_text(r->c->args, "%s: %s", argv[0],
			status < 0           ? strerrordesc_np(-status)
			: r->said[0] != '\0' ? r->said
					     : tool_text(r->c->args, "it ended with %d", status)));
}

/* What the first block would say if it could be read. */
static int run_repair(struct repair *r)
{
	struct thin_commit commit;
	struct disk *disk = r->c->survey.disk;
	uint64_t area_bytes = 0;
	char sectors[24], blocks[24];
	for (unsigned i = 0; i < disk->count; i++)
		area_bytes += disk->members[i].bytes;
	uint32_t block = thin_block_bytes(area_bytes);
	bool readable = thin_commit_read(disk, &r->maps[OLD], &commit) == 0 && !commit.blank;
	snprintf(sectors, sizeof(sectors), "%u", block / DM_SECTOR_BYTES);
	snprintf(blocks, sizeof(blocks), "%llu",
		(unsigned long long)(image_map_bytes(&r->data) / block));
	char *argv[] = {"thin_repair", "-i", r->paths[OLD], "-o", r->paths[NEW], NULL, sectors,
		"--nr-data-blocks", blocks, "--transaction-id", "0", NULL};
	if (!readable)
		argv[5] = "--data-block-size";
	return run(r, argv);
}

static int run_check(struct repair *r)
{
	char *argv[] = {"thin_check", r->paths[NEW], NULL};
	return run(r, argv);
}

static int sync_device(const char *path)
{
	_cleanup_fd_ int fd = open(path, O_RDWR | O_CLOEXEC);
	return fd < 0 ? -errno : sync_fd(fd);
}

/* ---- whether nothing is lost ---- */

static int has_all(struct repair *r)
{
	struct check_thin_files files = {0};
	struct thin_ids ids = {0};
	const struct check_thin_file *lost = NULL;
	int res = thin_ids_read(r->c->survey.disk, &r->maps[NEW], &ids);
	if (res == 0)
		res = check_thin_collect(r->c, &files);
	for (size_t i = 0; res == 0 && lost == NULL && i < files.count; i++)
		if (!check_thin_is_trash(&files.at[i]) &&
			thin_ids_find(&ids, files.at[i].id) == NULL)
			lost = &files.at[i];
	if (lost != NULL)
		res = because(r, -ENODATA,
			tool_text(r->c->args,
				"thin_repair found nothing of %s/%s: the metadata were left as they are; "
				"ask somebody who knows dm-thin",
				survey_dir_names[lost->dir], lost->name));
	free(files.at);
	thin_ids_free(&ids);
	return res;
}

/* ---- all of it ---- */

/* The commit, and what was before to the trash. */
static int exchange(struct repair *r)
{
	char digits[TRASH_NAME_BYTES];
	if (renameat2(r->dirfd, REPAIR_FILE, r->dirfd, THIN_METADATA_FILE, RENAME_EXCHANGE) < 0)
		return -errno;
	int res = sync_fd(r->dirfd);
	if (res < 0)
		return res;
	/* The load would, too. */
	pool_random_hex(digits, TRASH_NAME_BYTES - 1);
	if (renameat2(r->dirfd, REPAIR_FILE, r->c->survey.fds[SURVEY_TRASH], digits,
		    RENAME_NOREPLACE) == 0)
		(void)sync_fd(r->c->survey.fds[SURVEY_TRASH]);
	return 0;
}

static int repair(struct repair *r)
{
	uint32_t major, minor;
	int res = dm_open(&r->dm, DM_CONTROL_PATH);
	if (res < 0)
		return dm_fail_open(res, "repairing a thin pool", &r->err) < 0
			       ? because(r, res, r->err.message)
			       : res;
	res = thin_number(&r->dm, r->c->survey.uuid, &major, &minor);
	if (res == 0)
		return because(r, -EBUSY,
			"the thin pool is active: end the pods with its volumes, and start and "
			"stop the driver");
	if (res != -ENXIO)
		return because(r, res, "whether the thin pool is active is not known");
	res = take_pieces(r);
	if (res == 0)
		res = name_new(r);
	if (res == 0)
		res = make_device(r, OLD);
	if (res == 0)
		res = make_device(r, NEW);
	if (res == 0)
		res = run_repair(r);
	if (res == 0)
		res = run_check(r);
	if (res == 0)
		res = sync_device(r->paths[NEW]);
	if (res == 0)
		res = has_all(r);
	remove_devices(r);
	return res == 0 ? exchange(r) : res;
}

int check_thin_repair(struct check *c, const struct check_finding *f)
{
	(void)f;
	struct repair *r = calloc(1, sizeof(*r));
	if (r == NULL)
		return -ENOMEM;
	r->c = c;
	r->dm.fd = -1;
	r->dirfd = check_thin_open(c);
	int res = r->dirfd < 0 ? -errno : 0;
	if (res == 0)
		res = pool_raw_map(r->dirfd, THIN_METADATA_FILE, &r->maps[OLD]);
	if (res == 0)
		res = pool_raw_map(r->dirfd, THIN_DATA_FILE, &r->data);
	if (res == 0)
		res = repair(r);
	dm_close(&r->dm);
	fd_close(&r->dirfd);
	free(r);
	return res;
}
