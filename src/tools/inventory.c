/* SPDX-License-Identifier: Apache-2.0 */
/*
 * With a driver: one Inspect.List, its messages unpacked into the arena (which ends every string
 * with NUL) and sorted into lists. Fails as the call does, or for want of memory.
 *
 * Without one: records and images from the pools, devices and mounts from the kernel. Happy path:
 * scan the devices, then each pool's volumes and snapshots by key. It knows less: no operations, no
 * I/O; extents count as shared when a volume was made that way, also when it is the last of its
 * family. A pool or device that cannot be read is said so in the pool's `why`; only want of memory
 * fails it.
 */
#include "tools/inventory.h"

#include "base/buf.h"
#include "base/clock.h"
#include "pool/survey.h"
#include "tools/devices.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- from the driver ---- */

static void *unpack_alloc(void *arena, size_t size)
{
	return arena_alloc(arena, size);
}

static void unpack_free(void *arena, void *p)
{
	(void)arena;
	(void)p;
}

int inventory_add(struct inventory_list *list, const ProtobufCMessage *message)
{
	if (array_grow(&list->at, &list->cap, list->count, sizeof(list->at[0])) < 0)
		return -ENOMEM;
	list->at[list->count++] = message;
	return 0;
}

static int on_message(void *arg, const uint8_t *data, size_t len)
{
	struct inventory *inv = arg;
	ProtobufCAllocator allocator = {unpack_alloc, unpack_free, inv->arena};
	Ringvol__V1__ListResponse *item = ringvol__v1__list_response__unpack(&allocator, len, data);
	if (item == NULL)
		return -EPROTO;
	switch (item->item_case) {
	case RINGVOL__V1__LIST_RESPONSE__ITEM_DRIVER:
		inv->driver = item->driver;
		return 0;
	case RINGVOL__V1__LIST_RESPONSE__ITEM_POOL:
		return inventory_add(&inv->pools, &item->pool->base);
	case RINGVOL__V1__LIST_RESPONSE__ITEM_OPERATION:
		return inventory_add(&inv->operations, &item->operation->base);
	case RINGVOL__V1__LIST_RESPONSE__ITEM_VOLUME:
		return inventory_add(&inv->volumes, &item->volume->base);
	case RINGVOL__V1__LIST_RESPONSE__ITEM_SNAPSHOT:
		return inventory_add(&inv->snapshots, &item->snapshot->base);
	case RINGVOL__V1__LIST_RESPONSE__ITEM_QUARANTINED:
		return inventory_add(&inv->quarantined, &item->quarantined->base);
	case RINGVOL__V1__LIST_RESPONSE__ITEM_BORROWED:
		return inventory_add(&inv->borrowed, &item->borrowed->base);
	case RINGVOL__V1__LIST_RESPONSE__ITEM_CLUSTER_NODE:
		return inventory_add(&inv->nodes, &item->cluster_node->base);
	default:
		return 0; /* of a later driver */
	}
}

int inventory_ask(struct inventory *ret, struct grpc_client *client,
	const Ringvol__V1__ListRequest *request, struct err *err)
{
	const Ringvol__V1__ListRequest all = RINGVOL__V1__LIST_REQUEST__INIT;
	ret->arena = arena_new(0);
	if (ret->arena == NULL)
		return err_set(err, ERR_NO_ROOM, "out of memory");
	return grpc_client_call(client, "/ringvol.v1.Inspect/List",
		request != NULL ? &request->base : &all.base, on_message, ret, err);
}

const char *inventory_borrowed_name(const Ringvol__V1__Borrowed *b, char ret_key[RECORD_KEY_MAX])
{
	struct record_id id;
	if (record_id_parse(inventory_str(b->id), &id) < 0)
		return inventory_str(b->id.len != 0 ? b->id : b->tag);
	memcpy(ret_key, id.key, RECORD_KEY_MAX);
	return ret_key;
}

/* ---- from the pools: volumes ---- */

struct reading {
	struct inventory *inv;
	struct arena *arena;
	const char *pool;
	char uuid8[9];
	struct devices devices;
	Ringvol__V1__PoolRoom *room;
};

static ProtobufCBinaryData bytes(const char *s)
{
	return (ProtobufCBinaryData){.len = strlen(s), .data = (uint8_t *)s};
}

static ProtobufCBinaryData copy(struct arena *arena, const char *s)
{
	const char *text = arena_strdup(arena, s);
	return bytes(text != NULL ? text : "");
}

static ProtobufCBinaryData when(struct arena *arena, uint64_t realtime_ns)
{
	char text[CLOCK_BYTES];
	clock_print(realtime_ns, text);
	return copy(arena, text);
}

static int add_mounts(const struct reading *r, Ringvol__V1__Volume *v, const struct device *device)
{
	const struct devices *d = &r->devices;
	size_t count = 0;
	for (size_t i = 0; i < d->mount_count; i++)
		count += d->mounts[i].major == device->dev.major &&
			 d->mounts[i].minor == device->dev.minor;
	v->mounts = arena_alloc(r->arena, count * sizeof(*v->mounts));
	Ringvol__V1__Mount *mounts = arena_alloc(r->arena, count * sizeof(*mounts));
	if (v->mounts == NULL || mounts == NULL)
		return -ENOMEM;
	for (size_t i = 0; i < d->mount_count; i++) {
		const struct device_mount *from = &d->mounts[i];
		if (from->major != device->dev.major || from->minor != device->dev.minor)
			continue;
		Ringvol__V1__Mount *mount = &mounts[v->n_mounts];
		ringvol__v1__mount__init(mount);
		mount->path = copy(r->arena, from->path);
		mount->read_only = from->read_only;
		v->mounts[v->n_mounts++] = mount;
	}
	return 0;
}

static int add_device(const struct reading *r, Ringvol__V1__Volume *v, const struct pool_found *o)
{
	const struct device *from = devices_find(&r->devices, o->image_dev, o->image_ino);
	if (from == NULL)
		return 0;
	v->device = arena_new_of(r->arena, Ringvol__V1__Device);
	if (v->device == NULL)
		return -ENOMEM;
	ringvol__v1__device__init(v->device);
	v->device->type = bytes(from->type);
	v->device->path = copy(r->arena, from->dev.path);
	v->device->major = from->dev.major;
	v->device->minor = from->dev.minor;
	v->device->direct_io = from->dev.direct_io;
	v->device->read_only = from->dev.read_only;
	v->device->below_major = from->dev.below_major;
	v->device->below_minor = from->dev.below_minor;
	return add_mounts(r, v, from);
}

static int add_attachments(
	const struct reading *r, Ringvol__V1__Volume *v, const struct attachments *from)
{
	size_t count = from != NULL ? from->count : 0;
	v->attachments = arena_alloc(r->arena, count * sizeof(*v->attachments));
	Ringvol__V1__Attachment *all = arena_alloc(r->arena, count * sizeof(*all));
	if (v->attachments == NULL || all == NULL)
		return -ENOMEM;
	for (size_t i = 0; i < count; i++) {
		ringvol__v1__attachment__init(&all[i]);
		all[i].node_id = copy(r->arena, from->at[i].node);
		all[i].read_only = from->at[i].read_only;
		all[i].exported = from->at[i].export[0] != '\0';
		v->attachments[v->n_attachments++] = &all[i];
	}
	return 0;
}

static int add_truncated(const struct reading *r, Ringvol__V1__Volume *v)
{
	v->conditions = arena_alloc(r->arena, sizeof(*v->conditions));
	Ringvol__V1__Condition *condition = arena_new_of(r->arena, Ringvol__V1__Condition);
	if (v->conditions == NULL || condition == NULL)
		return -ENOMEM;
	ringvol__v1__condition__init(condition);
	condition->kind = bytes("ImageTruncated");
	condition->message = bytes("the image is shorter than its record says: data is missing; "
				   "restore it from a snapshot");
	v->conditions[v->n_conditions++] = condition;
	return 0;
}

static int add_source(const struct reading *r, Ringvol__V1__Volume *v, const struct record *rec)
{
	v->source = arena_new_of(r->arena, Ringvol__V1__Source);
	if (v->source == NULL)
		return -ENOMEM;
	ringvol__v1__source__init(v->source);
	v->source->kind = bytes(rec->source == RECORD_SOURCE_SNAPSHOT ? "snapshot" : "volume");
	v->source->id = copy(r->arena, rec->source_id);
	return 0;
}

static int add_volume(struct reading *r, const struct pool_found *o)
{
	const struct record *rec = o->rec;
	char id[RECORD_ID_MAX];
	Ringvol__V1__Volume *v = arena_new_of(r->arena, Ringvol__V1__Volume);
	if (v == NULL)
		return -ENOMEM;
	ringvol__v1__volume__init(v);
	record_id_print(r->uuid8, rec, id);
	v->id = copy(r->arena, id);
	v->name = copy(r->arena, rec->name);
	v->pool = bytes(r->pool);
	v->claim = copy(r->arena, rec->claim);
	v->access_type = bytes(rec->fs == FSIMG_NONE ? "block" : "mount");
	v->fs = bytes(fsimg_name(rec->fs));
	v->provisioning = bytes(rec->thick ? "thick" : "thin");
	v->size_bytes = rec->size_bytes;
	v->allocated_bytes = o->allocated_bytes;
	v->block_size = rec->block_size;
	v->created = when(r->arena, rec->created_ns);
	v->shares_extents = rec->shares_extents;
	int res = add_device(r, v, o);
	if (res == 0)
		res = add_attachments(r, v, o->attachments);
	if (res == 0 && o->truncated)
		res = add_truncated(r, v);
	if (res == 0 && rec->source != RECORD_SOURCE_NONE)
		res = add_source(r, v, rec);
	r->room->provisioned_bytes += record_image_bytes(rec);
	return res == 0 ? inventory_add(&r->inv->volumes, &v->base) : res;
}

static int add_snapshot(struct reading *r, const struct pool_found *o)
{
	const struct record *rec = o->rec;
	char id[RECORD_ID_MAX];
	Ringvol__V1__Snapshot *s = arena_new_of(r->arena, Ringvol__V1__Snapshot);
	if (s == NULL)
		return -ENOMEM;
	ringvol__v1__snapshot__init(s);
	record_id_print(r->uuid8, rec, id);
	s->id = copy(r->arena, id);
	s->name = copy(r->arena, rec->name);
	s->pool = bytes(r->pool);
	s->claim = copy(r->arena, rec->claim);
	s->source_volume_id = copy(r->arena, rec->source_id);
	s->size_bytes = rec->size_bytes;
	s->allocated_bytes = o->allocated_bytes;
	s->created = when(r->arena, rec->created_ns);
	s->shares_extents = rec->shares_extents;
	s->group = copy(r->arena, rec->group);
	return inventory_add(&r->inv->snapshots, &s->base);
}

static int add_quarantined(struct reading *r, const struct pool_found *o)
{
	Ringvol__V1__Quarantined *q = arena_new_of(r->arena, Ringvol__V1__Quarantined);
	if (q == NULL)
		return -ENOMEM;
	ringvol__v1__quarantined__init(q);
	q->pool = bytes(r->pool);
	q->kind = bytes(o->kind == RECORD_VOLUME ? "volume" : "snapshot");
	q->key = copy(r->arena, o->key);
	q->why = bytes(o->why);
	return inventory_add(&r->inv->quarantined, &q->base);
}

/* ---- from the pools: pools ---- */

static int read_objects(
	struct reading *r, const struct survey *survey, enum record_kind kind, size_t *ret_count)
{
	struct pool_found *objects = NULL;
	size_t count = 0;
	int res = survey_objects(survey, kind, &objects, &count);
	for (size_t i = 0; i < count; i++) {
		const struct pool_found *o = &objects[i];
		if (res == 0)
			res = o->rec == NULL          ? add_quarantined(r, o)
			      : kind == RECORD_VOLUME ? add_volume(r, o)
						      : add_snapshot(r, o);
		r->room->allocated_bytes += o->allocated_bytes;
	}
	survey_objects_free(objects, count);
	*ret_count = count;
	return res;
}

static Ringvol__V1__Pool *pool_new(struct reading *r, const struct survey *survey, const char *path)
{
	Ringvol__V1__Pool *p = arena_new_of(r->arena, Ringvol__V1__Pool);
	Ringvol__V1__PoolFeatures *features = arena_new_of(r->arena, Ringvol__V1__PoolFeatures);
	r->room = arena_new_of(r->arena, Ringvol__V1__PoolRoom);
	if (p == NULL || features == NULL || r->room == NULL)
		return NULL;
	ringvol__v1__pool__init(p);
	ringvol__v1__pool_features__init(features);
	ringvol__v1__pool_room__init(r->room);
	memcpy(r->uuid8, survey->uuid, 8);
	p->name = bytes(r->pool);
	p->path = bytes(path);
	p->uuid8 = copy(r->arena, r->uuid8);
	p->state = survey->state == POOL_READY     ? RINGVOL__V1__POOL__STATE__READY
		   : survey->state == POOL_MISSING ? RINGVOL__V1__POOL__STATE__MISSING
						   : RINGVOL__V1__POOL__STATE__SICK;
	p->why = copy(r->arena, survey->why);
	p->room = r->room;
	r->room->capacity_bytes = survey->capacity_bytes;
	r->room->free_bytes = survey->free_bytes;
	const char *fs = fs_type_name(survey->fs_type);
	features->fs = bytes(fs != NULL ? fs : "");
	p->features = features;
	return p;
}

static int read_pool(struct reading *r, const struct inventory_pool *config)
{
	struct survey survey;
	size_t volumes = 0, snapshots = 0;
	r->pool = config->name;
	survey_open(&survey, config->path, SURVEY_LOOK);
	/* Once the records of a raw pool are mounted: its devices are known by them. Without root
	 * devices cannot be asked; pools, too, say so then. */
	struct devices devices = {0};
	int res = devices_scan(&devices) == -ENOMEM ? -ENOMEM : 0;
	devices_free(&r->devices);
	r->devices = devices;
	Ringvol__V1__Pool *p = pool_new(r, &survey, config->path);
	if (res == 0)
		res = p == NULL ? -ENOMEM : read_objects(r, &survey, RECORD_VOLUME, &volumes);
	if (res == 0)
		res = read_objects(r, &survey, RECORD_SNAPSHOT, &snapshots);
	if (res < 0 && res != -ENOMEM) {
		p->state = RINGVOL__V1__POOL__STATE__SICK;
		p->why = bytes(strerrordesc_np(-res));
		res = 0;
	}
	if (res == 0) {
		p->volumes = (uint32_t)volumes;
		p->snapshots = (uint32_t)snapshots;
		res = inventory_add(&r->inv->pools, &p->base);
	}
	survey_close(&survey);
	return res;
}

int inventory_read(struct inventory *ret, const struct inventory_pool *pools, unsigned count)
{
	ret->offline = true;
	ret->arena = arena_new(0);
	if (ret->arena == NULL)
		return -ENOMEM;
	struct reading r = {.inv = ret, .arena = ret->arena};
	int res = 0;
	for (unsigned i = 0; res == 0 && i < count; i++)
		res = read_pool(&r, &pools[i]);
	devices_free(&r.devices);
	return res;
}

void inventory_free(struct inventory *inv)
{
	free(inv->pools.at);
	free(inv->operations.at);
	free(inv->volumes.at);
	free(inv->snapshots.at);
	free(inv->borrowed.at);
	free(inv->quarantined.at);
	free(inv->nodes.at);
	arena_unref(inv->arena);
	*inv = (struct inventory){0};
}
