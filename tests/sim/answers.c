/* SPDX-License-Identifier: Apache-2.0 */
#include "answers.h"

#include <criterion/criterion.h>
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

static void put_message(struct text *t, const ProtobufCMessage *message)
{
	for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
		const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
		const char *at = (const char *)message + field->offset;
		const char *quantifier = (const char *)message + field->quantifier_offset;
		size_t stride = field->type == PROTOBUF_C_TYPE_BYTES ? sizeof(ProtobufCBinaryData)
				: field->type == PROTOBUF_C_TYPE_MESSAGE ? sizeof(void *)
									 : sizeof(int32_t);
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

const char *ask(const char *method, const void *request, const ProtobufCMessageDescriptor *response)
{
	static struct text t;
	struct world_answer answer;
	t.len = 0;
	t.at[0] = '\0';
	if (call(method, request, &answer) != GRPC_OK) {
		put(&t, "%d: %s", answer.status, answer.message);
	} else {
		ProtobufCMessage *message =
			protobuf_c_message_unpack(response, NULL, answer.len, answer.data);
		cr_assert_not_null(message);
		put_message(&t, message);
		protobuf_c_message_free_unpacked(message, NULL);
	}
	world_answer_free(&answer);
	return t.at;
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

const char *asks_create(const char *name, enum source from)
{
	Csi__V1__CreateVolumeRequest req = CSI__V1__CREATE_VOLUME_REQUEST__INIT;
	Csi__V1__CapacityRange range = CSI__V1__CAPACITY_RANGE__INIT;
	Csi__V1__VolumeContentSource content = CSI__V1__VOLUME_CONTENT_SOURCE__INIT;
	Csi__V1__VolumeContentSource__SnapshotSource snapshot =
		CSI__V1__VOLUME_CONTENT_SOURCE__SNAPSHOT_SOURCE__INIT;
	Csi__V1__VolumeContentSource__VolumeSource volume =
		CSI__V1__VOLUME_CONTENT_SOURCE__VOLUME_SOURCE__INIT;
	Csi__V1__VolumeCapability *caps[1] = {capability()};
	Csi__V1__StringPair *parameters[1] = {pair(0, "device", "loop")};
	range.required_bytes = 16 * MIB;
	snapshot.snapshot_id = csi_bytes(snapshot_id);
	volume.volume_id = csi_bytes(volume_id);
	req.name = csi_bytes(name);
	req.capacity_range = &range;
	req.n_volume_capabilities = 1;
	req.volume_capabilities = caps;
	req.n_parameters = 1;
	req.parameters = parameters;
	if (from != EMPTY)
		req.volume_content_source = &content;
	if (from == FROM_VOLUME) {
		content.type_case = CSI__V1__VOLUME_CONTENT_SOURCE__TYPE_VOLUME;
		content.volume = &volume;
	} else if (from == FROM_SNAPSHOT) {
		content.type_case = CSI__V1__VOLUME_CONTENT_SOURCE__TYPE_SNAPSHOT;
		content.snapshot = &snapshot;
	}
	return ASK("Controller", CreateVolume, create_volume);
}
