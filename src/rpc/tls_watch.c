/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looks at three files, over and over. A look is a job on a work thread: it asks when they last
 * changed and reads them if that is news. The loop then takes over what was read.
 *
 * Files are replaced one by one, so a look may meet a new certificate beside an old key. Files that
 * are bad are therefore read once more at the next look before anybody hears of them. A look that
 * finds no place in the queue of work is made later.
 */
#include "rpc/tls_watch.h"

#include "base/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { FILES = 3 };

/* When a file last changed; all zero: it cannot be looked at. */
struct stamp {
	dev_t dev;
	ino_t ino;
	off_t size;
	struct timespec modified, changed;
};

struct tls_watch {
	struct tls_watch_config config;
	struct ring_timer timer;
	bool looking;

	/* the job's, while it runs */
	struct work_job job;
	struct stamp stamps[FILES];
	bool again; /* read the files whatever their stamps say */
	bool read;  /* they were read in this look */
	struct tls *fresh;
	struct err err;

	struct err bad;     /* what was wrong with the files at the last look that read them */
	bool told;          /* of `bad` */
	enum tls_time time; /* told of */
};

/* ---- on a work thread ---- */

static void stamp_read(struct stamp *ret, const char *path)
{
	struct stat st;
	memset(ret, 0, sizeof(*ret)); /* stamps are compared as bytes */
	if (stat(path, &st) < 0)
		return;
	ret->dev = st.st_dev;
	ret->ino = st.st_ino;
	ret->size = st.st_size;
	ret->modified = st.st_mtim;
	ret->changed = st.st_ctim;
}

static int look(struct work_job *job)
{
	struct tls_watch *w = container_of(job, struct tls_watch, job);
	const struct tls_files *files = &w->config.files;
	struct stamp now[FILES];
	stamp_read(&now[0], files->cert);
	stamp_read(&now[1], files->key);
	stamp_read(&now[2], files->ca);
	w->read = w->again || memcmp(now, w->stamps, sizeof(now)) != 0;
	if (!w->read)
		return 0;
	memcpy(w->stamps, now, sizeof(now));
	return tls_open(&w->fresh, files, &w->err);
}

/* ---- on the loop ---- */

static void tell(struct tls_watch *w, const struct err *err, bool in_force)
{
	w->config.on_event(w->config.arg, err, in_force);
}

static void take(struct tls_watch *w)
{
	bool news = w->told || !tls_equal(w->config.tls, w->fresh);
	if (tls_equal(w->config.tls, w->fresh))
		tls_free(w->fresh);
	else
		tls_replace(w->config.tls, w->fresh);
	w->fresh = NULL;
	w->again = w->told = false;
	err_clear(&w->bad);
	if (news)
		tell(w, NULL, true);
}

static void refuse(struct tls_watch *w)
{
	bool same = strcmp(w->bad.message, w->err.message) == 0;
	if (!same)
		w->told = false;
	w->again = !same; /* it may have been in the midst of a replacement */
	w->bad = w->err;
	if (same && !w->told) {
		w->told = true;
		tell(w, &w->bad, false);
	}
}

static void check_time(struct tls_watch *w)
{
	struct err err = {0};
	enum tls_time time = tls_time(w->config.tls, (int64_t)(clock_now_ns() / 1000000000), &err);
	if (time != w->time && time != TLS_TIME_GOOD)
		tell(w, &err, true);
	w->time = time;
}

static void on_looked(struct work_job *job, int res)
{
	struct tls_watch *w = container_of(job, struct tls_watch, job);
	w->looking = false;
	if (w->read && res == 0)
		take(w);
	else if (w->read)
		refuse(w);
	err_clear(&w->err);
	check_time(w);
	ring_timer_arm(w->config.ring, &w->timer, TLS_WATCH_MS);
}

static void on_timer(struct ring_timer *timer)
{
	struct tls_watch *w = container_of(timer, struct tls_watch, timer);
	if (work_submit(w->config.work, &w->job) == 0)
		w->looking = true;
	else
		ring_timer_arm(w->config.ring, timer, TLS_WATCH_MS);
}

int tls_watch_open(struct tls_watch **ret, const struct tls_watch_config *config)
{
	struct tls_watch *w = calloc(1, sizeof(*w));
	if (w == NULL)
		return -ENOMEM;
	w->config = *config;
	w->job.run = look;
	w->job.on_end = on_looked;
	w->timer.fn = on_timer;
	w->again = true; /* what was read before is not known to be of these stamps */
	check_time(w);
	ring_timer_arm(config->ring, &w->timer, TLS_WATCH_MS);
	*ret = w;
	return 0;
}

void tls_watch_close(struct tls_watch *w)
{
	if (w == NULL)
		return;
	while (w->looking && ring_turn(w->config.ring, true) == 0)
		;
	if (w->looking)
		return; /* the thread still uses it */
	ring_timer_cancel(w->config.ring, &w->timer);
	free(w);
}
