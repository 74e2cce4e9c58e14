/* SPDX-License-Identifier: Apache-2.0 */
/* ControllerPublishVolume and ControllerUnpublishVolume, each of their steps failed. */
#include "csi_calls.h"
#include "fake_crypt.h"
#include "trials.h"

#include "attach/context.h"
#include "blockio/blkdev.h"
#include "csi/messages.h"
#include "pool/attachment.h"
#include "pool/index.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

static const char *node_id = "node-1";
static bool read_only;
static const char *attach_key; /* of ControllerPublishVolume's secrets; NULL: they have none */

/* ---- a target in memory ---- */

enum { EXPORTS_MAX = 8 };

static struct fake {
	struct nvmet_export e;
	char key[ATTACH_KEY_BYTES], device[64];
	unsigned made, resized;
	bool open;
} fakes[EXPORTS_MAX];
static unsigned fake_count;
static bool no_target, no_tls, no_address;
static char failing[UUID_BYTES]; /* which cannot be made; "*": none can */
static unsigned opened_with;     /* so many at once */

static struct fake *fake_find(const char *subsystem)
{
	for (unsigned i = 0; i < fake_count; i++)
		if (strcmp(fakes[i].e.names.subsystem, subsystem) == 0)
			return &fakes[i];
	return NULL;
}

static int fake_check(bool auth, bool tls, struct err *err)
{
	if (tls && no_tls)
		return err_set(err, ERR_PRECONDITION, "modprobe nvme-keyring");
	(void)auth;
	return no_target ? err_set(err, ERR_PRECONDITION, "modprobe nvmet") : 0;
}

static int fake_make(const struct nvmet_export *e, struct err *err)
{
	struct fake *f = fake_find(e->names.subsystem);
	if (strcmp(failing, "*") == 0 || strcmp(e->uuid, failing) == 0)
		return err_sys(err, -EIO, "%s", e->device);
	if (access(e->device, F_OK) < 0)
		return err_sys(err, -errno, "%s", e->device);
	if (f == NULL)
		f = &fakes[fake_count++];
	f->e = *e;
	snprintf(f->key, sizeof(f->key), "%s", e->key);
	snprintf(f->device, sizeof(f->device), "%s", e->device);
	f->made++;
	f->open |= e->address != NULL;
	return 0;
}

static bool fake_is_open(const char *address)
{
	(void)address;
	for (unsigned i = 0; i < fake_count; i++)
		if (fakes[i].open)
			return true;
	return false;
}

static int fake_open(const char *address, bool tls, const struct export_names *names, size_t count,
	struct err *err)
{
	(void)tls;
	if (no_address)
		return err_set(err, ERR_PRECONDITION, "%s is not this node's", address);
	for (size_t i = 0; i < count; i++)
		fake_find(names[i].subsystem)->open = true;
	opened_with = (unsigned)count;
	return 0;
}

static int fake_end(const struct nvmet_export *e, struct err *err)
{
	(void)err;
	struct fake *f = fake_find(e->names.subsystem);
	if (f != NULL) {
		*f = fakes[--fake_count];
		memset(&fakes[fake_count], 0, sizeof(*f));
	}
	return 0;
}

static int fake_resize(const struct nvmet_export *e, struct err *err)
{
	(void)err;
	fake_find(e->names.subsystem)->resized++;
	return 0;
}

static int fake_each(int (*each)(void *arg, const char *subsystem), void *arg)
{
	int r = 0;
	for (unsigned i = 0; r == 0 && i < fake_count; i++)
		r = each(arg, fakes[i].e.names.subsystem);
	return r;
}

static const struct export_target fake_target = {
	fake_check, fake_make, fake_is_open, fake_open, fake_end, fake_resize, fake_each};

static void open_attached(enum world_fs fs, uint64_t seed, bool as_block)
{
	open_world(fs, seed, as_block);
	w->attach = true;
	world_restart(w);
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
}

/* The world is open. Makes a volume that goes to node-2. */
static void export_from(void)
{
	w->attach = true;
	w->exports =
		(struct node_exports_config){.address = "192.0.2.1:4420", .target = &fake_target};
	world_restart(w);
	attach_to = "remote";
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	node_id = "node-2";
}

static void open_exporting(enum world_fs fs, uint64_t seed, bool as_block)
{
	open_world(fs, seed, as_block);
	export_from();
}

static enum grpc_status publish_to(struct world_answer *answer)
{
	Csi__V1__ControllerPublishVolumeRequest req =
		CSI__V1__CONTROLLER_PUBLISH_VOLUME_REQUEST__INIT;
	req.volume_id = csi_bytes(volume_id);
	req.node_id = csi_bytes(node_id);
	req.volume_capability = capability();
	req.readonly = read_only;
	Csi__V1__StringPair key = CSI__V1__STRING_PAIR__INIT, *secrets[1] = {&key};
	if (attach_key != NULL) {
		key.key = csi_bytes("key");
		key.value = csi_bytes(attach_key);
		req.secrets = secrets;
		req.n_secrets = 1;
	}
	return call("Controller/ControllerPublishVolume", &req.base, answer);
}

static enum grpc_status do_attach(void)
{
	struct world_answer answer;
	enum grpc_status status = publish_to(&answer);
	world_answer_free(&answer);
	return status;
}

static void refused(enum grpc_status status, const char *names)
{
	struct world_answer answer;
	cr_expect_eq(publish_to(&answer), status, "%s", answer.message);
	cr_expect_not_null(strstr(answer.message, names), "%s", answer.message);
	world_answer_free(&answer);
}

static enum grpc_status detach_from(const char *node)
{
	Csi__V1__ControllerUnpublishVolumeRequest req =
		CSI__V1__CONTROLLER_UNPUBLISH_VOLUME_REQUEST__INIT;
	req.volume_id = csi_bytes(volume_id);
	req.node_id = csi_bytes(node);
	return call_status("Controller/ControllerUnpublishVolume", &req.base);
}

static enum grpc_status undo_attach(void)
{
	return detach_from(node_id);
}

/* The nodes that ControllerGetVolume tells, with blanks between. */
static const char *published(void)
{
	static char text[128];
	struct world_answer answer;
	Csi__V1__ControllerGetVolumeRequest req = CSI__V1__CONTROLLER_GET_VOLUME_REQUEST__INIT;
	req.volume_id = csi_bytes(volume_id);
	cr_assert_eq(call("Controller/ControllerGetVolume", &req.base, &answer), GRPC_OK);
	Csi__V1__ControllerGetVolumeResponse *response =
		csi__v1__controller_get_volume_response__unpack(NULL, answer.len, answer.data);
	cr_assert_not_null(response);
	text[0] = '\0';
	for (size_t i = 0; i < response->status->n_published_node_ids; i++) {
		const ProtobufCBinaryData *id = &response->status->published_node_ids[i];
		size_t used = strlen(text);
		snprintf(text + used, sizeof(text) - used, "%s%.*s", used > 0 ? " " : "",
			(int)id->len, (const char *)id->data);
	}
	csi__v1__controller_get_volume_response__free_unpacked(response, NULL);
	world_answer_free(&answer);
	return text;
}

/* As it lies on the disk. *ret NULL: there are none. */
static struct attachments *on_disk(void)
{
	static char text[ATTACHMENTS_BYTES_MAX];
	char path[128];
	struct attachments *a = NULL;
	snprintf(path, sizeof(path), "%s/volumes/base", w->pool_path);
	ssize_t len = getxattr(path, ATTACHMENTS_XATTR, text, sizeof(text));
	if (len >= 0)
		cr_assert_eq(attachments_parse(text, (size_t)len, &a), 0);
	else
		cr_assert_eq(errno, ENODATA);
	return a;
}

static void put_on_disk(const struct attachment *one)
{
	static char text[ATTACHMENTS_BYTES_MAX];
	char path[128];
	struct attachments *a = attachments_with(NULL, one);
	int len = attachments_print(a, text, sizeof(text));
	snprintf(path, sizeof(path), "%s/volumes/base", w->pool_path);
	cr_assert_eq(setxattr(path, ATTACHMENTS_XATTR, text, (size_t)len, 0), 0);
	attachments_free(a);
}

/* ---- the tests ---- */

Test(attach, off_is_unimplemented, .timeout = 60)
{
	open_world(WORLD_EXT4, 1, true);
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	cr_expect_eq(do_attach(), GRPC_UNIMPLEMENTED);
	cr_expect_eq(undo_attach(), GRPC_UNIMPLEMENTED);
	world_close(w);
}

Test(attach, a_life, .timeout = 120)
{
	open_attached(WORLD_XFS, 1, false);
	cr_expect_str_eq(published(), "");
	for (unsigned i = 0; i < 2; i++) {
		struct world_answer answer;
		cr_assert_eq(publish_to(&answer), GRPC_OK);
		cr_expect_eq(answer.len, 0, "the own node's context is empty");
		world_answer_free(&answer);
	}
	cr_expect_str_eq(published(), "node-1");
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(do_publish(), GRPC_OK);
	cr_expect_eq(delete (volume_id), GRPC_FAILED_PRECONDITION);
	world_restart(w);
	cr_expect_str_eq(published(), "node-1");
	cr_assert_eq(do_attach(), GRPC_OK);
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_expect_eq(delete (volume_id), GRPC_FAILED_PRECONDITION, "attached to a node");
	cr_assert_eq(detach_from("node-2"), GRPC_OK, "where it is not");
	cr_expect_str_eq(published(), "node-1");
	cr_assert_eq(undo_attach(), GRPC_OK);
	cr_assert_eq(undo_attach(), GRPC_OK);
	cr_expect_str_eq(published(), "");
	struct attachments *left = on_disk();
	cr_expect_null(left);
	cr_assert_eq(do_attach(), GRPC_OK);
	cr_assert_eq(detach_from(""), GRPC_OK, "all nodes");
	cr_expect_str_eq(published(), "");
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	cr_assert_eq(undo_attach(), GRPC_OK, "of a volume that is gone");
	world_close(w);
}

Test(attach, refusals, .timeout = 120)
{
	open_attached(WORLD_EXT4, 1, true);
	node_id = "node-2";
	refused(GRPC_NOT_FOUND, "node-2");
	w->csi->config.clustered = true;
	refused(GRPC_FAILED_PRECONDITION, "node-1");
	node_id = "";
	refused(GRPC_INVALID_ARGUMENT, "node_id");
	node_id = "node-1";
	char id[RECORD_ID_MAX];
	memcpy(id, volume_id, sizeof(id));
	volume_id[strlen(volume_id) - 1] ^= 1;
	refused(GRPC_NOT_FOUND, "volume");
	memcpy(volume_id, id, sizeof(id));

	cr_assert_eq(do_attach(), GRPC_OK);
	read_only = true;
	refused(GRPC_ALREADY_EXISTS, "node-1");
	read_only = false;
	access_read_only = true;
	refused(GRPC_ALREADY_EXISTS, "SINGLE_NODE_WRITER");
	access_read_only = false;
	cr_assert_eq(do_attach(), GRPC_OK);

	w->csi->config.max_volumes = 1;
	cr_assert_eq(do_attach(), GRPC_OK, "what is there is not refused");
	cr_assert_eq(create("other", EMPTY, other_id), GRPC_OK);
	memcpy(volume_id, other_id, sizeof(id));
	refused(GRPC_RESOURCE_EXHAUSTED, "--max-volumes-per-node");
	memcpy(volume_id, id, sizeof(id));
	cr_assert_eq(undo_attach(), GRPC_OK);
	memcpy(volume_id, other_id, sizeof(id));
	cr_assert_eq(do_attach(), GRPC_OK);
	world_close(w);
}

/* Another driver's, or another run's with other settings. */
Test(attach, another_nodes, .timeout = 120)
{
	open_attached(WORLD_EXT4, 1, true);
	put_on_disk(&(struct attachment){.node = "node-2",
		.mode = ATTACHMENT_WRITER,
		.block = true,
		.export = "",
		.key = ""});
	world_restart(w);
	cr_expect_str_eq(published(), "node-2");
	refused(GRPC_FAILED_PRECONDITION, "node-2");
	cr_expect_eq(do_stage(), GRPC_FAILED_PRECONDITION);
	cr_expect_eq(delete (volume_id), GRPC_FAILED_PRECONDITION);
	w->attach = false;
	world_restart(w);
	cr_expect_eq(do_stage(), GRPC_FAILED_PRECONDITION);
	cr_expect_eq(delete (volume_id), GRPC_FAILED_PRECONDITION);
	w->attach = true;
	world_restart(w);
	cr_assert_eq(detach_from("node-2"), GRPC_OK);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	world_close(w);
}

/* A driver without --attach is not kept from what is its own by what nobody could take away. */
Test(attach, switched_off_again, .timeout = 120)
{
	open_attached(WORLD_EXT4, 1, true);
	cr_assert_eq(do_attach(), GRPC_OK);
	w->attach = false;
	world_restart(w);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	world_close(w);
}

Test(attach, read_only_is_staged_so, .timeout = 120)
{
	open_attached(WORLD_XFS, 1, false);
	read_only = true;
	cr_assert_eq(do_attach(), GRPC_OK);
	cr_assert_eq(do_stage(), GRPC_OK);
	char path[128];
	snprintf(path, sizeof(path), "%s/file", staging_path);
	cr_expect_null(fopen(path, "w"));
	cr_expect_eq(errno, EROFS);
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_eq(undo_attach(), GRPC_OK);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	world_close(w);
}

/* What cannot be read may be attached anywhere. */
Test(attach, damaged_is_quarantined, .timeout = 120)
{
	open_attached(WORLD_EXT4, 1, true);
	char path[128];
	snprintf(path, sizeof(path), "%s/volumes/base", w->pool_path);
	cr_assert_eq(setxattr(path, ATTACHMENTS_XATTR, "node", 4, 0), 0);
	world_restart(w);
	refused(GRPC_DATA_LOSS, "attached");
	cr_expect_eq(do_stage(), GRPC_DATA_LOSS);
	world_close(w);
}

Test(attach, each_step_failed, .timeout = 300)
{
	for (uint64_t seed = 1; seed <= 3; seed++) {
		open_attached(seed % 2 == 0 ? WORLD_XFS : WORLD_EXT4, seed, true);
		cr_assert_gt(fail_each_step(&(struct trial){
				     "ControllerPublishVolume", do_attach, undo_attach, true}),
			0);
		cr_assert_eq(do_attach(), GRPC_OK);
		cr_assert_gt(fail_each_step(&(struct trial){
				     "ControllerUnpublishVolume", undo_attach, do_attach, false}),
			0);
		struct attachments *a = on_disk();
		cr_assert_not_null(a);
		attachments_free(a);
		cr_assert_eq(undo_attach(), GRPC_OK);
		cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
		world_close(w);
	}
}

/* ---- exports ---- */

/* What the context says by that key; "": nothing. */
static const char *context_of(const struct world_answer *answer, const char *key)
{
	static char value[256];
	Csi__V1__ControllerPublishVolumeResponse *response =
		csi__v1__controller_publish_volume_response__unpack(
			NULL, answer->len, answer->data);
	cr_assert_not_null(response);
	value[0] = '\0';
	for (size_t i = 0; i < response->n_publish_context; i++) {
		const Csi__V1__StringPair *pair = response->publish_context[i];
		if (pair->key.len == strlen(key) && memcmp(pair->key.data, key, pair->key.len) == 0)
			snprintf(value, sizeof(value), "%.*s", (int)pair->value.len,
				(const char *)pair->value.data);
	}
	csi__v1__controller_publish_volume_response__free_unpacked(response, NULL);
	return value;
}

static void turn_until_idle(void)
{
	for (unsigned i = 0; i < 100000 && !node_exports_idle(w->csi->node->exports); i++)
		cr_assert_eq(ring_turn(w->reactor.ring, true), 0);
}

static void turn_until_made(unsigned made)
{
	for (unsigned i = 0; i < 100000 && (fake_count == 0 || fakes[0].made < made); i++)
		cr_assert_eq(ring_turn(w->reactor.ring, true), 0);
	cr_assert_geq(fakes[0].made, made);
	turn_until_idle(); /* it has the volume for itself until it is through */
}

Test(exports, a_life, .timeout = 120)
{
	struct world_answer answer;
	open_exporting(WORLD_XFS, 1, true);
	cr_assert_eq(publish_to(&answer), GRPC_OK, "%s", answer.message);
	cr_assert_eq(fake_count, 1);
	struct fake *f = &fakes[0];
	cr_expect_str_eq(context_of(&answer, ATTACH_ADDRESS), "192.0.2.1:4420");
	cr_expect_str_eq(context_of(&answer, ATTACH_SUBSYSTEM), f->e.names.subsystem);
	cr_expect_str_eq(context_of(&answer, ATTACH_HOST), f->e.names.host);
	cr_expect_str_eq(context_of(&answer, ATTACH_HOST_ID), f->e.names.host_id);
	cr_expect_str_eq(context_of(&answer, ATTACH_NAMESPACE), f->e.uuid);
	cr_expect_str_eq(context_of(&answer, ATTACH_KEY), f->key);
	cr_expect_eq(strncmp(f->key, "DHHC-1:00:", 10), 0);
	cr_expect_str_eq(context_of(&answer, ATTACH_VOLUME_MODE), "block");
	cr_expect_str_eq(context_of(&answer, ATTACH_NODE), "node-1");
	cr_expect_str_eq(published(), "node-2");
	world_answer_free(&answer);

	cr_expect_eq(do_stage(), GRPC_FAILED_PRECONDITION);
	cr_expect_eq(delete (volume_id), GRPC_FAILED_PRECONDITION);
	node_id = "node-3";
	refused(GRPC_FAILED_PRECONDITION, "node-2");
	node_id = "node-1";
	refused(GRPC_FAILED_PRECONDITION, "node-2");
	node_id = "node-2";
	cr_assert_eq(expand(32 * MIB), GRPC_OK);
	cr_expect_eq(fakes[0].resized, 1);

	/* The next run finds it, and makes what is missing. */
	unsigned made = fakes[0].made;
	world_restart(w);
	turn_until_made(made + 1);
	cr_assert_eq(fake_count, 1);
	cr_assert_eq(do_attach(), GRPC_OK);
	cr_assert_eq(undo_attach(), GRPC_OK);
	cr_expect_eq(fake_count, 0);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK, "its device has gone");
	world_close(w);
}

/* What a later call cannot repeat stays as it was. */
Test(exports, what_is_there_outlives_a_refusal, .timeout = 120)
{
	open_exporting(WORLD_XFS, 1, true);
	cr_assert_eq(do_attach(), GRPC_OK);
	memcpy(failing, fakes[0].e.uuid, sizeof(failing));
	refused(GRPC_INTERNAL, fakes[0].device);
	cr_expect_eq(fake_count, 1);
	world_restart(w);
	turn_until_idle();
	refused(GRPC_INTERNAL, fakes[0].device);
	cr_expect_eq(fake_count, 1);
	cr_expect_str_eq(published(), "node-2");
	failing[0] = '\0';
	cr_assert_eq(do_attach(), GRPC_OK);
	cr_assert_eq(undo_attach(), GRPC_OK);
	cr_expect_eq(fake_count, 0);
	world_close(w);
}

Test(exports, one_that_cannot_be_made_leaves_no_note, .timeout = 120)
{
	open_exporting(WORLD_XFS, 1, true);
	snprintf(failing, sizeof(failing), "*");
	refused(GRPC_INTERNAL, "Input/output error");
	cr_expect_eq(fake_count, 0);
	cr_expect_str_eq(published(), "");
	failing[0] = '\0';
	node_id = "node-3";
	cr_assert_eq(do_attach(), GRPC_OK, "it is promised to nobody");
	cr_assert_eq(undo_attach(), GRPC_OK);
	world_close(w);
}

Test(exports, within_tls, .timeout = 120)
{
	struct world_answer answer;
	open_exporting(WORLD_XFS, 1, true);
	w->exports.tls = no_tls = true;
	world_restart(w);
	refused(GRPC_FAILED_PRECONDITION, "modprobe nvme-keyring");
	cr_expect_str_eq(published(), "");
	cr_expect_eq(fake_count, 0);
	no_tls = false;
	cr_assert_eq(publish_to(&answer), GRPC_OK, "%s", answer.message);
	cr_expect_str_eq(context_of(&answer, ATTACH_TRANSPORT), "tcp-tls");
	world_answer_free(&answer);
	cr_expect(fakes[0].e.tls);
	cr_assert_eq(undo_attach(), GRPC_OK);
	world_close(w);
}

/* A volume for several nodes, which node-2 has. */
static void open_shared(unsigned mode)
{
	open_exporting(WORLD_XFS, 1, true);
	cr_assert_eq(delete (volume_id), GRPC_OK);
	access_mode = mode;
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	cr_assert_eq(do_attach(), GRPC_OK);
}

/* ---- encrypted ---- */

static void open_encrypted(uint64_t seed, bool as_block)
{
	open_world(WORLD_EXT4, seed, as_block);
	fake_crypt_use();
	encryption = "luks2";
	stage_key = "its key";
	attach_key = NULL;
	export_from();
}

static const struct record *record_of(void)
{
	struct pool_object *volume;
	struct err err = {0};
	cr_assert_eq(pools_find_id(w->pools, RECORD_VOLUME, volume_id, &volume, &err), 0);
	return volume->rec;
}

/* What is exported is the image as it is, with its header. */
static void has_ciphertext(void)
{
	char magic[8];
	struct blkdev dev;
	struct stat st;
	cr_assert_eq(fake_count, 1);
	int fd = open(fakes[0].device, O_RDONLY | O_CLOEXEC);
	cr_assert_geq(fd, 0);
	cr_assert_eq(read(fd, magic, sizeof(magic)), sizeof(magic));
	cr_assert_eq(memcmp(magic, "no-luks", sizeof(magic)), 0);
	cr_assert_eq(fstat(fd, &st), 0);
	close(fd);
	cr_assert_eq(blkdev_look(major(st.st_rdev), minor(st.st_rdev), &dev), 0);
	cr_assert_eq(dev.size_bytes, record_image_bytes(record_of()), "%llu of %llu",
		(unsigned long long)dev.size_bytes,
		(unsigned long long)record_image_bytes(record_of()));
}

static void close_encrypted(void)
{
	cr_assert_eq(detach_from(""), GRPC_OK);
	cr_assert_eq(fake_count, 0);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	world_close(w);
}

/* The key is needed once. */
Test(exports, encrypted, .timeout = 120)
{
	struct world_answer answer;
	open_encrypted(1, false);
	cr_assert(record_of()->unformatted);
	refused(GRPC_INVALID_ARGUMENT, "csi.storage.k8s.io/controller-publish-secret-name");
	cr_expect_str_eq(published(), "");
	node_id = "node-1";
	cr_assert_eq(do_attach(), GRPC_OK, "the own node's stage brings it");
	cr_assert(record_of()->unformatted);
	cr_assert_eq(undo_attach(), GRPC_OK);
	node_id = "node-2";
	attach_key = "its key";
	cr_assert_eq(publish_to(&answer), GRPC_OK, "%s", answer.message);
	cr_expect_str_eq(context_of(&answer, ATTACH_ENCRYPTION), ATTACH_ENCRYPTION_LUKS2);
	cr_expect_str_eq(context_of(&answer, ATTACH_FS_TYPE), "ext4");
	world_answer_free(&answer);
	cr_assert(!record_of()->unformatted);
	has_ciphertext();
	attach_key = NULL;
	cr_assert_eq(do_attach(), GRPC_OK, "a repeat");
	cr_assert_eq(expand(32 * MIB), GRPC_OK);
	cr_expect_eq(fakes[0].resized, 1);
	has_ciphertext();
	cr_assert_eq(do_snapshot(), GRPC_OK);
	cr_assert_eq(undo_snapshot(), GRPC_OK);

	/* The next run makes it again, and has no key. */
	unsigned made = fakes[0].made;
	world_restart(w);
	turn_until_made(made + 1);
	has_ciphertext();
	cr_assert_eq(undo_attach(), GRPC_OK);
	cr_assert_eq(do_attach(), GRPC_OK);
	has_ciphertext();
	cr_assert_eq(undo_attach(), GRPC_OK);
	/* On its own node, with the key that it got. */
	node_id = "node-1";
	cr_assert_eq(do_attach(), GRPC_OK);
	stage_key = "another";
	cr_assert_eq(do_stage(), GRPC_UNAUTHENTICATED);
	stage_key = "its key";
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	close_encrypted();
}

/* Each step of the first use fails once: the volume is as it was, or has its header, and the next
 * attempt succeeds. */
Test(exports, encrypted_first_use_fails, .timeout = 600)
{
	unsigned n = 0;
	bool hit = true;
	while (hit) {
		open_encrypted(2 + n, n % 2 == 1);
		attach_key = "its key";
		w->fault_hit = false;
		w->fault_after = (int)n++;
		enum grpc_status status = do_attach();
		w->fault_after = -1;
		hit = w->fault_hit;
		cr_assert(status == GRPC_OK || hit);
		world_settle(w);
		cr_assert(status != GRPC_OK || fake_count == 1, "after %s", w->fault_at);
		cr_assert_eq(do_attach(), GRPC_OK, "after %s", w->fault_at);
		has_ciphertext();
		cr_assert_eq(do_attach(), GRPC_OK, "a repeat");
		cr_assert_eq(undo_attach(), GRPC_OK);
		attach_key = NULL;
		cr_assert_eq(do_attach(), GRPC_OK, "after %s", w->fault_at);
		close_encrypted();
	}
	cr_assert_gt(n, 10);
}

/* Read on its own node as well: what was opened there is not what others get. */
Test(exports, encrypted_beside_the_own_node, .timeout = 120)
{
	open_encrypted(1, false);
	attach_key = "its key";
	access_mode = ATTACHMENT_MANY_READERS;
	for (unsigned i = 0; i < 2; i++) {
		const char *first = i == 0 ? "node-2" : "node-1";
		const char *second = i == 0 ? "node-1" : "node-2";
		node_id = first;
		cr_assert_eq(do_attach(), GRPC_OK);
		if (i == 1)
			cr_assert_eq(do_stage(), GRPC_OK);
		node_id = second;
		cr_assert_eq(do_attach(), GRPC_OK);
		has_ciphertext();
		cr_assert_eq(do_stage(), GRPC_OK);
		cr_assert_eq(do_publish(), GRPC_OK);
		has_ciphertext();
		world_restart(w);
		turn_until_made(fakes[0].made + 1);
		has_ciphertext();
		cr_assert_eq(do_stage(), GRPC_OK);
		cr_assert_eq(undo_publish(), GRPC_OK);
		cr_assert_eq(undo_stage(), GRPC_OK);
		has_ciphertext();
		cr_assert_eq(detach_from(first), GRPC_OK);
		cr_assert_eq(detach_from(second), GRPC_OK);
	}
	close_encrypted();
}

/* The device is there as long as somebody uses it. */
Test(exports, beside_the_own_node, .timeout = 120)
{
	open_shared(ATTACHMENT_MANY_WRITERS);
	node_id = "node-1";
	cr_assert_eq(do_attach(), GRPC_OK);
	cr_expect_str_eq(published(), "node-2 node-1");
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(do_publish(), GRPC_OK);
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_expect_eq(access(fakes[0].device, F_OK), 0);
	cr_assert_eq(undo_attach(), GRPC_OK);
	cr_expect_eq(fake_count, 1);
	cr_assert_eq(do_attach(), GRPC_OK);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(detach_from("node-2"), GRPC_OK);
	cr_expect_eq(fake_count, 0);
	cr_assert_eq(do_publish(), GRPC_OK, "the own node's device stays");
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_eq(detach_from(""), GRPC_OK);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	world_close(w);
}

/* Its device is one for all. */
Test(exports, read_only_beside_the_own_node, .timeout = 120)
{
	open_shared(ATTACHMENT_MANY_READERS);
	node_id = "node-3";
	cr_assert_eq(do_attach(), GRPC_OK);
	cr_expect_eq(fake_count, 2);
	node_id = "node-1";
	refused(GRPC_FAILED_PRECONDITION, "read-only beside node node-2");
	cr_assert_eq(detach_from(""), GRPC_OK);
	cr_expect_eq(fake_count, 0);
	cr_assert_eq(do_attach(), GRPC_OK);
	node_id = "node-2";
	refused(GRPC_FAILED_PRECONDITION, "node-1, cannot have a block volume read-only");
	cr_assert_eq(detach_from(""), GRPC_OK);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	/* What is mounted is read-only by its mount. */
	block = false;
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	cr_assert_eq(do_attach(), GRPC_OK);
	node_id = "node-1";
	cr_assert_eq(do_attach(), GRPC_OK);
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_eq(detach_from(""), GRPC_OK);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	world_close(w);
}

/* One writes, and the others read. */
Test(exports, one_writer, .timeout = 120)
{
	open_shared(ATTACHMENT_MANY_ONE_WRITER);
	node_id = "node-3";
	refused(GRPC_FAILED_PRECONDITION, "node-2");
	read_only = true;
	cr_assert_eq(do_attach(), GRPC_OK);
	cr_expect_str_eq(published(), "node-2 node-3");
	cr_assert_eq(detach_from("node-2"), GRPC_OK);
	read_only = false;
	node_id = "node-1";
	cr_expect_eq(do_attach(), GRPC_OK, "the own node writes");
	cr_assert_eq(detach_from(""), GRPC_OK);
	cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
	world_close(w);
}

Test(exports, refusals, .timeout = 120)
{
	open_exporting(WORLD_EXT4, 1, true);
	no_target = true;
	refused(GRPC_FAILED_PRECONDITION, "modprobe nvmet");
	cr_expect_str_eq(published(), "");
	no_target = false;
	w->exports.address = NULL;
	world_restart(w);
	refused(GRPC_FAILED_PRECONDITION, "--export-address");
	cr_expect_eq(create("other", EMPTY, other_id), GRPC_FAILED_PRECONDITION);
	w->exports.address = "192.0.2.1:4420";
	world_restart(w);
	attach_to = "local";
	access_mode = ATTACHMENT_MANY_WRITERS;
	cr_expect_eq(create("other", EMPTY, other_id), GRPC_INVALID_ARGUMENT);
	access_mode = 0;
	/* Used on its own node from before there were attachments. */
	cr_assert_eq(do_stage(), GRPC_OK);
	cr_assert_eq(do_publish(), GRPC_OK);
	refused(GRPC_FAILED_PRECONDITION, "mounted at");
	cr_assert_eq(undo_publish(), GRPC_OK);
	cr_assert_eq(undo_stage(), GRPC_OK);
	cr_assert_eq(do_attach(), GRPC_OK);
	cr_assert_eq(undo_attach(), GRPC_OK);
	world_close(w);
}

static void turn_until_open(void)
{
	for (unsigned i = 0; i < 100000 && !fakes[0].open; i++)
		cr_assert_eq(ring_turn(w->reactor.ring, true), 0);
	cr_assert(fakes[0].open);
	turn_until_idle();
}

static void turn_until_count(unsigned count)
{
	for (unsigned i = 0; i < 100000 && fake_count < count; i++)
		cr_assert_eq(ring_turn(w->reactor.ring, true), 0);
	cr_assert_eq(fake_count, count);
	turn_until_idle();
}

static void reboot(void)
{
	memset(fakes, 0, sizeof(fakes));
	fake_count = opened_with = 0;
	world_restart(w);
}

/* Nobody gets in before all are there. What was exported before is there in one go; then others may
 * come. */
Test(exports, after_a_reboot, .timeout = 120)
{
	open_exporting(WORLD_XFS, 1, true);
	cr_assert_eq(do_attach(), GRPC_OK);
	char id[RECORD_ID_MAX], second[RECORD_ID_MAX];
	memcpy(id, volume_id, sizeof(id));
	cr_assert_eq(create("other", EMPTY, volume_id), GRPC_OK);
	memcpy(second, volume_id, sizeof(second));
	cr_assert_eq(do_attach(), GRPC_OK);
	cr_assert_eq(create("third", EMPTY, other_id), GRPC_OK);
	cr_expect_eq(fake_count, 2);

	no_address = true; /* yet */
	reboot();
	refused(GRPC_UNAVAILABLE, "not all there yet");
	memcpy(volume_id, other_id, sizeof(id));
	refused(GRPC_UNAVAILABLE, "not all there yet");
	turn_until_count(2);
	for (unsigned i = 0; i < 10; i++)
		cr_assert_eq(ring_turn(w->reactor.ring, true), 0);
	cr_expect_not(fakes[0].open || fakes[1].open);
	refused(GRPC_UNAVAILABLE, "not all there yet");
	no_address = false;
	turn_until_open();
	cr_expect_eq(opened_with, 2);
	cr_assert_eq(do_attach(), GRPC_OK);
	cr_expect(fakes[2].open);
	cr_assert_eq(undo_attach(), GRPC_OK);

	/* One that cannot be had is waited for. */
	memcpy(failing, fakes[0].e.uuid, sizeof(failing));
	reboot();
	turn_until_count(1);
	for (unsigned i = 0; i < 10; i++)
		cr_assert_eq(ring_turn(w->reactor.ring, true), 0);
	cr_expect_not(fakes[0].open);
	failing[0] = '\0';
	turn_until_open();
	cr_expect_eq(opened_with, 2);
	/* But not for ever. */
	memcpy(failing, fakes[0].e.uuid, sizeof(failing));
	w->exports.wait_ms = 1;
	reboot();
	turn_until_open();
	cr_expect_eq(opened_with, 1);
	failing[0] = '\0';
	turn_until_count(2);
	cr_expect(fakes[1].open);
	memcpy(volume_id, id, sizeof(id));
	cr_assert_eq(undo_attach(), GRPC_OK);
	memcpy(volume_id, second, sizeof(second));
	cr_assert_eq(undo_attach(), GRPC_OK);
	world_close(w);
}

/* One that no attachment tells of goes, and one of another pool stays. */
Test(exports, orphans, .timeout = 120)
{
	open_exporting(WORLD_EXT4, 1, true);
	cr_assert_eq(do_attach(), GRPC_OK);
	struct nvmet_export e = fakes[0].e;
	char pool_id[9], uuid[UUID_BYTES];
	cr_assert(export_names_split(e.names.subsystem, pool_id, uuid));
	export_names_of("01234567", uuid, &fakes[1].e.names);
	uuid[0] = uuid[0] == '0' ? '1' : '0';
	export_names_of(pool_id, uuid, &fakes[2].e.names);
	fake_count = 3;
	unsigned made = fakes[0].made;
	world_restart(w);
	turn_until_made(made + 1);
	cr_expect_eq(fake_count, 2);
	cr_expect_not_null(fake_find(e.names.subsystem));
	cr_expect_not_null(strstr(fakes[1].e.names.subsystem, "01234567"));
	cr_assert_eq(undo_attach(), GRPC_OK);
	world_close(w);
}

/* A volume that cannot be read may have it. */
Test(exports, orphans_in_doubt_stay, .timeout = 120)
{
	open_exporting(WORLD_EXT4, 1, true);
	cr_assert_eq(do_attach(), GRPC_OK);
	cr_assert_eq(create("other", EMPTY, other_id), GRPC_OK);
	char path[128], pool_id[9], uuid[UUID_BYTES];
	snprintf(path, sizeof(path), "%s/volumes/other", w->pool_path);
	cr_assert_eq(setxattr(path, ATTACHMENTS_XATTR, "node", 4, 0), 0);
	cr_assert(export_names_split(fakes[0].e.names.subsystem, pool_id, uuid));
	uuid[0] = uuid[0] == '0' ? '1' : '0';
	unsigned made = fakes[0].made;
	world_restart(w);
	turn_until_made(made + 1);
	export_names_of(pool_id, uuid, &fakes[1].e.names);
	fake_count = 2;
	uint64_t rounds_ns = ring_now_ns(w->reactor.ring) + 3 * NODE_EXPORTS_MS * 1000000ull;
	while (ring_now_ns(w->reactor.ring) < rounds_ns)
		cr_assert_eq(ring_turn(w->reactor.ring, true), 0);
	cr_expect_eq(fake_count, 2);
	cr_assert_eq(removexattr(path, ATTACHMENTS_XATTR), 0);
	world_restart(w);
	turn_until_made(made + 2);
	cr_expect_eq(fake_count, 1);
	cr_assert_eq(undo_attach(), GRPC_OK);
	world_close(w);
}

Test(exports, each_step_failed, .timeout = 300)
{
	for (uint64_t seed = 1; seed <= 3; seed++) {
		fake_count = 0;
		open_exporting(seed % 2 == 0 ? WORLD_XFS : WORLD_EXT4, seed, true);
		cr_assert_gt(fail_each_step(&(struct trial){
				     "ControllerPublishVolume", do_attach, undo_attach, true}),
			0);
		cr_expect_eq(fake_count, 0);
		cr_assert_eq(do_attach(), GRPC_OK);
		cr_assert_gt(fail_each_step(&(struct trial){
				     "ControllerUnpublishVolume", undo_attach, do_attach, false}),
			0);
		cr_expect_eq(fake_count, 1);
		cr_assert_eq(undo_attach(), GRPC_OK);
		cr_assert_eq(delete_patiently(volume_id), GRPC_OK);
		world_close(w);
	}
}
