/* SPDX-License-Identifier: Apache-2.0 */
/* The provider's jobs: each failed at every step of its own and of CSI's below it; several of one
 * volume at once; what is used stays; restarts. */
#include "csi_calls.h"
#include "trials.h"

#include "node/volume.h"
#include "pool/index.h"
#include "provider/job.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct provider_jobs jobs;
static char mounts[96];

struct outcome {
	bool ended, read_only;
	enum err_code code;
	const char *error;
	char message[384];
	int fd;
};

static struct outcome last = {.fd = -1};

static void on_end(struct provider_job *job, void *arg)
{
	struct outcome *o = arg;
	o->ended = true;
	o->code = job->op.err.code;
	o->error = job->error != NULL ? job->error : "";
	o->read_only = job->read_only;
	snprintf(o->message, sizeof(o->message), "%s", job->op.err.message);
	cr_assert_eq(job->fd >= 0, o->code == ERR_OK);
	o->fd = job->fd;
	job->fd = -1;
}

static void send_request(struct outcome *o, const struct provider_acquire *request)
{
	struct arena *arena = arena_new(0);
	*o = (struct outcome){.fd = -1};
	cr_assert_eq(provider_acquire(&jobs, arena, request, on_end, o), 0);
	arena_unref(arena);
}

static void await(struct outcome *o)
{
	while (!o->ended)
		cr_assert_eq(ring_turn(w->reactor.ring, true), 0);
}

/* Keeps no descriptor. */
static enum grpc_status ask(const struct provider_acquire *request)
{
	send_request(&last, request);
	await(&last);
	if (last.fd >= 0)
		close(last.fd);
	return last.code == ERR_OK ? GRPC_OK : GRPC_INTERNAL;
}

static const struct provider_acquire of_data = {
	.name = "data", .template = "", .size_bytes = 16 << 20};

static enum grpc_status do_acquire(void)
{
	return ask(&of_data);
}

/* As if it had been handed over long ago. */
static void age(void)
{
	char dir[128];
	static const struct timespec times[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
	snprintf(dir, sizeof(dir), "%s/data", mounts);
	(void)utimensat(AT_FDCWD, dir, times, 0);
}

static const struct node_volume *in_use(void)
{
	const struct pool_object *volume = pools_find_name(w->pools, RECORD_VOLUME, "storage-data");
	return volume != NULL ? node_volume_find(volume) : NULL;
}

static bool mounted(void)
{
	const struct node_volume *node = in_use();
	return node != NULL && (node->dev.attached || !list_empty(&node->mounts));
}

static enum grpc_status do_release(void)
{
	age();
	provider_release_unused(&jobs);
	while (jobs.line.count > 0)
		cr_assert_eq(ring_turn(w->reactor.ring, true), 0);
	return mounted() ? GRPC_INTERNAL : GRPC_OK;
}

/* The kernel keeps a loop device for a moment after the last of its mounts that was handed over. */
static bool bound(void)
{
	char text[INVENTORY_BYTES];
	world_inventory(w, text, sizeof(text));
	return strstr(text, "device ") != NULL;
}

static enum grpc_status release_all(void)
{
	for (unsigned i = 0; i < 50 && do_release() != GRPC_OK; i++)
		usleep(20000);
	for (unsigned i = 0; i < 500 && !mounted() && bound(); i++)
		usleep(10000);
	return mounted() ? GRPC_INTERNAL : GRPC_OK;
}

static void begin(void)
{
	provider_jobs_init(&jobs, w->csi, w->registry, mounts, 5);
}

static void open_provider(enum world_fs fs, uint64_t seed, bool staging)
{
	open_world(fs, seed, false);
	w->csi->config.staging = staging;
	snprintf(mounts, sizeof(mounts), "%s/provider", w->dir);
	cr_assert_eq(mkdir(mounts, 0700), 0);
	begin();
}

static void nothing_left(void)
{
	char path[128];
	snprintf(path, sizeof(path), "%s/data", mounts);
	cr_assert_neq(access(path, F_OK), 0, "%s is left", path);
	cr_assert_eq(jobs.line.count, 0);
	world_close(w);
}

/* ---- every step ---- */

static void fail_all(enum world_fs fs, bool staging)
{
	open_provider(fs, 1, staging);
	cr_assert_gt(
		fail_each_step(&(struct trial){"acquire anew", do_acquire, release_all, false}), 8);
	cr_assert_eq(do_acquire(), GRPC_OK, "%s", last.message);
	cr_assert_gt(fail_each_step(&(struct trial){"again", do_acquire, release_all, false}), 4);
	cr_assert_eq(do_acquire(), GRPC_OK);
	cr_assert_gt(fail_each_step(&(struct trial){"release", do_release, do_acquire, false}), 4);
	cr_assert_eq(release_all(), GRPC_OK);
	nothing_left();
}

Test(provider_sim, every_step_staged_xfs)
{
	fail_all(WORLD_XFS, true);
}

Test(provider_sim, every_step_staged_ext4)
{
	fail_all(WORLD_EXT4, true);
}

Test(provider_sim, every_step_whole)
{
	fail_all(WORLD_XFS, false);
}

/* ---- several at once, and what is used ---- */

Test(provider_sim, one_after_the_other)
{
	enum { MANY = 8 };
	struct outcome outcomes[MANY];
	open_provider(WORLD_XFS, 2, true);
	for (unsigned i = 0; i < MANY; i++)
		send_request(&outcomes[i], &of_data);
	provider_release_unused(&jobs);
	for (unsigned i = 0; i < MANY; i++) {
		await(&outcomes[i]);
		cr_assert_eq(outcomes[i].code, ERR_OK, "%s", outcomes[i].message);
		close(outcomes[i].fd);
	}
	cr_assert_eq(release_all(), GRPC_OK);
	nothing_left();
}

Test(provider_sim, what_is_used_stays)
{
	open_provider(WORLD_XFS, 3, true);
	cr_assert_eq(do_acquire(), GRPC_OK);
	/* It was handed over just now. */
	provider_release_unused(&jobs);
	while (jobs.line.count > 0)
		cr_assert_eq(ring_turn(w->reactor.ring, true), 0);
	cr_assert(mounted());
	/* Somebody is in it. */
	char path[128];
	snprintf(path, sizeof(path), "%s/data/volume", mounts);
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cr_assert_geq(fd, 0);
	cr_assert_eq(do_release(), GRPC_INTERNAL);
	close(fd);
	cr_assert_eq(release_all(), GRPC_OK);
	nothing_left();
}

Test(provider_sim, the_next_driver_lets_it_go)
{
	for (unsigned staging = 0; staging < 2; staging++) {
		open_provider(WORLD_XFS, 4, staging);
		cr_assert_eq(do_acquire(), GRPC_OK);
		world_restart(w);
		w->csi->config.staging = staging;
		begin();
		cr_assert(mounted());
		cr_assert_eq(do_acquire(), GRPC_OK, "%s", last.message);
		world_restart(w);
		w->csi->config.staging = staging;
		begin();
		cr_assert_eq(release_all(), GRPC_OK);
		nothing_left();
	}
}

/* ---- what is told ---- */

Test(provider_sim, what_is_refused)
{
	static const struct {
		struct provider_acquire request;
		const char *error;
	} table[] = {
		{{"a", "", .create = PROVIDER_CREATE_OPEN}, PROVIDER_ERROR("NoSuchVolume")},
		{{"a", ""}, PROVIDER_ERROR("CreateSizeRequired")},
		{{"a", "", .type = PROVIDER_REG, .size_bytes = 1 << 24},
			PROVIDER_ERROR("TypeNotSupported")},
		{{"a", "zfs", .size_bytes = 1 << 24}, PROVIDER_ERROR("NoSuchTemplate")},
		{{"a", "xfs", .type = PROVIDER_BLK, .size_bytes = 1 << 24},
			PROVIDER_ERROR("BadTemplate")},
		{{"data", "", .create = PROVIDER_CREATE_NEW, .size_bytes = 1 << 24},
			PROVIDER_ERROR("VolumeExists")},
		{{"data", "", .type = PROVIDER_BLK}, PROVIDER_ERROR("WrongType")},
		{{"a", "", .size_bytes = UINT64_C(1) << 60}, ""},
	};
	open_provider(WORLD_XFS, 5, true);
	cr_assert_eq(do_acquire(), GRPC_OK);
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		cr_assert_eq(ask(&table[i].request), GRPC_INTERNAL);
		cr_assert_str_eq(last.error, table[i].error, "%s", last.message);
	}
	struct provider_acquire read = of_data;
	read.writes = PROVIDER_READ_ONLY;
	read.create = PROVIDER_CREATE_OPEN;
	cr_assert_eq(ask(&read), GRPC_OK);
	cr_assert(last.read_only);
	cr_assert_eq(release_all(), GRPC_OK);
	nothing_left();
}
