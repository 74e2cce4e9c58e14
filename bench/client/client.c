/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls one after the other, from a client that adds as little as can be: one thread, one socket,
 * no runtime that has to be woken as well. Prints the nanoseconds of each, one a line; what comes
 * between two of them is not timed.
 *
 *   create ENDPOINT N PREFIX BYTES block|FS  CreateVolume of PREFIX-0 and so on; deleted at the end
 *   info ENDPOINT N PAUSE_US                 GetPluginInfo, each a while after the answer before
 */
#include "base/clock.h"
#include "csi.pb-c.h"
#include "tools/grpc_client.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct grpc_client *client;

static int ignore(void *arg, const uint8_t *data, size_t len)
{
	(void)arg;
	(void)data;
	(void)len;
	return 0;
}

/* How long it took. */
static uint64_t call(const char *path, const ProtobufCMessage *request,
	int (*on_message)(void *arg, const uint8_t *data, size_t len), void *arg)
{
	struct err err = {0};
	uint64_t start = clock_monotonic_ns();
	if (grpc_client_call(client, path, request, on_message, arg, &err) < 0) {
		fprintf(stderr, "client: %s: %s\n", path, err.message);
		exit(1);
	}
	return clock_monotonic_ns() - start;
}

static ProtobufCBinaryData bytes(char *text)
{
	return (ProtobufCBinaryData){.len = strlen(text), .data = (uint8_t *)text};
}

/* The id of the volume made, to delete it by. */
static int keep_id(void *arg, const uint8_t *data, size_t len)
{
	char **id = arg;
	Csi__V1__CreateVolumeResponse *r = csi__v1__create_volume_response__unpack(NULL, len, data);
	if (r != NULL && r->volume != NULL)
		*id = strndup((const char *)r->volume->volume_id.data, r->volume->volume_id.len);
	csi__v1__create_volume_response__free_unpacked(r, NULL); /* NULL is legal */
	return *id != NULL ? 0 : -1;
}

static void delete_volume(char *id)
{
	Csi__V1__DeleteVolumeRequest request = CSI__V1__DELETE_VOLUME_REQUEST__INIT;
	request.volume_id = bytes(id);
	call("/csi.v1.Controller/DeleteVolume", &request.base, ignore, NULL);
	free(id);
}

static void run_create(unsigned n, const char *prefix, const char *size, char *fs)
{
	Csi__V1__CapacityRange range = CSI__V1__CAPACITY_RANGE__INIT;
	Csi__V1__VolumeCapability__AccessMode mode = CSI__V1__VOLUME_CAPABILITY__ACCESS_MODE__INIT;
	Csi__V1__VolumeCapability__BlockVolume block =
		CSI__V1__VOLUME_CAPABILITY__BLOCK_VOLUME__INIT;
	Csi__V1__VolumeCapability__MountVolume mount =
		CSI__V1__VOLUME_CAPABILITY__MOUNT_VOLUME__INIT;
	Csi__V1__VolumeCapability capability = CSI__V1__VOLUME_CAPABILITY__INIT;
	Csi__V1__VolumeCapability *capabilities[] = {&capability};
	range.required_bytes = strtoll(size, NULL, 10);
	mode.mode = CSI__V1__VOLUME_CAPABILITY__ACCESS_MODE__MODE__SINGLE_NODE_WRITER;
	mount.fs_type = bytes(fs);
	capability.access_mode = &mode;
	if (strcmp(fs, "block") == 0) {
		capability.access_type_case = CSI__V1__VOLUME_CAPABILITY__ACCESS_TYPE_BLOCK;
		capability.block = &block;
	} else {
		capability.access_type_case = CSI__V1__VOLUME_CAPABILITY__ACCESS_TYPE_MOUNT;
		capability.mount = &mount;
	}
	char **ids = calloc(n, sizeof(*ids));
	if (ids == NULL)
		exit(1);
	for (unsigned i = 0; i < n; i++) {
		char name[128];
		snprintf(name, sizeof(name), "%s-%u", prefix, i);
		Csi__V1__CreateVolumeRequest request = CSI__V1__CREATE_VOLUME_REQUEST__INIT;
		request.name = bytes(name);
		request.capacity_range = &range;
		request.n_volume_capabilities = 1;
		request.volume_capabilities = capabilities;
		uint64_t ns =
			call("/csi.v1.Controller/CreateVolume", &request.base, keep_id, &ids[i]);
		printf("%llu\n", (unsigned long long)ns);
	}
	for (unsigned i = 0; i < n; i++)
		delete_volume(ids[i]);
	free(ids);
}

static void run_info(unsigned n, const char *pause_us)
{
	Csi__V1__GetPluginInfoRequest request = CSI__V1__GET_PLUGIN_INFO_REQUEST__INIT;
	for (unsigned i = 0; i < n; i++) {
		usleep((useconds_t)atoi(pause_us));
		uint64_t ns = call("/csi.v1.Identity/GetPluginInfo", &request.base, ignore, NULL);
		printf("%llu\n", (unsigned long long)ns);
	}
}

int main(int argc, char **argv)
{
	struct err err = {0};
	bool create = argc == 7 && strcmp(argv[1], "create") == 0;
	if (!create && (argc != 5 || strcmp(argv[1], "info") != 0)) {
		fprintf(stderr, "usage: client create|info ENDPOINT N ...\n");
		return 2;
	}
	if (grpc_client_open(&client, argv[2], &err) < 0) {
		fprintf(stderr, "client: %s\n", err.message);
		return 1;
	}
	unsigned n = (unsigned)atoi(argv[3]);
	if (create)
		run_create(n, argv[4], argv[5], argv[6]);
	else
		run_info(n, argv[4]);
	grpc_client_close(client);
	return 0;
}
