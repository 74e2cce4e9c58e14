/* SPDX-License-Identifier: Apache-2.0 */
#include "answers.h"

#include "csi/topology.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- a message as text: what is set, and nothing else ---- */

struct text {
	char at[6000];
	size_t len;
};

__attribute__((format(printf, 2, 3))) static void put(struct text *t, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	int n = vsnprintf(t->at + t->len, sizeof(t->at) - t->len, fmt, ap);
	va_end(ap);
	cr_assert(n >= 0 && (size_t)n < sizeof(t->at) - t->len, "%s", t->at);
	t->len += (size_t)n;
}

static void put_message(struct text *t, const ProtobufCMessage *message);

static void put_number(struct text *t, const ProtobufCFieldDescriptor *field, int64_t number)
{
	if (number != 0)
		put(t, "%s=%" PRId64 " ", field->name, number);
}

/* What differs from run to run is only said to be there. */
static bool is_moment(const ProtobufCFieldDescriptor *field)
{
	static const char *const names[] = {"created", "started", "pid", "longest_turn_ns"};
	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strcmp(field->name, names[i]) == 0)
			return true;
	return field->type == PROTOBUF_C_TYPE_DOUBLE;
}

static void put_moment(struct text *t, const ProtobufCFieldDescriptor *field, const void *at)
{
	static const uint8_t zeros[8];
	size_t len = field->type == PROTOBUF_C_TYPE_BYTES ||
				     field->type == PROTOBUF_C_TYPE_DOUBLE ||
				     field->type == PROTOBUF_C_TYPE_UINT64
			     ? 8
			     : 4;
	if (memcmp(at, zeros, len) != 0)
		put(t, "%s ", field->name);
}

static void put_value(struct text *t, const ProtobufCFieldDescriptor *field, const void *at)
{
	const ProtobufCBinaryData *bytes = at;
	const ProtobufCMessage *child;
	if (is_moment(field)) {
		put_moment(t, field, at);
		return;
	}
	switch (field->type) {
	case PROTOBUF_C_TYPE_BYTES:
		if (bytes->len != 0)
			put(t, "%s='%.*s' ", field->name, (int)bytes->len, (char *)bytes->data);
		break;
	case PROTOBUF_C_TYPE_MESSAGE:
		child = *(const ProtobufCMessage *const *)at;
		if (child == NULL)
			break;
		put(t, "%s{", field->name);
		put_message(t, child);
		put(t, "} ");
		break;
	case PROTOBUF_C_TYPE_INT64:
	case PROTOBUF_C_TYPE_UINT64:
		put_number(t, field, *(const int64_t *)at);
		break;
	default:
		put_number(t, field, *(const int32_t *)at);
	}
}

/* Of a repeated field's values. */
static size_t stride_of(ProtobufCType type)
{
	switch (type) {
	case PROTOBUF_C_TYPE_BYTES:
		return sizeof(ProtobufCBinaryData);
	case PROTOBUF_C_TYPE_MESSAGE:
		return sizeof(void *);
	case PROTOBUF_C_TYPE_INT64:
	case PROTOBUF_C_TYPE_UINT64:
		return sizeof(int64_t);
	default:
		return sizeof(int32_t);
	}
}

static void put_message(struct text *t, const ProtobufCMessage *message)
{
	for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
		const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
		const char *at = (const char *)message + field->offset;
		const char *quantifier = (const char *)message + field->quantifier_offset;
		size_t stride = stride_of(field->type);
		if (field->label == PROTOBUF_C_LABEL_REPEATED)
			for (size_t k = 0; k < *(const size_t *)quantifier; k++)
				put_value(t, field, *(const char *const *)at + k * stride);
		else if ((field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) == 0 ||
			 *(const uint32_t *)quantifier == field->id)
			put_value(t, field, at);
	}
	while (t->len > 0 && t->at[t->len - 1] == ' ')
		t->at[--t->len] = '\0';
}

/* Static, until the next call. */
static struct text *begin(void)
{
	static struct text t;
	t.len = 0;
	t.at[0] = '\0';
	return &t;
}

static void put_packed(
	struct text *t, const ProtobufCMessageDescriptor *type, const uint8_t *data, size_t len)
{
	ProtobufCMessage *message = protobuf_c_message_unpack(type, NULL, len, data);
	cr_assert_not_null(message);
	put_message(t, message);
	protobuf_c_message_free_unpacked(message, NULL);
}

const char *line_of(const ProtobufCMessageDescriptor *type, const uint8_t *data, size_t len)
{
	struct text *t = begin();
	put_packed(t, type, data, len);
	return t->at;
}

const char *ask(const char *method, const void *request, const ProtobufCMessageDescriptor *response)
{
	struct text *t = begin();
	struct world_answer answer;
	if (call(method, request, &answer) != GRPC_OK)
		put(t, "%d: %s", answer.status, answer.message);
	else
		put_packed(t, response, answer.data, answer.len);
	world_answer_free(&answer);
	return t->at;
}

void says(const char *got, const char *fmt, ...)
{
	static char want[6000];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(want, sizeof(want), fmt, ap);
	va_end(ap);
	cr_expect_str_eq(got, want, "it says\n%s\nand not\n%s", got, want);
}

const char *device_fields(
	const char *type, const char *path, uint32_t dev_major, uint32_t dev_minor)
{
	static char fields[160];
	int n = snprintf(
		fields, sizeof(fields), "type='%s' path='%s' major=%u", type, path, dev_major);
	if (dev_minor != 0)
		snprintf(fields + n, sizeof(fields) - (size_t)n, " minor=%u", dev_minor);
	return fields;
}

Csi__V1__StringPair *pair(unsigned i, const char *key, const char *value)
{
	static Csi__V1__StringPair pairs[4];
	csi__v1__string_pair__init(&pairs[i]);
	pairs[i].key = csi_bytes(key);
	pairs[i].value = csi_bytes(value);
	return &pairs[i];
}

void take_id(const char *answer, const char *name, char *ret_id)
{
	char key[40];
	snprintf(key, sizeof(key), "%s='", name);
	const char *at = strstr(answer, key);
	cr_assert_not_null(at, "%s", answer);
	at += strlen(key);
	snprintf(ret_id, RECORD_ID_MAX, "%.*s", (int)strcspn(at, "'"), at);
}

Csi__V1__TopologyRequirement *elsewhere(void)
{
	static Csi__V1__TopologyRequirement req;
	static Csi__V1__Topology topology, *list[1] = {&topology};
	static Csi__V1__StringPair *pairs[1];
	csi__v1__topology_requirement__init(&req);
	csi__v1__topology__init(&topology);
	pairs[0] = pair(3, CSI_TOPOLOGY_KEY, "node-2");
	topology.segments = pairs;
	topology.n_segments = 1;
	req.requisite = list;
	req.n_requisite = 1;
	return &req;
}

const char *asks_create(const char *name, enum source from)
{
	Csi__V1__CreateVolumeRequest req = CSI__V1__CREATE_VOLUME_REQUEST__INIT;
	Csi__V1__CapacityRange range = CSI__V1__CAPACITY_RANGE__INIT;
	Csi__V1__VolumeCapability *caps[1] = {capability()};
	Csi__V1__StringPair *parameters[1] = {pair(0, "device", "loop")};
	range.required_bytes = 16 * MIB;
	req.name = csi_bytes(name);
	req.capacity_range = &range;
	req.n_volume_capabilities = 1;
	req.volume_capabilities = caps;
	req.n_parameters = 1;
	req.parameters = parameters;
	req.volume_content_source = content_source(from);
	return ASK("Controller", CreateVolume, create_volume);
}

const char *asks_stage(void)
{
	Csi__V1__NodeStageVolumeRequest req = stage_request();
	return ASK("Node", NodeStageVolume, node_stage_volume);
}

const char *asks_unstage(void)
{
	Csi__V1__NodeUnstageVolumeRequest req = unstage_request();
	return ASK("Node", NodeUnstageVolume, node_unstage_volume);
}

const char *asks_publish(void)
{
	Csi__V1__NodePublishVolumeRequest req = publish_request();
	return ASK("Node", NodePublishVolume, node_publish_volume);
}

const char *asks_unpublish(void)
{
	Csi__V1__NodeUnpublishVolumeRequest req = unpublish_request();
	return ASK("Node", NodeUnpublishVolume, node_unpublish_volume);
}

const char *asks_stats(void)
{
	Csi__V1__NodeGetVolumeStatsRequest req = stats_request();
	return ASK("Node", NodeGetVolumeStats, node_get_volume_stats);
}

const char *asks_delete(void)
{
	Csi__V1__DeleteVolumeRequest req = CSI__V1__DELETE_VOLUME_REQUEST__INIT;
	req.volume_id = csi_bytes(volume_id);
	return ASK("Controller", DeleteVolume, delete_volume);
}

const char *asks_modify(const char *key, const char *value)
{
	Csi__V1__ControllerModifyVolumeRequest req =
		CSI__V1__CONTROLLER_MODIFY_VOLUME_REQUEST__INIT;
	Csi__V1__StringPair *pairs[1] = {pair(0, key, value)};
	req.volume_id = csi_bytes(volume_id);
	req.n_mutable_parameters = 1;
	req.mutable_parameters = pairs;
	return ASK("Controller", ControllerModifyVolume, controller_modify_volume);
}

static const char *silent;
static unsigned silent_times;

static int is_silent(void *arg, const char *op_name, const char *step_name)
{
	(void)arg;
	(void)step_name;
	if (strcmp(op_name, silent) != 0)
		return 0;
	silent_times++;
	return -EIO;
}

const char *while_silent(const char *name, const char *(*asks)(void))
{
	int (*hook)(void *, const char *, const char *) = w->observer.before;
	silent = name;
	silent_times = 0;
	w->observer.before = is_silent;
	const char *told = asks();
	w->observer.before = hook;
	cr_expect_gt(silent_times, 0, "%s", name);
	return told;
}
