/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One ublk device of the data process: its state, the requests that wait for it, and the steps that
 * its operations share. Above it are the operations (ublk_dev_life.h, ublk_dev_recover.h), and
 * above those the table of all devices (ublk_devs.h).
 */
#ifndef RINGVOL_BACKENDS_UBLK_DEV_H
#define RINGVOL_BACKENDS_UBLK_DEV_H

#include "backends/ublk/ublk_devs.h"

/* A device's life. An operation runs in each state but LIVE, or waits to be tried again. */
enum ublk_dev_state {
	DEV_FOUND,      /* the kernel has it, and is being asked who made it; -> ENDING */
	DEV_ATTACHING,  /* -> LIVE, ENDING */
	DEV_LIVE,       /* -> RESIZING, DETACHING */
	DEV_RESIZING,   /* or getting other limits; -> LIVE */
	DEV_DETACHING,  /* -> ENDING, or back where it was when somebody uses it */
	DEV_RECOVERING, /* -> LIVE, DETACHING, ENDING */
	DEV_ENDING,     /* nothing but the end is possible any more */
	DEV_STATES,
};

/* Whether the kernel has the device. */
enum ublk_dev_kernel {
	KERNEL_HAS_NOT,
	KERNEL_HAS,
	KERNEL_MAY_HAVE, /* a DEL was not answered in time: the number may be another's by now */
};

/* What the kernel's answer means for a device that a start has found. */
enum ublk_dev_verdict {
	VERDICT_NONE,       /* ours and to be recovered, or not known yet */
	VERDICT_GONE,       /* the kernel does not have it */
	VERDICT_OTHERS,     /* it is not ours */
	VERDICT_UNFINISHED, /* ours, and nobody uses it: it was being made, or being removed */
};

struct ublk_dev {
	struct ublk_devs *devs;
	struct list link; /* ublk_devs.all, in no order */
	enum ublk_dev_state state;
	enum ublk_dev_state before; /* DETACHING: where it goes back to when it is in use */
	/* DETACHING: goes on with the device when it is in use; NULL: nothing does. */
	void (*on_in_use)(struct ublk_dev *dev);
	enum ublk_dev_kernel kernel;
	struct ublk_record record;
	bool recorded; /* a state file exists, or is being written */
	bool zero_copy;
	int image_fd, char_fd;
	int brought_fd; /* RECOVERING: the image, from an ATTACH, for the next try */
	enum ublk_dev_verdict verdict;
	uint64_t size_bytes;
	uint32_t blksize; /* of the image's file system */
	uint32_t major, minor;
	struct ublk_throttle throttle; /* record.limits, for its queues */
	struct ublk_queue *queue[UBLKD_QUEUES_MAX];
	unsigned queues_out;   /* started and not ended */
	unsigned queues_asked; /* on_served is still to come */
	int queues_res;
	/* the operation under way; the call and job_err belong to its steps */
	struct op op;
	struct ublk_ctl_call call;
	struct err job_err;
	struct io_limits limits; /* RESIZING: those that are to be in force */
	struct err cause;        /* why the device ends, for requests that wait for its beginning */
	struct err why;          /* why the last try failed */
	struct ring_timer timer; /* the next try, or the bound on queues */
	unsigned retry_ms;
	struct list waits; /* ublk_wait.link */
};

/* The work threads that devices with images on one file system share. */
struct ublk_lane {
	uint64_t image_dev;
	struct lane *lane;
};

struct ublk_devs {
	struct ublk_devs_config config;
	uint32_t instance;
	uint64_t features;
	bool features_known;
	bool features_asked;
	struct ublk_ctl_call features_call; /* at the start; an attach asks again if need be */
	struct list all;                    /* ublk_dev.link */
	unsigned count;
	struct ublk_lane *lanes;
	size_t lane_count, lane_cap;
};

static inline struct ublk_dev *ublk_dev_of(struct op *op)
{
	return container_of(op, struct ublk_dev, op);
}

enum { UBLK_DEV_RETRY_FIRST_MS = 20 }; /* then twice as long each time */

struct ublk_dev *ublk_dev_new(struct ublk_devs *devs, enum ublk_dev_state state);
void ublk_dev_free(struct ublk_dev *dev);
/* True while anything is left of a device with that number. */
bool ublk_dev_has_id(const struct ublk_devs *devs, uint32_t dev_id);
/* What devices of ours carry in the kernel. */
uint64_t ublk_dev_server_flags(const struct ublk_devs *devs);
/* Asserts that the transition is one of the table. */
void ublk_dev_set_state(struct ublk_dev *dev, enum ublk_dev_state state);

/* Ends the requests that wait. `ends`: also those that wait for the device's end, which go on
 * waiting otherwise. */
void ublk_dev_wake(struct ublk_dev *dev, const struct err *err, bool ends);
/* Answers one request. dev: NULL when there is no such device. */
void ublk_dev_answer(struct ublk_wait *wait, const struct ublk_dev *dev);
/* Whether a request waits for the device's end. */
bool ublk_dev_end_is_wanted(const struct ublk_dev *dev);

/* Starts an operation; none is under way. */
void ublk_dev_start(struct ublk_dev *dev, const char *name, const struct op_step *steps,
	void (*on_end)(struct op *op));
static inline bool ublk_dev_busy(const struct ublk_dev *dev)
{
	return op_running(&dev->op);
}
/* Arms fn after a delay that grows with each try. */
void ublk_dev_retry(struct ublk_dev *dev, ring_timer_fn *fn);
void ublk_dev_event(struct ublk_dev *dev, const char *what, const struct err *err);

/* ---- steps ---- */

/* A control command; its answer is the step's result. */
int ublk_dev_command(struct op *op, uint32_t command, uint64_t data);
/* The end of such a step: what the kernel said, as an error that names command and device. */
int ublk_dev_command_end(struct op *op, int res);
/* A job that works on the device; its error is dev->job_err. */
int ublk_dev_job(struct op *op, int (*fn)(void *dev));
int ublk_dev_job_end(struct op *op, int res);

/* "features": what the kernel's ublk can do. */
bool ublk_dev_features_done(struct op *op);
int ublk_dev_features_run(struct op *op);
int ublk_dev_features_end(struct op *op, int res);
/* "image": opens the image by its path unless it is open, and locks it. */
int ublk_dev_image_run(struct op *op);
/* "open": the control node, and its queues. */
int ublk_dev_open_run(struct op *op);
/* "serve": the queues are given to threads. */
int ublk_dev_serve_run(struct op *op);
int ublk_dev_serve_end(struct op *op, int res);
/* "note": the state file says "live". */
int ublk_dev_note_run(struct op *op);
/* "close": what "open" opened; no queue is out. */
int ublk_dev_close_run(struct op *op);

/* Blocking, for jobs: writes the device's state file, which says `phase`. 0, or -errno with
 * dev->job_err set. */
int ublk_dev_write_state(struct ublk_dev *dev, enum ublk_phase phase);
/* Blocking: the number and the size of the device's disk, from sysfs. 0, or -errno with *err set.
 * The disk is there from START_DEV to the end, also while nobody serves it. */
int ublk_dev_read_disk(struct ublk_dev *dev, struct err *err);

#endif
