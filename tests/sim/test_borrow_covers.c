/* SPDX-License-Identifier: Apache-2.0 */
/* Covers that are found suspended: which of them go on, and which are not the watch's to resume. */
#include "lender.h"

#include "csi/arrivals.h"
#include "csi/cover_watch.h"
#include "node/lock.h"
#include "node/node.h"
#include "pool/hold.h"
#include "pool/part.h"
#include "pool/private.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static unsigned resumes;
static int resume_res;
static bool stays_suspended;

static int resume_says(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	const struct attach_volume_req *ask = req;
	struct attach_info *info = resp;
	cr_assert_eq(req_len, sizeof(*ask));
	cr_expect_str_eq(ask->tag, TAG);
	cr_expect_str_eq(ask->subsystem, entry()->subsystem);
	*resp_len = sizeof(*info);
	memset(info, 0, sizeof(*info));
	fill(info);
	info->suspended = stays_suspended;
	resumes++;
	return resume_res;
}

static struct csi_cover_watch watch;

/* It is staged, and its cover is found suspended by an attempt of this run, or of another one. */
static void open_suspended(bool ours)
{
	open_far(1, true);
	cr_assert_eq(do_stage(), GRPC_OK);
	w->calls[ATTACH_RESUME] = resume_says;
	resumes = 0;
	resume_res = 0;
	stays_suspended = false;
	entry()->suspended = true;
	entry()->ours = ours;
	entry()->told = false;
	if (ours)
		strcpy(entry()->key, "far");
	memset(&watch, 0, sizeof(watch));
	csi_cover_watch_open(&watch, w->csi);
}

/* So many looks, as long as nothing goes on. */
static void look(unsigned looks)
{
	uint64_t end_ns = ring_now_ns(w->reactor.ring) +
			  (looks * CSI_COVERS_MS + CSI_COVERS_MS / 2) * UINT64_C(1000000);
	while (ring_now_ns(w->reactor.ring) < end_ns)
		cr_assert_eq(ring_turn(w->reactor.ring, true), 0);
	for (unsigned i = 0; i < 100000 && !csi_cover_watch_idle(&watch); i++)
		cr_assert_eq(ring_turn(w->reactor.ring, true), 0);
	cr_assert(csi_cover_watch_idle(&watch));
}

static void goes_on(void)
{
	look(2);
	cr_expect_eq(resumes, 1);
	cr_expect_not(entry()->suspended);
	cr_expect_not(entry()->ours);
}

static void stays(unsigned tries)
{
	look(2);
	cr_expect_eq(resumes, tries, "%u", resumes);
	cr_expect(entry()->suspended);
}

static void close_suspended(void)
{
	csi_cover_watch_close(&watch);
	look(1);
	entry()->suspended = false;
	cr_assert_eq(undo_stage(), GRPC_OK);
	close_far();
}

Test(borrow_covers, of_this_run_go_on, .timeout = 60)
{
	open_suspended(true);
	goes_on();
	look(2); /* once */
	cr_expect_eq(resumes, 1);
	close_suspended();
}

/* Nobody of this run knows of a move: it is told once, and nothing else is done. */
Test(borrow_covers, of_nobody_stay, .timeout = 60)
{
	open_suspended(false);
	stays(0);
	cr_expect_eq(watch.n_pools, 1, "of one look, and not of all");
	cr_expect(entry()->told);
	entry()->ours = true;
	strcpy(entry()->key, "far");
	goes_on();
	close_suspended();
}

static int make_part(const char *of)
{
	char path[160];
	struct pool_part part = {0};
	snprintf(part.of, sizeof(part.of), "%s", of);
	snprintf(path, sizeof(path), "%s/copies/part-far", w->pool_path);
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	cr_assert_geq(fd, 0);
	cr_assert_eq(pool_part_note(fd, &part, MIB, 0), 0);
	return fd;
}

/* A part that another run has left says which volume moves here; one that is finished may be all
 * that there is of it, and TakeVolume goes on with that. */
Test(borrow_covers, of_a_part_go_on_unless_it_is_finished, .timeout = 60)
{
	for (unsigned ours = 0; ours < 2; ours++) {
		open_suspended(ours == 1);
		int fd = make_part(ID " of a move");
		struct record *kept = plain_record(RECORD_VOLUME, "far", "0badcafe", MIB);
		cr_assert_eq(
			pool_part_finish(pool_holds_fd(pools_at(w->pools, 0)), fd, kept, "x", 1),
			0);
		stays(0);
		cr_expect_not(entry()->told, "it is gone on with");
		cr_assert_eq(pool_part_unfinish(fd), 0);
		goes_on();
		record_free(kept);
		close(fd);
		close_suspended();
	}
	open_suspended(false);
	int fd = make_part("fedcba98.far.0badcaff of a move"); /* another volume's */
	stays(0);
	cr_expect(entry()->told);
	close(fd);
	close_suspended();
}

/* While a pool is not ready its parts are not known, and while somebody has the volume it is his.
 */
Test(borrow_covers, wait_for_pools_and_others, .timeout = 60)
{
	open_suspended(true);
	struct pool *pool = pools_at(w->pools, 0);
	pool_enter(pool, POOL_READ_ONLY, "it cannot be written");
	stays(0);
	pool_enter(pool, POOL_SERVED, "%s", "");
	struct node_locks *locks = &w->csi->node->locks;
	struct node_lock lock;
	node_lock_init(&lock, NODE_SHARED, "volume", "far");
	lock.what = "a test";
	cr_assert_null(node_lock_conflict(locks, &lock));
	node_lock_take(locks, &lock);
	stays(0);
	node_lock_release(locks, &lock);
	goes_on();
	/* Its own lock is given back. */
	node_lock_init(&lock, NODE_EXCLUSIVE, "volume", "far");
	cr_expect_null(node_lock_conflict(locks, &lock));
	close_suspended();
}

/* What fails is tried again, and what the kernel says counts. */
Test(borrow_covers, are_tried_until_they_go_on, .timeout = 60)
{
	open_suspended(true);
	resume_res = -EIO;
	look(3);
	cr_expect_geq(resumes, 2);
	cr_expect(entry()->suspended && entry()->ours && entry()->told);
	resume_res = 0;
	stays_suspended = true;
	look(2);
	cr_expect(entry()->suspended && entry()->ours);
	stays_suspended = false;
	resumes = 0;
	goes_on();
	close_suspended();
}

static bool drops;

static void ends_meanwhile(const char *op_name, const char *step_name)
{
	if (strcmp(op_name, "cover_watch") != 0 || strcmp(step_name, "look for part") != 0)
		return;
	entry()->suspended = false;
	if (drops)
		borrows_drop(w->csi->borrows, entry());
}

/* Somebody has it go on, or takes it away, while its part is looked for. */
Test(borrow_covers, that_go_on_meanwhile_are_left_alone, .timeout = 60)
{
	for (unsigned i = 0; i < 2; i++) {
		struct attach_info info = {0};
		open_suspended(true);
		drops = i == 1;
		w->on_step = ends_meanwhile;
		look(2);
		w->on_step = NULL;
		cr_expect_eq(resumes, 0);
		cr_expect_eq(entry() == NULL, drops);
		fill(&info);
		if (drops)
			cr_assert_not_null(borrows_put(w->csi->borrows, TAG, &info));
		close_suspended();
	}
}

/* In turns: one that cannot go on is not in the way of another. */
Test(borrow_covers, take_turns, .timeout = 60)
{
	static const char other[] = "ringvol:fedcba98:0badcaff";
	open_suspended(true);
	const struct attach_info info = {.there = true, .alive = true, .suspended = true};
	struct borrowed *one = borrows_put(w->csi->borrows, other, &info);
	cr_assert_not_null(one);
	one->suspended = true;
	look(4);
	cr_expect_eq(resumes, 1);
	cr_expect(one->suspended && one->told);
	cr_expect_not(entry()->suspended);
	borrows_drop(w->csi->borrows, one);
	close_suspended();
}

/* Closed in the middle of a look: that one ends, and there is no other. */
Test(borrow_covers, are_looked_at_to_the_end, .timeout = 60)
{
	open_suspended(true);
	resume_res = -EIO;
	while (csi_cover_watch_idle(&watch))
		cr_assert_eq(ring_turn(w->reactor.ring, true), 0);
	csi_cover_watch_close(&watch);
	stays(1);
	close_suspended();
}

Test(borrow_covers, are_left_alone_after_the_close, .timeout = 60)
{
	open_suspended(true);
	csi_cover_watch_close(&watch);
	stays(0);
	close_suspended();
}

/* A driver without a controller opens neither a watch nor arrivals. */
Test(borrow_covers, are_closed_where_nothing_was_opened)
{
	struct csi_arrivals arrivals = {0};
	memset(&watch, 0, sizeof(watch));
	csi_arrivals_close(&arrivals);
	csi_cover_watch_close(&watch);
	cr_expect(csi_cover_watch_idle(&watch));
}
