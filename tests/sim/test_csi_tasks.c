/* SPDX-License-Identifier: Apache-2.0 */
/* What the log tells of operations, and when none begins. */
#include "answers.h"

#include "../unit/sim_time.h"
#include "base/log.h"
#include "csi/messages.h"
#include "csi/task.h"

#include "csi_calls.h"
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int from_log;

static void open_logged(void)
{
	int ends[2];
	open_world(WORLD_XFS, 1, true);
	cr_assert_eq(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
	cr_assert_eq(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
	close(ends[1]);
	from_log = ends[0];
	log_open(LOG_LEVEL_INFO, LOG_FORMAT_LOGFMT);
}

/* The lines since the last look, without times: "MESSAGE: fields" each. */
static const char *told(void)
{
	static char lines[8192], text[8192];
	ssize_t n = read(from_log, lines, sizeof(lines) - 1);
	size_t len = 0;
	text[0] = '\0';
	lines[n < 0 ? 0 : n] = '\0';
	for (char *at = lines; n > 0 && (at = strstr(at, "level=")) != NULL;) {
		char *end = strchr(at, '\n'), *ms = strstr(at, " ms=");
		cr_assert_not_null(end);
		*end = '\0';
		if (ms != NULL) {
			size_t number = strcspn(ms + 4, " ");
			memmove(ms, ms + 4 + number, strlen(ms + 4 + number) + 1);
		}
		len += (size_t)snprintf(text + len, sizeof(text) - len, "%s\n", at);
		at = end + 1;
	}
	return text;
}

static void create_request(Csi__V1__CreateVolumeRequest *req, const char *name)
{
	static Csi__V1__CapacityRange range;
	static Csi__V1__VolumeCapability *caps[1];
	static Csi__V1__StringPair *parameters[3];
	csi__v1__create_volume_request__init(req);
	csi__v1__capacity_range__init(&range);
	range.required_bytes = 16 * MIB;
	caps[0] = capability();
	parameters[0] = pair(0, "csi.storage.k8s.io/pvc/name", "data");
	parameters[1] = pair(1, "csi.storage.k8s.io/pvc/namespace", "shop");
	parameters[2] = pair(2, "device", "loop");
	req->name = csi_bytes(name);
	req->capacity_range = &range;
	req->n_volume_capabilities = 1;
	req->volume_capabilities = caps;
	req->n_parameters = 3;
	req->parameters = parameters;
}

static void close_logged(void)
{
	log_open(LOG_LEVEL_ERROR, LOG_FORMAT_LOGFMT);
	world_close(w);
}

/* ---- the log ---- */

Test(csi_tasks, the_log_tells_of_their_ends, .timeout = 120)
{
	static struct world_answer first, second;
	Csi__V1__CreateVolumeRequest req;
	open_logged();
	create_request(&req, "base");
	world_send(w, "Controller/CreateVolume", &req.base, &first);
	world_send(w, "Controller/CreateVolume", &req.base, &second);
	world_wait(w, &first);
	world_wait(w, &second);
	world_answer_free(&second);
	world_answer_free(&first);
	says(told(), "%s",
		"level=info msg=\"operation done\" op=CreateVolume subject=base claim=shop/data waiters=2\n");
	const char *got = ASK("Controller", CreateVolume, create_volume);
	take_id(got, "volume_id", volume_id);
	says(told(), "%s",
		"level=info msg=\"operation done\" op=CreateVolume subject=base claim=shop/data\n");
	w->fault_after = 0;
	cr_assert_eq(delete (volume_id), GRPC_INTERNAL);
	w->fault_after = -1;
	const char *line = told();
	static const char failed[] =
		"level=warn msg=\"operation failed\" op=DeleteVolume subject=base claim=shop/data step=";
	cr_expect_eq(strncmp(line, failed, strlen(failed)), 0, "%s", line);
	cr_expect_not_null(strstr(line, " code=internal error="), "%s", line);
	/* What is asked again and again is no news. */
	Csi__V1__GetCapacityRequest capacity = CSI__V1__GET_CAPACITY_REQUEST__INIT;
	cr_assert_eq(call_status("Controller/GetCapacity", &capacity.base), GRPC_OK);
	says(told(), "%s", "");
	log_open(LOG_LEVEL_DEBUG, LOG_FORMAT_LOGFMT);
	cr_assert_eq(call_status("Controller/GetCapacity", &capacity.base), GRPC_OK);
	cr_expect_not_null(strstr(told(), "level=debug msg=\"operation done\" op=GetCapacity"));
	close_logged();
}

Test(csi_tasks, the_log_tells_of_those_that_take_long, .timeout = 120)
{
	static struct world_answer stream;
	Csi__V1__GetMetadataAllocatedRequest req = CSI__V1__GET_METADATA_ALLOCATED_REQUEST__INIT;
	open_logged();
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	char image[128];
	snprintf(image, sizeof(image), "%s/volumes/base", w->pool_path);
	int fd = open(image, O_WRONLY | O_CLOEXEC);
	cr_assert(pwrite(fd, "x", 1, 0) == 1 && pwrite(fd, "x", 1, MIB) == 1);
	close(fd);
	cr_assert_eq(do_snapshot(), GRPC_OK);
	(void)told();
	req.snapshot_id = csi_bytes(snapshot_id);
	req.max_results = 1;
	world_send(w, "SnapshotMetadata/GetMetadataAllocated", &req.base, &stream);
	stream.local.full = true;
	sim_pass_ms(w->reactor.ring, CSI_LONG_MS - 100);
	says(told(), "%s", "");
	for (unsigned i = 1; i <= 3; i++) {
		sim_pass_ms(w->reactor.ring, i == 1 ? 200 : CSI_LONG_MS);
		says(told(),
			"level=info msg=\"operation is still running\" op=GetMetadataAllocated subject=snap step=\"map extents\" s=%u\n",
			i * CSI_LONG_MS / 1000);
	}
	grpc_local_leave(&stream.local);
	world_settle(w);
	says(told(), "%s",
		"level=info msg=\"operation done\" op=GetMetadataAllocated subject=snap client=gone\n");
	world_answer_free(&stream);
	sim_pass_ms(w->reactor.ring, 3 * CSI_LONG_MS);
	says(told(), "%s", "");
	close_logged();
}

/* ---- none begins ---- */

static void on_idle(void *arg)
{
	(*(unsigned *)arg)++;
}

/* As many as there may be, and none while the driver ends. */
Test(csi_tasks, none_begins, .timeout = 120)
{
	unsigned idle = 0;
	open_world(WORLD_XFS, 1, true);
	w->csi->task_count = CSI_TASKS_MAX;
	says(asks_create("base", EMPTY), "8: 4096 operations are running, the limit");
	w->csi->task_count = CSI_TASKS_MAX - 1;
	take_id(asks_create("base", EMPTY), "volume_id", volume_id);
	cr_expect_eq(w->csi->task_count, CSI_TASKS_MAX - 1);
	w->csi->task_count = 0;
	csi_drain(w->csi, on_idle, &idle);
	says(asks_create("other", EMPTY), "14: the driver is shutting down");
	for (unsigned i = 0; i < 100 && idle == 0; i++)
		cr_assert_eq(ring_turn(w->reactor.ring, true), 0);
	cr_expect_geq(idle, 1);
	cr_expect_eq(w->csi->task_count, 0);
	world_restart(w);
	cr_assert_eq(delete (volume_id), GRPC_OK);
	world_close(w);
}
