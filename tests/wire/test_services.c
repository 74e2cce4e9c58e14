/* SPDX-License-Identifier: Apache-2.0 */
/* Health, reflection, the registry, local calls, header values. */
#include "peer.h"

#include "rpc/grpc_local.h"
#include "rpc/health.h"
#include "rpc/reflection.h"
#include "rpc/registry.h"

#include "descriptor_set.h"
#include "reflection.pb-c.h"

#include <errno.h>

typedef Grpc__Health__V1__HealthCheckResponse health_response;
typedef Grpc__Reflection__V1__ServerReflectionRequest ask;
typedef Grpc__Reflection__V1__ServerReflectionResponse told;
#define ASKED(name) GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_##name
#define TOLD(name)  GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_##name

static struct peer *p;
static struct health *health;
static struct reflection *reflection;

static void setup(void)
{
	p = peer_new();
	health = health_new(p->registry);
	reflection = reflection_new(p->registry, proto_descriptor_set, proto_descriptor_set_len);
	cr_assert_not_null(health);
	cr_assert_not_null(reflection);
}

static void teardown(void)
{
	health_free(health);
	cr_assert_eq(grpc_registry_in_flight(p->registry), 0);
	peer_free(p);
	reflection_free(reflection);
}

TestSuite(services, .init = setup, .fini = teardown);

/* ---- health ---- */

static int health_status(const struct buf *data, size_t at)
{
	cr_assert_geq(data->len, at + GRPC_PREFIX_BYTES);
	size_t len = grpc_wire_get_length(data->data + at);
	health_response *r = grpc__health__v1__health_check_response__unpack(
		NULL, len, data->data + at + GRPC_PREFIX_BYTES);
	cr_assert_not_null(r);
	int status = (int)r->status;
	grpc__health__v1__health_check_response__free_unpacked(r, NULL);
	return status;
}

Test(services, health_check)
{
	int32_t id = peer_call(p, "/grpc.health.v1.Health/Check", "", NULL);
	assert_answer(p, id, GRPC_OK);
	cr_assert_eq(health_status(&answer_at(p, id)->data, 0), 2);
	health_set(health, true);
	id = peer_call(p, "/grpc.health.v1.Health/Check", "test.v1.Test", NULL);
	assert_answer(p, id, GRPC_OK);
	cr_assert_eq(health_status(&answer_at(p, id)->data, 0), 1);
	id = peer_call(p, "/grpc.health.v1.Health/Check", "test.v1", NULL);
	assert_answer(p, id, GRPC_NOT_FOUND);
}

Test(services, health_watch)
{
	int32_t id = peer_call(p, "/grpc.health.v1.Health/Watch", "", NULL);
	int32_t unknown = peer_call(p, "/grpc.health.v1.Health/Watch", "nobody", NULL);
	health_set(health, true);
	health_set(health, true);
	peer_pump(p);
	struct buf *data = &answer_at(p, id)->data;
	cr_assert_eq(data->len, 14); /* two messages of one field */
	cr_assert_eq(health_status(data, 0), 2);
	cr_assert_eq(health_status(data, 7), 1);
	cr_assert_eq(answer_at(p, unknown)->data.len, 7);
	cr_assert_eq(health_status(&answer_at(p, unknown)->data, 0), 3);
	nghttp2_submit_rst_stream(p->client, NGHTTP2_FLAG_NONE, id, NGHTTP2_CANCEL);
	peer_pump(p);
	cr_assert_eq(grpc_registry_in_flight(p->registry), 1);
	health_free(health);
	health = NULL;
	peer_pump(p);
	assert_answer(p, unknown, GRPC_UNAVAILABLE);
}

Test(services, health_watch_ends_with_the_drain)
{
	int32_t id = peer_call(p, "/grpc.health.v1.Health/Watch", "", NULL);
	p->session->ops->drain(p->session);
	peer_pump(p);
	assert_answer(p, id, GRPC_UNAVAILABLE);
	cr_assert(p->session->ops->finished(p->session));
}

/* A watcher that does not read is told the newest state, not all there were. */
Test(services, health_watch_of_a_deaf_client)
{
	p->limits.send_buffer_bytes = 1;
	nghttp2_settings_entry shut = {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 0};
	nghttp2_submit_settings(p->client, NGHTTP2_FLAG_NONE, &shut, 1);
	int32_t id = peer_call(p, "/grpc.health.v1.Health/Watch", "", NULL);
	for (unsigned i = 0; i < 101; i++)
		health_set(health, i % 2 == 0);
	nghttp2_settings_entry open = {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 65535};
	nghttp2_submit_settings(p->client, NGHTTP2_FLAG_NONE, &open, 1);
	peer_pump(p);
	cr_assert_eq(answer_at(p, id)->data.len, 14);
	cr_assert_eq(health_status(&answer_at(p, id)->data, 7), 1);
}

/* ---- what an endless call keeps ---- */

static int32_t endless(const char *path, const struct buf *body, bool stay_open)
{
	int32_t id = peer_request(p, &(struct request){.path = path,
					     .body = body->data,
					     .len = body->len,
					     .stay_open = stay_open});
	peer_pump(p);
	return id;
}

/* The text is the service's name for health and the host for reflection; both are field 1. */
Test(services, endless_calls_have_small_requests)
{
	static const char *const paths[] = {"/grpc.health.v1.Health/Watch",
		"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"};
	enum { FIELD = 3 /* tag and length */, REPEATS = 20 };
	static const char name[GRPC_ENDLESS_MAX_BYTES] = "";
	struct buf fits = {0}, large = {0}, largest = {0}, repeated = {0}, then = {0};
	uint8_t *most = calloc(1, GRPC_MESSAGE_MAX_BYTES);
	text_frame(&fits, name, GRPC_ENDLESS_MAX_BYTES - FIELD);
	text_frame(&large, name, GRPC_ENDLESS_MAX_BYTES - FIELD + 1);
	text_frame(&largest, most, GRPC_MESSAGE_MAX_BYTES - 5);
	/* One small field again and again: the last one counts, all are kept. */
	size_t len = REPEATS * (FIELD - 1 + 100);
	grpc_wire_put_prefix(buf_reserve(&repeated, GRPC_PREFIX_BYTES + len), (uint32_t)len);
	repeated.len = GRPC_PREFIX_BYTES;
	for (unsigned i = 0; i < REPEATS; i++) {
		memcpy(repeated.data + repeated.len, "\x0A\x64", 2);
		memset(repeated.data + repeated.len + 2, 'x', 100);
		repeated.len += 102;
	}
	cr_assert_eq(repeated.len, GRPC_PREFIX_BYTES + len);

	for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
		bool is_stream = i == 1;
		struct buf *refused[] = {&large, &largest, &repeated};
		for (size_t k = 0; k < sizeof(refused) / sizeof(refused[0]); k++) {
			int32_t id = endless(paths[i], refused[k], false);
			assert_answer(p, id, GRPC_INVALID_ARGUMENT);
			cr_assert_eq(grpc_registry_in_flight(p->registry), 0);
		}
		int32_t id = endless(paths[i], &fits, is_stream);
		cr_assert_eq(answer_at(p, id)->grpc, -1);
		cr_assert_gt(answer_at(p, id)->data.len, 0);
		cr_assert_eq(grpc_registry_in_flight(p->registry), 1);
		nghttp2_submit_rst_stream(p->client, NGHTTP2_FLAG_NONE, id, NGHTTP2_CANCEL);
		peer_pump(p);
		cr_assert_eq(grpc_registry_in_flight(p->registry), 0);
	}

	/* A later message of a stream ends it. */
	buf_append(&then, fits.data, fits.len);
	buf_append(&then, large.data, large.len);
	int32_t id = endless(paths[1], &then, true);
	assert_answer(p, id, GRPC_INVALID_ARGUMENT);
	cr_assert_gt(answer_at(p, id)->data.len, 0);
	cr_assert_eq(grpc_registry_in_flight(p->registry), 0);
	buf_free(&fits);
	buf_free(&large);
	buf_free(&largest);
	buf_free(&repeated);
	buf_free(&then);
	free(most);
}

/* ---- reflection ---- */

static told *reflect(const char *service, ask *request)
{
	char path[80];
	struct buf b = {0};
	snprintf(path, sizeof(path), "/grpc.reflection.%s.ServerReflection/ServerReflectionInfo",
		service);
	size_t size = protobuf_c_message_get_packed_size(&request->base);
	uint8_t *to = buf_reserve(&b, GRPC_PREFIX_BYTES + size);
	grpc_wire_put_prefix(to, (uint32_t)size);
	protobuf_c_message_pack(&request->base, to + GRPC_PREFIX_BYTES);
	b.len = GRPC_PREFIX_BYTES + size;
	int32_t id = peer_request(p, &(struct request){.path = path, .body = b.data, .len = b.len});
	peer_pump(p);
	assert_answer(p, id, GRPC_OK);
	const struct buf *data = &answer_at(p, id)->data;
	size_t len = grpc_wire_get_length(data->data);
	cr_assert_eq(data->len, len + GRPC_PREFIX_BYTES);
	told *t = grpc__reflection__v1__server_reflection_response__unpack(
		NULL, len, data->data + GRPC_PREFIX_BYTES);
	cr_assert_not_null(t);
	cr_assert_not_null(t->original_request);
	buf_free(&b);
	return t;
}

static void told_free(told *t)
{
	grpc__reflection__v1__server_reflection_response__free_unpacked(t, NULL);
}

static ProtobufCBinaryData text(const char *s)
{
	return (ProtobufCBinaryData){strlen(s), (uint8_t *)s};
}

static bool is_text(ProtobufCBinaryData b, const char *s)
{
	return b.len == strlen(s) && memcmp(b.data, s, b.len) == 0;
}

Test(services, reflection_lists_what_it_can_describe)
{
	static const char *const versions[] = {"v1", "v1alpha"};
	for (unsigned i = 0; i < 2; i++) {
		ask request;
		grpc__reflection__v1__server_reflection_request__init(&request);
		request.host = text("here");
		request.message_request_case = ASKED(LIST_SERVICES);
		told *t = reflect(versions[i], &request);
		cr_assert(is_text(t->valid_host, "here"));
		cr_assert_eq(t->message_response_case, TOLD(LIST_SERVICES_RESPONSE));
		Grpc__Reflection__V1__ListServiceResponse *l = t->list_services_response;
		cr_assert_eq(l->n_service, 2); /* the test's own has no file */
		cr_assert(is_text(l->service[0]->name, "grpc.health.v1.Health"));
		cr_assert(is_text(l->service[1]->name, "grpc.reflection.v1.ServerReflection"));
		told_free(t);
	}
}

/* The number of files answered, or -1 for NOT_FOUND. */
static int files(ask *request)
{
	told *t = reflect("v1", request);
	int n = -1;
	if (t->message_response_case == TOLD(FILE_DESCRIPTOR_RESPONSE))
		n = (int)t->file_descriptor_response->n_file_descriptor_proto;
	else
		cr_assert_eq(t->error_response->error_code, GRPC_NOT_FOUND);
	told_free(t);
	return n;
}

static int symbol_files(const char *name)
{
	ask request;
	grpc__reflection__v1__server_reflection_request__init(&request);
	request.message_request_case = ASKED(FILE_CONTAINING_SYMBOL);
	request.file_containing_symbol = text(name);
	return files(&request);
}

Test(services, reflection_finds_symbols)
{
	cr_assert_eq(symbol_files("csi.v1.Controller"), 4); /* with its imports */
	cr_assert_eq(symbol_files("csi.v1.Controller.CreateVolume"), 4);
	cr_assert_eq(symbol_files("csi.v1.VolumeUsage.Unit"), 4);
	cr_assert_eq(symbol_files("csi.v1.Volume.capacity_bytes"), 4);
	cr_assert_eq(symbol_files("grpc.health.v1.HealthCheckResponse.ServingStatus"), 1);
	cr_assert_eq(symbol_files("google.protobuf.Timestamp"), 1);
	cr_assert_eq(symbol_files("csi.v1"), -1);
	cr_assert_eq(symbol_files("csi.v1.Controllerx"), -1);
	cr_assert_eq(symbol_files("csi.v1.Controlle"), -1);
	cr_assert_eq(symbol_files(""), -1);
}

Test(services, reflection_finds_files_and_extensions)
{
	ask request;
	grpc__reflection__v1__server_reflection_request__init(&request);
	request.message_request_case = ASKED(FILE_BY_FILENAME);
	request.file_by_filename = text("csi.proto");
	cr_assert_eq(files(&request), 4);
	request.file_by_filename = text("google/protobuf/wrappers.proto");
	cr_assert_eq(files(&request), 1);
	request.file_by_filename = text("nope.proto");
	cr_assert_eq(files(&request), -1);

	request.message_request_case = ASKED(ALL_EXTENSION_NUMBERS_OF_TYPE);
	request.all_extension_numbers_of_type = text("google.protobuf.FieldOptions");
	told *t = reflect("v1", &request);
	cr_assert_eq(t->message_response_case, TOLD(ALL_EXTENSION_NUMBERS_RESPONSE));
	cr_assert_gt(t->all_extension_numbers_response->n_extension_number, 0);
	cr_assert_eq(t->all_extension_numbers_response->base_type_name.len,
		strlen("google.protobuf.FieldOptions"));
	int32_t number = t->all_extension_numbers_response->extension_number[0];
	told_free(t);
	Grpc__Reflection__V1__ExtensionRequest extension =
		GRPC__REFLECTION__V1__EXTENSION_REQUEST__INIT;
	extension.containing_type = text("google.protobuf.FieldOptions");
	extension.extension_number = number;
	request.message_request_case = ASKED(FILE_CONTAINING_EXTENSION);
	request.file_containing_extension = &extension;
	cr_assert_eq(files(&request), 4);
	extension.extension_number = 1;
	cr_assert_eq(files(&request), -1);

	static const char *const unextended[] = {"csi.v1.Volume", "csi.v1.NoSuchMessage"};
	for (unsigned i = 0; i < 2; i++) {
		request.message_request_case = ASKED(ALL_EXTENSION_NUMBERS_OF_TYPE);
		request.all_extension_numbers_of_type = text(unextended[i]);
		t = reflect("v1", &request);
		if (i == 0) {
			cr_assert_eq(
				t->message_response_case, TOLD(ALL_EXTENSION_NUMBERS_RESPONSE));
			cr_assert_eq(t->all_extension_numbers_response->n_extension_number, 0);
		} else {
			cr_assert_eq(t->message_response_case, TOLD(ERROR_RESPONSE));
			cr_assert_eq(t->error_response->error_code, GRPC_NOT_FOUND);
		}
		told_free(t);
	}

	request.message_request_case = ASKED(_NOT_SET);
	t = reflect("v1", &request);
	cr_assert_eq(t->error_response->error_code, GRPC_INVALID_ARGUMENT);
	told_free(t);
}

Test(services, reflection_of_a_damaged_set)
{
	struct grpc_registry *r = grpc_registry_new();
	uint8_t *set = malloc(proto_descriptor_set_len);
	unsigned refused = 0;
	for (size_t len = 1; len < proto_descriptor_set_len; len += 97) {
		memcpy(set, proto_descriptor_set, len);
		struct reflection *broken = reflection_new(r, set, len);
		refused += broken == NULL;
		if (broken == NULL)
			continue;
		grpc_registry_undo_add(r);
		grpc_registry_undo_add(r);
		reflection_free(broken);
	}
	cr_assert_gt(refused, 0);
	free(set);
	grpc_registry_free(r);
}

/* ---- the registry and local calls ---- */

Test(services, registry)
{
	cr_assert_eq(grpc_registry_add(p->registry, &test_service, NULL), -EEXIST);
	static const struct grpc_method wrong[] = {{"Nope", test_echo}, {NULL}};
	ProtobufCServiceDescriptor descriptor = test_descriptor;
	descriptor.name = "test.v1.Other";
	struct grpc_service service = {&descriptor, wrong, NULL};
	cr_assert_eq(grpc_registry_add(p->registry, &service, NULL), -ENOENT);
	cr_assert_eq(grpc_registry_at(p->registry, 0), &test_service);
	cr_assert_null(grpc_registry_at(p->registry, 4));

	struct grpc_registry *r = grpc_registry_new();
	static ProtobufCServiceDescriptor many[GRPC_METHODS_MAX];
	static struct grpc_service services[GRPC_METHODS_MAX];
	static char names[GRPC_METHODS_MAX][16];
	int res = 0;
	unsigned added = 0;
	for (; res == 0 && added < GRPC_METHODS_MAX; added++) {
		snprintf(names[added], sizeof(names[0]), "s%u.S", added);
		many[added] = test_descriptor;
		many[added].name = names[added];
		services[added] = (struct grpc_service){&many[added], test_methods, NULL};
		res = grpc_registry_add(r, &services[added], NULL);
	}
	cr_assert_eq(res, -ENOSPC);
	cr_assert_eq(added - 1, GRPC_METHODS_MAX / 6);
	cr_assert_not_null(grpc_registry_find(r, "/s3.S/Chat", 10));
	cr_assert_null(grpc_registry_find(r, "/s16.S/Echo", 11));
	grpc_registry_free(r);
}

struct local_result {
	struct grpc_local local;
	unsigned messages, ends;
	size_t len;
	enum grpc_status status;
};

static void local_on_message(struct grpc_local *local, const uint8_t *data, size_t len)
{
	struct local_result *r = container_of(local, struct local_result, local);
	(void)data;
	r->messages++;
	r->len = len;
}

static void local_on_end(struct grpc_local *local, enum grpc_status status, const char *message)
{
	struct local_result *r = container_of(local, struct local_result, local);
	cr_assert_not_null(message);
	r->ends++;
	r->status = status;
}

static struct local_result local(const char *path, const void *request, size_t len)
{
	struct local_result r = {.local = {local_on_message, local_on_end}};
	grpc_dispatch_local(p->registry, path, request, len, &r.local);
	return r;
}

Test(services, local_calls)
{
	struct local_result r = local("/test.v1.Test/Echo", "\x0A\2hi", 4);
	cr_assert_eq(r.messages, 1);
	cr_assert_eq(r.len, 4);
	cr_assert_eq(r.status, GRPC_OK);
	r = local("/test.v1.Test/Chat", "\x0A\2hi", 4);
	cr_assert_eq(r.messages, 1);
	cr_assert_eq(r.ends, 1);
	cr_assert_eq(local("/test.v1.Test/Nope", "", 0).status, GRPC_UNIMPLEMENTED);
	cr_assert_eq(local("/test.v1.Test/Echo", "\xFF", 1).status, GRPC_INTERNAL);
	cr_assert_eq(local("/test.v1.Test/Huge", "", 0).status, GRPC_RESOURCE_EXHAUSTED);
	world.flood_left = 10;
	cr_assert_eq(local("/test.v1.Test/Flood", "", 0).messages, 10);
	world.refuse = true;
	r = local("/test.v1.Test/Echo", "", 0);
	cr_assert_eq(r.status, GRPC_INVALID_ARGUMENT);
	cr_assert_eq(r.ends, 1);
}

/* ---- header values ---- */

Test(services, messages_are_encoded_and_cut)
{
	char out[GRPC_ENCODED_MESSAGE_MAX];
	cr_assert_eq(grpc_wire_encode_message("a b~", out), 4);
	cr_assert_eq(memcmp(out, "a b~", 4), 0);
	cr_assert_eq(grpc_wire_encode_message("\x7F%\xE2\x82\xAC", out), 15);
	cr_assert_eq(memcmp(out, "%7F%25%E2%82%AC", 15), 0);
	cr_assert_eq(grpc_wire_encode_message("\xE2", out), 3); /* cut UTF-8 does no harm */
	static char text_long[GRPC_ENCODED_MESSAGE_MAX];
	memset(text_long, 'x', sizeof(text_long) - 1);
	cr_assert_eq(grpc_wire_encode_message(text_long, out), sizeof(text_long) - 1);
	memset(text_long, 0xC3, sizeof(text_long) - 1);
	cr_assert_leq(grpc_wire_encode_message(text_long, out), GRPC_ENCODED_MESSAGE_MAX);
	/* Three bytes to the end, and two. */
	memset(text_long, 'x', sizeof(text_long) - 1);
	text_long[GRPC_ENCODED_MESSAGE_MAX - 3] = '%';
	text_long[GRPC_ENCODED_MESSAGE_MAX - 2] = '\0';
	cr_assert_eq(grpc_wire_encode_message(text_long, out), GRPC_ENCODED_MESSAGE_MAX);
	memmove(text_long + 1, text_long, GRPC_ENCODED_MESSAGE_MAX - 1);
	cr_assert_eq(grpc_wire_encode_message(text_long, out), GRPC_ENCODED_MESSAGE_MAX - 2);
}
