/* SPDX-License-Identifier: Apache-2.0 */
#include "csi_requests.h"

#include "attach/context.h"
#include "csi/request.h"
#include "csi/topology.h"

#include <string.h>

enum { DEPTH_MAX = 4 };

/* ---- of anything ---- */

static const char *const texts[] = {"", "used", "raw", "copy", "snap", "new", "broken",
	"01234567.used.0badcafe", "01234567.raw.0badcafe", "01234567.copy.0badcafe",
	"01234567.snap.0badcafe", "01234567.broken.00000000", "01234567.gone.00000000",
	"fedcba98.used.0badcafe", "/stage/used", "/pods/target", "/a/../b", "relative", "/", "ext4",
	"xfs", "btrfs", "ntfs", "default", "other", "node-1", "node-2", "pool", "device", "loop",
	"ublk", "provisioning", "thick", "thin", "mkfsOptions", "-O ^has_journal", "blockSize",
	"512", "4096", "eraseOnDelete", "discard", "zero", "none", "snapshotFreeze", "true",
	"false", "csi.storage.k8s.io/fstype", "csi.storage.k8s.io/pvc/name", CSI_TOPOLOGY_KEY, "ro",
	"noatime", "bind", "s:00000000:01234567.snap.0badcafe", "v:", "\xE2\x82\xAC / odd", "\xff",
	"frozen", "busy", "01234567.frozen.0badcafe", "01234567.busy.0badcafe",
	"01234567.served.0badcafe", "/stage/frozen", "csi-1", "csi-2", "/pods/uid/v/mount",
	"csi.storage.k8s.io/ephemeral", "csi.storage.k8s.io/pod.uid", "uid", "source", "root",
	"size", "64Mi"};
static const uint64_t numbers[] = {0, 1, 2, 5, 6, 7, 16 << 20, 64 << 20, (64 << 20) + 1, 1 << 30,
	1ULL << 50, (1ULL << 50) + 1, INT64_MAX, UINT64_MAX /* -1 */, 1ULL << 63, 100};

static void put_varint(struct buf *b, uint64_t v)
{
	uint8_t bytes[10];
	size_t n = 0;
	do {
		bytes[n++] = (uint8_t)((v & 0x7f) | (v > 0x7f ? 0x80 : 0));
		v >>= 7;
	} while (v != 0);
	must(buf_append(b, bytes, n) == 0);
}

static void put_bytes(struct buf *b, uint32_t id, const void *data, size_t len)
{
	put_varint(b, id << 3 | 2);
	put_varint(b, len);
	must(buf_append(b, data, len) == 0);
}

static void put_text(struct buf *b, uint32_t id, struct fuzz *f)
{
	static char filler[4200];
	uint8_t choice = fuzz_byte(f);
	if (choice < 0xe0) {
		const char *text = texts[choice % COUNT(texts)];
		put_bytes(b, id, text, strlen(text));
	} else if (choice < 0xf8) {
		struct fuzz part = fuzz_take(f, fuzz_below(f, 200));
		put_bytes(b, id, part.data, part.len);
	} else {
		memset(filler, 'a', sizeof(filler));
		filler[0] = '/';
		put_bytes(b, id, filler, 120u + 16u * fuzz_byte(f));
	}
}

static void put_number(struct buf *b, uint32_t id, uint64_t number)
{
	put_varint(b, id << 3);
	put_varint(b, number);
}

typedef void put_message_fn(
	struct buf *b, const ProtobufCMessageDescriptor *type, struct fuzz *f, unsigned depth);

static void put_field(struct buf *b, const ProtobufCFieldDescriptor *field, struct fuzz *f,
	unsigned depth, put_message_fn *put_inner)
{
	struct buf inner = {0};
	switch (field->type) {
	case PROTOBUF_C_TYPE_BYTES:
	case PROTOBUF_C_TYPE_STRING:
		put_text(b, field->id, f);
		break;
	case PROTOBUF_C_TYPE_MESSAGE:
		if (depth < DEPTH_MAX)
			put_inner(&inner, field->descriptor, f, depth + 1);
		put_bytes(b, field->id, inner.data, inner.len);
		buf_free(&inner);
		break;
	default: /* csi.v1 has integers, booleans and enums only */
		put_number(b, field->id, numbers[fuzz_below(f, COUNT(numbers))]);
		break;
	}
}

static void put_message(
	struct buf *b, const ProtobufCMessageDescriptor *type, struct fuzz *f, unsigned depth)
{
	for (unsigned i = 0; i < type->n_fields && b->len < 1 << 16; i++) {
		bool often = depth == 0 || type->n_fields <= 2;
		uint8_t how = fuzz_byte(f);
		unsigned times = how < (often ? 0x40 : 0x80) ? 0 : how < 0xf0 ? 1 : how & 7;
		for (; times > 0; times--)
			put_field(b, &type->fields[i], f, depth, put_message);
	}
}

/* ---- sound ---- */

enum { CHOICES_MAX = 11 };

/* What a field of this name may hold; the first is what an input that has ended gives. */
static const struct {
	const char *field;
	bool seldom; /* left out, if the input does not say otherwise */
	const char *texts[CHOICES_MAX];
	uint64_t numbers[CHOICES_MAX];
} sound_fields[] = {
	{"name", false, {"new", "used", "raw", "copy", "snap"}, {0}},
	{"volume_id", false,
		{"01234567.used.0badcafe", "01234567.raw.0badcafe", "01234567.copy.0badcafe",
			"01234567.gone.00000000", "01234567.broken.00000000",
			"01234567.frozen.0badcafe", "01234567.busy.0badcafe",
			"01234567.served.0badcafe", "csi-1", "csi-2", "fedcba98.far.0badcafe"},
		{0}},
	{"source_volume_id", false,
		{"01234567.used.0badcafe", "01234567.raw.0badcafe", "01234567.copy.0badcafe",
			"01234567.frozen.0badcafe", "01234567.busy.0badcafe",
			"01234567.served.0badcafe"},
		{0}},
	{"snapshot_id", false, {"01234567.snap.0badcafe", "01234567.used.0badcafe"}, {0}},
	{"node_id", false, {"node-1", "node-2"}, {0}},
	{"staging_target_path", false, {"/stage/used", "/stage/new", "/stage/frozen"}, {0}},
	{"target_path", false, {"/pods/target", "/stage/used", "/pods/uid/v/mount"}, {0}},
	{"volume_path", false, {"/stage/used", "/pods/target", "/stage/frozen"}, {0}},
	{"volume_publish_path", true, {"/pods/target"}, {0}},
	{"fs_type", true, {"ext4", "xfs", "btrfs"}, {0}},
	{"mount_flags", true, {"noatime", "ro", "discard", "nodev"}, {0}},
	{"volume_mount_group", true, {"1000"}, {0}},
	{"starting_token", true, {"v:"}, {0}},
	{"required_bytes", false, {NULL}, {64 << 20, 16 << 20, 128 << 20, 512 << 20, 1 << 30, 1}},
	{"limit_bytes", true, {NULL}, {1 << 30, 64 << 20, 128 << 20, 1}},
	{"max_entries", true, {NULL}, {1, 2, 5}},
	{"readonly", true, {NULL}, {1}},
	{"mode", false, {NULL}, {1, 7, 6, 2, 3, 5}},
	{"volume_content_source", true, {NULL}, {0}},
	{"accessibility_requirements", true, {NULL}, {0}},
	{"accessible_topology", true, {NULL}, {0}},
	{"parameters", true, {NULL}, {0}},
	{"mutable_parameters", true, {NULL}, {0}},
	{"secrets", true, {NULL}, {0}},
	{"publish_context", true, {NULL}, {0}},
	{"volume_context", true, {NULL}, {0}},
};

static const struct {
	const char *key, *values[4];
} sound_pairs[] = {
	{"pool", {"default", "other"}},
	{"device", {"loop", "ublk"}},
	{"provisioning", {"thin", "thick"}},
	{"csi.storage.k8s.io/fstype", {"xfs", "ext4", "btrfs"}},
	{"mkfsOptions", {"-m 1", "-O ^has_journal", "-K"}},
	{"blockSize", {"4096", "512"}},
	{"eraseOnDelete", {"discard", "zero", "none"}},
	{"snapshotFreeze", {"true", "false"}},
	{CSI_TOPOLOGY_KEY, {"node-1", "node-2"}},
	{"csi.storage.k8s.io/pvc/name", {"claim"}},
	{"allowVolumeModeChange", {"true", "false"}},
	{"iops", {"1000", "none", "5", "1k"}},
	{"writeBandwidth", {"1Mi", "0"}},
	{"csi.storage.k8s.io/ephemeral", {"true"}},
	{"csi.storage.k8s.io/pod.uid", {"uid"}},
	{"source", {"root", "snap", "none"}},
	{"size", {"64Mi", "1Gi"}},
};

/* A publish_context of a volume of another node. */
static const struct {
	const char *key, *values[4];
} context_pairs[] = {
	{ATTACH_TRANSPORT, {"tcp", "rdma"}},
	{ATTACH_ADDRESS, {"192.0.2.1:4420", "[2001:db8::1]:1", "a,b:1", "a.example:65535"}},
	{ATTACH_SUBSYSTEM, {ATTACH_NQN_PREFIX "a", "nqn.x", ATTACH_NQN_PREFIX "a,b"}},
	{ATTACH_HOST, {ATTACH_HOST_NQN_PREFIX "b", ATTACH_NQN_PREFIX "a"}},
	{ATTACH_HOST_ID, {"11111111-2222-4333-8444-555555555555", "1"}},
	{ATTACH_KEY,
		{"DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:", "DHHC-1:00:,:"}},
	{ATTACH_NAMESPACE, {"01234567-89ab-4cde-8f01-23456789abcd", ""}},
	{ATTACH_VOLUME_MODE, {"mount", "block"}},
	{ATTACH_FS_TYPE, {"ext4", "xfs", "", "btrfs"}},
	{ATTACH_NODE, {"node-2", "a\nb"}},
	{ATTACH_READ_ONLY, {"false", "true"}},
	{ATTACH_ENCRYPTION, {"", "luks2"}},
};

static const char *choose(const char *const *texts, unsigned max, struct fuzz *f)
{
	unsigned count = 0;
	while (count < max && texts[count] != NULL)
		count++;
	return texts[fuzz_below(f, count)];
}

static bool is_pair(const ProtobufCMessageDescriptor *type)
{
	return type->n_fields == 2 && strcmp(type->fields[0].name, "key") == 0;
}

static void put_pair(struct buf *b, const ProtobufCMessageDescriptor *type, struct fuzz *f)
{
	unsigned i = fuzz_below(f, COUNT(sound_pairs));
	const char *value = choose(sound_pairs[i].values, COUNT(sound_pairs[i].values), f);
	put_bytes(b, type->fields[0].id, sound_pairs[i].key, strlen(sound_pairs[i].key));
	put_bytes(b, type->fields[1].id, value, strlen(value));
}

/* One entry each; some left out, some of any text. */
static void put_context(struct buf *b, const ProtobufCFieldDescriptor *field, struct fuzz *f)
{
	for (unsigned i = 0; i < COUNT(context_pairs); i++) {
		struct buf pair = {0};
		uint8_t how = fuzz_byte(f);
		const char *value = context_pairs[i].values[0];
		if (how >= 0xe0)
			value = choose(context_pairs[i].values, COUNT(context_pairs[i].values), f);
		put_bytes(&pair, 1, context_pairs[i].key, strlen(context_pairs[i].key));
		if (how >= 0xd8 && how < 0xe0)
			put_text(&pair, 2, f);
		else
			put_bytes(&pair, 2, value, strlen(value));
		if (how < 0xd0 || how >= 0xd8)
			put_bytes(b, field->id, pair.data, pair.len);
		buf_free(&pair);
	}
}

static unsigned sound_find(const char *name)
{
	unsigned i = 0;
	while (i < COUNT(sound_fields) && strcmp(sound_fields[i].field, name) != 0)
		i++;
	return i;
}

static void put_sound(
	struct buf *b, const ProtobufCMessageDescriptor *type, struct fuzz *f, unsigned depth);

static void put_sound_field(
	struct buf *b, const ProtobufCFieldDescriptor *field, struct fuzz *f, unsigned depth)
{
	unsigned at = sound_find(field->name);
	uint8_t how = fuzz_byte(f);
	bool seldom = at < COUNT(sound_fields) && sound_fields[at].seldom;
	if (strcmp(field->name, "publish_context") == 0 && how >= 0x80 && how < 0xf0) {
		put_context(b, field, f);
		return;
	}
	if (seldom ? how < 0xa0 : how >= 0xfc)
		return;
	if (how == 0xfb || field->type == PROTOBUF_C_TYPE_MESSAGE || at == COUNT(sound_fields)) {
		put_field(b, field, f, depth, how == 0xfb ? put_message : put_sound);
	} else if (field->type == PROTOBUF_C_TYPE_BYTES) { /* as strings are, see csi_str() */
		const char *text = choose(sound_fields[at].texts, CHOICES_MAX, f);
		put_bytes(b, field->id, text, strlen(text));
	} else {
		unsigned count = 1;
		while (count < CHOICES_MAX && sound_fields[at].numbers[count] != 0)
			count++;
		put_number(b, field->id, sound_fields[at].numbers[fuzz_below(f, count)]);
	}
}

/* Of a oneof one member, the last if nothing is said; and each field once, but those that may be
 * repeated sometimes up to four times. */
static void put_sound(
	struct buf *b, const ProtobufCMessageDescriptor *type, struct fuzz *f, unsigned depth)
{
	if (is_pair(type)) {
		put_pair(b, type, f);
		return;
	}
	for (unsigned i = 0; i < type->n_fields; i++) {
		const ProtobufCFieldDescriptor *field = &type->fields[i];
		if ((field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) == 0) {
			put_sound_field(b, field, f, depth);
			for (unsigned n = 0; n < 3 && field->label == PROTOBUF_C_LABEL_REPEATED &&
					     fuzz_byte(f) >= 0xc0;
				n++)
				put_sound_field(b, field, f, depth);
			continue;
		}
		unsigned last = i;
		while (last + 1 < type->n_fields &&
			type->fields[last + 1].quantifier_offset == field->quantifier_offset)
			last++;
		put_sound_field(b, &type->fields[last - fuzz_below(f, last - i + 1)], f, depth);
		i = last;
	}
}

void csi_requests_put(
	struct buf *b, const ProtobufCMessageDescriptor *type, struct fuzz *f, bool sound)
{
	(sound ? put_sound : put_message)(b, type, f, 0);
}
