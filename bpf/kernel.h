/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */
/*
 * What of the kernel's types the probes look at, by name alone: libbpf puts in the offsets of the
 * running kernel when it loads them, so the build needs no kernel's headers and no BTF. The same on
 * Linux 6.1 to 7.2 but for the offsets.
 */
#ifndef RINGVOL_BPF_KERNEL_H
#define RINGVOL_BPF_KERNEL_H

#include <linux/types.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct gendisk {
	int major;
	int first_minor;
};

struct request_queue {
	struct gendisk *disk;
};

struct blk_mq_tags {
	unsigned int nr_tags;
};

struct blk_mq_hw_ctx {
	struct blk_mq_tags *tags, *sched_tags;
	unsigned int queue_num;
};

struct request {
	struct request_queue *q;
	struct blk_mq_hw_ctx *mq_hctx;
	unsigned int cmd_flags;
	int tag, internal_tag; /* -1: none */
	unsigned int __data_len;
	__u64 start_time_ns;
};

struct block_device {
	struct gendisk *bd_disk;
};

struct bvec_iter {
	unsigned int bi_size;
};

struct bio {
	struct block_device *bi_bdev;
	unsigned int bi_opf;
	__u8 bi_status;
	struct bvec_iter bi_iter;
};

#pragma clang attribute pop

/* The low byte of cmd_flags and bi_opf. */
enum req_op {
	REQ_OP_READ = 0,
	REQ_OP_WRITE = 1,
	REQ_OP_FLUSH = 2,
	REQ_OP_DISCARD = 3,
	REQ_OP_SECURE_ERASE = 5,
	REQ_OP_WRITE_ZEROES = 9,
};
enum { REQ_OP_MASK = 0xff };

enum { BLK_STS_OK = 0, BLK_STS_NOTSUPP = 1, BLK_STS_AGAIN = 12 };

#endif
