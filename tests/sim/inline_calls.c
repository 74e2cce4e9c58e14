/* SPDX-License-Identifier: Apache-2.0 */
#include "inline_calls.h"

#include "csi/messages.h"
#include "pool/index.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

const char *const id = "csi-0a1b2c";
const char *uid = "1234-abcd", *size = "32Mi", *namespace = "ci", *pod = "build";
const char *more_key, *more_value, *target_said;
const char *pool_asked;
char pod_dir[96];

void mkdirs(const char *path)
{
	char command[160];
	snprintf(command, sizeof(command), "mkdir -p %s", path);
	cr_assert_eq(system(command), 0);
}

void allow(void)
{
	struct csi_inline_policy *p = &w->csi->config.inlines;
	*p = (struct csi_inline_policy){.n_pools = 1,
		.pools = {"default"},
		.n_namespaces = 1,
		.namespaces = {"ci"},
		.max_bytes = 64 * MIB,
		.most = {.read_iops = 5000, .write_iops = 5000}};
}

void open_inline(enum world_fs fs, uint64_t seed)
{
	char parent[80];
	open_world(fs, seed, false);
	allow();
	snprintf(pod_dir, sizeof(pod_dir), "%s/pods/%s", w->dir, uid);
	snprintf(parent, sizeof(parent), "%.60s/v/scratch", pod_dir);
	mkdirs(parent);
	snprintf(target_path, sizeof(target_path), "%s/mount", parent);
	snprintf(volume_id, sizeof(volume_id), "%s", id);
}

void restart(void)
{
	world_restart(w);
	allow();
}

const char *asks(void)
{
	enum { SAID = 8 };
	static Csi__V1__StringPair pairs[SAID], *list[SAID];
	const char *const said[][2] = {{"csi.storage.k8s.io/ephemeral", "true"},
		{"csi.storage.k8s.io/pod.name", pod},
		{"csi.storage.k8s.io/pod.namespace", namespace},
		{"csi.storage.k8s.io/pod.uid", uid}, {"fstype", fs_type}, {"size", size},
		{"pool", pool_asked}, {more_key, more_value}};
	Csi__V1__NodePublishVolumeRequest req = CSI__V1__NODE_PUBLISH_VOLUME_REQUEST__INIT;
	for (unsigned i = 0; i < SAID; i++) {
		const char *const *pair = said[i];
		if (pair[0] == NULL || pair[1] == NULL)
			continue;
		csi__v1__string_pair__init(&pairs[i]);
		pairs[i].key = csi_bytes(pair[0]);
		pairs[i].value = csi_bytes(pair[1]);
		list[req.n_volume_context++] = &pairs[i];
	}
	req.volume_context = list;
	req.volume_id = csi_bytes(volume_id);
	req.target_path = csi_bytes(target_said != NULL ? target_said : target_path);
	req.volume_capability = capability();
	return ASK("Node", NodePublishVolume, node_publish_volume);
}

enum grpc_status publish(void)
{
	const char *answer = asks();
	return answer[0] == '\0' ? GRPC_OK : (enum grpc_status)atoi(answer);
}

/* As delete_patiently(), for the same reason. */
enum grpc_status unpublish(void)
{
	enum grpc_status status = undo_publish();
	for (int i = 0; status == GRPC_FAILED_PRECONDITION && i < 200; i++) {
		nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
		status = undo_publish();
	}
	return status;
}

bool has(const char *what)
{
	char left[INVENTORY_BYTES];
	world_inventory(w, left, sizeof(left));
	return strstr(left, what) != NULL;
}

enum grpc_status unpublish_wholly(void)
{
	enum grpc_status status = unpublish();
	for (unsigned i = 0; i < 150 && status == GRPC_OK && has("volumes csi-"); i++) {
		usleep(20000);
		status = unpublish();
	}
	return status;
}

void nothing_left(void)
{
	world_settle(w);
	cr_assert(!has("device "));
	cr_assert(!has("mount "));
	cr_assert(!has("volumes "));
	world_close(w);
}

void refuses(const char *want)
{
	says(asks(), "%s", want);
	cr_assert(!has("volumes "));
}

void allow_image(const char *name)
{
	struct csi_inline_policy *p = &w->csi->config.inlines;
	p->n_sources = 1;
	p->sources[0] = name;
}
