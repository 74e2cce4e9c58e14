/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of SnapshotMetadata and their clients: one that reads slowly, not at all, or leaves; what
 * is locked meanwhile; and what cannot be told. */
#include "answers.h"

#include "csi/stream.h"
#include "pool/index.h"
#include "pool/private.h"

#include "csi_calls.h"
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char base_id[RECORD_ID_MAX];
static struct world_answer stream;

static void write_blocks(unsigned first, unsigned count)
{
	char image[128], data[4096];
	memset(data, (int)('a' + first), sizeof(data));
	snprintf(image, sizeof(image), "%s/volumes/base", w->pool_path);
	int fd = open(image, O_WRONLY | O_CLOEXEC);
	cr_assert_geq(fd, 0);
	for (unsigned i = 0; i < count; i++)
		cr_assert_eq(pwrite(fd, data, sizeof(data),
				     (off_t)(first + 2 * i) * (off_t)sizeof(data)),
			(ssize_t)sizeof(data));
	cr_assert_eq(fsync(fd), 0);
	close(fd);
}

/* A volume with two snapshots, base_id and snapshot_id, that differ in four ranges. */
static void open_snapshots(void)
{
	open_world(WORLD_XFS, 1, true);
	if (!w->mounted)
		cr_skip_test("no XFS here");
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	snapshot_name = "one";
	cr_assert_eq(do_snapshot(), GRPC_OK);
	strcpy(base_id, snapshot_id);
	write_blocks(2, 4);
	snapshot_name = "two";
	cr_assert_eq(do_snapshot(), GRPC_OK);
}

static void turn(unsigned turns)
{
	for (unsigned i = 0; i < turns; i++)
		cr_assert_eq(ring_turn(w->reactor.ring, true), 0);
}

/* Begins a delta, a range a message, whose client reads nothing. */
static void begin(void)
{
	Csi__V1__GetMetadataDeltaRequest req = CSI__V1__GET_METADATA_DELTA_REQUEST__INIT;
	req.base_snapshot_id = csi_bytes(base_id);
	req.target_snapshot_id = csi_bytes(snapshot_id);
	req.max_results = 1;
	world_send(w, "SnapshotMetadata/GetMetadataDelta", &req.base, &stream);
	stream.local.full = true;
	for (unsigned i = 0; i < 1000 && stream.messages == 0 && !stream.ended; i++)
		turn(1);
	cr_assert_eq(stream.messages, 1);
}

static enum grpc_status delete_snapshot_of(const char *id)
{
	Csi__V1__DeleteSnapshotRequest req = CSI__V1__DELETE_SNAPSHOT_REQUEST__INIT;
	req.snapshot_id = csi_bytes(id);
	return call_status("Controller/DeleteSnapshot", &req.base);
}

static void close_snapshots(void)
{
	world_settle(w);
	cr_assert_eq(w->csi->task_count, 0);
	cr_assert_eq(delete_snapshot_of(base_id), GRPC_OK);
	cr_assert_eq(delete_snapshot_of(snapshot_id), GRPC_OK);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	world_close(w);
}

/* Nothing more is made for it than it reads; both snapshots stay until it has all. */
Test(csi_metadata, reads_one_by_one, .timeout = 60)
{
	open_snapshots();
	begin();
	for (unsigned read = 1; read < 4; read++) {
		turn(10);
		cr_assert_eq(stream.messages, read);
		cr_assert_eq(delete_snapshot_of(base_id), GRPC_ABORTED);
		cr_assert_eq(delete_snapshot_of(snapshot_id), GRPC_ABORTED);
		grpc_local_read(&stream.local, false);
		for (unsigned i = 0; i < 100 && stream.messages == read; i++)
			turn(1);
	}
	cr_assert_not(stream.ended);
	grpc_local_read(&stream.local, true);
	world_wait(w, &stream);
	cr_assert_eq(stream.status, GRPC_OK);
	cr_assert_eq(stream.messages, 4);
	world_answer_free(&stream);
	close_snapshots();
}

Test(csi_metadata, reads_nothing, .timeout = 60)
{
	open_snapshots();
	uint64_t began = ring_now_ns(w->reactor.ring);
	begin();
	world_wait(w, &stream);
	cr_assert_eq(stream.status, GRPC_DEADLINE_EXCEEDED);
	cr_assert_not_null(strstr(stream.message, "starting_offset"), "%s", stream.message);
	cr_assert_geq(ring_now_ns(w->reactor.ring) - began, CSI_READER_MS * UINT64_C(1000000));
	world_answer_free(&stream);
	close_snapshots();
}

Test(csi_metadata, leaves, .timeout = 60)
{
	open_snapshots();
	begin();
	grpc_local_leave(&stream.local);
	world_settle(w);
	cr_assert_not(stream.ended);
	cr_assert_eq(w->csi->task_count, 0);
	world_answer_free(&stream);
	/* Before anything was sent: while the images are being opened. */
	Csi__V1__GetMetadataAllocatedRequest req = CSI__V1__GET_METADATA_ALLOCATED_REQUEST__INIT;
	req.snapshot_id = csi_bytes(snapshot_id);
	for (unsigned turns = 0; turns < 8; turns++) {
		world_send(w, "SnapshotMetadata/GetMetadataAllocated", &req.base, &stream);
		turn(turns);
		grpc_local_leave(&stream.local);
		world_settle(w);
		cr_assert_eq(w->csi->task_count, 0);
		world_answer_free(&stream);
	}
	close_snapshots();
}

static void on_idle(void *arg)
{
	*(bool *)arg = true;
}

Test(csi_metadata, the_driver_ends, .timeout = 60)
{
	bool idle = false;
	open_snapshots();
	begin();
	csi_drain(w->csi, on_idle, &idle);
	world_wait(w, &stream);
	cr_assert_eq(stream.status, GRPC_UNAVAILABLE);
	turn(10);
	cr_assert(idle);
	world_answer_free(&stream);
	world_restart(w);
	close_snapshots();
}

/* ---- how many ---- */

Test(csi_metadata, more_than_there_may_be, .timeout = 60)
{
	static struct world_answer many[32];
	Csi__V1__GetMetadataAllocatedRequest req = CSI__V1__GET_METADATA_ALLOCATED_REQUEST__INIT;
	open_snapshots();
	req.snapshot_id = csi_bytes(snapshot_id);
	req.max_results = 1;
	for (unsigned i = 0; i < 32; i++) {
		world_send(w, "SnapshotMetadata/GetMetadataAllocated", &req.base, &many[i]);
		many[i].local.full = true;
	}
	says(ASK("SnapshotMetadata", GetMetadataAllocated, get_metadata_allocated),
		"8: 32 clients are told of snapshots' blocks already; try again later");
	for (unsigned i = 0; i < 32; i++) {
		grpc_local_read(&many[i].local, true);
		world_wait(w, &many[i]);
		cr_assert_eq(many[i].status, GRPC_OK);
		world_answer_free(&many[i]);
	}
	close_snapshots();
}

/* ---- what is wrong with an image ---- */

Test(csi_metadata, a_damaged_image, .timeout = 60)
{
	char image[128], away[128];
	open_snapshots();
	snprintf(image, sizeof(image), "%s/snapshots/two", w->pool_path);
	snprintf(away, sizeof(away), "%s/away", w->dir);
	Csi__V1__GetMetadataAllocatedRequest req = CSI__V1__GET_METADATA_ALLOCATED_REQUEST__INIT;
	req.snapshot_id = csi_bytes(snapshot_id);
	cr_assert_eq(truncate(image, 4096), 0);
	says(ASK("SnapshotMetadata", GetMetadataAllocated, get_metadata_allocated),
		"15: snapshot two: its image is shorter than it was");
	cr_assert_eq(truncate(image, (off_t)create_bytes), 0);
	cr_assert_eq(do_allocated(), GRPC_OK);
	char other[160];
	snprintf(other, sizeof(other), "%s/templates/two", w->pool_path);
	cr_assert_eq(rename(image, other), 0);
	cr_assert_eq(do_delta(), GRPC_INTERNAL);
	cr_assert_eq(rename(other, image), 0);
	cr_assert_eq(do_delta(), GRPC_OK);
	close_snapshots();
}

/* ---- encrypted ---- */

/* Ranges are the volume's bytes: what lies before them is the header's. */
Test(csi_metadata, behind_a_header, .timeout = 60)
{
	open_snapshots();
	struct pool_object *object =
		pool_next_object(pools_at(w->pools, 0), RECORD_SNAPSHOT, "one");
	struct record *rec = object->rec;
	Csi__V1__GetMetadataAllocatedRequest req = CSI__V1__GET_METADATA_ALLOCATED_REQUEST__INIT;
	req.snapshot_id = csi_bytes(snapshot_id);
	/* As if the first MiB of the image were not the volume's: the header's room is larger than
	 * this image, so its size is taken for what remains. */
	cr_assert_str_eq(object->key, "two");
	says(ASK("SnapshotMetadata", GetMetadataAllocated, get_metadata_allocated),
		"block_metadata_type=2 volume_capacity_bytes=16777216 "
		"block_metadata{byte_offset=8192 size_bytes=4096} "
		"block_metadata{byte_offset=16384 size_bytes=4096} "
		"block_metadata{byte_offset=24576 size_bytes=4096} "
		"block_metadata{byte_offset=32768 size_bytes=4096}");
	char image[128];
	snprintf(image, sizeof(image), "%s/snapshots/two", w->pool_path);
	int fd = open(image, O_WRONLY | O_CLOEXEC);
	cr_assert_geq(fd, 0);
	cr_assert_eq(ftruncate(fd, (off_t)luks_image_bytes(create_bytes)), 0);
	cr_assert_eq(pwrite(fd, "x", 1, (off_t)LUKS_HEADER_BYTES + 3 * 4096), 1);
	cr_assert_eq(fsync(fd), 0);
	close(fd);
	rec->encryption = RECORD_LUKS2;
	says(ASK("SnapshotMetadata", GetMetadataAllocated, get_metadata_allocated),
		"block_metadata_type=2 volume_capacity_bytes=16777216 "
		"block_metadata{byte_offset=12288 size_bytes=4096}");
	Csi__V1__GetMetadataDeltaRequest delta = CSI__V1__GET_METADATA_DELTA_REQUEST__INIT;
	delta.base_snapshot_id = csi_bytes(base_id);
	delta.target_snapshot_id = csi_bytes(snapshot_id);
	says(ask("SnapshotMetadata/GetMetadataDelta", &delta,
		     &csi__v1__get_metadata_delta_response__descriptor),
		"9: base_snapshot_id: snapshots one and two are of different volumes, and encrypted; back up all of the target");
	rec->encryption = RECORD_PLAIN;
	close_snapshots();
}
