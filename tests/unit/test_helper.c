/* SPDX-License-Identifier: Apache-2.0 */
/* Helper processes: this program started again is the helper. */
#include "reactor/helper.h"
#include "reactor/helper_child.h"
#include "reactor/ring_uring.h"
#include "reactor/spawn.h"
#include "simring/sim.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the functions ---- */

enum {
	FN_DOUBLE,
	FN_HANG,
	FN_NAP,
	FN_EXIT,
	FN_FAIL,
	FN_ECHO,
	FN_FDS,
	FN_GARBAGE,
	FN_MUCH,
	FN_HEIR,
	FN_COUNT
};

static int fn_double(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	uint64_t value;
	if (req_len != sizeof(value) || *resp_len < sizeof(value))
		return -EINVAL;
	memcpy(&value, req, sizeof(value));
	value *= 2;
	memcpy(resp, &value, sizeof(value));
	*resp_len = sizeof(value);
	return 0;
}

static int fn_hang(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	(void)req;
	(void)req_len;
	(void)resp;
	*resp_len = 0;
	sleep(1000);
	return 0;
}

static int fn_nap(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	(void)req;
	(void)req_len;
	(void)resp;
	*resp_len = 0;
	usleep(300000);
	return 0;
}

static int fn_exit(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	(void)req;
	(void)req_len;
	(void)resp;
	(void)resp_len;
	_exit(3);
}

static int fn_fail(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	(void)req;
	(void)req_len;
	memcpy(resp, "why", 3);
	*resp_len = 3;
	return -EDOM;
}

static int fn_echo(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	if (*resp_len > req_len)
		*resp_len = req_len;
	memcpy(resp, req, *resp_len);
	return 0;
}

/* The open descriptors, as a bit mask. */
static int fn_fds(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	(void)req;
	(void)req_len;
	uint64_t mask = 0;
	for (int fd = 0; fd < 64; fd++)
		if (fcntl(fd, F_GETFD) >= 0)
			mask |= 1ull << fd;
	memcpy(resp, &mask, sizeof(mask));
	*resp_len = sizeof(mask);
	return 0;
}

static int fn_garbage(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	(void)req;
	(void)req_len;
	(void)resp;
	*resp_len = 0;
	return write(3, "?", 1) == 1 ? 0 : -errno;
}

/* An answer that is longer than anybody has asked for. */
static int fn_much(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	uint8_t answer[256];
	memset(answer, 0, sizeof(answer));
	memset(answer + sizeof(struct helper_answer), 0x5a,
		sizeof(answer) - sizeof(struct helper_answer));
	(void)req;
	(void)req_len;
	(void)resp;
	(void)resp_len;
	(void)!write(3, answer, sizeof(answer));
	return pause();
}

/* It is gone, and somebody else has its socket until that ends. */
static int fn_heir(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	char c;
	(void)req;
	(void)req_len;
	(void)resp;
	(void)resp_len;
	if (fork() == 0)
		while (read(3, &c, 1) > 0)
			continue;
	_exit(4);
}

static helper_fn *const table[FN_COUNT] = {
	[FN_DOUBLE] = fn_double,
	[FN_HANG] = fn_hang,
	[FN_NAP] = fn_nap,
	[FN_EXIT] = fn_exit,
	[FN_FAIL] = fn_fail,
	[FN_ECHO] = fn_echo,
	[FN_FDS] = fn_fds,
	[FN_GARBAGE] = fn_garbage,
	[FN_MUCH] = fn_much,
	[FN_HEIR] = fn_heir,
};

/* criterion owns main(), so the helper branches off before it. */
__attribute__((constructor)) static void maybe_helper(int argc, char **argv)
{
	if (argc == 3 && strcmp(argv[1], "helper") == 0)
		_exit(helper_main(atoi(argv[2]), table, FN_COUNT));
}

/* ---- the driver's side ---- */

struct call {
	struct helper_call call;
	uint64_t value, answer;
	int ends, res;
};

static struct ring *ring;
static struct helpers *helpers;

static void setup(void)
{
	cr_assert_eq(ring_open(&ring, &(struct ring_config){0}), 0);
	cr_assert_eq(helpers_open(&helpers, ring, table, FN_COUNT), 0);
}

/* All have been killed. On a busy machine one may not be gone within the time that closing gives
 * them; it is init's then, or ours here. */
static void teardown(void)
{
	int status;
	pid_t pid;
	helpers_close(helpers);
	ring_close(ring);
	while ((pid = waitpid(-1, &status, 0)) > 0)
		cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL,
			"helper %d was left behind, and ended with status %#x", (int)pid, status);
}

TestSuite(helper, .init = setup, .fini = teardown, .timeout = 60);

static void on_end(struct helper_call *call, int res)
{
	struct call *c = container_of(call, struct call, call);
	c->ends++;
	c->res = res;
}

static void prepare(struct call *c, unsigned fn, const char *key, uint64_t timeout_ms)
{
	static uint64_t value;
	*c = (struct call){.value = ++value};
	c->call = (struct helper_call){
		.fn = fn,
		.key = key,
		.req = &c->value,
		.req_len = sizeof(c->value),
		.resp = &c->answer,
		.resp_cap = sizeof(c->answer),
		.timeout_ms = timeout_ms,
		.on_end = on_end,
	};
}

static void submit(struct call *c, unsigned fn, const char *key, uint64_t timeout_ms)
{
	prepare(c, fn, key, timeout_ms);
	cr_assert_eq(helpers_submit(helpers, &c->call), 0);
	cr_assert_eq(c->ends, 0);
}

static int finish(struct call *c)
{
	while (c->ends == 0)
		cr_assert_eq(ring_turn(ring, true), 0);
	cr_assert_eq(c->ends, 1);
	return c->res;
}

static unsigned count_children(void)
{
	char path[64], text[4096];
	snprintf(path, sizeof(path), "/proc/self/task/%d/children", getpid());
	FILE *f = fopen(path, "re");
	if (f == NULL)
		return 0;
	unsigned count = 0;
	while (fscanf(f, "%4095s", text) == 1)
		count++;
	fclose(f);
	return count;
}

/* The pid of some helper. */
static pid_t any_child(void)
{
	char path[64];
	int pid = 0;
	snprintf(path, sizeof(path), "/proc/self/task/%d/children", getpid());
	FILE *f = fopen(path, "re");
	if (f == NULL || fscanf(f, "%d", &pid) != 1)
		pid = 0;
	if (f != NULL)
		fclose(f);
	return pid;
}

Test(helper, a_call_is_answered)
{
	struct call c;
	for (int i = 0; i < 200; i++) {
		submit(&c, FN_DOUBLE, "volume", 10000);
		cr_assert_eq(finish(&c), 0);
		cr_assert_eq(c.answer, c.value * 2);
		cr_assert_eq(c.call.resp_len, 8);
	}
	submit(&c, FN_FAIL, NULL, 10000);
	cr_assert_eq(finish(&c), -EDOM);
	cr_assert_eq(c.call.resp_len, 3);
	cr_assert_arr_eq(&c.answer, "why", 3);
	/* None was started beyond the warm ones. */
	cr_assert_leq(count_children(), HELPER_WARM);
}

Test(helper, messages_of_the_largest_size)
{
	static uint8_t req[HELPER_MESSAGE_BYTES - 16], resp[HELPER_MESSAGE_BYTES - 16];
	struct call c;
	for (size_t i = 0; i < sizeof(req); i++)
		req[i] = (uint8_t)(i * 7);
	prepare(&c, FN_ECHO, "volume", 10000);
	c.call.req = req;
	c.call.req_len = sizeof(req);
	c.call.resp = resp;
	c.call.resp_cap = sizeof(resp);
	cr_assert_eq(helpers_submit(helpers, &c.call), 0);
	cr_assert_eq(finish(&c), 0);
	cr_assert_eq(c.call.resp_len, sizeof(resp));
	cr_assert_arr_eq(resp, req, sizeof(req));
	/* An empty one each way. */
	prepare(&c, FN_ECHO, "volume", 10000);
	c.call.req_len = c.call.resp_cap = 0;
	cr_assert_eq(helpers_submit(helpers, &c.call), 0);
	cr_assert_eq(finish(&c), 0);
	cr_assert_eq(c.call.resp_len, 0);
}

Test(helper, has_only_its_socket_and_stderr)
{
	int leak = dup2(STDERR_FILENO, 40);
	helpers_close(helpers);
	cr_assert_eq(helpers_open(&helpers, ring, table, FN_COUNT), 0);
	struct call c;
	submit(&c, FN_FDS, NULL, 10000);
	cr_assert_eq(finish(&c), 0);
	cr_assert_eq(c.answer, 0xF, "0 and 1 are /dev/null");
	close(leak);
}

Test(helper, more_calls_than_helpers)
{
	static struct call calls[HELPER_QUEUE_MAX];
	for (int i = 0; i < 1000; i++)
		submit(&calls[i], FN_DOUBLE, NULL, 30000);
	for (int i = 0; i < 1000; i++) {
		cr_assert_eq(finish(&calls[i]), 0);
		cr_assert_eq(calls[i].answer, calls[i].value * 2);
	}
	cr_assert_leq(count_children(), HELPER_MAX);
}

Test(helper, the_queue_has_a_limit)
{
	static struct call calls[HELPER_QUEUE_MAX + HELPER_WARM + 1], last;
	int accepted = 0;
	for (;; accepted++) {
		cr_assert_leq(accepted, HELPER_QUEUE_MAX + HELPER_WARM);
		prepare(&calls[accepted], FN_HANG, NULL, 3600000);
		int r = helpers_submit(helpers, &calls[accepted].call);
		if (r == -EAGAIN)
			break;
		cr_assert_eq(r, 0);
	}
	cr_assert_geq(accepted, HELPER_QUEUE_MAX);
	cr_assert_eq(calls[accepted].ends, 0);
	/* Another helper takes one, and there is room for one. */
	prepare(&last, FN_HANG, NULL, 3600000);
	while (helpers_submit(helpers, &last.call) == -EAGAIN)
		cr_assert_eq(ring_turn(ring, true), 0);
	/* Closing with all of them in flight calls nobody: see teardown for the processes. */
}

Test(helper, the_number_of_processes_has_a_limit)
{
	enum { CALLS = HELPER_MAX + 10 };
	static struct call calls[CALLS];
	for (int i = 0; i < CALLS; i++)
		submit(&calls[i], FN_HANG, NULL, 3600000);
	while (count_children() < HELPER_MAX)
		cr_assert_eq(ring_turn(ring, true), 0);
	for (int i = 0; i < 20; i++)
		cr_assert_eq(ring_turn(ring, false), 0);
	cr_assert_eq(count_children(), HELPER_MAX);
	for (int i = 0; i < CALLS; i++)
		cr_assert_eq(calls[i].ends, 0);
}

/* Calls of a lane that hangs leave helpers to the others, and what waits goes when one has ended.
 */
Test(helper, a_lane_that_hangs_leaves_the_others_their_helpers)
{
	enum { CALLS = LANE_HELPERS_MAX + 10 };
	static struct call calls[CALLS];
	struct lane *hangs, *answers;
	cr_assert_eq(ring_lane_open(&hangs, ring), 0);
	cr_assert_eq(ring_lane_open(&answers, ring), 0);
	for (int i = 0; i < CALLS; i++) {
		prepare(&calls[i], i < LANE_HELPERS_MAX ? FN_HANG : FN_DOUBLE, NULL, 3600000);
		calls[i].call.lane = hangs;
		cr_assert_eq(helpers_submit(helpers, &calls[i].call), 0);
	}
	while (count_children() < LANE_HELPERS_MAX)
		cr_assert_eq(ring_turn(ring, true), 0);
	struct call others[] = {{.call.lane = answers}, {.call.lane = NULL}};
	for (int i = 0; i < 2; i++) {
		struct lane *lane = others[i].call.lane;
		prepare(&others[i], FN_DOUBLE, NULL, 60000);
		others[i].call.lane = lane;
		cr_assert_eq(helpers_submit(helpers, &others[i].call), 0);
		cr_assert_eq(finish(&others[i]), 0);
	}
	for (int i = 0; i < CALLS; i++)
		cr_assert_eq(calls[i].ends, 0);
	/* Whichever is killed is busy with a call that hangs, or idle. */
	int ended = 0;
	while (ended == 0) {
		cr_assert_eq(kill(any_child(), SIGKILL), 0);
		for (int i = 0; i < 10; i++)
			cr_assert_eq(ring_turn(ring, true), 0);
		for (int i = 0; i < LANE_HELPERS_MAX; i++)
			ended += calls[i].ends;
	}
	cr_assert_eq(finish(&calls[LANE_HELPERS_MAX]), 0);
}

/* FN_NAP holds the key for a while; FN_DOUBLE for the same key waits its turn, another key's not.
 */
Test(helper, one_call_a_key_at_a_time)
{
	struct call first, second, third, other;
	submit(&first, FN_NAP, "volume", 10000);
	submit(&second, FN_DOUBLE, "volume", 10000);
	submit(&third, FN_DOUBLE, "volume", 10000);
	submit(&other, FN_DOUBLE, "other", 10000);
	cr_assert_eq(finish(&other), 0);
	cr_assert_eq(first.ends, 0);
	cr_assert_eq(second.ends, 0);
	cr_assert_eq(finish(&first), 0);
	cr_assert_eq(third.ends, 0);
	cr_assert_eq(finish(&second), 0);
	cr_assert_eq(finish(&third), 0);
}

/* Whoever waits behind a call that hangs is answered with it. */
Test(helper, waiting_behind_a_call_that_hangs)
{
	struct call first, second, other;
	submit(&first, FN_HANG, "volume", 200);
	submit(&second, FN_DOUBLE, "volume", 3600000);
	cr_assert_eq(finish(&first), -ETIMEDOUT);
	cr_assert_eq(finish(&second), -ETIMEDOUT);
	submit(&other, FN_DOUBLE, "other", 10000);
	cr_assert_eq(finish(&other), 0);
}

/* A call whose deadline passes while it waits behind another does not let a third overtake. */
Test(helper, a_deadline_while_waiting_its_turn)
{
	struct call first, second, third;
	submit(&first, FN_NAP, "volume", 10000);
	submit(&second, FN_DOUBLE, "volume", 1);
	submit(&third, FN_DOUBLE, "volume", 10000);
	cr_assert_eq(finish(&second), -ETIMEDOUT);
	cr_assert_eq(first.ends, 0);
	cr_assert_eq(third.ends, 0);
	cr_assert_eq(finish(&first), 0);
	cr_assert_eq(finish(&third), 0);
}

static struct call again;
static uint64_t hung_since_ns;

static void on_overstay(struct helper_call *call, int res)
{
	on_end(call, res);
	/* Killed, not yet gone: hung. */
	hung_since_ns = helpers_hung_since(helpers, "sick");
	prepare(&again, FN_DOUBLE, "sick", 3600000);
	cr_assert_eq(helpers_submit(helpers, &again.call), 0);
	cr_assert_eq(again.ends, 0);
}

Test(helper, an_overstayed_call_hangs_its_key_until_its_helper_is_gone)
{
	struct call c;
	prepare(&c, FN_HANG, "sick", 100);
	c.call.on_end = on_overstay;
	cr_assert_eq(helpers_hung_since(helpers, "sick"), 0);
	cr_assert_eq(helpers_submit(helpers, &c.call), 0);
	cr_assert_eq(finish(&c), -ETIMEDOUT);
	cr_assert_neq(hung_since_ns, 0);
	cr_assert_eq(finish(&again), -ETIMEDOUT, "at once: its own deadline is an hour");
	cr_assert_eq(again.answer, 0);
	/* This one can die, so the key is well again soon. */
	while (helpers_hung_count(helpers) != 0)
		cr_assert_eq(ring_turn(ring, true), 0);
	cr_assert_eq(helpers_hung_since(helpers, "sick"), 0);
	submit(&c, FN_DOUBLE, "sick", 10000);
	cr_assert_eq(finish(&c), 0);
}

Test(helper, healthy_volumes_do_not_wait_behind_sick_ones)
{
	enum { SICK = 3 * HELPER_WARM };
	static struct call sick[SICK];
	static char keys[SICK][24];
	struct call c;
	for (int i = 0; i < SICK; i++) {
		snprintf(keys[i], sizeof(keys[i]), "sick-%d", i);
		submit(&sick[i], FN_HANG, keys[i], 200);
	}
	unsigned served = 0, ended = 0;
	while (ended < SICK) {
		submit(&c, FN_DOUBLE, "healthy", 10000);
		cr_assert_eq(finish(&c), 0);
		served += ended == 0;
		ended = 0;
		for (int i = 0; i < SICK; i++)
			ended += (unsigned)sick[i].ends;
	}
	cr_assert_gt(served, 0, "none was served while the others hung");
	for (int i = 0; i < SICK; i++) {
		cr_assert_eq(sick[i].ends, 1);
		cr_assert_eq(sick[i].res, -ETIMEDOUT);
	}
	submit(&c, FN_DOUBLE, "healthy", 10000);
	cr_assert_eq(finish(&c), 0);
}

Test(helper, those_beyond_the_warm_ones_go_after_a_while)
{
	static struct call calls[5 * HELPER_WARM];
	for (int i = 0; i < 5 * HELPER_WARM; i++)
		submit(&calls[i], FN_NAP, NULL, 10000);
	unsigned most = 0;
	for (int i = 0; i < 5 * HELPER_WARM; i++) {
		cr_assert_eq(finish(&calls[i]), 0);
		most = count_children() > most ? count_children() : most;
	}
	cr_assert_gt(most, HELPER_WARM);
	while (count_children() > HELPER_WARM)
		cr_assert_eq(ring_turn(ring, true), 0);
	for (int i = 0; i < 10; i++)
		cr_assert_eq(ring_turn(ring, false), 0);
	cr_assert_eq(count_children(), HELPER_WARM);
}

Test(helper, a_helper_that_dies_fails_its_call_and_is_replaced)
{
	struct call c;
	for (int i = 0; i < 3 * HELPER_WARM; i++) {
		submit(&c, FN_EXIT, "volume", 10000);
		cr_assert_eq(finish(&c), -EPIPE);
		submit(&c, FN_DOUBLE, "volume", 10000);
		cr_assert_eq(finish(&c), 0);
	}
	submit(&c, FN_GARBAGE, "volume", 10000);
	cr_assert_eq(finish(&c), -EPIPE, "what no helper of ours says");
	submit(&c, FN_DOUBLE, "volume", 10000);
	cr_assert_eq(finish(&c), 0);
}

/* Whoever asks once more with the same call is not told the answer of before. */
Test(helper, no_answer_is_left_of_the_call_before)
{
	struct call c;
	submit(&c, FN_DOUBLE, "volume", 10000);
	cr_assert_eq(finish(&c), 0);
	cr_assert_eq(c.call.resp_len, 8);
	c.call.fn = FN_EXIT;
	c.ends = 0;
	cr_assert_eq(helpers_submit(helpers, &c.call), 0);
	cr_assert_eq(finish(&c), -EPIPE);
	cr_assert_eq(c.call.resp_len, 0);
}

Test(helper, one_killed_in_a_call)
{
	/* All the warm ones hang, whichever is killed; its call alone fails. */
	static struct call calls[HELPER_WARM], c;
	for (int i = 0; i < HELPER_WARM; i++)
		submit(&calls[i], FN_HANG, NULL, 5000);
	cr_assert_eq(kill(any_child(), SIGKILL), 0);
	int ended = 0;
	while (ended == 0) {
		cr_assert_eq(ring_turn(ring, true), 0);
		for (int i = 0; i < HELPER_WARM; i++)
			if (calls[i].ends != 0) {
				cr_assert_eq(calls[i].res, -EPIPE);
				ended++;
			}
	}
	cr_assert_eq(ended, 1);
	submit(&c, FN_DOUBLE, "volume", 10000);
	cr_assert_eq(finish(&c), 0);
}

Test(helper, one_killed_while_idle_costs_no_call)
{
	struct call c;
	for (int i = 0; i < 20; i++) {
		pid_t child = any_child();
		cr_assert_gt(child, 0);
		cr_assert_eq(kill(child, SIGKILL), 0);
		siginfo_t info;
		cr_assert_eq(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
		submit(&c, FN_DOUBLE, "volume", 10000);
		cr_assert_eq(finish(&c), 0);
	}
}

/* The answer alone is taken, up to what there is room for. */
Test(helper, one_that_says_too_much)
{
	struct call c;
	submit(&c, FN_MUCH, NULL, 10000);
	cr_assert_eq(finish(&c), 0);
	cr_assert_eq(c.call.resp_len, sizeof(c.answer));
	cr_assert_eq(c.answer, UINT64_C(0x5a5a5a5a5a5a5a5a));
}

Test(helper, one_whose_socket_another_process_keeps)
{
	struct call c;
	for (unsigned i = 0; i <= HELPER_MAX; i++) { /* each makes room for another */
		submit(&c, FN_HEIR, NULL, 50000);
		cr_assert_eq(finish(&c), -EPIPE);
		submit(&c, FN_DOUBLE, NULL, 10000);
		cr_assert_eq(finish(&c), 0);
		cr_assert_eq(c.answer, 2 * c.value);
	}
}

Test(helper, dies_with_the_driver)
{
	int fds[2];
	cr_assert_eq(pipe(fds), 0);
	pid_t pid = fork();
	if (pid == 0) {
		struct ring *r;
		struct helpers *h;
		if (ring_open(&r, &(struct ring_config){0}) < 0 ||
			helpers_open(&h, r, table, FN_COUNT) < 0)
			_exit(1);
		ring_turn(r, false);
		pid_t child = any_child();
		if (write(fds[1], &child, sizeof(child)) != sizeof(child))
			_exit(1);
		raise(SIGKILL);
	}
	pid_t child;
	cr_assert_eq(read(fds[0], &child, sizeof(child)), sizeof(child));
	waitpid(pid, NULL, 0);
	while (kill(child, 0) == 0) {
		/* An orphan; init may be slow to reap it, so a zombie counts as gone. */
		char path[64], state = 0;
		snprintf(path, sizeof(path), "/proc/%d/stat", child);
		FILE *f = fopen(path, "re");
		if (f == NULL)
			break;
		if (fscanf(f, "%*d (%*[^)]) %c", &state) != 1)
			state = 'Z';
		fclose(f);
		if (state == 'Z' || state == 'X')
			break;
		usleep(1000);
	}
	close(fds[0]);
	close(fds[1]);
}

/* ---- without a fixture ---- */

Test(helper_open, a_program_that_cannot_be_started)
{
	cr_assert_eq(ring_open(&ring, &(struct ring_config){0}), 0);
	spawn_self_exe = "/nonexistent/ringvol";
	helpers = NULL;
	cr_assert_eq(helpers_open(&helpers, ring, table, FN_COUNT), -ENOENT);
	cr_assert_null(helpers);
	helpers_close(NULL);
	ring_close(ring);
}

Test(helper_open, a_program_that_ends_at_once_fails_calls_and_nothing_else)
{
	cr_assert_eq(ring_open(&ring, &(struct ring_config){0}), 0);
	spawn_self_exe = "/bin/false";
	cr_assert_eq(helpers_open(&helpers, ring, table, FN_COUNT), 0);
	struct call c;
	for (int i = 0; i < 10; i++) {
		submit(&c, FN_DOUBLE, "volume", 2000);
		cr_assert_eq(finish(&c), -EPIPE);
	}
	teardown();
}

Test(helper_sim, runs_on_the_loop)
{
	struct ring_sim sim = {.seed = 11};
	cr_assert_eq(ring_sim_open(&ring, &sim), 0);
	cr_assert_eq(helpers_open(&helpers, ring, table, FN_COUNT), 0);
	struct call c, second;
	submit(&c, FN_DOUBLE, "volume", 1000);
	submit(&second, FN_DOUBLE, "volume", 1000);
	cr_assert_eq(ring_sim_settle(ring, 1000), 0);
	cr_assert_eq(c.ends, 1);
	cr_assert_eq(second.ends, 1);
	cr_assert_eq(c.answer, c.value * 2);
	submit(&c, FN_DOUBLE, "volume", 1000);
	helpers_close(helpers);
	cr_assert_eq(ring_sim_settle(ring, 1000), 0);
	cr_assert_eq(c.ends, 0);
	ring_close(ring);
}

/* So many wait, not one more, and their places come back. */
Test(helper_sim, the_queue_has_a_limit)
{
	static struct call calls[HELPER_QUEUE_MAX + 1];
	struct ring_sim sim = {.seed = 11};
	cr_assert_eq(ring_sim_open(&ring, &sim), 0);
	cr_assert_eq(helpers_open(&helpers, ring, table, FN_COUNT), 0);
	for (unsigned round = 0; round < 2; round++) {
		for (unsigned i = 0; i <= HELPER_QUEUE_MAX; i++) {
			prepare(&calls[i], FN_DOUBLE, NULL, 1000);
			cr_assert_eq(helpers_submit(helpers, &calls[i].call),
				i < HELPER_QUEUE_MAX ? 0 : -EAGAIN, "call %u", i);
		}
		cr_assert_eq(ring_sim_settle(ring, 1000), 0);
		for (unsigned i = 0; i <= HELPER_QUEUE_MAX; i++)
			cr_assert_eq(calls[i].ends, i < HELPER_QUEUE_MAX);
	}
	helpers_close(helpers);
	ring_close(ring);
}
