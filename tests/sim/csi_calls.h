/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of test_csi and test_adopt ask a world's driver for, and of what; each test has a
 * process of its own, and so all of this to itself. */
#ifndef RINGVOL_TESTS_CSI_CALLS_H
#define RINGVOL_TESTS_CSI_CALLS_H

#include "attach/terms.h"
#include "world.h"

enum { INVENTORY_BYTES = 8192 };

#define MIB (1ULL << 20)

extern struct world *w;
extern char volume_id[RECORD_ID_MAX], other_id[RECORD_ID_MAX], snapshot_id[RECORD_ID_MAX];
extern char staging_path[96], target_path[96];
/* What volumes are asked for as, and published. */
extern bool block, publish_read_only, mode_change, access_read_only;
extern unsigned access_mode;  /* by its number; 0: as the bools say */
extern const char *attach_to; /* NULL: the class does not say */
extern const char *fs_type, *device_type, *encryption, *provisioning;
/* The publish_context of stages and publishes; none: the volume is this node's own. */
extern const struct attach_pair *context;
extern size_t context_count;
Csi__V1__StringPair **context_message(size_t *ret_count);
/* What the stage's secrets have as the key; NULL: they have none. */
extern const char *stage_key;
extern const char *mount_flag; /* of every capability; NULL: none */
extern uint64_t create_bytes;
extern const char *snapshot_name, *snapshot_freeze;
extern const char *source_image; /* that the class names; NULL: none */

/* The test is skipped where there can be none. */
void open_world(enum world_fs fs, uint64_t seed, bool as_block);

enum source { EMPTY, FROM_VOLUME, FROM_SNAPSHOT }; /* volume_id, snapshot_id */

Csi__V1__VolumeCapability *capability(void);
/* Where volume_id or snapshot_id is what a volume begins as; EMPTY: NULL. Static, until the next.
 */
Csi__V1__VolumeContentSource *content_source(enum source from);
/* A record with nothing special, on the heap. */
struct record *plain_record(
	enum record_kind kind, const char *name, const char *random, uint64_t size_bytes);
enum grpc_status call(
	const char *method, const ProtobufCMessage *request, struct world_answer *answer);
enum grpc_status call_status(const char *method, const ProtobufCMessage *request);

enum grpc_status create(const char *name, enum source source, char *ret_id);
enum grpc_status delete (const char *id);
/* A device that was just cleared lives on while somebody on this machine looks at it (losetup -a,
 * another driver that starts), and the image's lock with it. The driver waits for that, but here
 * its clock is not the one on the wall. */
enum grpc_status delete_patiently(const char *id);

/* Of volume_id. */
enum grpc_status expand(uint64_t size_bytes);
/* By its node alone, at its target. */
enum grpc_status node_expand(uint64_t size_bytes);
/* Of a volume "other" (other_id), and of a clone of volume_id. */
enum grpc_status do_create(void), do_clone(void), undo_create(void);
/* The volume's record says that it was born in another pool; the driver is restarted, and id is
 * what it has by that. */
void bear_elsewhere(const char *name, char id[RECORD_ID_MAX]);

/* Of volume_id; the snapshot's name is snapshot_name. */
enum grpc_status do_snapshot(void), undo_snapshot(void);
/* Requests about volume_id at its paths, as the variables above say; without secrets. */
Csi__V1__NodeStageVolumeRequest stage_request(void);
Csi__V1__NodeUnstageVolumeRequest unstage_request(void);
Csi__V1__NodePublishVolumeRequest publish_request(void);
Csi__V1__NodeUnpublishVolumeRequest unpublish_request(void);
Csi__V1__NodeGetVolumeStatsRequest stats_request(void);
enum grpc_status do_stage(void), undo_stage(void);
enum grpc_status do_publish(void), undo_publish(void);
enum grpc_status do_stats(void);
/* Of snapshot_id, and to itself. */
enum grpc_status do_allocated(void), do_delta(void);
/* What `ringvol import` makes: snapshot_id is that of the golden image, of create_bytes. */
void make_image(const char *name);
/* Of what is staged, or mounted at path. A freeze tells, and changes nothing that a thaw does not
 * take back. */
bool is_frozen(void), is_frozen_at(const char *path);
/* Frozen by us, as an attempt cut short leaves it. Its name is "base". */
void leave_frozen(void);
void leave_frozen_image(const char *image); /* mounted at staging_path */

/* Of "base": zeros, and what a command for the shell makes of $i. */
void fill_image(const char *command);
/* What stands for a tool of the system's while tools_alone(true) is said; NULL: there is none. */
void put_tool(const char *name, const char *script);
void tools_alone(bool alone);

/* Nothing is attached and nothing is mounted any more, or it is said what is. */
void no_device(void);

#endif
