/* SPDX-License-Identifier: Apache-2.0 */
/* The two images of a thin pool, and its devices: what thin_keep.c has done on a thread. Blocking.
 */
#ifndef RINGVOL_POOL_THIN_FILES_H
#define RINGVOL_POOL_THIN_FILES_H

#include "disk/thin_pool.h"

/* On the metadata's image from before a thin pool is activated until it was taken away in order.
 * Where it is found and no device is there, the stop was unclean. */
#define THIN_ACTIVE_XATTR "trusted.ringvol.thin.active"

/* The thread's and the loop's in turn. */
struct thin_files {
	bool named; /* of a make that failed: a name may be there */
	struct thin_super super;
	bool active; /* the devices are there */
	bool clean;  /* the last stop was */
	int fd;      /* the metadata's device, for thin_check; -1 */
	struct thin_pool_spec spec;
	bool fails_when_full;
	struct image_map was_metadata, was_data; /* as their images say; empty: not known */
	bool written;                            /* they may say now what spec has */
	struct thin_status status;
	struct err err; /* of activate and grow, where it says more than -errno */
};

/* Names the images, durably. */
int thin_files_make(struct thin_files *f, int dirfd, const struct image_map *metadata,
	const struct image_map *data);
/* The devices away, if nobody uses them; -EBUSY: somebody does. The stop was no clean one. */
int thin_files_drop(const struct disk *disk);
/* super, active, clean. Devices that take no writes, or lead to a disk that was away meanwhile, or
 * have no thin pool on them, are taken away, unless somebody uses them. -EBADMSG: these are no
 * metadata of dm-thin's; -ENOENT: an image is not there any more. */
int thin_files_ask(struct thin_files *f, const struct disk *disk, int dirfd,
	const struct image_map *metadata, const struct image_map *data);
/* fd, which is the caller's. */
int thin_files_open_metadata(
	struct thin_files *f, const struct disk *disk, const struct image_map *metadata);
/* The images' maps and the devices as spec says; what a killed driver has left of builds goes. */
int thin_files_activate(struct thin_files *f, int dirfd);
/* status. -ENXIO: it is not active. */
int thin_files_look(struct thin_files *f, const struct disk *disk);
/* The maps as spec has them, durable; then the devices. */
int thin_files_grow(struct thin_files *f, int dirfd);
/* The devices away, and both images to the trash, durably. -EBUSY: somebody has a device of it;
 * -ENOTEMPTY: its metadata know something, whatever the files say. */
int thin_files_retire(
	const struct disk *disk, int dirfd, int trash_fd, const struct image_map *metadata);
/* The devices away, if nobody uses them; the images stay. */
void thin_files_rest(const struct disk *disk, int dirfd);

#endif
