/* SPDX-License-Identifier: Apache-2.0 */
/* Volumes that begin as a golden image that their class names: failed at every step, and what the
 * name may not be. */
#include "answers.h"
#include "csi_calls.h"
#include "trials.h"

#include "csi/messages.h"
#include "pool/golden.h"
#include "pool/index.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static void fail_all(enum world_fs fs, bool as_block)
{
	open_world(fs, 1, as_block);
	make_image("root");
	source_image = "root";
	cr_assert_gt(fail_each_step(&(struct trial){
			     "CreateVolume, of an image", do_create, undo_create, true}),
		3);
	source_image = NULL;
	cr_assert_eq(undo_snapshot(), GRPC_OK);
	world_close(w);
}

Test(csi_image, fails_at_every_step, .timeout = 300)
{
	fail_all(WORLD_XFS, false);
}

Test(csi_image, fails_at_every_step_without_reflink, .timeout = 300)
{
	fail_all(WORLD_EXT4, true);
}

/* CreateVolume "other" of a class that names the image, as one line. */
static const char *asks_of(const char *image, enum source from)
{
	Csi__V1__CreateVolumeRequest req = CSI__V1__CREATE_VOLUME_REQUEST__INIT;
	Csi__V1__VolumeCapability *caps[1] = {capability()};
	Csi__V1__StringPair *parameters[1] = {pair(0, "source", image)};
	req.name = csi_bytes("other");
	req.n_volume_capabilities = 1;
	req.volume_capabilities = caps;
	req.n_parameters = 1;
	req.parameters = parameters;
	req.volume_content_source = content_source(from);
	return ASK("Controller", CreateVolume, create_volume);
}

static void made_of(const char *name, const char *source)
{
	const struct pool_object *volume = pools_find_name(w->pools, RECORD_VOLUME, name);
	cr_assert_not_null(volume);
	cr_assert_eq(volume->rec->source, RECORD_SOURCE_SNAPSHOT);
	cr_assert_str_eq(volume->rec->source_id, source);
	cr_assert_eq(volume->rec->size_bytes, 16 * MIB);
	cr_assert_eq(volume->rec->fs, FSIMG_EXT4);
}

/* Its size is the image's, where none is asked for. A retry is the same volume, whether the image
 * is still there or not; without the image, or with another, it is another volume. */
Test(csi_image, begins_as_the_image, .timeout = 300)
{
	char first[RECORD_ID_MAX];
	open_world(WORLD_XFS, 1, false);
	make_image("root");
	snprintf(first, sizeof(first), "%s", snapshot_id);
	source_image = "root";
	cr_assert_eq(create("other", EMPTY, other_id), GRPC_OK);
	made_of("other", first);
	cr_assert_eq(create("other", EMPTY, other_id), GRPC_OK);
	source_image = NULL;
	cr_assert_eq(create("other", EMPTY, other_id), GRPC_ALREADY_EXISTS);
	cr_assert_eq(undo_snapshot(), GRPC_OK);
	source_image = "root";
	cr_assert_eq(create("other", EMPTY, other_id), GRPC_OK, "made, and the image is gone");
	make_image("base");
	source_image = "base";
	cr_assert_eq(create("other", EMPTY, other_id), GRPC_ALREADY_EXISTS);
	cr_assert_eq(undo_create(), GRPC_OK);
	world_restart(w);
	says(asks_of("root", EMPTY),
		"8: parameters: source: golden image root is not on node node-1: import it there, too (ringvol import), or have the pod scheduled where it is; ringvol controller has it copied from another node");
	cr_assert_eq(asks_of("base", EMPTY)[0], 'v');
	made_of("other", snapshot_id);
	world_close(w);
}

/* A claim's own source goes before the class's. */
Test(csi_image, a_content_source_goes_first, .timeout = 300)
{
	open_world(WORLD_XFS, 1, false);
	make_image("root");
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	cr_assert_eq(do_snapshot(), GRPC_OK);
	source_image = "root";
	cr_assert_eq(create("other", FROM_SNAPSHOT, other_id), GRPC_OK);
	made_of("other", snapshot_id);
	cr_assert_eq(create("other", FROM_SNAPSHOT, other_id), GRPC_OK);
	world_close(w);
}

Test(csi_image, names_golden_images_alone, .timeout = 300)
{
	open_world(WORLD_XFS, 1, false);
	cr_assert_eq(create("base", EMPTY, volume_id), GRPC_OK);
	snapshot_name = "root";
	cr_assert_eq(do_snapshot(), GRPC_OK);
	says(asks_of("root", EMPTY),
		"9: parameters: source: snapshot root in pool default is no golden image: ringvol import makes those");
	says(asks_of("a/b", EMPTY),
		"3: parameters: source is 'a/b', but takes the name of a golden image");
	says(asks_of("", EMPTY),
		"3: parameters: source is '', but takes the name of a golden image");
	make_image("image");
	block = false;
	fs_type = "xfs";
	says(asks_of("image", EMPTY),
		"3: parameters: source: image holds ext4, the request asks for xfs");
	world_close(w);
}

Test(csi_image, names)
{
	const char *const key = "root", *const of = "aaaaaaaa.import.root.0123abcd.01234567";
	cr_assert(golden_is(key, of));
	cr_assert(golden_is(key, "aaaaaaaa.import.root.0123abcd.fs.01234567"));
	static const char *const others[] = {"", "aaaaaaaa.import.root.0123abc.01234567",
		"aaaaaaaa.import.root.0123abcd0.01234567",
		"aaaaaaaa.import.roots.0123abcd.01234567",
		"aaaaaaaa.import.root.0123abcd.f.01234567", "aaaaaaaa.pvc.01234567",
		"aaaaaaaa.import.root.0123ABCD.01234567", "aaaaaaaa.import.root.01234567"};
	for (unsigned i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		cr_assert(!golden_is(key, others[i]), "%s", others[i]);
	cr_assert(!golden_is("other", of));
	cr_assert(golden_name_valid("a.b_c-d"));
	static const char *const bad[] = {
		"", ".a", "a/b", "a b", "aaaaaaaaaabbbbbbbbbbccccccccccddddddddddd"};
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		cr_assert(!golden_name_valid(bad[i]), "%s", bad[i]);
}
