/* SPDX-License-Identifier: Apache-2.0 */
/* Docker's jobs: each failed at every step of its own and of CSI's below it; several of one volume
 * at once; what is in the way is waited for; restarts. */
#include "csi_calls.h"
#include "trials.h"

#include "docker/answer.h"
#include "docker/job.h"
#include "docker/names.h"
#include "pool/index.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct docker_jobs jobs;
static char mounts[96];

struct outcome {
	bool ended;
	enum err_code code;
	char message[384], path[160];
};

static void on_end(struct docker_job *job, void *arg)
{
	struct outcome *o = arg;
	o->ended = true;
	o->code = job->op.err.code;
	snprintf(o->message, sizeof(o->message), "%s", job->op.err.message);
	snprintf(o->path, sizeof(o->path), "%s", job->mount_path);
}

static void send_with(struct outcome *o, enum docker_verb verb, const char *name, const char *id,
	const char *key, const char *value)
{
	struct arena *arena = arena_new(0);
	struct docker_request req = {.verb = verb, .name = name, .id = id};
	struct docker_job *job;
	if (key != NULL)
		req.options[req.n_options++] = (struct docker_option){key, value};
	*o = (struct outcome){0};
	cr_assert_eq(docker_job_new(&job, &jobs, arena, &req, on_end, o), 0);
	cr_assert_not(o->ended, "a job never ends where it begins");
	arena_unref(arena);
}

static void await(struct outcome *o)
{
	while (!o->ended)
		cr_assert_eq(ring_turn(w->reactor.ring, true), 0);
}

static struct outcome last;

static enum grpc_status ask(
	enum docker_verb verb, const char *name, const char *id, const char *key, const char *value)
{
	send_with(&last, verb, name, id, key, value);
	await(&last);
	return last.code == ERR_OK ? GRPC_OK : GRPC_INTERNAL;
}

static void begin(void)
{
	docker_jobs_init(&jobs, w->csi, w->registry, mounts);
}

static void open_docker(enum world_fs fs, uint64_t seed, bool staging)
{
	open_world(fs, seed, false);
	w->csi->config.staging = staging;
	snprintf(mounts, sizeof(mounts), "%s/docker", w->dir);
	cr_assert_eq(mkdir(mounts, 0700), 0);
	begin();
}

static enum grpc_status do_make(void)
{
	return ask(DOCKER_CREATE, "data", "", "size", "16Mi");
}

/* A device that was just cleared lives on while somebody looks at it: see delete_patiently(). */
static enum grpc_status do_remove(void)
{
	enum grpc_status status = ask(DOCKER_REMOVE, "data", "", NULL, NULL);
	for (unsigned i = 0; i < 50 && status != GRPC_OK && last.code == ERR_PRECONDITION &&
			     strstr(last.message, "is mounted") == NULL;
		i++) {
		usleep(20000);
		status = ask(DOCKER_REMOVE, "data", "", NULL, NULL);
	}
	return status;
}

static enum grpc_status mount_one(void)
{
	return ask(DOCKER_MOUNT, "data", "one", NULL, NULL);
}

static enum grpc_status unmount_one(void)
{
	return ask(DOCKER_UNMOUNT, "data", "one", NULL, NULL);
}

static enum grpc_status mount_two(void)
{
	return ask(DOCKER_MOUNT, "data", "two", NULL, NULL);
}

static enum grpc_status unmount_two(void)
{
	return ask(DOCKER_UNMOUNT, "data", "two", NULL, NULL);
}

static const char *mounted_at(void)
{
	struct arena *arena = arena_new(0);
	const struct pool_object *volume = docker_find(w->pools, arena, "data");
	const char *at = volume != NULL ? docker_mounted_at(volume, mounts, "data") : NULL;
	arena_unref(arena);
	return at != NULL ? at : "";
}

static void nothing_left(void)
{
	char path[128];
	snprintf(path, sizeof(path), "%s/data", mounts);
	cr_assert_neq(access(path, F_OK), 0, "%s is left", path);
	cr_assert_eq(do_remove(), GRPC_OK, "%s", last.message);
	cr_assert_eq(jobs.line.count, 0);
	world_close(w);
}

/* ---- every step ---- */

static void fail_all(enum world_fs fs, bool staging)
{
	open_docker(fs, 1, staging);
	cr_assert_gt(fail_each_step(&(struct trial){"create", do_make, do_remove, true}), 3);
	cr_assert_eq(do_make(), GRPC_OK);
	cr_assert_gt(fail_each_step(&(struct trial){"mount", mount_one, unmount_one, false}), 8);
	cr_assert_eq(mount_one(), GRPC_OK);
	cr_assert_gt(
		fail_each_step(&(struct trial){"mount again", mount_two, unmount_two, false}), 4);
	cr_assert_eq(mount_two(), GRPC_OK);
	cr_assert_gt(fail_each_step(
			     &(struct trial){"unmount one of two", unmount_two, mount_two, false}),
		2);
	cr_assert_eq(unmount_two(), GRPC_OK);
	cr_assert_gt(fail_each_step(&(struct trial){"unmount", unmount_one, mount_one, false}), 4);
	cr_assert_eq(unmount_one(), GRPC_OK);
	cr_assert_gt(fail_each_step(&(struct trial){"remove", do_remove, do_make, false}), 3);
	nothing_left();
}

Test(docker, every_step_staged_xfs)
{
	fail_all(WORLD_XFS, true);
}

Test(docker, every_step_staged_ext4)
{
	fail_all(WORLD_EXT4, true);
}

Test(docker, every_step_whole)
{
	fail_all(WORLD_XFS, false);
}

/* ---- several at once ---- */

Test(docker, one_after_the_other)
{
	enum { MANY = 8 };
	struct outcome mounted[MANY], unmounted[MANY];
	char ids[MANY][8];
	open_docker(WORLD_XFS, 3, true);
	cr_assert_eq(do_make(), GRPC_OK);
	for (unsigned i = 0; i < MANY; i++) {
		snprintf(ids[i], sizeof(ids[i]), "c%u", i);
		send_with(&mounted[i], DOCKER_MOUNT, "data", ids[i], NULL, NULL);
		send_with(&unmounted[i], DOCKER_UNMOUNT, "data", ids[i], NULL, NULL);
	}
	for (unsigned i = 0; i < MANY; i++) {
		await(&unmounted[i]);
		cr_assert(mounted[i].ended);
		cr_assert_eq(mounted[i].code, ERR_OK, "%s", mounted[i].message);
		cr_assert_eq(unmounted[i].code, ERR_OK, "%s", unmounted[i].message);
	}
	nothing_left();
}

/* Somebody else has the volume: a call of CSI is made again. */
Test(docker, what_is_in_the_way_is_waited_for)
{
	struct outcome made, other;
	open_docker(WORLD_XFS, 4, true);
	cr_assert_eq(do_make(), GRPC_OK);
	struct arena *arena = arena_new(0);
	const struct pool_object *volume = docker_find(w->pools, arena, "data");
	cr_assert_not_null(volume);
	struct node_lock lock = {.what = "a test"};
	node_lock_init(&lock, NODE_EXCLUSIVE, "volume", volume->key);
	node_lock_take(&w->csi->node->locks, &lock);
	send_with(&made, DOCKER_MOUNT, "data", "one", NULL, NULL);
	send_with(&other, DOCKER_CREATE, "other", "", "size", "16Mi");
	await(&other);
	cr_assert_eq(other.code, ERR_OK, "another volume waits for nobody: %s", other.message);
	cr_assert_not(made.ended);
	node_lock_release(&w->csi->node->locks, &lock);
	await(&made);
	cr_assert_eq(made.code, ERR_OK, "%s", made.message);
	cr_assert_eq(unmount_one(), GRPC_OK);
	arena_unref(arena);
	cr_assert_eq(ask(DOCKER_REMOVE, "other", "", NULL, NULL), GRPC_OK);
	nothing_left();
}

/* ---- restarts ---- */

Test(docker, the_kernel_knows_who_has_what)
{
	for (unsigned staging = 0; staging < 2; staging++) {
		open_docker(WORLD_XFS, 5, staging);
		cr_assert_eq(do_make(), GRPC_OK);
		cr_assert_eq(mount_one(), GRPC_OK);
		cr_assert_eq(mount_two(), GRPC_OK);
		world_restart(w);
		w->csi->config.staging = staging;
		begin();
		cr_assert_neq(strcmp(mounted_at(), ""), 0);
		cr_assert_eq(do_remove(), GRPC_INTERNAL);
		cr_assert_eq(mount_one(), GRPC_OK);
		cr_assert_eq(unmount_one(), GRPC_OK);
		cr_assert_not_null(strstr(mounted_at(), "/mounts/two"));
		world_restart(w);
		w->csi->config.staging = staging;
		begin();
		cr_assert_eq(unmount_two(), GRPC_OK);
		cr_assert_str_eq(mounted_at(), "");
		nothing_left();
	}
}

/* ---- what is told ---- */

Test(docker, what_is_refused)
{
	static const struct {
		const char *key, *value, *why;
	} table[] = {
		{"size", "0", "option size"},
		{"size", "-1", "option size"},
		{"size", "9Zi", "option size"},
		{"size", "2P", "option size"},
		{"from", "gone", "there is no volume gone"},
		{"encryption", "luks2", "no way to bring a key"},
		{"colour", "red", "colour"},
		{"fsType", "vfat", "vfat"},
	};
	open_docker(WORLD_XFS, 6, true);
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		cr_assert_eq(ask(DOCKER_CREATE, "a", "", table[i].key, table[i].value),
			GRPC_INTERNAL, "%s", table[i].value);
		cr_assert_not_null(
			strstr(last.message, table[i].why), "%s: %s", table[i].key, last.message);
	}
	cr_assert_eq(ask(DOCKER_MOUNT, "a", "one", NULL, NULL), GRPC_INTERNAL);
	cr_assert_eq(last.code, ERR_NOT_FOUND);
	cr_assert_eq(ask(DOCKER_UNMOUNT, "a", "one", NULL, NULL), GRPC_OK);
	cr_assert_eq(ask(DOCKER_REMOVE, "a", "", NULL, NULL), GRPC_OK);
	cr_assert_eq(ask(DOCKER_CREATE, "data", "", "size", "16Mi"), GRPC_OK);
	cr_assert_eq(ask(DOCKER_CREATE, "data", "", "size", "32Mi"), GRPC_INTERNAL);
	cr_assert_eq(last.code, ERR_EXISTS);
	cr_assert_eq(ask(DOCKER_CREATE, "copy", "", "from", "data"), GRPC_OK);
	char *list = docker_answer_list(w->pools, mounts);
	cr_assert_not_null(strstr(list, "\"Name\":\"copy\""), "%s", list);
	cr_assert_not_null(strstr(list, "\"Name\":\"data\""), "%s", list);
	free(list);
	cr_assert_eq(ask(DOCKER_REMOVE, "copy", "", NULL, NULL), GRPC_OK);
	nothing_left();
}
