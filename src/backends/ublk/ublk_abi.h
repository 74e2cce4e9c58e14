/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel's ublk interface as this program uses it. Debian 12's <linux/ublk_cmd.h> is that of
 * Linux 6.1 and lacks most of it, so the numbers are here once, under names of our own, with sizes
 * checked. Source: include/uapi/linux/ublk_cmd.h and Documentation/block/ublk.rst of Linux.
 *
 * Commands are ioctl-encoded (Linux 6.4); a kernel that only knows plain numbers answers
 * -EOPNOTSUPP, and counts as one without ublk.
 */
#ifndef RINGVOL_BACKENDS_UBLK_ABI_H
#define RINGVOL_BACKENDS_UBLK_ABI_H

#include <assert.h>
#include <linux/ioctl.h>
#include <stddef.h>
#include <stdint.h>

/* ---- control commands, to /dev/ublk-control ---- */

struct ublk_abi_ctrl {
	uint32_t dev_id;
	uint16_t queue_id; /* UINT16_MAX: not about one queue */
	uint16_t len;      /* of the buffer at addr */
	uint64_t addr;
	uint64_t data; /* a pid or a size */
	uint16_t dev_path_len, pad;
	uint32_t reserved;
};
static_assert(sizeof(struct ublk_abi_ctrl) == 32, "the kernel's");

#define UBLK_ABI_R(n)  ((uint32_t)_IOR('u', n, struct ublk_abi_ctrl))
#define UBLK_ABI_WR(n) ((uint32_t)_IOWR('u', n, struct ublk_abi_ctrl))

#define UBLK_ABI_ADD_DEV        UBLK_ABI_WR(0x04)
#define UBLK_ABI_DEL_DEV        UBLK_ABI_WR(0x05)
#define UBLK_ABI_START_DEV      UBLK_ABI_WR(0x06) /* data: our pid */
#define UBLK_ABI_STOP_DEV       UBLK_ABI_WR(0x07)
#define UBLK_ABI_SET_PARAMS     UBLK_ABI_WR(0x08)
#define UBLK_ABI_START_RECOVERY UBLK_ABI_WR(0x10)
#define UBLK_ABI_END_RECOVERY   UBLK_ABI_WR(0x11) /* data: our pid */
#define UBLK_ABI_GET_INFO       UBLK_ABI_R(0x02)
#define UBLK_ABI_GET_FEATURES   UBLK_ABI_R(0x13)  /* addr: 8 bytes; Linux 6.5 */
#define UBLK_ABI_DEL_ASYNC      UBLK_ABI_R(0x14)  /* as DEL_DEV; Linux 6.11 */
#define UBLK_ABI_UPDATE_SIZE    UBLK_ABI_WR(0x15) /* data: sectors; UBLK_ABI_F_UPDATE_SIZE */

/* What a kernel can do, and what a device is made with. */
#define UBLK_ABI_F_ZERO_COPY        (1ULL << 0)
#define UBLK_ABI_F_RECOVERY         (1ULL << 3)
#define UBLK_ABI_F_RECOVERY_REISSUE (1ULL << 4)
#define UBLK_ABI_F_IOCTL_ENCODE     (1ULL << 6)
#define UBLK_ABI_F_UPDATE_SIZE      (1ULL << 10) /* Linux 6.16 */
#define UBLK_ABI_F_AUTO_BUF         (1ULL << 11) /* Linux 6.16 */
#define UBLK_ABI_F_NO_PART_SCAN     (1ULL << 18)

enum ublk_abi_state {
	UBLK_ABI_DEAD = 0, /* made and not started, or stopped */
	UBLK_ABI_LIVE = 1,
	UBLK_ABI_QUIESCED = 2, /* its server died; requests wait for the next one */
};

struct ublk_abi_info {
	uint16_t queues, depth, state, pad0;
	uint32_t max_io_bytes, dev_id;
	int32_t pid;
	uint32_t pad1;
	uint64_t flags;        /* UBLK_ABI_F_*; the kernel clears what it does not know */
	uint64_t server_flags; /* the kernel keeps it and never looks: whose the device is */
	uint32_t owner_uid, owner_gid;
	uint64_t reserved[2];
};
static_assert(sizeof(struct ublk_abi_info) == 64, "the kernel's");

enum {
	UBLK_ABI_ATTR_READ_ONLY = 1 << 0,
	UBLK_ABI_ATTR_VOLATILE_CACHE = 1 << 2, /* flushes are sent */
	UBLK_ABI_ATTR_FUA = 1 << 3,

	UBLK_ABI_PARAM_BASIC = 1 << 0,
	UBLK_ABI_PARAM_DISCARD = 1 << 1,
	UBLK_ABI_PARAM_DMA_ALIGN = 1 << 4,
};

struct ublk_abi_params {
	uint32_t len, types;
	struct {
		uint32_t attrs;
		uint8_t logical_shift, physical_shift, io_opt_shift, io_min_shift;
		uint32_t max_sectors, chunk_sectors;
		uint64_t sectors, virt_boundary_mask;
	} basic;
	struct {
		uint32_t alignment, granularity, max_sectors, max_zeroes_sectors;
		uint16_t max_segments, reserved;
	} discard;
	struct {
		uint32_t char_major, char_minor, disk_major, disk_minor;
	} devt;
	struct {
		uint32_t open, active, append_sectors;
		uint8_t reserved[20];
	} zoned;
	struct {
		uint32_t mask; /* alignment of memory, less one */
		uint8_t pad[4];
	} dma;
};
/* Each part has its place: the size alone says nothing, for its end is padded to 8 bytes. */
static_assert(offsetof(struct ublk_abi_params, basic) == 8, "the kernel's");
static_assert(offsetof(struct ublk_abi_params, discard) == 40, "the kernel's");
static_assert(offsetof(struct ublk_abi_params, devt) == 60, "the kernel's");
static_assert(offsetof(struct ublk_abi_params, zoned) == 76, "the kernel's");
static_assert(offsetof(struct ublk_abi_params, dma) == 108, "the kernel's");
static_assert(sizeof(struct ublk_abi_params) == 120, "the kernel's");

/* ---- commands of one request, to /dev/ublkcN ---- */

struct ublk_abi_io {
	uint16_t queue_id, tag;
	int32_t result; /* COMMIT: bytes, 0, or -errno */
	uint64_t addr;  /* where the kernel copies the next request's data */
};
static_assert(sizeof(struct ublk_abi_io) == 16, "the kernel's");

#define UBLK_ABI_FETCH            ((uint32_t)_IOWR('u', 0x20, struct ublk_abi_io))
#define UBLK_ABI_COMMIT_AND_FETCH ((uint32_t)_IOWR('u', 0x21, struct ublk_abi_io))

/* With UBLK_ABI_F_AUTO_BUF the SQE's addr is the index in the ring's table of buffers at which the
 * kernel puts each request's pages before it is delivered. */

enum ublk_abi_op {
	UBLK_ABI_OP_READ = 0,
	UBLK_ABI_OP_WRITE = 1,
	UBLK_ABI_OP_FLUSH = 2,
	UBLK_ABI_OP_DISCARD = 3,
	UBLK_ABI_OP_WRITE_ZEROES = 5,
};

enum {
	UBLK_ABI_IO_FUA = 1 << 13,
	UBLK_ABI_IO_NOUNMAP = 1 << 15, /* of zeroes: their blocks stay allocated */
};

/* One a tag, mapped from /dev/ublkcN, written by the kernel before it completes a fetch. */
struct ublk_abi_desc {
	uint32_t op_flags; /* op in the low 8 bits, flags above at their own places */
	uint32_t sectors;
	uint64_t start_sector;
	uint64_t addr;
};
static_assert(sizeof(struct ublk_abi_desc) == 24, "the kernel's");

enum { UBLK_ABI_DEPTH_MAX = 4096 }; /* queues are mapped at multiples of this many descriptors */

#endif
