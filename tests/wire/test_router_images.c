/* SPDX-License-Identifier: Apache-2.0 */
/* Creates of classes that name a golden image: where it is looked for, and how it gets to the node
 * that makes the volume. */
#include "router_env.h"

#define PATH(name) "/csi.v1.Controller/" name
#define ID_A       "aaaaaaaa.vol.01234567"
#define ID_B       "bbbbbbbb.vol.01234567"
#define IMAGE_A    "aaaaaaaa.root.01234567"
#define IMAGE_B    "bbbbbbbb.root.01234567"
#define IMAGE_C    "cccccccc.root.01234567"
#define OF_A       "aaaaaaaa.import.root.0123abcd.01234567"
#define OF_B       "bbbbbbbb.import.root.0123abcd.fs.01234567"
#define OF_C       "cccccccc.import.root.0123abcd.01234567"
#define GRANT      "0123456789abcdef0123456789abcdef"

static struct asked q;

static void setup(void)
{
	env_open();
	serve(NULL);
}

static void teardown(void)
{
	buf_free(&q.got);
	env_close();
}

TestSuite(images, .init = setup, .fini = teardown, .timeout = 60);

static enum grpc_status create(const char *image, const char *snapshot_id)
{
	Csi__V1__CreateVolumeRequest request = CSI__V1__CREATE_VOLUME_REQUEST__INIT;
	Csi__V1__VolumeContentSource source = CSI__V1__VOLUME_CONTENT_SOURCE__INIT;
	Csi__V1__VolumeContentSource__SnapshotSource snapshot =
		CSI__V1__VOLUME_CONTENT_SOURCE__SNAPSHOT_SOURCE__INIT;
	Csi__V1__StringPair class = CSI__V1__STRING_PAIR__INIT, *parameters[] = {&class};
	class.key = text("source");
	class.value = text(image);
	request.name = text("vol");
	request.parameters = parameters;
	request.n_parameters = 1;
	if (snapshot_id != NULL) {
		snapshot.snapshot_id = text(snapshot_id);
		source.type_case = CSI__V1__VOLUME_CONTENT_SOURCE__TYPE_SNAPSHOT;
		source.snapshot = &snapshot;
		request.volume_content_source = &source;
	}
	return ask(&q, PATH("CreateVolume"), &request.base);
}

static void has(struct store_node *node, const char *id, const char *of)
{
	struct err err = {0};
	cr_assert_eq(store_object_set(store, node, STORE_SNAPSHOT, id, NULL, 0, NULL, 0, of, &err),
		0, "%s", err.message);
}

static void grants(struct fake *f)
{
	Ringvol__V1__GrantCopyResponse response = RINGVOL__V1__GRANT_COPY_RESPONSE__INIT;
	response.grant = text(GRANT);
	pack_into(&f->grant, &response.base);
}

#define assert_text(field, want)                                                                   \
	cr_assert((field).len == strlen(want) && memcmp((field).data, want, (field).len) == 0)

/* More room elsewhere does not matter. */
Test(images, made_where_the_image_is)
{
	has(join(&a, "a", 'a', 5 * GIB), IMAGE_A, OF_A);
	join(&b, "b", 'b', 50 * GIB);
	answers_volume(&a, ID_A, 1);
	cr_assert_eq(create("root", NULL), GRPC_OK, "%s", q.why);
	cr_assert_str_eq(a.methods, "CreateVolume ");
	cr_assert_eq(b.calls, 0);
}

Test(images, copied_to_where_there_is_room)
{
	struct store_node *node = join(&a, "a", 'a', 0);
	has(node, IMAGE_A, OF_A);
	has(join(&b, "b", 'b', 5 * GIB), IMAGE_B, "bbbbbbbb.pvc.01234567"); /* no image */
	grants(&a);
	answers_volume(&b, ID_B, 1);
	cr_assert_eq(create("root", NULL), GRPC_OK, "%s", q.why);
	cr_assert_str_eq(a.methods, "GrantCopy ");
	cr_assert_str_eq(b.methods, "OfferCopy CreateVolume ");
	assert_text(a.granted->source_id, IMAGE_A);
	assert_text(a.granted->node_id, "b");
	assert_text(b.offered->source_id, IMAGE_A);
	assert_text(b.offered->volume_name, "vol");
	/* Finished, it needs no image. */
	leave(node);
	cr_assert_eq(create("root", NULL), GRPC_OK, "%s", q.why);
	cr_assert_str_eq(b.methods, "OfferCopy CreateVolume CreateVolume ");
}

Test(images, the_nodes_own_goes_first)
{
	has(join(&a, "a", 'a', 0), IMAGE_A, OF_A);
	has(join(&c, "c", 'c', 0), IMAGE_C, OF_C);
	has(join(&b, "b", 'b', 5 * GIB), IMAGE_B, OF_B);
	answers_volume(&b, ID_B, 1);
	cr_assert_eq(store_duplicates(store), 0);
	cr_assert_eq(create("root", NULL), GRPC_OK, "%s", q.why);
	cr_assert_str_eq(b.methods, "CreateVolume ");
	cr_assert_eq(a.calls + c.calls, 0);
}

Test(images, a_content_source_goes_first)
{
	has(join(&a, "a", 'a', 5 * GIB), IMAGE_A, OF_A);
	has(join(&b, "b", 'b', 5 * GIB), "bbbbbbbb.snap.01234567", "bbbbbbbb.pvc.01234567");
	answers_volume(&b, ID_B, 1);
	cr_assert_eq(create("root", "bbbbbbbb.snap.01234567"), GRPC_OK, "%s", q.why);
	cr_assert_str_eq(b.methods, "CreateVolume ");
	cr_assert_eq(a.calls, 0);
}

Test(images, none_or_too_many)
{
	struct store_node *node = join(&a, "a", 'a', 0), *other = join(&c, "c", 'c', 0);
	const char *pools[] = {"dddddddd"};
	join(&b, "b", 'b', 5 * GIB);
	cr_assert_eq(create("root", NULL), GRPC_NOT_FOUND);
	assert_said(q.why, "no node has a golden image root");
	has(node, IMAGE_A, OF_A);
	has(other, IMAGE_C, OF_C);
	cr_assert_eq(create("root", NULL), GRPC_RESOURCE_EXHAUSTED);
	assert_said(q.why, "and not on node b, and which of them is meant is not known");
	cr_assert_eq(a.calls + b.calls + c.calls, 0);
	store_object_remove(store, IMAGE_C);
	leave(node);
	cr_assert_eq(create("root", NULL), GRPC_UNAVAILABLE);
	assert_said(q.why, "pool aaaaaaaa is on node a");
	/* Whoever was not seen yet may have the volume, and the image. */
	cr_assert_eq(store_roster(store, "d", pools, 1), 0);
	cr_assert_eq(create("root", NULL), GRPC_UNAVAILABLE);
	/* What is no name is the node's to refuse. */
	cr_assert_eq(store_forget(store, "dddddddd"), 0);
	b.status = GRPC_INVALID_ARGUMENT;
	b.why = "parameters: source";
	cr_assert_eq(create("a/b", NULL), GRPC_INVALID_ARGUMENT, "%s", q.why);
	cr_assert_str_eq(b.methods, "CreateVolume ");
}

/* Those that are no golden images are two of one name still. */
Test(images, other_snapshots_of_one_name)
{
	has(join(&a, "a", 'a', 0), IMAGE_A, OF_A);
	struct store_node *node = join(&b, "b", 'b', 0);
	has(node, IMAGE_B, "bbbbbbbb.pvc.01234567");
	cr_assert_eq(store_duplicates(store), 0);
	has(join(&c, "c", 'c', 0), IMAGE_C, "cccccccc.pvc.01234567");
	cr_assert_eq(store_duplicates(store), 1);
	store_object_remove(store, IMAGE_A);
	cr_assert_eq(store_duplicates(store), 1);
	store_object_remove(store, IMAGE_B);
	cr_assert_eq(store_duplicates(store), 0);
}
