/* SPDX-License-Identifier: Apache-2.0 */
/* ControllerPublishVolume: which nodes can have a volume together, and the words of each refusal.
 * What is on the nodes already is only noted in memory; a target that takes nothing stands for what
 * comes after the rules. */
#include "answers.h"

#include "node/exports.h"
#include "node/volume.h"
#include "pool/attachment.h"
#include "pool/index.h"
#include "pool/private.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#define UUID   "01234567-89ab-4cde-8f01-23456789abcd"
#define PASSES "9: the rules let it through"

static int takes_nothing(bool auth, bool tls, struct err *err)
{
	(void)auth;
	(void)tls;
	return err_set(err, ERR_PRECONDITION, "the rules let it through");
}

static int makes_nothing(const struct nvmet_export *e, struct err *err)
{
	(void)e;
	return takes_nothing(false, false, err);
}

static int has_nothing(int (*each)(void *arg, const char *subsystem), void *arg)
{
	(void)each;
	(void)arg;
	return 0;
}

static bool is_open(const char *address)
{
	(void)address;
	return true;
}

static const struct export_target target = {
	.check = takes_nothing, .make = makes_nothing, .is_open = is_open, .each = has_nothing};
static struct pool_object *volume;

static void open_ruled(bool as_block)
{
	struct err err = {0};
	open_world(WORLD_EXT4, 1, as_block);
	w->attach = true;
	w->exports = (struct node_exports_config){.address = "192.0.2.1:4420", .target = &target};
	world_restart(w);
	attach_to = "remote";
	cr_assert_eq(create("v", EMPTY, volume_id), GRPC_OK);
	cr_assert_eq(pools_find_id(w->pools, RECORD_VOLUME, volume_id, &volume, &err), 0);
}

static void note(const struct attachment *one)
{
	struct attachments *with = attachments_with(volume->attachments, one);
	cr_assert_not_null(with);
	attachments_free(volume->attachments);
	volume->attachments = with;
}

static void note_none(void)
{
	attachments_free(volume->attachments);
	volume->attachments = NULL;
}

static void close_ruled(void)
{
	note_none();
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	world_close(w);
}

static const char *publishes(const char *node, unsigned mode, bool read_only)
{
	Csi__V1__ControllerPublishVolumeRequest req =
		CSI__V1__CONTROLLER_PUBLISH_VOLUME_REQUEST__INIT;
	access_mode = mode;
	req.volume_id = csi_bytes(volume_id);
	req.node_id = csi_bytes(node);
	req.volume_capability = capability();
	req.readonly = read_only;
	return ASK("Controller", ControllerPublishVolume, controller_publish_volume);
}

static const char *unpublishes(const char *node)
{
	Csi__V1__ControllerUnpublishVolumeRequest req =
		CSI__V1__CONTROLLER_UNPUBLISH_VOLUME_REQUEST__INIT;
	req.volume_id = csi_bytes(volume_id);
	req.node_id = csi_bytes(node);
	return ASK("Controller", ControllerUnpublishVolume, controller_unpublish_volume);
}

static const char *const modes[] = {"", "SINGLE_NODE_WRITER", "SINGLE_NODE_READER_ONLY",
	"MULTI_NODE_READER_ONLY", "MULTI_NODE_SINGLE_WRITER", "MULTI_NODE_MULTI_WRITER",
	"SINGLE_NODE_SINGLE_WRITER", "SINGLE_NODE_MULTI_WRITER"};
enum { MODES = sizeof(modes) / sizeof(modes[0]) };

static bool reads_only(unsigned mode)
{
	return mode == ATTACHMENT_READER_ONLY || mode == ATTACHMENT_MANY_READERS;
}

/* By the mode that one node has (row) and another one asks for: '.': never; 'r': if one of them
 * only reads; 's': always. Those that are for readers only read whatever is asked. */
static const char *const together[MODES] = {
	"", "        ", "........", "...sss..", "...srr..", "...srs..", "........", "........"};

Test(attach_rules, who_can_have_it_together, .timeout = 120)
{
	open_ruled(true);
	for (unsigned n = 0; n < 4u * MODES * MODES; n++) {
		unsigned has = n / 4 / MODES, wants = n / 4 % MODES;
		if (has == 0 || wants == 0)
			continue;
		bool reads = reads_only(has) || n % 2 == 1;
		bool shared = together[has][wants] == 's' ||
			      (together[has][wants] == 'r' && (reads || n / 2 % 2 == 1));
		note(&(struct attachment){.node = "node-3",
			.mode = has,
			.block = true,
			.read_only = reads,
			.export = UUID,
			.key = ""});
		const char *got = publishes("node-2", wants, n / 2 % 2 == 1);
		if (shared)
			says(got, PASSES);
		else
			says(got,
				"9: volume v is attached to node node-3 as %s; ControllerUnpublishVolume first",
				modes[has]);
		note_none();
	}
	close_ruled();
}

/* On a node that has it already, in another way. */
Test(attach_rules, a_node_has_it_in_one_way, .timeout = 120)
{
	open_ruled(true);
	for (unsigned n = 0; n < 4u * MODES; n++) {
		struct attachment has = {.node = "node-2",
			.mode = n / 4,
			.block = n % 2 == 0,
			.read_only = n / 2 % 2 == 1,
			.export = UUID,
			.key = ""};
		if (has.mode == 0)
			continue;
		note(&has);
		const char *got = publishes("node-2", ATTACHMENT_MANY_WRITERS, false);
		if (has.mode == ATTACHMENT_MANY_WRITERS && has.block && !has.read_only)
			says(got, PASSES);
		else
			says(got,
				"6: volume v is attached to node node-2 already, as a %s volume, %s, %s; ControllerUnpublishVolume first",
				has.block ? "block" : "mount", modes[has.mode],
				has.read_only ? "read-only" : "writable");
		note_none();
	}
	close_ruled();
}

Test(attach_rules, so_many_nodes, .timeout = 120)
{
	open_ruled(false);
	for (unsigned i = 0; i < ATTACHMENTS_MAX; i++) {
		char node[16];
		snprintf(node, sizeof(node), "other-%u", i);
		says(publishes("node-2", ATTACHMENT_MANY_READERS, false), PASSES);
		note(&(struct attachment){.node = node,
			.mode = ATTACHMENT_MANY_READERS,
			.read_only = true,
			.export = UUID,
			.key = ""});
	}
	says(publishes("node-2", ATTACHMENT_MANY_READERS, false),
		"8: volume v is attached to 32 nodes, and to no more");
	says(publishes("other-7", ATTACHMENT_MANY_READERS, false), PASSES);
	close_ruled();
}

/* The own node has a device of its own, which others' limits are nothing to. */
Test(attach_rules, so_many_volumes_of_the_own_node, .timeout = 120)
{
	open_ruled(true);
	char ids[2][RECORD_ID_MAX];
	memcpy(ids[0], volume_id, sizeof(ids[0]));
	cr_assert_eq(create("second", EMPTY, ids[1]), GRPC_OK);
	w->csi->config.max_volumes = 2;
	note(&(struct attachment){.node = "node-1",
		.mode = ATTACHMENT_WRITER,
		.block = true,
		.export = "",
		.key = ""});
	says(publishes("node-1", ATTACHMENT_WRITER, false), "%s", "");
	memcpy(volume_id, ids[1], sizeof(volume_id));
	w->csi->config.max_volumes = 1;
	says(publishes("node-1", ATTACHMENT_WRITER, false),
		"8: node node-1 has 1 volumes attached already, and --max-volumes-per-node is as many");
	says(publishes("node-2", ATTACHMENT_WRITER, false), PASSES);
	w->csi->config.max_volumes = 2;
	says(publishes("node-1", ATTACHMENT_WRITER, false), "%s", "");
	w->csi->config.max_volumes = 1; /* what is there stays */
	says(publishes("node-1", ATTACHMENT_WRITER, false), "%s", "");
	says(unpublishes("node-1"), "%s", "");
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	memcpy(volume_id, ids[0], sizeof(volume_id));
	close_ruled();
}

Test(attach_rules, other_nodes_are_refused_by_name, .timeout = 120)
{
	open_ruled(true);
	volume->rec->attach = RECORD_ATTACH_LOCAL;
	says(publishes("node-2", ATTACHMENT_WRITER, false),
		"5: volume v: this driver knows one node, its own, which is node-1 and not node-2");
	w->csi->config.clustered = true;
	says(publishes("node-2", ATTACHMENT_WRITER, false),
		"9: volume v is on node node-1 and can be used there alone, not on node node-2: its class did not say attach: remote when it was made");
	volume->rec->attach = RECORD_ATTACH_REMOTE;
	says(publishes("node-2", ATTACHMENT_WRITER, false), PASSES);
	const struct node_exports_config *exports = w->csi->node->export_config;
	static const char none[] =
		"9: volume v is on node node-1, whose driver exports nothing: give it --export-address";
	struct node_exports_config without = *exports;
	without.address = NULL;
	w->csi->node->export_config = &without;
	says(publishes("node-2", ATTACHMENT_WRITER, false), none);
	w->csi->node->export_config = NULL;
	says(publishes("node-2", ATTACHMENT_WRITER, false), none);
	w->csi->node->export_config = exports;
	volume->rec->allow_mode_change = true;
	says(publishes("node-2", ATTACHMENT_WRITER, false), PASSES);
	block = false;
	says(publishes("node-2", ATTACHMENT_WRITER, false),
		"9: volume v was made as a block volume, and can be mounted on its own node alone, node-1");
	says(publishes("node-1", ATTACHMENT_WRITER, false), "%s", "");
	block = true;
	says(unpublishes(""), "%s", "");
	close_ruled();
}

/* Mounted there from before there were attachments; where one says so it is what it says. */
Test(attach_rules, used_on_its_own_node, .timeout = 120)
{
	open_ruled(true);
	struct node_volume *nv = node_volume_get(volume);
	says(publishes("node-2", ATTACHMENT_MANY_WRITERS, false), PASSES);
	cr_assert_eq(node_volume_add_mount(nv, "/mnt/v", false, false), 0);
	says(publishes("node-2", ATTACHMENT_MANY_WRITERS, false),
		"9: volume v is in use on its own node, node-1: mounted at /mnt/v; unpublish and unstage it there first");
	note(&(struct attachment){.node = "node-1",
		.mode = ATTACHMENT_MANY_WRITERS,
		.block = true,
		.export = "",
		.key = ""});
	says(publishes("node-2", ATTACHMENT_MANY_WRITERS, false), PASSES);
	node_volume_remove_mount(nv, "/mnt/v");
	node_volume_forget(volume);
	close_ruled();
}

/* Nothing but the look for devices of earlier runs tells of such a use. */
Test(attach_rules, it_may_be_used_on_its_own_node, .timeout = 120)
{
	struct err err = {0};
	open_ruled(true);
	w->scan_faults = 1;
	world_restart(w);
	cr_assert_eq(pools_find_id(w->pools, RECORD_VOLUME, volume_id, &volume, &err), 0);
	says(publishes("node-2", ATTACHMENT_MANY_WRITERS, false),
		"14: volume v: devices of an earlier run are still being looked for; try again");
	cr_expect_null(volume->attachments);
	world_settle(w);
	says(publishes("node-2", ATTACHMENT_MANY_WRITERS, false), PASSES);
	close_ruled();
}

/* The own device is read-only for all or for nobody. */
Test(attach_rules, a_read_only_device_beside_others, .timeout = 120)
{
	static const struct {
		const char *has, *wants;
		bool has_block, has_reads, reads;
		const char *want;
	} all[] = {
		{"node-1", "node-2", true, true, true,
			"9: volume v: its own node, node-1, cannot have a block volume read-only beside node node-2"},
		{"node-1", "node-2", true, false, true, PASSES},
		{"node-1", "node-2", false, true, true, PASSES},
		{"node-3", "node-2", true, true, true, PASSES},
		{"node-3", "node-1", true, false, true,
			"9: volume v: its own node, node-1, cannot have a block volume read-only beside node node-3"},
		{"node-3", "node-1", true, false, false, ""},
	};
	open_ruled(true);
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		note(&(struct attachment){.node = all[i].has,
			.mode = ATTACHMENT_MANY_WRITERS,
			.block = all[i].has_block,
			.read_only = all[i].has_reads,
			.export = strcmp(all[i].has, "node-1") == 0 ? "" : UUID,
			.key = ""});
		says(publishes(all[i].wants, ATTACHMENT_MANY_WRITERS, all[i].reads), "%s",
			all[i].want);
		note_none();
	}
	close_ruled();
}

/* Of a volume that cannot be found now nobody knows on which nodes it is; one that is gone for good
 * is on none. */
Test(attach_rules, an_unpublish_while_the_pool_is_away, .timeout = 120)
{
	char away[200];
	open_ruled(true);
	struct pool *pool = pools_at(w->pools, 0);
	says(publishes("node-1", ATTACHMENT_WRITER, false), "%s", "");
	snprintf(away, sizeof(away), "14: volume %s: it is gone", volume_id);
	pool_enter(pool, POOL_AWAY, "it is gone");
	says(unpublishes("node-1"), "%s", away);
	says(unpublishes(""), "%s", away);
	pool_enter(pool, POOL_READ_ONLY, "it cannot be written");
	says(unpublishes("node-2"), "%s", ""); /* where it is not */
	says(unpublishes("node-1"), "14: it cannot be written");
	says(unpublishes(""), "14: it cannot be written");
	cr_expect_not_null(attachments_find(volume->attachments, "node-1"));
	pool_enter(pool, POOL_SERVED, "%s", "");
	world_adopt(w);
	says(unpublishes("node-1"), "%s", "");
	cr_expect_null(volume->attachments);
	pool_enter(pool, POOL_READ_ONLY, "it cannot be written");
	says(unpublishes(""), "%s", ""); /* it is nowhere */
	pool_enter(pool, POOL_SERVED, "%s", "");
	world_adopt(w);
	close_ruled();
}

/* Those of other nodes keep it from being used in two places, whatever the driver was started with;
 * its own mean something to one that is asked for attachments alone. */
Test(attach_rules, the_own_nodes_use, .timeout = 120)
{
	static const struct {
		bool attaches, own, other; /* the driver, and the nodes that have it */
		const char *stage, *delete;
		bool reads; /* as its own attachment says */
	} all[] = {
		{true, false, false, "", "", false},
		{false, false, false, "", "", false},
		{true, true, false, "",
			"9: volume v is in use: attached to node node-1; ControllerUnpublishVolume ends that",
			true},
		{false, true, false, "", "", false},
		{true, true, true, "",
			"9: volume v is in use: attached to node node-2; ControllerUnpublishVolume ends that",
			true},
		{false, true, true, "",
			"9: volume v is in use: attached to node node-2; ControllerUnpublishVolume ends that, with --attach",
			true},
		{true, false, true,
			"9: volume v is attached to node node-2, and not to this one, node-1; ControllerUnpublishVolume ends that",
			"9: volume v is in use: attached to node node-2; ControllerUnpublishVolume ends that",
			false},
		{false, false, true,
			"9: volume v is attached to node node-2, and not to this one, node-1; ControllerUnpublishVolume ends that, with --attach",
			"9: volume v is in use: attached to node node-2; ControllerUnpublishVolume ends that, with --attach",
			false},
	};
	const struct attachment own = {.node = "node-1",
		.mode = ATTACHMENT_MANY_READERS,
		.read_only = true,
		.export = "",
		.key = ""};
	struct attachment other = own;
	other.node = "node-2";
	other.export = UUID;
	open_ruled(false);
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		w->csi->config.attach = all[i].attaches;
		if (all[i].own)
			note(&own);
		if (all[i].other)
			note(&other);
		says(asks_stage(), "%s", all[i].stage);
		const struct node_volume *nv = node_volume_find(volume);
		if (all[i].stage[0] == '\0') {
			cr_assert(nv != NULL && !list_empty(&nv->mounts));
			cr_expect_eq(
				container_of(nv->mounts.next, struct node_mount, link)->read_only,
				all[i].reads, "%u", i);
			cr_assert_eq(undo_stage(), GRPC_OK);
		}
		if (all[i].delete[0] != '\0')
			says(asks_delete(), "%s", all[i].delete);
		note_none();
	}
	/* What was exported has kept its device. */
	w->csi->config.attach = false;
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	note(&own);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK, "it means nothing then");
	world_close(w);
}
