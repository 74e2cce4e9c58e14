/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packing and unpacking of the device mapper's ioctls. Owns nothing but the open control node.
 *
 * A call is one buffer: struct dm_ioctl, then what goes in or comes out. The happy path of each:
 * fill the head, append (targets of a table), call, read what came back. An answer that does not
 * fit says so by a flag, and is asked for again with four times the room, RETRY_MAX_BYTES at most.
 * How it can fail: the kernel's errno; -EPROTO when what it returned points outside the buffer, as
 * nothing that the kernel wrote is believed before it was compared with the buffer's size.
 */
#include "disk/dm.h"

#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define SYSFS_PATH "/sys/class/misc/device-mapper" /* there when the driver is */

enum {
	HEAD_BYTES = sizeof(struct dm_ioctl),
	FIRST_BYTES = 1 << 10, /* a guard's table fits; the kernel copies and clears it each time */
	RETRY_MAX_BYTES = 16 << 20,
	ALIGN = 8,
	/*
	 * What goes with the uevents of a device, in the upper half of the event number, for udev's
	 * rules (libdevmapper.h, DM_UDEV_*): no rules of subsystems (0x2), disks (0x4) and others
	 * (0x8), no fallback of a library that waits (0x20), and we are the source (0x40). So
	 * nobody probes what a tenant wrote, also where deploy/host is not installed. The lower
	 * half is 0: nobody waits for a cookie.
	 */
	UDEV_FLAGS = 0x2 | 0x4 | 0x8 | 0x20 | 0x40,
};

/* ---- one call ---- */

static int call_kernel(struct dm *dm, unsigned long request, struct dm_ioctl *buffer)
{
	if (dm->secret)
		buffer->flags |= DM_SECURE_DATA_FLAG;
	if (dm->call != NULL)
		return dm->call(dm, request, buffer);
	return ioctl(dm->fd, request, buffer) < 0 ? -errno : 0;
}

static int put_text(char *to, size_t cap, const char *text)
{
	size_t len = text == NULL ? 0 : strlen(text);
	if (len >= cap)
		return -EINVAL;
	if (len != 0)
		memcpy(to, text, len + 1);
	return 0;
}

/* Begins a buffer of `bytes`, whose head names the device. -EINVAL: a name that is too long. */
static int head_set(struct dm_ioctl *head, size_t bytes, const char *name, const char *uuid)
{
	head->version[0] = DM_VERSION_MAJOR;
	head->data_size = (uint32_t)bytes;
	head->data_start = HEAD_BYTES;
	head->event_nr = (uint32_t)UDEV_FLAGS << 16;
	int r = put_text(head->name, sizeof(head->name), name);
	return r == 0 ? put_text(head->uuid, sizeof(head->uuid), uuid) : r;
}

/* The same in new memory, which is the caller's. NULL with *res: also out of memory. */
static struct dm_ioctl *head_new(size_t bytes, const char *uuid, int *res)
{
	struct dm_ioctl *head = calloc(1, bytes);
	*res = head == NULL ? -ENOMEM : head_set(head, bytes, NULL, uuid);
	if (*res == 0)
		return head;
	free(head);
	return NULL;
}

/* Whether the kernel's answer lies in the buffer that it was given. */
static bool answer_fits(const struct dm_ioctl *head, size_t bytes)
{
	return head->data_start <= head->data_size && head->data_size <= bytes;
}

/* Calls with more and more room until the answer fits. *ret is the caller's to free. */
static int call_growing(struct dm *dm, unsigned long request, const char *uuid, uint32_t flags,
	struct dm_ioctl **ret)
{
	for (size_t bytes = FIRST_BYTES; bytes <= RETRY_MAX_BYTES; bytes *= 4) {
		int r;
		struct dm_ioctl *head = head_new(bytes, uuid, &r);
		if (head == NULL)
			return r;
		head->flags = flags;
		r = call_kernel(dm, request, head);
		if (r == 0 && !(head->flags & DM_BUFFER_FULL_FLAG)) {
			if (answer_fits(head, bytes)) {
				*ret = head;
				return 0;
			}
			r = -EPROTO;
		}
		free(head);
		if (r < 0)
			return r;
	}
	return -E2BIG;
}

/* Undoes the kernel's new_encode_dev(). */
static uint32_t major_of(uint64_t dev)
{
	return (uint32_t)(dev >> 8) & 0xfff;
}

static uint32_t minor_of(uint64_t dev)
{
	return (uint32_t)((dev & 0xff) | ((dev >> 12) & 0xfff00));
}

static void put_device(const struct dm_ioctl *head, struct dm_device *ret)
{
	*ret = (struct dm_device){
		.major = major_of(head->dev),
		.minor = minor_of(head->dev),
		.open_count = head->open_count < 0 ? 0 : (uint32_t)head->open_count,
		.target_count = head->target_count,
		.has_table = head->flags & DM_ACTIVE_PRESENT_FLAG,
		.suspended = head->flags & DM_SUSPEND_FLAG,
		.read_only = head->flags & DM_READONLY_FLAG,
		.going_away = head->flags & DM_DEFERRED_REMOVE,
	};
	memcpy(ret->name, head->name, strnlen(head->name, sizeof(ret->name) - 1));
	memcpy(ret->uuid, head->uuid, strnlen(head->uuid, sizeof(ret->uuid) - 1));
}

/* A call whose answer is the head alone. ret may be NULL. */
static int call_head(struct dm *dm, unsigned long request, const char *name, const char *uuid,
	uint32_t flags, struct dm_device *ret)
{
	struct dm_ioctl head = {.flags = flags};
	int r = head_set(&head, sizeof(head), name, uuid);
	if (r == 0)
		r = call_kernel(dm, request, &head);
	if (r == 0 && ret != NULL)
		put_device(&head, ret);
	return r;
}

/* ---- the control node ---- */

/* The kernel writes its version into the head, and refuses another major number with EINVAL. */
static int shake_hands(struct dm *dm)
{
	struct dm_ioctl head = {0};
	(void)head_set(&head, sizeof(head), NULL, NULL);
	int r = call_kernel(dm, DM_VERSION, &head);
	if (r == -EINVAL || (r == 0 && head.version[0] != DM_VERSION_MAJOR))
		return -EPROTO;
	return r;
}

int dm_open(struct dm *ret, const char *control_path)
{
	int fd = open(control_path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	struct dm dm = {.fd = fd};
	int r = shake_hands(&dm);
	if (r < 0) {
		close(fd);
		return r == -ENOTTY ? -EPROTO : r;
	}
	*ret = dm;
	return 0;
}

bool dm_is_absent(int res)
{
	return res == -ENOENT || res == -ENXIO || res == -ENODEV;
}

int dm_fail_open(int res, const char *who, struct err *err)
{
	if (dm_is_absent(res))
		return err_set(err, ERR_PRECONDITION,
			"%s need the device mapper, which this node lacks (%s): load its module "
			"(modprobe dm_mod)",
			who, DM_CONTROL_PATH);
	return err_sys(err, res, "%s need the device mapper: opening %s", who, DM_CONTROL_PATH);
}

bool dm_is_loaded(void)
{
	return access(SYSFS_PATH, F_OK) == 0;
}

bool dm_stands_on(uint32_t dev_major, uint32_t dev_minor, const char *uuid_prefix)
{
	char path[512], uuid[DM_UUID_LEN];
	size_t prefix_len = strlen(uuid_prefix);
	bool found = false;
	int len =
		snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/holders/", dev_major, dev_minor);
	_cleanup_dir_ DIR *dir = opendir(path);
	const struct dirent *entry;
	while (dir != NULL && !found && (entry = readdir(dir)) != NULL) {
		snprintf(path + len, sizeof(path) - (size_t)len, "%s/dm/uuid", entry->d_name);
		found = fd_read_file(AT_FDCWD, path, uuid, sizeof(uuid)) > 0 &&
			strncmp(uuid, uuid_prefix, prefix_len) == 0;
	}
	return found;
}

void dm_close(struct dm *dm)
{
	fd_close(&dm->fd);
}

/* ---- devices ---- */

int dm_open_node(uint32_t dev_major, uint32_t dev_minor, int flags)
{
	char path[32];
	struct stat st;
	snprintf(path, sizeof(path), "/dev/dm-%" PRIu32, dev_minor);
	int fd = open(path, flags | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) == 0 && S_ISBLK(st.st_mode) &&
		st.st_rdev == makedev(dev_major, dev_minor))
		return fd;
	close(fd);
	return -ENXIO;
}

static bool is_name(const char *text, size_t cap)
{
	return text[0] != '\0' && strlen(text) < cap && strchr(text, '/') == NULL;
}

int dm_create(struct dm *dm, const char *name, const char *uuid, struct dm_device *ret)
{
	if (!is_name(name, DM_NAME_LEN) || !is_name(uuid, DM_UUID_LEN))
		return -EINVAL;
	return call_head(dm, DM_DEV_CREATE, name, uuid, 0, ret);
}

int dm_look(struct dm *dm, const char *uuid, struct dm_device *ret)
{
	return call_head(dm, DM_DEV_STATUS, NULL, uuid, 0, ret);
}

int dm_look_name(struct dm *dm, const char *name, struct dm_device *ret)
{
	return call_head(dm, DM_DEV_STATUS, name, NULL, 0, ret);
}

int dm_clear(struct dm *dm, const char *uuid)
{
	return call_head(dm, DM_TABLE_CLEAR, NULL, uuid, 0, NULL);
}

/* A file system that a tenant has mounted from the device is not frozen for it: the new table has
 * the same bytes, and a freeze could wait for ever. */
int dm_resume(struct dm *dm, const char *uuid, struct dm_device *ret)
{
	return call_head(dm, DM_DEV_SUSPEND, NULL, uuid, DM_SKIP_LOCKFS_FLAG, ret);
}

int dm_suspend(struct dm *dm, const char *uuid, bool freeze)
{
	return call_head(dm, DM_DEV_SUSPEND, NULL, uuid,
		DM_SUSPEND_FLAG | (freeze ? 0 : DM_SKIP_LOCKFS_FLAG), NULL);
}

int dm_remove(struct dm *dm, const char *uuid, bool *ret_waits)
{
	struct dm_device device = {0};
	int r = call_head(dm, DM_DEV_REMOVE, NULL, uuid, DM_DEFERRED_REMOVE, &device);
	if (r < 0 && r != -ENXIO)
		return r;
	/* The kernel clears the flag when the device is gone. */
	*ret_waits = device.going_away;
	return 0;
}

/* ---- tables ---- */

/* Where the next one begins: behind the text's NUL, aligned. */
static size_t target_bytes(size_t params_len)
{
	size_t bytes = sizeof(struct dm_target_spec) + params_len + 1;
	return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static void put_targets(struct dm_ioctl *head, const struct dm_target *targets, unsigned count)
{
	char *at = (char *)head + head->data_start;
	for (unsigned i = 0; i < count; i++) {
		const struct dm_target *t = &targets[i];
		size_t bytes = target_bytes(strlen(t->params));
		struct dm_target_spec spec = {
			.sector_start = t->start_sectors,
			.length = t->length_sectors,
			.next = (uint32_t)bytes,
		};
		memcpy(spec.target_type, t->type, strnlen(t->type, sizeof(spec.target_type) - 1));
		memcpy(at, &spec, sizeof(spec));
		memcpy(at + sizeof(spec), t->params, strlen(t->params) + 1);
		at += bytes;
	}
	head->target_count = count;
}

int dm_load(struct dm *dm, const char *uuid, const struct dm_target *targets, unsigned count,
	bool read_only)
{
	size_t bytes = HEAD_BYTES;
	if (count == 0 || count > DM_TARGETS_MAX)
		return count == 0 ? -EINVAL : -E2BIG;
	for (unsigned i = 0; i < count; i++) {
		if (strnlen(targets[i].params, DM_PARAMS_BYTES) == DM_PARAMS_BYTES)
			return -E2BIG;
		bytes += target_bytes(strlen(targets[i].params));
	}
	int r;
	_cleanup_free_ struct dm_ioctl *head = head_new(bytes, uuid, &r);
	if (head == NULL)
		return r;
	head->flags = read_only ? DM_READONLY_FLAG : 0;
	put_targets(head, targets, count);
	r = call_kernel(dm, DM_TABLE_LOAD, head);
	if (dm->secret)
		explicit_bzero(head, bytes);
	return r;
}

/* One target of an answer, *at bytes behind data_start; *at moves to the next. -EPROTO: it is not
 * all there. */
static int get_target(const struct dm_ioctl *head, size_t *at, struct dm_target *ret)
{
	const char *data = (const char *)head + head->data_start;
	size_t size = head->data_size - head->data_start;
	struct dm_target_spec spec;
	if (*at > size || size - *at < sizeof(spec))
		return -EPROTO;
	memcpy(&spec, data + *at, sizeof(spec));
	const char *params = data + *at + sizeof(spec);
	size_t room = size - *at - sizeof(spec);
	size_t len = strnlen(params, room);
	/* "next" counts from the first target here, unlike where a table goes in. */
	if (len == room || spec.next < *at + sizeof(spec) + len + 1)
		return -EPROTO;
	*ret = (struct dm_target){
		.start_sectors = spec.sector_start, .length_sectors = spec.length};
	memcpy(ret->type, spec.target_type, strnlen(spec.target_type, sizeof(ret->type) - 1));
	memcpy(ret->params, params, len < sizeof(ret->params) ? len : sizeof(ret->params) - 1);
	*at = spec.next;
	return len < sizeof(ret->params) ? 0 : -E2BIG;
}

static int get_targets(struct dm *dm, const char *uuid, uint32_t flags, struct dm_target *targets,
	unsigned cap, unsigned *ret_count)
{
	struct dm_ioctl *head = NULL;
	int r = call_growing(dm, DM_TABLE_STATUS, uuid, flags | DM_NOFLUSH_FLAG, &head);
	size_t at = 0;
	for (unsigned i = 0; r == 0 && i < head->target_count && i < cap; i++)
		r = get_target(head, &at, &targets[i]);
	if (r == 0)
		*ret_count = head->target_count;
	if (head != NULL && dm->secret)
		explicit_bzero(head, head->data_size);
	free(head);
	return r;
}

void dm_linear(struct dm_target *ret, uint32_t major, uint32_t minor, uint64_t offset_sectors)
{
	snprintf(ret->type, sizeof(ret->type), "linear");
	snprintf(ret->params, sizeof(ret->params), "%" PRIu32 ":%" PRIu32 " %" PRIu64, major, minor,
		offset_sectors);
}

bool dm_linear_parse(const struct dm_target *target, uint32_t *ret_major, uint32_t *ret_minor,
	uint64_t *ret_offset_sectors)
{
	char extra;
	return strcmp(target->type, "linear") == 0 &&
	       sscanf(target->params, "%" SCNu32 ":%" SCNu32 " %" SCNu64 "%c", ret_major, ret_minor,
		       ret_offset_sectors, &extra) == 3;
}

int dm_table(struct dm *dm, const char *uuid, struct dm_target *targets, unsigned cap,
	unsigned *ret_count)
{
	return get_targets(dm, uuid, DM_STATUS_TABLE_FLAG, targets, cap, ret_count);
}

/* Without the flag the kernel tells how each target does, at most. */
int dm_shape(struct dm *dm, const char *uuid, struct dm_target *targets, unsigned cap,
	unsigned *ret_count)
{
	int r = get_targets(dm, uuid, 0, targets, cap, ret_count);
	for (unsigned i = 0; r == 0 && i < *ret_count && i < cap; i++)
		targets[i].params[0] = '\0';
	return r;
}

int dm_status(struct dm *dm, const char *uuid, struct dm_target *ret)
{
	unsigned count;
	int r = get_targets(dm, uuid, 0, ret, 1, &count);
	return r == 0 && count == 0 ? -ENODATA : r;
}

int dm_message(struct dm *dm, const char *uuid, const char *text)
{
	size_t at = HEAD_BYTES + offsetof(struct dm_target_msg, message);
	size_t bytes = at + strlen(text) + 1;
	int r;
	_cleanup_free_ struct dm_ioctl *head = head_new(bytes, uuid, &r);
	if (head == NULL)
		return r;
	memcpy((char *)head + at, text, strlen(text) + 1);
	return call_kernel(dm, DM_TARGET_MSG, head);
}

bool dm_has_target(struct dm *dm, const char *type)
{
	_cleanup_free_ struct dm_ioctl *head = calloc(1, FIRST_BYTES);
	return head != NULL && head_set(head, FIRST_BYTES, type, NULL) == 0 &&
	       call_kernel(dm, DM_GET_TARGET_VERSION, head) == 0;
}

int dm_below(struct dm *dm, const char *uuid, uint32_t *ret_major, uint32_t *ret_minor)
{
	_cleanup_free_ struct dm_ioctl *head = NULL;
	struct dm_target_deps deps;
	uint64_t dev;
	int r = call_growing(dm, DM_TABLE_DEPS, uuid, 0, &head);
	if (r < 0)
		return r;
	const char *data = (const char *)head + head->data_start;
	size_t size = head->data_size - head->data_start;
	if (size < sizeof(deps))
		return -ENODEV;
	memcpy(&deps, data, sizeof(deps));
	if (deps.count != 1)
		return -ENODEV;
	if (size < sizeof(deps) + sizeof(dev))
		return -EPROTO;
	memcpy(&dev, data + sizeof(deps), sizeof(dev));
	*ret_major = major_of(dev);
	*ret_minor = minor_of(dev);
	return 0;
}

/* ---- all of them ---- */

/* One name of the list, *at bytes behind data_start. 1: there is another; 0: the last. */
static int get_name(
	const struct dm_ioctl *head, size_t *at, struct dm_name_list *ret, const char **ret_name)
{
	const char *data = (const char *)head + head->data_start;
	size_t size = head->data_size - head->data_start;
	const size_t fixed = offsetof(struct dm_name_list, name);
	if (*at > size || size - *at <= fixed)
		return -EPROTO;
	memcpy(ret, data + *at, fixed);
	*ret_name = data + *at + fixed;
	size_t room = size - *at - fixed;
	if (strnlen(*ret_name, room) == room || (ret->next != 0 && ret->next < fixed))
		return -EPROTO;
	*at += ret->next;
	return ret->next != 0;
}

int dm_list(struct dm *dm,
	void (*each)(void *arg, const char *name, uint32_t major, uint32_t minor), void *arg)
{
	_cleanup_free_ struct dm_ioctl *head = NULL;
	int r = call_growing(dm, DM_LIST_DEVICES, NULL, 0, &head);
	if (r < 0)
		return r;
	struct dm_name_list entry = {0};
	const char *name;
	size_t at = 0;
	if (head->data_size == head->data_start)
		return 0; /* none */
	do {
		r = get_name(head, &at, &entry, &name);
		if (r >= 0)
			each(arg, name, major_of(entry.dev), minor_of(entry.dev));
	} while (r > 0);
	return r;
}
