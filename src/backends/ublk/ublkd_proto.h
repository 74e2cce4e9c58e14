/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the driver and the data process (`ringvol ublkd`) say to each other.
 *
 * The socket: AF_UNIX, SOCK_SEQPACKET, 0600; both ends belong to root (SO_PEERCRED). One message is
 * one packet. The driver sends requests, as many at once as it likes up to UBLKD_REQUESTS_MAX, and
 * gets one reply for each, in any order, told by its id. The first request is HELLO.
 *
 * Versions. Either end may be older than the other, for a data process lives as long as its
 * devices. Structs only grow, at their end: a receiver takes what it knows of a longer message, and
 * reads a shorter one as if zeros followed. So 0 must mean "as before" in every field that is
 * added. A type it does not know gets the code "unimplemented". UBLKD_VERSION changes only when
 * that is not enough, and HELLO is answered in any version.
 *
 * Every request converges: asked again, after a broken connection or a restart of either end, it
 * finds what it did and answers the same. Closing the connection ends no request and no device.
 *
 * The image and its lock. ATTACH brings the image as a descriptor (SCM_RIGHTS), opened read-write
 * (or read-only), with O_DIRECT where direct I/O is wanted, and *not locked*: the data process
 * takes flock(LOCK_EX) on it and looks for users who do not know of the lock, as image_lock() does
 * for loop. The driver closes its copy when the reply is there. The lock then lives as long as the
 * device is served. It is let go when the data process dies, after the last of its reads and
 * writes: the kernel keeps the open file until then, so a recovery, which takes the lock again
 * before anything else, never runs beside what its predecessor left in flight.
 *
 * Between death and recovery the image is unlocked while the device still exists (QUIESCED), may be
 * mounted, and holds requests that will be issued again. Attaching the image elsewhere then would
 * ruin it. Whoever attaches an image by loop must therefore know that no ublk device has it: by
 * ublkc_scan(), which asks the data process and, where none answers, reads its state files.
 *
 * Recovery opens the image by its path and takes it only if device and inode are those of the
 * ATTACH. Where the path is not visible to the data process (its own mount namespace) the device
 * waits, UBLKD_DEV_WAITING, until an ATTACH brings the descriptor.
 */
#ifndef RINGVOL_BACKENDS_UBLKD_PROTO_H
#define RINGVOL_BACKENDS_UBLKD_PROTO_H

#include "base/err.h"
#include "base/io_limits.h"

#include <stddef.h>
#include <stdint.h>

#define UBLKD_SOCKET    "/run/ringvol/ublkd.sock"
#define UBLKD_STATE_DIR "/run/ringvol/ublkd"

enum {
	UBLKD_MAGIC = 0x6b627672, /* "rvbk" */
	UBLKD_VERSION = 1,
	UBLKD_SESSIONS_MAX = 16, /* connections; for the next one an idle one is closed */
	UBLKD_REQUESTS_MAX = 64, /* waiting for a reply, of one connection; then code "no_room" */
	UBLKD_DEVICES_MAX = 1024,
	UBLKD_QUEUES_MAX = 16,
	UBLKD_DEPTH_MIN = 8,
	UBLKD_DEPTH_MAX = 256,
	UBLKD_QUEUES_DEFAULT = 1,
	UBLKD_DEPTH_DEFAULT = 64,
	UBLKD_TAG_BYTES = 64,
	UBLKD_PATH_BYTES = 4096,
	UBLKD_MESSAGE_BYTES = 384,
	UBLKD_CODE_BYTES = 24,
};

enum ublkd_type {
	UBLKD_HELLO = 1,
	UBLKD_ATTACH = 2,
	UBLKD_DETACH = 3,
	UBLKD_RESIZE = 4,
	UBLKD_LIST = 5,
	UBLKD_LIMIT = 6, /* puts `limits` in force for a device; older data processes know none */
};

/* Of a device. */
enum ublkd_state {
	UBLKD_DEV_NONE = 0, /* the reply has no device */
	UBLKD_DEV_ATTACHING = 1,
	UBLKD_DEV_LIVE = 2,
	UBLKD_DEV_RECOVERING = 3, /* I/O waits, and goes on by itself */
	UBLKD_DEV_WAITING = 4,    /* I/O waits for an ATTACH that brings the image */
	UBLKD_DEV_DETACHING = 5,  /* also: a command of the kernel overstayed while detaching */
};

enum ublkd_flags {
	/* of ATTACH and of a device */
	UBLKD_READ_ONLY = 1 << 0,
	UBLKD_NO_DISCARD = 1 << 1, /* thick: discards are not offered, zeroes keep their blocks */
	/* of a device */
	UBLKD_DIRECT_IO = 1 << 2,
	UBLKD_ZERO_COPY = 1 << 3, /* requests' pages are used as they are (registered buffers) */
	/* of HELLO */
	UBLKD_HAS_UBLK = 1 << 8,   /* this kernel has /dev/ublk-control */
	UBLKD_CAN_RESIZE = 1 << 9, /* devices can grow in use (UBLK_F_UPDATE_SIZE, Linux 6.16) */
};

struct ublkd_head {
	uint32_t magic;
	uint16_t version;
	uint16_t type; /* a reply repeats the request's */
	uint64_t id;   /* a reply repeats the request's */
};

struct ublkd_request {
	struct ublkd_head head;
	/* ATTACH: which image. DETACH, RESIZE, LIMIT: the device must still be this one, else it is
	 * left alone. st_dev and st_ino as in stat. */
	uint64_t image_dev, image_ino;
	char tag[UBLKD_TAG_BYTES]; /* "ringvol:<pool uuid, 8>:<random, 8>"; ends with NUL */
	uint32_t dev_id;           /* DETACH, RESIZE, LIMIT; LIST: the least id that is wanted */
	uint32_t flags;            /* ATTACH: READ_ONLY, NO_DISCARD */
	uint32_t block_size;       /* ATTACH: logical, 512 or 4096 */
	uint16_t queues, depth;    /* ATTACH: 0 is the default; one of depth stays in reserve */
	/* ATTACH: absolute, as the data process may see it after its next start; empty: never by
	 * path. */
	char path[UBLKD_PATH_BYTES];
	/* ATTACH of an image that is on no device yet, LIMIT. */
	struct io_limits limits;
};

/* What a device, or a queue of it, has done. Counted by this data process: from 0 with each
 * recovery.
 */
struct ublk_counters {
	uint64_t reads, writes, flushes, discards; /* requests taken; zeroes count as discards */
	uint64_t read_bytes, written_bytes;
	uint64_t errors;        /* requests that failed */
	uint64_t last_error_ns; /* CLOCK_REALTIME; 0: none failed */
	uint32_t last_errno;    /* positive */
	uint32_t pad;
};

/* What waited for its limits; [0] reads, [1] writes. Counted as the others. */
struct ublk_throttled {
	uint64_t requests[2], wait_ns[2];
};

struct ublkd_device {
	uint32_t state; /* enum ublkd_state */
	uint32_t dev_id;
	uint32_t major, minor; /* of the block device */
	char node[32];         /* /dev/ublkb7 */
	char tag[UBLKD_TAG_BYTES];
	uint64_t image_dev, image_ino;
	uint64_t size_bytes;
	uint32_t block_size;
	uint32_t flags;
	uint16_t queues, depth;
	uint32_t recoveries; /* since the device was made */
	struct ublk_counters counters;
	char why[UBLKD_MESSAGE_BYTES]; /* RECOVERING, WAITING, DETACHING: what it waits for */
	struct io_limits limits;       /* in force; an older data process tells of none */
	struct ublk_throttled throttled;
};

struct ublkd_reply {
	struct ublkd_head head;
	int32_t res;                       /* 0 or -errno */
	uint32_t flags;                    /* HELLO */
	char code[UBLKD_CODE_BYTES];       /* err_code_name(); "" with 0 */
	char message[UBLKD_MESSAGE_BYTES]; /* names the thing and the remedy; "" with 0 */
	/* HELLO */
	uint64_t features; /* UBLK_F_* of the kernel */
	int32_t pid;
	uint32_t devices;
	char build[32]; /* RINGVOL_VERSION */
	/* ATTACH, RESIZE, LIMIT: the device. DETACH: with a state only if it is still there. LIST:
	 * the device with the least id from dev_id on; state NONE: there is no more. */
	struct ublkd_device device;
};

/* ---- single messages, for both ends ---- */

/* A connected, non-blocking socket, its other end root's; or -errno (-EPERM: it is not). */
int ublkd_connect(const char *path);
/* What a failed connect means, for a sentence that begins with "the data process at PATH". */
const char *ublkd_connect_why(int r);
/* Completes the head and sends it, with image_fd unless that is -1; never waits. 0 or -errno;
 * -EAGAIN: the socket is full. */
int ublkd_send(int fd, const struct ublkd_request *request, int image_fd);
/* Makes a reply of `len` bytes whole: zeros for what an older sender does not know, strings ended.
 * -EPROTO when it is none. */
int ublkd_check_reply(struct ublkd_reply *reply, size_t len);
/* The same for a request. */
int ublkd_check_request(struct ublkd_request *request, size_t len);
/* The reply's result; an error's code and message go to *err. */
int ublkd_reply_result(const struct ublkd_reply *reply, struct err *err);
/* And the other way: sets res, code and message. */
void ublkd_reply_fail(struct ublkd_reply *reply, int res, const struct err *err);

#endif
