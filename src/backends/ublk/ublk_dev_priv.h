/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of ublk devices share. */
#ifndef RINGVOL_BLOCKIO_UBLK_DEV_PRIV_H
#define RINGVOL_BLOCKIO_UBLK_DEV_PRIV_H

#include "backends/ublk/ublk_dev.h"

enum {
	DEV_RETRY_FIRST_MS = 20, /* then twice as long each time */
	DEV_RETRY_MS = 2000,
	DEV_QUEUES_MS = 8000, /* for queues to end after the device was stopped */
};

enum dev_state {
	DEV_FOUND,      /* the kernel has it; whose it is is being asked */
	DEV_ATTACHING,  /* -> LIVE, ENDING */
	DEV_LIVE,       /* -> RESIZING, DETACHING */
	DEV_RESIZING,   /* -> LIVE */
	DEV_DETACHING,  /* -> ENDING, or back where it was when it turns out to be in use */
	DEV_RECOVERING, /* -> LIVE, ENDING */
	DEV_ENDING,     /* nothing but the end is possible any more */
	DEV_STATES,
};

/* What the kernel's answer means for a device that a start has found. */
enum dev_verdict {
	VERDICT_NONE,       /* ours and to be recovered, or not known yet */
	VERDICT_GONE,       /* the kernel does not have it */
	VERDICT_OTHERS,     /* it is not ours */
	VERDICT_UNFINISHED, /* ours, and nobody uses it: it was being made, or being removed */
};

struct ublk_dev {
	struct ublk_devs *devs;
	struct list link; /* in order of nothing */
	enum dev_state state;
	enum dev_state before; /* DETACHING: where it goes back to when it is in use */
	struct ublk_record record;
	bool made;     /* the kernel has it */
	bool unsure;   /* it may have none by now, and somebody else its number: a DEL was not
			* answered in time */
	bool recorded; /* a state file exists */
	bool zero_copy;
	int image_fd, char_fd;
	int brought_fd; /* RECOVERING: the image, from an ATTACH, for the next try */
	enum dev_verdict verdict;
	bool end_asked; /* RECOVERING: a DETACH waits for this try to end */
	uint64_t size_bytes;
	uint32_t blksize; /* of the image's file system */
	uint32_t major, minor;
	struct ublk_queue *queue[UBLKD_QUEUES_MAX];
	unsigned queues_out;   /* started and not ended */
	unsigned queues_asked; /* on_served is still to come */
	int queues_res;
	/* the operation under way; the call and job_err are its steps' */
	struct op op;
	bool busy;
	struct ublk_ctl_call call;
	struct err job_err;
	struct err cause;        /* why the device ends, for those who wait for its beginning */
	struct err why;          /* why the last try failed */
	struct ring_timer timer; /* the next try, or the bound on queues */
	unsigned retry_ms;
	struct list waits; /* ublk_wait.link */
};

/* Whose threads the jobs of devices have; work's. */
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

/* ---- ublk_dev.c ---- */

struct ublk_dev *ublk_dev_new(struct ublk_devs *devs, enum dev_state state);
void ublk_dev_free(struct ublk_dev *dev);
/* True while anything is left of a device with that number. */
bool ublk_dev_has_id(const struct ublk_devs *devs, uint32_t dev_id);
/* Asserts that the transition is one of the table. */
void ublk_dev_set_state(struct ublk_dev *dev, enum dev_state state);
/* Ends all who wait; with a device that stays, those who wait for its end only if `ends`. */
void ublk_dev_wake(struct ublk_dev *dev, const struct err *err, bool ends);
void ublk_dev_start(struct ublk_dev *dev, const char *name, const struct op_step *steps,
	void (*on_end)(struct op *op));
void ublk_dev_event(struct ublk_dev *dev, const char *what, const struct err *err);
/* Arms fn after a delay that grows with each try. */
void ublk_dev_retry(struct ublk_dev *dev, ring_timer_fn *fn);
uint64_t ublk_dev_server_flags(const struct ublk_devs *devs);

/* ---- ublk_dev_steps.c: steps that several operations have ---- */

/* A control command; its answer is the step's result. */
int ublk_dev_command(struct op *op, uint32_t command, uint64_t data);
/* The end of such a step: what the kernel said, as an error that names command and device. */
int ublk_dev_command_end(struct op *op, int res);
/* A job that works on the device; its error is dev->job_err. */
int ublk_dev_job(struct op *op, int (*fn)(void *dev));
int ublk_dev_job_end(struct op *op, int res);

bool dev_features_done(struct op *op);
int dev_features_run(struct op *op);
int dev_features_end(struct op *op, int res);
int dev_open_run(struct op *op);
int dev_serve_run(struct op *op);
int dev_serve_end(struct op *op, int res);
int dev_settle_run(struct op *op);
/* Blocking: the number and the size of its disk, from sysfs; 0, or -errno with *err set. The disk
 * is there from START_DEV to the end, also while nobody serves it. */
int ublk_dev_read_disk(struct ublk_dev *dev, struct err *err);
/* Jobs. */
int dev_image_job(void *dev); /* opens the image by path unless there is one, and locks it */
int dev_close_job(void *dev); /* queues and the control device; no queue is out */

static inline struct ublk_dev *dev_of(struct op *op)
{
	return container_of(op, struct ublk_dev, op);
}

/* ---- the operations: each ends by itself and wakes those who wait ---- */

void ublk_dev_attach(struct ublk_dev *dev);        /* ublk_dev_attach.c */
void ublk_dev_recover(struct ublk_dev *dev);       /* ublk_dev_recover.c */
void ublk_dev_end(struct ublk_dev *dev);           /* ublk_dev_end.c: ENDING */
void ublk_dev_end_if_unused(struct ublk_dev *dev); /* the same; LIVE or RECOVERING */
void ublk_dev_resize(struct ublk_dev *dev);        /* ublk_dev_attach.c */

#endif
