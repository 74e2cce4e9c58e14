/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grpc.reflection.v1 and, for older clients, v1alpha, which differs in its name only. Each request
 * on the stream gets one response: a file with all it imports (the file asked for comes first), the
 * numbers of a message's extensions, the services, or an error that does not end the stream.
 */
#include "rpc/reflection.h"

#include "reflection.pb-c.h"
#include "rpc/reflection_index.h"
#include "rpc/registry.h"

#include <stdlib.h>
#include <string.h>

typedef Grpc__Reflection__V1__ServerReflectionRequest reflection_request;
typedef Grpc__Reflection__V1__ServerReflectionResponse reflection_response;

#define ASKED(name)  GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_##name
#define ANSWER(name) GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_##name

struct reflection {
	struct grpc_registry *registry;
	struct reflection_index index;
	ProtobufCServiceDescriptor alpha_descriptor;
	struct grpc_service service, alpha;
};

static struct bytes to_bytes(ProtobufCBinaryData b)
{
	/* An empty field has no data pointer. */
	return (struct bytes){b.data != NULL ? b.data : (const uint8_t *)"", b.len};
}

static ProtobufCBinaryData from_bytes(struct bytes b)
{
	return (ProtobufCBinaryData){.len = b.len, .data = (uint8_t *)b.data};
}

static ProtobufCBinaryData from_text(const char *s)
{
	return (ProtobufCBinaryData){.len = strlen(s), .data = (uint8_t *)s};
}

static bool answer_error(struct arena *arena, reflection_response *response,
	enum grpc_status status, const char *message)
{
	Grpc__Reflection__V1__ErrorResponse *e =
		arena_new_of(arena, Grpc__Reflection__V1__ErrorResponse);
	if (e == NULL)
		return false;
	grpc__reflection__v1__error_response__init(e);
	e->error_code = status;
	e->error_message = from_text(message);
	response->error_response = e;
	response->message_response_case = ANSWER(ERROR_RESPONSE);
	return true;
}

/* The file and its imports, each once, in the order they are met. */
static bool answer_file(const struct reflection_index *index, struct arena *arena,
	reflection_response *response, int file)
{
	if (file < 0)
		return answer_error(arena, response, GRPC_NOT_FOUND, "not found");
	Grpc__Reflection__V1__FileDescriptorResponse *f =
		arena_new_of(arena, Grpc__Reflection__V1__FileDescriptorResponse);
	unsigned *order = arena_alloc(arena, index->file_count * sizeof(unsigned));
	bool *seen = arena_alloc(arena, index->file_count * sizeof(bool));
	ProtobufCBinaryData *protos =
		arena_alloc(arena, index->file_count * sizeof(ProtobufCBinaryData));
	if (f == NULL || order == NULL || seen == NULL || protos == NULL)
		return false;

	size_t count = 0;
	order[count++] = (unsigned)file;
	seen[file] = true;
	for (size_t i = 0; i < count; i++) {
		const struct reflection_file *at = &index->files[order[i]];
		protos[i] = from_bytes(at->proto);
		for (size_t k = 0; k < at->import_count; k++) {
			unsigned import = index->imports[at->import_at + k];
			if (!seen[import])
				order[count++] = import;
			seen[import] = true;
		}
	}
	grpc__reflection__v1__file_descriptor_response__init(f);
	f->n_file_descriptor_proto = count;
	f->file_descriptor_proto = protos;
	response->file_descriptor_response = f;
	response->message_response_case = ANSWER(FILE_DESCRIPTOR_RESPONSE);
	return true;
}

static bool answer_extension(const struct reflection_index *index, struct arena *arena,
	reflection_response *response, const Grpc__Reflection__V1__ExtensionRequest *request)
{
	struct bytes type = to_bytes(request->containing_type);
	int file = -1;
	for (size_t i = 0; i < index->extension_count && file < 0; i++) {
		const struct reflection_extension *e = &index->extensions[i];
		if (e->number == request->extension_number && bytes_equal(e->extendee, type))
			file = (int)e->file;
	}
	return answer_file(index, arena, response, file);
}

static bool answer_extension_numbers(const struct reflection_index *index, struct arena *arena,
	reflection_response *response, struct bytes type)
{
	if (reflection_index_symbol(index, type) < 0)
		return answer_error(arena, response, GRPC_NOT_FOUND, "not found");
	Grpc__Reflection__V1__ExtensionNumberResponse *n =
		arena_new_of(arena, Grpc__Reflection__V1__ExtensionNumberResponse);
	int32_t *numbers = arena_alloc(arena, index->extension_count * sizeof(int32_t));
	if (n == NULL || numbers == NULL)
		return false;
	grpc__reflection__v1__extension_number_response__init(n);
	n->base_type_name = from_bytes(type);
	n->extension_number = numbers;
	for (size_t i = 0; i < index->extension_count; i++) {
		if (bytes_equal(index->extensions[i].extendee, type))
			numbers[n->n_extension_number++] = index->extensions[i].number;
	}
	response->all_extension_numbers_response = n;
	response->message_response_case = ANSWER(ALL_EXTENSION_NUMBERS_RESPONSE);
	return true;
}

/* Services without a file in the set are left out: nothing more could be said about them. */
static bool answer_services(
	const struct reflection *reflection, struct arena *arena, reflection_response *response)
{
	unsigned count = 0;
	while (grpc_registry_at(reflection->registry, count) != NULL)
		count++;
	Grpc__Reflection__V1__ListServiceResponse *list =
		arena_new_of(arena, Grpc__Reflection__V1__ListServiceResponse);
	Grpc__Reflection__V1__ServiceResponse *services =
		arena_alloc(arena, count * sizeof(*services));
	Grpc__Reflection__V1__ServiceResponse **pointers =
		arena_alloc(arena, count * sizeof(*pointers));
	if (list == NULL || services == NULL || pointers == NULL)
		return false;
	grpc__reflection__v1__list_service_response__init(list);
	list->service = pointers;
	for (unsigned i = 0; i < count; i++) {
		const char *name = grpc_registry_at(reflection->registry, i)->descriptor->name;
		ProtobufCBinaryData text = from_text(name);
		if (reflection_index_symbol(&reflection->index, to_bytes(text)) < 0)
			continue;
		Grpc__Reflection__V1__ServiceResponse *s = &services[list->n_service];
		grpc__reflection__v1__service_response__init(s);
		s->name = text;
		pointers[list->n_service++] = s;
	}
	response->list_services_response = list;
	response->message_response_case = ANSWER(LIST_SERVICES_RESPONSE);
	return true;
}

static bool answer(const struct reflection *reflection, struct arena *arena,
	const reflection_request *request, reflection_response *response)
{
	const struct reflection_index *index = &reflection->index;
	switch (request->message_request_case) {
	case ASKED(FILE_BY_FILENAME):
		return answer_file(index, arena, response,
			reflection_index_file(index, to_bytes(request->file_by_filename)));
	case ASKED(FILE_CONTAINING_SYMBOL):
		return answer_file(index, arena, response,
			reflection_index_symbol(index, to_bytes(request->file_containing_symbol)));
	case ASKED(FILE_CONTAINING_EXTENSION):
		return answer_extension(index, arena, response, request->file_containing_extension);
	case ASKED(ALL_EXTENSION_NUMBERS_OF_TYPE):
		return answer_extension_numbers(
			index, arena, response, to_bytes(request->all_extension_numbers_of_type));
	case ASKED(LIST_SERVICES):
		return answer_services(reflection, arena, response);
	default:
		return answer_error(
			arena, response, GRPC_INVALID_ARGUMENT, "the request asks for nothing");
	}
}

static void on_gone(struct grpc_call *call, void *arg)
{
	(void)arg;
	grpc_end(call, GRPC_CANCELLED, NULL);
}

static void reflection_info(struct grpc_call *call, const ProtobufCMessage *message)
{
	if (message == NULL) {
		grpc_end(call, GRPC_OK, NULL);
		return;
	}
	reflection_response response = GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__INIT;
	response.original_request = (reflection_request *)message;
	response.valid_host = response.original_request->host;
	if (!answer(grpc_call_context(call), grpc_call_arena(call), response.original_request,
		    &response)) {
		grpc_end(call, GRPC_RESOURCE_EXHAUSTED, "out of memory");
		return;
	}
	grpc_on_gone(call, on_gone, NULL);
	grpc_send(call, &response.base); /* no next request comes before there is room */
}

static const struct grpc_method reflection_methods[] = {
	{"ServerReflectionInfo", reflection_info, GRPC_STREAM_IN | GRPC_ENDLESS},
	{NULL},
};

struct reflection *reflection_new(struct grpc_registry *registry, const uint8_t *set, size_t len)
{
	struct reflection *r = calloc(1, sizeof(*r));
	if (r == NULL || reflection_index_build(&r->index, set, len) < 0) {
		free(r);
		return NULL;
	}
	r->registry = registry;
	r->service = (struct grpc_service){
		.descriptor = &grpc__reflection__v1__server_reflection__descriptor,
		.methods = reflection_methods,
		.context = r,
	};
	r->alpha_descriptor = *r->service.descriptor;
	r->alpha_descriptor.name = "grpc.reflection.v1alpha.ServerReflection";
	r->alpha_descriptor.package = "grpc.reflection.v1alpha";
	r->alpha = r->service;
	r->alpha.descriptor = &r->alpha_descriptor;
	if (grpc_registry_add(registry, &r->service, NULL) < 0) {
		reflection_free(r);
		return NULL;
	}
	if (grpc_registry_add(registry, &r->alpha, NULL) < 0) {
		grpc_registry_undo_add(registry);
		reflection_free(r);
		return NULL;
	}
	return r;
}

void reflection_free(struct reflection *reflection)
{
	if (reflection == NULL)
		return;
	reflection_index_free(&reflection->index);
	free(reflection);
}
