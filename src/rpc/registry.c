/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The services of one server and the table their methods are found in: open addressing over the
 * full path, filled at start and never shrunk. Adding fails when memory is short, when a path is
 * already there or when the table is full, and leaves the registry as it was.
 */
#include "rpc/registry.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static uint32_t path_hash(const char *path, size_t len)
{
	uint32_t h = 2166136261u;
	for (size_t i = 0; i < len; i++)
		h = (h ^ (unsigned char)path[i]) * 16777619u;
	return h ^ h >> 15;
}

const struct grpc_entry *grpc_registry_find(
	const struct grpc_registry *registry, const char *path, size_t len)
{
	for (uint32_t i = path_hash(path, len);; i++) {
		const struct grpc_entry *e = registry->slots[i % REGISTRY_SLOTS];
		if (e == NULL)
			return NULL;
		if (e->path_len == len && memcmp(e->path, path, len) == 0)
			return e;
	}
}

struct grpc_registry *grpc_registry_new(void)
{
	struct grpc_registry *registry = calloc(1, sizeof(*registry));
	if (registry == NULL)
		return NULL;
	registry->memory = budget_new(GRPC_MEMORY_MAX_BYTES);
	if (registry->memory == NULL) {
		free(registry);
		return NULL;
	}
	return registry;
}

static void entries_drop(struct grpc_registry *registry, unsigned from)
{
	for (unsigned i = from; i < registry->entry_count; i++)
		free(registry->entries[i].path);
	registry->entry_count = from;
}

void grpc_registry_free(struct grpc_registry *registry)
{
	if (registry == NULL)
		return;
	entries_drop(registry, 0);
	free(registry->services);
	budget_unref(registry->memory);
	free(registry);
}

static const ProtobufCMethodDescriptor *descriptor_method(
	const ProtobufCServiceDescriptor *descriptor, const char *name)
{
	for (unsigned i = 0; i < descriptor->n_methods; i++) {
		if (strcmp(descriptor->methods[i].name, name) == 0)
			return &descriptor->methods[i];
	}
	return NULL;
}

static int entry_fill(struct grpc_registry *registry, const struct grpc_service *service,
	const struct grpc_method *method, grpc_check_fn *check)
{
	const ProtobufCMethodDescriptor *m = descriptor_method(service->descriptor, method->name);
	if (m == NULL)
		return -ENOENT;
	if (registry->entry_count == GRPC_METHODS_MAX)
		return -ENOSPC;
	size_t service_len = strlen(service->descriptor->name), name_len = strlen(m->name);
	size_t len = 1 + service_len + 1 + name_len;
	char *path = malloc(len + 1);
	if (path == NULL)
		return -ENOMEM;
	path[0] = '/';
	memcpy(path + 1, service->descriptor->name, service_len);
	path[1 + service_len] = '/';
	memcpy(path + 2 + service_len, m->name, name_len + 1);

	for (unsigned i = 0; i < registry->entry_count; i++) {
		if (strcmp(registry->entries[i].path, path) == 0) {
			free(path);
			return -EEXIST;
		}
	}
	registry->entries[registry->entry_count++] = (struct grpc_entry){
		.path = path,
		.path_len = len,
		.name = m->name,
		.service = service,
		.input = m->input,
		.output = m->output,
		.fn = method->fn,
		.row = method->row,
		.flags = method->flags,
		.check = check,
	};
	return 0;
}

static void slots_build(struct grpc_registry *registry)
{
	memset(registry->slots, 0, sizeof(registry->slots));
	for (unsigned i = 0; i < registry->entry_count; i++) {
		const struct grpc_entry *e = &registry->entries[i];
		uint32_t at = path_hash(e->path, e->path_len);
		while (registry->slots[at % REGISTRY_SLOTS] != NULL)
			at++;
		registry->slots[at % REGISTRY_SLOTS] = e;
	}
}

int grpc_registry_add(
	struct grpc_registry *registry, const struct grpc_service *service, grpc_check_fn *check)
{
	for (unsigned i = 0; i < registry->service_count; i++) {
		if (strcmp(registry->services[i]->descriptor->name, service->descriptor->name) == 0)
			return -EEXIST;
	}
	const struct grpc_service **services = realloc(
		registry->services, (registry->service_count + 1) * sizeof(struct grpc_service *));
	if (services == NULL)
		return -ENOMEM;
	registry->services = services;

	unsigned first = registry->entry_count;
	for (const struct grpc_method *m = service->methods; m->name != NULL; m++) {
		int res = entry_fill(registry, service, m, check);
		if (res < 0) {
			entries_drop(registry, first);
			return res;
		}
	}
	registry->services[registry->service_count++] = service;
	slots_build(registry);
	return 0;
}

void grpc_registry_undo_add(struct grpc_registry *registry)
{
	const struct grpc_service *service = registry->services[--registry->service_count];
	unsigned first = registry->entry_count;
	while (first > 0 && registry->entries[first - 1].service == service)
		first--;
	entries_drop(registry, first);
	slots_build(registry);
}

void grpc_registry_observe(struct grpc_registry *registry, grpc_observe_fn *fn, void *arg)
{
	registry->observe = fn;
	registry->observe_arg = arg;
}

const struct grpc_service *grpc_registry_at(const struct grpc_registry *registry, unsigned i)
{
	return i < registry->service_count ? registry->services[i] : NULL;
}

unsigned grpc_registry_in_flight(const struct grpc_registry *registry)
{
	return registry->in_flight;
}

size_t grpc_registry_memory(const struct grpc_registry *registry)
{
	return registry->memory->used_bytes;
}
