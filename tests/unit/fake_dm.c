/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of fake_dm.h. What the kernel would refuse, or never be asked, is the test's failure.
 */
#include "fake_dm.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct fake_thin fake_thins[FAKE_THIN_IDS];
unsigned fake_thin_count, fake_thin_messages, fake_thin_torn, fake_thin_moving;
bool fake_thin_absent;
const char *fake_thin_pool_words;
void (*fake_thin_on_pool)(const struct dm_target *metadata);

struct fake_device fake_dm_devices[FAKE_DM_DEVICES];
unsigned fake_dm_loads, fake_dm_resumes;
int fake_dm_fail_with;
unsigned long fake_dm_fail_request;

static struct fake_device *find(const struct dm_ioctl *head)
{
	for (unsigned i = 0; i < FAKE_DM_DEVICES; i++) {
		const char *want = head->uuid[0] != '\0' ? head->uuid : head->name;
		const char *have =
			head->uuid[0] != '\0' ? fake_dm_devices[i].uuid : fake_dm_devices[i].name;
		if (fake_dm_devices[i].there && strcmp(want, have) == 0)
			return &fake_dm_devices[i];
	}
	return NULL;
}

static void tell(struct dm_ioctl *head, const struct fake_device *d)
{
	/* Minor numbers past 255 use the upper bits. */
	uint64_t minor_now = FAKE_DM_MINOR + (uint64_t)(d - fake_dm_devices);
	head->flags &= ~(uint32_t)(DM_SUSPEND_FLAG | DM_READONLY_FLAG | DM_ACTIVE_PRESENT_FLAG |
				   DM_DEFERRED_REMOVE | DM_INACTIVE_PRESENT_FLAG);
	head->flags |= (d->suspended ? DM_SUSPEND_FLAG : 0) |
		       (d->read_only ? DM_READONLY_FLAG : 0) |
		       (d->now.count != 0 ? DM_ACTIVE_PRESENT_FLAG : 0) |
		       (d->next.count != 0 ? DM_INACTIVE_PRESENT_FLAG : 0) |
		       (d->deferred ? DM_DEFERRED_REMOVE : 0);
	head->dev = (minor_now & 0xff) | FAKE_DM_MAJOR << 8 | (minor_now & ~UINT64_C(0xff)) << 12;
	head->open_count = (int32_t)d->open;
	head->target_count = d->now.count;
	snprintf(head->name, sizeof(head->name), "%s", d->name);
	snprintf(head->uuid, sizeof(head->uuid), "%s", d->uuid);
}

static int fake_create(struct dm_ioctl *head)
{
	struct fake_device *free_one = NULL;
	for (unsigned i = 0; i < FAKE_DM_DEVICES; i++) {
		if (fake_dm_devices[i].there &&
			(strcmp(fake_dm_devices[i].name, head->name) == 0 ||
				strcmp(fake_dm_devices[i].uuid, head->uuid) == 0))
			return -EBUSY;
		if (!fake_dm_devices[i].there && free_one == NULL)
			free_one = &fake_dm_devices[i];
	}
	cr_assert_not_null(free_one);
	*free_one = (struct fake_device){.there = true};
	memcpy(free_one->name, head->name, sizeof(head->name));
	memcpy(free_one->uuid, head->uuid, sizeof(head->uuid));
	tell(head, free_one);
	return 0;
}

/* ---- dm-thin ---- */

static struct fake_thin *find_thin(uint32_t id)
{
	for (unsigned i = 0; i < fake_thin_count; i++)
		if (fake_thins[i].id == id)
			return &fake_thins[i];
	return NULL;
}

bool fake_thin_has(uint32_t id)
{
	return find_thin(id) != NULL;
}

/* The device of a thin volume. */
static struct fake_device *device_of(uint32_t id)
{
	for (unsigned i = 0; i < FAKE_DM_DEVICES; i++) {
		struct fake_device *d = &fake_dm_devices[i];
		uint32_t its;
		if (d->there && d->now.count == 1 && strcmp(d->now.targets[0].type, "thin") == 0 &&
			sscanf(d->now.targets[0].params, "%*u:%*u %" SCNu32, &its) == 1 &&
			its == id)
			return d;
	}
	return NULL;
}

static unsigned moving(void)
{
	unsigned count = 0;
	for (unsigned i = 0; i < FAKE_DM_DEVICES; i++) {
		const struct fake_device *d = &fake_dm_devices[i];
		count += d->there && d->now.count == 1 && !d->suspended &&
			 strcmp(d->now.targets[0].type, "thin") == 0;
	}
	return count;
}

static int add_thin(uint32_t id, uint32_t origin, bool used)
{
	if (find_thin(id) != NULL)
		return -EEXIST;
	cr_assert_lt(fake_thin_count, FAKE_THIN_IDS);
	fake_thins[fake_thin_count++] = (struct fake_thin){id, origin, used};
	return 0;
}

static int fake_message(struct dm_ioctl *head, const struct fake_device *d)
{
	const char *text =
		(const char *)head + head->data_start + offsetof(struct dm_target_msg, message);
	uint32_t id, origin;
	cr_assert_lt(strnlen(text, head->data_size - head->data_start), head->data_size);
	if (d->now.count != 1 || strcmp(d->now.targets[0].type, "thin-pool") != 0)
		return -EINVAL;
	fake_thin_messages++;
	if (sscanf(text, "create_thin %" SCNu32, &id) == 1)
		return add_thin(id, 0, false);
	if (sscanf(text, "create_snap %" SCNu32 " %" SCNu32, &id, &origin) == 2) {
		const struct fake_device *device = device_of(origin);
		const struct fake_thin *thin = find_thin(origin);
		fake_thin_torn += device != NULL && !device->suspended;
		fake_thin_moving = moving() > fake_thin_moving ? moving() : fake_thin_moving;
		return thin == NULL ? -ENODATA : add_thin(id, origin, thin->used);
	}
	cr_assert_eq(sscanf(text, "delete %" SCNu32, &id), 1, "%s", text);
	struct fake_thin *thin = find_thin(id);
	if (device_of(id) != NULL)
		return -EBUSY;
	if (thin == NULL)
		return -ENODATA;
	*thin = fake_thins[--fake_thin_count];
	return 0;
}

/* What the kernel would say to such a table. */
static int fake_thin_load(const struct dm_target *t)
{
	unsigned pool_major, pool_minor;
	uint32_t id;
	if (strncmp(t->type, "thin", 4) != 0)
		return 0;
	if (fake_thin_absent)
		return -EINVAL;
	if (strcmp(t->type, "thin-pool") == 0) {
		cr_assert_eq(sscanf(t->params, "%u:%u", &pool_major, &pool_minor), 2);
		if (fake_thin_on_pool != NULL)
			fake_thin_on_pool(
				&fake_dm_devices[pool_minor - FAKE_DM_MINOR].now.targets[0]);
		return 0;
	}
	cr_assert_eq(sscanf(t->params, "%u:%u %" SCNu32, &pool_major, &pool_minor, &id), 3);
	cr_assert_eq(pool_major, FAKE_DM_MAJOR);
	const struct fake_device *pool = &fake_dm_devices[pool_minor - FAKE_DM_MINOR];
	cr_assert(pool->there && strcmp(pool->now.targets[0].type, "thin-pool") == 0);
	return find_thin(id) == NULL ? -ENODATA : 0;
}

static void fake_thin_status(const struct dm_target *t, char *buf, size_t cap)
{
	uint32_t id = 0;
	uint64_t blocks = t->length_sectors / 128, used = 0;
	const struct fake_thin *thin;
	buf[0] = '\0';
	for (unsigned i = 0; i < fake_thin_count; i++)
		used += fake_thins[i].used;
	if (strcmp(t->type, "thin-pool") == 0 && fake_thin_pool_words != NULL)
		snprintf(buf, cap, "%s", fake_thin_pool_words);
	else if (strcmp(t->type, "thin-pool") == 0)
		snprintf(buf, cap,
			"0 10/4096 %" PRIu64 "/%" PRIu64 " - rw no_discard_passdown %s - 1024 ",
			used, blocks,
			strstr(t->params, "error_if_no_space") != NULL ? "error_if_no_space"
								       : "queue_if_no_space");
	else if (strcmp(t->type, "thin") == 0 && sscanf(t->params, "%*u:%*u %" SCNu32, &id) == 1 &&
		 (thin = find_thin(id)) != NULL)
		snprintf(buf, cap, thin->used ? "%d 127" : "0 -", FAKE_THIN_BYTES / 512);
}

void fake_dm_reboot(bool keeps_ids)
{
	memset(fake_dm_devices, 0, sizeof(fake_dm_devices));
	if (!keeps_ids)
		fake_thin_count = 0;
}

/* ---- tables ---- */

/* As populate_table() reads one: every spec in the buffer, aligned, its text ended. */
static int fake_load(struct dm_ioctl *head, struct fake_device *d)
{
	const char *at = (const char *)head + head->data_start;
	const char *end = (const char *)head + head->data_size;
	fake_dm_loads++;
	d->next = (struct fake_table){.read_only = head->flags & DM_READONLY_FLAG};
	cr_assert_leq(head->target_count, DM_TARGETS_MAX);
	for (unsigned i = 0; i < head->target_count; i++) {
		struct dm_target_spec spec;
		cr_assert(at + sizeof(spec) <= end && (uintptr_t)at % 8 == 0);
		memcpy(&spec, at, sizeof(spec));
		const char *params = at + sizeof(spec);
		cr_assert_lt(strnlen(params, (size_t)(end - params)), (size_t)(end - params));
		cr_assert(at + spec.next <= end);
		struct dm_target *t = &d->next.targets[d->next.count++];
		t->start_sectors = spec.sector_start;
		t->length_sectors = spec.length;
		snprintf(t->type, sizeof(t->type), "%s", spec.target_type);
		snprintf(t->params, sizeof(t->params), "%s", params);
		at += spec.next;
		int r = fake_thin_load(t);
		if (r < 0) {
			d->next.count = 0;
			return r;
		}
	}
	tell(head, d);
	return 0;
}

static void fake_resume(struct dm_ioctl *head, struct fake_device *d)
{
	if (head->flags & DM_SUSPEND_FLAG) {
		d->suspended = true;
		tell(head, d);
		return;
	}
	fake_dm_resumes++;
	if (d->next.count != 0) {
		d->now = d->next;
		d->read_only = d->now.read_only;
	}
	d->next.count = 0;
	d->suspended = false;
	tell(head, d);
}

static int fake_table(struct dm_ioctl *head, const struct fake_device *d)
{
	char *data = (char *)head + head->data_start;
	size_t room = head->data_size - head->data_start, at = 0;
	tell(head, d);
	for (unsigned i = 0; i < d->now.count; i++) {
		const struct dm_target *t = &d->now.targets[i];
		struct dm_target_spec spec = {
			.sector_start = t->start_sectors, .length = t->length_sectors};
		size_t begin = at;
		snprintf(spec.target_type, sizeof(spec.target_type), "%s", t->type);
		/* Parameters may have keys in them: they are told to who asks for them. */
		char status[DM_PARAMS_BYTES];
		fake_thin_status(t, status, sizeof(status));
		const char *params = head->flags & DM_STATUS_TABLE_FLAG ? t->params : status;
		if (at + sizeof(spec) + strlen(params) + 8 > room) {
			head->flags |= DM_BUFFER_FULL_FLAG;
			return 0;
		}
		strcpy(data + at + sizeof(spec), params);
		at = (at + sizeof(spec) + strlen(params) + 1 + 7) / 8 * 8;
		spec.next = (uint32_t)at;
		memcpy(data + begin, &spec, sizeof(spec));
	}
	head->data_size = (uint32_t)(head->data_start + at);
	return 0;
}

/* The one device that the first target names. */
static int fake_deps(struct dm_ioctl *head, const struct fake_device *d)
{
	struct dm_target_deps deps = {0};
	uint32_t dev_major, dev_minor;
	char *data = (char *)head + head->data_start;
	const char *colon = strchr(d->now.targets[0].params, ':');
	tell(head, d);
	while (colon != NULL && colon > d->now.targets[0].params && colon[-1] != ' ')
		colon--;
	if (d->now.count != 0 && colon != NULL &&
		sscanf(colon, "%u:%u", &dev_major, &dev_minor) == 2) {
		uint64_t dev = (dev_minor & 0xff) | dev_major << 8 |
			       ((uint64_t)dev_minor & ~UINT64_C(0xff)) << 12;
		deps.count = 1;
		memcpy(data + sizeof(deps), &dev, sizeof(dev));
	}
	memcpy(data, &deps, sizeof(deps));
	head->data_size = (uint32_t)(head->data_start + sizeof(deps) + 8 * deps.count);
	return 0;
}

static int fake_list(struct dm_ioctl *head)
{
	char *data = (char *)head + head->data_start, *last = NULL;
	size_t at = 0;
	for (unsigned i = 0; i < FAKE_DM_DEVICES; i++) {
		struct dm_ioctl told = {0};
		if (!fake_dm_devices[i].there)
			continue;
		tell(&told, &fake_dm_devices[i]);
		struct dm_name_list entry = {.dev = told.dev};
		const size_t fixed = offsetof(struct dm_name_list, name);
		size_t bytes = (fixed + strlen(told.name) + 1 + 7) / 8 * 8;
		if (last != NULL)
			memcpy(last + offsetof(struct dm_name_list, next),
				&(uint32_t){(uint32_t)(data + at - last)}, sizeof(uint32_t));
		last = data + at;
		memcpy(last, &entry, fixed);
		strcpy(last + fixed, told.name);
		at += bytes;
	}
	head->data_size = (uint32_t)(head->data_start + at);
	return 0;
}

static void fake_remove(struct dm_ioctl *head, struct fake_device *d)
{
	if (d->open > 0) {
		cr_assert(head->flags & DM_DEFERRED_REMOVE, "else the kernel says EBUSY");
		d->deferred = true;
		return;
	}
	head->flags &= ~(uint32_t)DM_DEFERRED_REMOVE;
	d->there = false;
}

int fake_dm_call(struct dm *dm, unsigned long request, struct dm_ioctl *head)
{
	(void)dm;
	cr_assert_eq(head->version[0], DM_VERSION_MAJOR);
	cr_assert_geq(head->data_size, sizeof(*head));
	if (fake_dm_fail_with != 0 && request == fake_dm_fail_request) {
		int r = fake_dm_fail_with;
		fake_dm_fail_with = 0;
		return r;
	}
	if (request == DM_DEV_CREATE)
		return fake_create(head);
	if (request == DM_LIST_DEVICES)
		return fake_list(head);
	if (request == DM_GET_TARGET_VERSION)
		return fake_thin_absent && strncmp(head->name, "thin", 4) == 0 ? -EINVAL : 0;
	if (request == DM_DEV_ARM_POLL)
		return 0;
	cr_assert(head->name[0] == '\0' || head->uuid[0] == '\0', "the kernel takes one of them");
	struct fake_device *d = find(head);
	if (d == NULL)
		return -ENXIO;
	switch (request) {
	case DM_TABLE_LOAD:
		return fake_load(head, d);
	case DM_TABLE_STATUS:
		return fake_table(head, d);
	case DM_TARGET_MSG:
		return fake_message(head, d);
	case DM_TABLE_DEPS:
		return fake_deps(head, d);
	case DM_TABLE_CLEAR:
		d->next.count = 0;
		tell(head, d);
		return 0;
	case DM_DEV_SUSPEND:
		cr_expect_eq(head->event_nr, 0x6eu << 16); /* what udev is told */
		fake_resume(head, d);
		return 0;
	case DM_DEV_REMOVE:
		cr_expect_eq(head->event_nr, 0x6eu << 16);
		fake_remove(head, d);
		return 0;
	case DM_DEV_STATUS:
		tell(head, d);
		return 0;
	default:
		cr_assert_fail("request %lx", request);
		return -EINVAL;
	}
}
