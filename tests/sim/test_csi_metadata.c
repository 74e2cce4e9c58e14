/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of SnapshotMetadata and their clients: one that reads slowly, not at all, or leaves; what
 * is locked meanwhile; and what cannot be told. */
#include "answers.h"

#include "csi/stream.h"
#include "pool/index.h"
#include "pool/private.h"

#include "csi_calls.h"
#include <criterion/criterion.h>
#include <errno.h>
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
	/* Both, with the key of one volume, and then of two. */
	snprintf(image, sizeof(image), "%s/snapshots/one", w->pool_path);
	cr_assert_eq(truncate(image, (off_t)luks_image_bytes(create_bytes)), 0);
	struct record *base = pools_find_name(w->pools, RECORD_SNAPSHOT, "one")->rec;
	base->encryption = RECORD_LUKS2;
	says(ask("SnapshotMetadata/GetMetadataDelta", &delta,
		     &csi__v1__get_metadata_delta_response__descriptor),
		"block_metadata_type=2 volume_capacity_bytes=16777216 "
		"block_metadata{byte_offset=12288 size_bytes=4096}");
	const char *source_id = base->source_id;
	base->source_id = "another";
	says(ask("SnapshotMetadata/GetMetadataDelta", &delta,
		     &csi__v1__get_metadata_delta_response__descriptor),
		"9: base_snapshot_id: snapshots one and two are of different volumes, and encrypted; back up all of the target");
	base->source_id = source_id;
	rec->encryption = base->encryption = RECORD_PLAIN;
	close_snapshots();
}

/* ---- which ranges ---- */

static char gathered[5900];

/* What an answer so far has been: "offset+size" of each range, "|" behind each message. */
static void gather(const ProtobufCMessageDescriptor *response)
{
	size_t len = strlen(gathered);
	ProtobufCMessage *message =
		protobuf_c_message_unpack(response, NULL, stream.len, stream.data);
	cr_assert_not_null(message);
	/* Both answers have the same fields. */
	const Csi__V1__GetMetadataAllocatedResponse *told = (const void *)message;
	cr_assert_eq(told->volume_capacity_bytes, (int64_t)create_bytes);
	cr_assert_eq(told->block_metadata_type, CSI__V1__BLOCK_METADATA_TYPE__VARIABLE_LENGTH);
	for (size_t i = 0; i < told->n_block_metadata; i++)
		len += (size_t)snprintf(gathered + len, sizeof(gathered) - len, "%s%lld+%lld",
			i == 0 ? "" : " ", (long long)told->block_metadata[i]->byte_offset,
			(long long)told->block_metadata[i]->size_bytes);
	snprintf(gathered + len, sizeof(gathered) - len, "|");
	protobuf_c_message_free_unpacked(message, NULL);
}

/* Of snapshot_id; delta: to base_id. Or the status and message that it ends with. */
static const char *ranges(bool delta, int64_t offset, int32_t max_results)
{
	Csi__V1__GetMetadataAllocatedRequest all = CSI__V1__GET_METADATA_ALLOCATED_REQUEST__INIT;
	Csi__V1__GetMetadataDeltaRequest pair_of = CSI__V1__GET_METADATA_DELTA_REQUEST__INIT;
	all.snapshot_id = pair_of.target_snapshot_id = csi_bytes(snapshot_id);
	pair_of.base_snapshot_id = csi_bytes(base_id);
	all.starting_offset = pair_of.starting_offset = offset;
	all.max_results = pair_of.max_results = max_results;
	gathered[0] = '\0';
	world_send(w,
		delta ? "SnapshotMetadata/GetMetadataDelta"
		      : "SnapshotMetadata/GetMetadataAllocated",
		delta ? &pair_of.base : &all.base, &stream);
	stream.local.full = true;
	for (unsigned seen = 0; !stream.ended;) {
		turn(1);
		if (stream.messages == seen)
			continue;
		cr_assert_eq(stream.messages, ++seen);
		gather(delta ? &csi__v1__get_metadata_delta_response__descriptor
			     : &csi__v1__get_metadata_allocated_response__descriptor);
		grpc_local_read(&stream.local, false);
	}
	if (stream.status != GRPC_OK)
		snprintf(gathered, sizeof(gathered), "%d: %s", stream.status, stream.message);
	world_answer_free(&stream);
	return gathered;
}

/* So many in a message, from where the client goes on. */
Test(csi_metadata, in_messages_as_they_are_asked_for, .timeout = 60)
{
	static const struct {
		int64_t offset;
		int32_t max_results;
		const char *want;
	} table[] = {
		{0, 0, "8192+4096 16384+4096 24576+4096 32768+4096|"},
		{0, 4, "8192+4096 16384+4096 24576+4096 32768+4096|"},
		{0, INT32_MAX, "8192+4096 16384+4096 24576+4096 32768+4096|"},
		{0, 3, "8192+4096 16384+4096 24576+4096|32768+4096|"},
		{0, 1, "8192+4096|16384+4096|24576+4096|32768+4096|"},
		{8192, 0, "8192+4096 16384+4096 24576+4096 32768+4096|"},
		{12288, 2, "16384+4096 24576+4096|32768+4096|"},
		{24576, 0, "24576+4096 32768+4096|"},
		{36864, 0, ""},
		{16 * MIB, 0, ""},
		{16 * MIB + 1, 0,
			"11: starting_offset: 16777217 is not within the 16777216 bytes of snapshot two"},
		{-1, 0, "11: starting_offset: -1 is not within the 16777216 bytes of snapshot two"},
		{0, -1, "3: max_results: is negative"},
	};
	open_snapshots();
	for (unsigned i = 0; i < 2 * sizeof(table) / sizeof(table[0]); i++)
		says(ranges(i % 2 != 0, table[i / 2].offset, table[i / 2].max_results), "%s",
			table[i / 2].want);
	close_snapshots();
}

/* A look takes in 256 extents: what goes on in the next one comes out whole, and nothing comes
 * twice or not at all. */
Test(csi_metadata, over_many_looks, .timeout = 120)
{
	char want[5900];
	size_t len = 0;
	open_snapshots();
	snapshot_name = "three";
	write_blocks(2, 300);
	cr_assert_eq(delete_snapshot_of(snapshot_id), GRPC_OK);
	cr_assert_eq(do_snapshot(), GRPC_OK);
	for (unsigned i = 0; i < 300; i++)
		len += (size_t)snprintf(
			want + len, sizeof(want) - len, "%u+4096|", 8192 + i * 8192);
	for (unsigned delta = 0; delta < 2; delta++)
		says(ranges(delta, 0, 1), "%s", want);
	/* All of it is written then: the looks end where the base's extents do, in one range. */
	cr_assert_eq(delete_snapshot_of(base_id), GRPC_OK);
	strcpy(base_id, snapshot_id);
	for (unsigned first = 2; first < 4; first++)
		write_blocks(first, 300);
	snapshot_name = "four";
	cr_assert_eq(do_snapshot(), GRPC_OK);
	says(ranges(true, 0, 0), "8192+2457600|");
	says(ranges(true, 8192 + 4096, 0), "12288+2453504|");
	close_snapshots();
}

/* Behind the end of a base that was smaller all is new. */
Test(csi_metadata, of_a_volume_that_has_grown, .timeout = 60)
{
	open_snapshots();
	cr_assert_eq(expand(17 * MIB), GRPC_OK);
	create_bytes = 17 * MIB;
	snapshot_name = "three";
	cr_assert_eq(delete_snapshot_of(snapshot_id), GRPC_OK);
	cr_assert_eq(do_snapshot(), GRPC_OK);
	says(ranges(true, 0, 0), "8192+4096 16384+4096 24576+4096 32768+4096 16777216+1048576|");
	says(ranges(true, 36864, 0), "16777216+1048576|");
	says(ranges(true, 16 * MIB, 0), "16777216+1048576|");
	says(ranges(true, 16 * MIB + 4096, 0), "16781312+1044480|");
	says(ranges(true, 17 * MIB, 0), "%s", "");
	says(ranges(false, 36864, 0), "%s", "");
	close_snapshots();
}

/* ---- what cannot be told ---- */

static int look_res;

static int look_fails(void *arg, const char *op_name, const char *step_name)
{
	(void)arg;
	(void)op_name;
	return strcmp(step_name, "map extents") == 0 ? look_res : 0;
}

Test(csi_metadata, a_look_that_fails, .timeout = 60)
{
	static const struct {
		int res;
		const char *want;
	} table[] = {
		{-EBUSY,
			"14: pool default: its btrfs moves data about (), so it cannot be told what has changed; try again when that is over, or back up all of the snapshot"},
		{-EAGAIN,
			"14: pool default: its file system is moving the blocks of snapshot one (a defragmentation?); try again when that is over"},
		{-EOPNOTSUPP,
			"9: pool default: its file system does not tell where files lie (FIEMAP); back up all of the snapshot"},
		{-EIO, "13: finding the extents of snapshot two: Input/output error"},
	};
	open_snapshots();
	int (*hook)(void *, const char *, const char *) = w->observer.before_call;
	w->observer.before_call = look_fails;
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		look_res = table[i].res;
		says(ranges(true, 0, 0), "%s", table[i].want);
		cr_expect_eq(w->csi->task_count, 0);
	}
	w->observer.before_call = hook;
	close_snapshots();
}

Test(csi_metadata, where_nothing_is_shared, .timeout = 60)
{
	open_world(WORLD_EXT4, 1, true);
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	snapshot_name = "one";
	cr_assert_eq(do_snapshot(), GRPC_OK);
	strcpy(base_id, snapshot_id);
	snapshot_name = "two";
	cr_assert_eq(do_snapshot(), GRPC_OK);
	says(ranges(true, 0, 0),
		"9: pool default: on its file system snapshots share no blocks, or nobody knows which, so it cannot be told what has changed; back up all of the target, or keep volumes in a pool on XFS or btrfs");
	says(ranges(false, 0, 0), "%s", "");
	struct pool_object *one = pools_find_name(w->pools, RECORD_SNAPSHOT, "one");
	struct pool *pool = one->pool;
	char elsewhere[] = "elsewhere";
	struct pool other = {.name = elsewhere, .life = POOL_SERVED};
	memcpy(other.uuid8, pool->uuid8, sizeof(other.uuid8));
	one->pool = &other;
	says(ranges(true, 0, 0),
		"9: base_snapshot_id: snapshot one is in pool elsewhere, and two in pool default, so they share nothing; back up all of the target");
	one->pool = pool;
	snapshot_id[0] = snapshot_id[0] == '0' ? '1' : '0';
	cr_expect_not_null(strstr(ranges(false, 0, 0), "no pool on this node has the uuid"));
	snapshot_id[0] = base_id[0];
	base_id[9] = 'x';
	cr_expect_eq(strncmp(ranges(true, 0, 0), "5: snapshot ", 12), 0, "%s", gathered);
	world_close(w);
}
