/* SPDX-License-Identifier: Apache-2.0 */
/* Capacity ranges and the sizes of fields: no size wraps, every refusal names the field.
 */
#include "csi/messages.h"
#include "csi/request.h"

#include <criterion/criterion.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (1ULL << 20)

struct wanted {
	int64_t required, limit;
	uint64_t default_bytes, min_bytes;
	enum err_code code;
	uint64_t size;
};

static void check(const struct wanted *w)
{
	Csi__V1__CapacityRange range = CSI__V1__CAPACITY_RANGE__INIT;
	range.required_bytes = w->required;
	range.limit_bytes = w->limit;
	uint64_t size = 1, limit = 1;
	struct err err = {0};
	int r = csi_capacity(&range, w->default_bytes, w->min_bytes, &size, &limit, &err);
	cr_expect_eq(err.code, w->code, "required %lld limit %lld: %s", (long long)w->required,
		(long long)w->limit, err.message);
	if (w->code != ERR_OK) {
		cr_expect_lt(r, 0);
		cr_expect(strncmp(err.message, "capacity_range: ", 16) == 0, "%s", err.message);
		cr_expect(size == 1 && limit == 1, "outputs are untouched on failure");
		return;
	}
	cr_expect_eq(r, 0);
	cr_expect_eq(size, w->size, "required %lld limit %lld: %llu", (long long)w->required,
		(long long)w->limit, (unsigned long long)size);
	cr_expect_eq(limit, (uint64_t)w->limit);
}

Test(capacity_range, table)
{
	static const struct wanted table[] = {
		/* nothing asked for: the default; or what the limit leaves of it */
		{0, 0, 1024 * MIB, 16 * MIB, ERR_OK, 1024 * MIB},
		{0, 100 * (int64_t)MIB, 1024 * MIB, 16 * MIB, ERR_OK, 100 * MIB},
		{0, 100 * (int64_t)MIB + 1, 1024 * MIB, 16 * MIB, ERR_OK, 100 * MIB},
		{0, 2048 * (int64_t)MIB, 1024 * MIB, 16 * MIB, ERR_OK, 1024 * MIB},
		{0, 15 * (int64_t)MIB, 1024 * MIB, 16 * MIB, ERR_RANGE, 0},
		/* rounded up to 1 MiB, and to the least */
		{1, 0, 1024 * MIB, 16 * MIB, ERR_OK, 16 * MIB},
		{20 * (int64_t)MIB, 0, 1024 * MIB, 16 * MIB, ERR_OK, 20 * MIB},
		{20 * (int64_t)MIB + 1, 0, 1024 * MIB, 16 * MIB, ERR_OK, 21 * MIB},
		{20 * (int64_t)MIB, 20 * (int64_t)MIB, 1024 * MIB, 16 * MIB, ERR_OK, 20 * MIB},
		/* no multiple of 1 MiB lies between */
		{20 * (int64_t)MIB + 1, 20 * (int64_t)MIB + 2, 0, 16 * MIB, ERR_RANGE, 0},
		{20 * (int64_t)MIB, 20 * (int64_t)MIB - 1, 0, 16 * MIB, ERR_RANGE, 0},
		/* the least is more than the limit (xfs) */
		{20 * (int64_t)MIB, 200 * (int64_t)MIB, 0, 300 * MIB, ERR_RANGE, 0},
		{20 * (int64_t)MIB, 300 * (int64_t)MIB, 0, 300 * MIB, ERR_OK, 300 * MIB},
		/* expansion: default and least are the volume's size */
		{0, 400 * (int64_t)MIB, 300 * MIB, 300 * MIB, ERR_OK, 300 * MIB},
		{0, 200 * (int64_t)MIB, 300 * MIB, 300 * MIB, ERR_RANGE, 0},
		{100 * (int64_t)MIB, 0, 300 * MIB, 300 * MIB, ERR_OK, 300 * MIB},
		/* nonsense */
		{-1, 0, MIB, MIB, ERR_INVALID, 0},
		{0, -1, MIB, MIB, ERR_INVALID, 0},
		{INT64_MIN, INT64_MIN, MIB, MIB, ERR_INVALID, 0},
		{INT64_MAX, 0, MIB, MIB, ERR_RANGE, 0},
		{INT64_MAX, INT64_MAX, MIB, MIB, ERR_RANGE, 0},
		{(int64_t)CSI_SIZE_MAX, INT64_MAX, MIB, MIB, ERR_OK, CSI_SIZE_MAX},
		{(int64_t)CSI_SIZE_MAX + 1, 0, MIB, MIB, ERR_RANGE, 0},
	};
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
		check(&table[i]);
}

Test(capacity_range, missing)
{
	uint64_t size, limit;
	struct err err = {0};
	cr_assert_eq(csi_capacity(NULL, 64 * MIB, 16 * MIB, &size, &limit, &err), 0);
	cr_expect_eq(size, 64 * MIB);
	cr_expect_eq(limit, 0);
}

/* ---- sizes of fields ---- */

static ProtobufCBinaryData letters(size_t len)
{
	uint8_t *data = malloc(len + 1);
	cr_assert_not_null(data);
	memset(data, 'x', len + 1);
	return (ProtobufCBinaryData){len, data};
}

/* The field takes so many bytes, and not one more. */
static void takes(
	const ProtobufCMessage *request, ProtobufCBinaryData *field, size_t most, const char *name)
{
	struct err err = {0};
	char want[100];
	const ProtobufCBinaryData was = *field;
	*field = letters(most + 1);
	cr_expect_eq(csi_check_request(request, &err), GRPC_INVALID_ARGUMENT, "%s", name);
	snprintf(want, sizeof(want), "%s: %zu bytes long, %zu are allowed", name, most + 1, most);
	cr_expect_str_eq(err.message, want);
	err_clear(&err);
	field->len = most;
	cr_expect_eq(csi_check_request(request, &err), GRPC_OK, "%s: %s", name, err.message);
	field->data[most / 2] = '\0';
	cr_expect_eq(csi_check_request(request, &err), GRPC_INVALID_ARGUMENT);
	snprintf(want, sizeof(want), "%s: contains a NUL byte", name);
	cr_expect_str_eq(err.message, want);
	err_clear(&err);
	field->data[most / 2] = 0xff;
	cr_expect_eq(csi_check_request(request, &err), GRPC_INVALID_ARGUMENT);
	snprintf(want, sizeof(want), "%s: is not valid UTF-8", name);
	cr_expect_str_eq(err.message, want);
	free(field->data);
	*field = was;
}

/* Each kind of field has its limit: CSI's of strings and node ids, the kernel's of paths. */
Test(request, fields_have_limits)
{
	Csi__V1__NodePublishVolumeRequest publish = CSI__V1__NODE_PUBLISH_VOLUME_REQUEST__INIT;
	Csi__V1__ControllerPublishVolumeRequest attach =
		CSI__V1__CONTROLLER_PUBLISH_VOLUME_REQUEST__INIT;
	Csi__V1__ListVolumesRequest list = CSI__V1__LIST_VOLUMES_REQUEST__INIT;
	Csi__V1__VolumeCapability cap = CSI__V1__VOLUME_CAPABILITY__INIT;
	Csi__V1__VolumeCapability__MountVolume mount =
		CSI__V1__VOLUME_CAPABILITY__MOUNT_VOLUME__INIT;
	ProtobufCBinaryData flags[2] = {csi_bytes("noatime"), csi_bytes("ro")};
	cap.access_type_case = CSI__V1__VOLUME_CAPABILITY__ACCESS_TYPE_MOUNT;
	cap.mount = &mount;
	mount.n_mount_flags = 2;
	mount.mount_flags = flags;
	publish.volume_capability = &cap;
	takes(&publish.base, &publish.volume_id, 128, "volume_id");
	takes(&publish.base, &publish.target_path, PATH_MAX - 1, "target_path");
	takes(&publish.base, &publish.staging_target_path, PATH_MAX - 1, "staging_target_path");
	takes(&publish.base, &mount.fs_type, 128, "fs_type");
	takes(&publish.base, &flags[0], 4096, "mount_flags");
	takes(&publish.base, &flags[1], 4096, "mount_flags");
	takes(&attach.base, &attach.node_id, 256, "node_id");
	takes(&list.base, &list.starting_token, 256, "starting_token");
}

/* A map has 4 KiB for all of it, and a key once; it is sorted, whatever the order it came in. */
Test(request, maps_have_limits)
{
	Csi__V1__CreateVolumeRequest req = CSI__V1__CREATE_VOLUME_REQUEST__INIT;
	Csi__V1__StringPair a = CSI__V1__STRING_PAIR__INIT, b = a, c = a;
	Csi__V1__StringPair *pairs[] = {&a, &b, &c};
	struct err err = {0};
	a.key = csi_bytes("bb");
	b.key = csi_bytes("b");
	c.key = csi_bytes("a");
	b.value = letters(4096 - 4);
	req.n_parameters = 3;
	req.parameters = pairs;
	cr_expect_eq(csi_check_request(&req.base, &err), GRPC_OK, "%s", err.message);
	cr_expect(pairs[0] == &c && pairs[1] == &b && pairs[2] == &a, "they are not sorted");
	a.value = csi_bytes("1");
	cr_expect_eq(csi_check_request(&req.base, &err), GRPC_INVALID_ARGUMENT);
	cr_expect_str_eq(err.message, "parameters: 4097 bytes in all, 4096 are allowed");
	err_clear(&err);
	free(b.value.data);
	b.value = csi_bytes("");
	a.key = csi_bytes("a");
	cr_expect_eq(csi_check_request(&req.base, &err), GRPC_INVALID_ARGUMENT);
	cr_expect_str_eq(err.message, "parameters: a key appears twice");
	pairs[0] = &c;
	req.n_parameters = 1;
	c.key = csi_bytes("");
	takes(&req.base, &c.value, 4096, "parameters");
	takes(&req.base, &c.key, 4096, "parameters");
}

/* What has to be given, and how a path has to be. */
Test(request, paths)
{
	static const struct {
		const char *path, *why;
	} table[] = {
		{"/a", NULL},
		{"/a/..b/c..", NULL},
		{"", "p is missing"},
		{"a", "p is not an absolute path: a"},
		{"/", "p: '/' cannot be a volume's path"},
		{"/a/..", "p: '..' is not allowed"},
		{"/../a", "p: '..' is not allowed"},
		{"/a/..b/../c", "p: '..' is not allowed"},
	};
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		struct err err = {0};
		int r = csi_check_path("p", table[i].path, &err);
		cr_expect_eq(err.code, table[i].why == NULL ? ERR_OK : ERR_INVALID);
		cr_expect_eq(r == 0, table[i].why == NULL, "%s", table[i].path);
		cr_expect_str_eq(err.message, table[i].why == NULL ? "" : table[i].why);
	}
}
