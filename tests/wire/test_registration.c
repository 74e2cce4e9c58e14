/* SPDX-License-Identifier: Apache-2.0 */
/* Registration with kubelet, which is a client on the socket here: what it is told, what is done
 * with what it answers, and when the socket comes again. Time is the simulated ring's. */
#include "../unit/sim_time.h"
#include "base/log.h"
#include "base/utf8.h"
#include "channel_env.h"

#include "csi/registration.h"
#include "pluginregistration.pb-c.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/un.h>

enum { SETTLE_MS = 500, CONNECTIONS_MAX = 8 };

static struct ring_sim sim = {.seed = 1};
static struct reactor reactor;
static struct registration *registration;
static struct registration_config config = {
	.dir = dir, .driver_name = "csi.x", .endpoint = "/far/csi.sock"};
static struct channel *kubelet;
static struct asked asked;
static char reg_path[64], reg_endpoint[80];
static int from_log;

static void setup_registration(void)
{
	int pair[2];
	setup_with(&sim);
	reactor.ring = ring;
	cr_assert_eq(work_open(&reactor.work, ring, 2), 0);
	snprintf(reg_path, sizeof(reg_path), "%s/csi.x-reg.sock", dir);
	snprintf(reg_endpoint, sizeof(reg_endpoint), "unix://%s", reg_path);
	struct channel_config to = {.ring = ring, .address = reg_endpoint, .registry = registry};
	struct err err = {0};
	cr_assert_eq(channel_open(&kubelet, &to, &err), 0, "%s", err.message);
	cr_assert_eq(pipe2(pair, O_CLOEXEC | O_NONBLOCK), 0);
	cr_assert_eq(dup2(pair[1], STDERR_FILENO), STDERR_FILENO);
	close(pair[1]);
	from_log = pair[0];
	log_open(LOG_LEVEL_INFO, LOG_FORMAT_LOGFMT);
}

static void teardown_registration(void)
{
	channel_close(kubelet);
	buf_free(&asked.got);
	registration_close(registration);
	work_close(reactor.work);
	unlink(reg_path);
	teardown();
}

TestSuite(registration, .init = setup_registration, .fini = teardown_registration, .timeout = 60);

/* ---- what is seen of it ---- */

/* All lines since the last look, from behind their time stamps. */
static const char *logged(void)
{
	static char lines[4096], text[4096];
	ssize_t n = read(from_log, lines, sizeof(lines) - 1);
	size_t len = 0;
	text[0] = '\0';
	if (n <= 0)
		return text;
	lines[n] = '\0';
	for (char *at = lines; (at = strstr(at, "level=")) != NULL;) {
		size_t line = strcspn(at, "\n") + 1;
		len += (size_t)snprintf(text + len, sizeof(text) - len, "%.*s", (int)line, at);
		at += line;
	}
	return text;
}

/* The inode of its socket; 0: there is none. */
static ino_t socket_inode(void)
{
	struct stat st;
	if (lstat(reg_path, &st) < 0)
		return 0;
	cr_assert(S_ISSOCK(st.st_mode));
	cr_assert_eq(st.st_mode & 0777, 0600);
	return st.st_ino;
}

static void announce(void)
{
	cr_assert_eq(registration_open(&registration, &reactor, &config), 0);
	turn_until(socket_inode() != 0);
	sim_pass_ms(ring, SETTLE_MS);
	cr_assert_str_eq(logged(), "");
}

/* ---- what kubelet does ---- */

static void notify(bool registered, const char *error)
{
	Pluginregistration__RegistrationStatus status =
		PLUGINREGISTRATION__REGISTRATION_STATUS__INIT;
	uint8_t packed_status[2048];
	status.plugin_registered = registered;
	status.error = (ProtobufCBinaryData){strlen(error), (uint8_t *)error};
	size_t len = protobuf_c_message_get_packed_size(&status.base);
	cr_assert_leq(len, sizeof(packed_status));
	protobuf_c_message_pack(&status.base, packed_status);
	asked_init(&asked, "/pluginregistration.Registration/NotifyRegistrationStatus");
	channel_start(kubelet, &asked.call, packed_status, len, true);
	turn_until(asked.ends == 1);
	assert_asked_status(&asked, GRPC_OK);
	cr_assert(asked.messages == 1 && asked.got.len == 0);
}

static void is_registered(void)
{
	char want[256];
	notify(true, "");
	snprintf(want, sizeof(want),
		"level=info msg=\"registered with kubelet\" driver=csi.x socket=%s endpoint=/far/csi.sock\n",
		reg_path);
	cr_assert_str_eq(logged(), want);
}

static void is_refused(const char *why, unsigned again_s)
{
	char want[1024];
	notify(false, why);
	snprintf(want, sizeof(want),
		"level=error msg=\"kubelet does not register the driver\" driver=csi.x why=%s again_s=%u\n",
		why, again_s);
	cr_assert_str_eq(logged(), want);
}

/* It comes after so long, and not before. */
static void comes_after_ms(unsigned ms)
{
	cr_assert_eq(socket_inode(), 0);
	sim_pass_ms(ring, ms - SETTLE_MS);
	cr_assert_eq(socket_inode(), 0, "it is there too early");
	sim_pass_ms(ring, 2 * SETTLE_MS);
	cr_assert_neq(socket_inode(), 0, "it is not there after %u ms", ms);
}

Test(registration, kubelet_is_told_of_the_driver)
{
	announce();
	asked_init(&asked, "/pluginregistration.Registration/GetInfo");
	channel_start(kubelet, &asked.call, NULL, 0, true);
	turn_until(asked.ends == 1);
	assert_asked_status(&asked, GRPC_OK);
	Pluginregistration__PluginInfo *info = (void *)protobuf_c_message_unpack(
		&pluginregistration__plugin_info__descriptor, NULL, asked.got.len, asked.got.data);
	cr_assert_not_null(info);
	const struct {
		ProtobufCBinaryData got;
		const char *want;
	} fields[] = {{info->type, "CSIPlugin"}, {info->name, "csi.x"},
		{info->endpoint, "/far/csi.sock"}, {info->supported_versions[0], "1.0.0"}};
	cr_assert_eq(info->n_supported_versions, 1);
	for (unsigned i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
		cr_expect(
			fields[i].got.len == strlen(fields[i].want) &&
				memcmp(fields[i].got.data, fields[i].want, fields[i].got.len) == 0,
			"not %s", fields[i].want);
	protobuf_c_message_free_unpacked(&info->base, NULL);
}

/* A kubelet that starts anew tells it again, which is no news; the socket stays as it is. */
Test(registration, is_told_of_once)
{
	announce();
	ino_t inode = socket_inode();
	is_registered();
	notify(true, "");
	cr_assert_str_eq(logged(), "");
	for (unsigned i = 0; i < 3; i++) {
		sim_pass_ms(ring, REGISTRATION_CHECK_MS);
		cr_assert_eq(socket_inode(), inode);
	}
	cr_assert_str_eq(logged(), "");
}

/* A minute at most, and from the beginning after a success. */
Test(registration, a_refused_one_waits_twice_as_long_each_time)
{
	static const unsigned pauses_s[] = {5, 10, 20, 40, 60, 60};
	announce();
	is_registered();
	for (unsigned i = 0; i < sizeof(pauses_s) / sizeof(pauses_s[0]); i++) {
		is_refused("no", pauses_s[i]);
		comes_after_ms(pauses_s[i] * 1000);
	}
	is_registered();
	is_refused("no", 5);
}

/* So much of the reason is logged. */
Test(registration, a_long_reason_is_cut)
{
	char why[514], want[514];
	for (size_t len = 511; len <= 513; len++) {
		memset(why, 'y', len);
		why[len] = '\0';
		snprintf(want, sizeof(want), "%.512s", why);
		if (len == 511)
			announce();
		notify(false, why);
		const char *told = strstr(logged(), " why=");
		cr_assert_not_null(told);
		cr_assert_eq(strcspn(told + 5, " "), len < 512 ? len : 512, "of %zu", len);
		sim_pass_ms(ring, REGISTRATION_AGAIN_MAX_MS);
	}
}

/* ---- the socket ---- */

Test(registration, a_socket_that_is_gone_is_made_again)
{
	char want[160];
	announce();
	snprintf(want, sizeof(want),
		"level=warn msg=\"the registration socket is gone and made again\" socket=%s\n",
		reg_path);
	for (unsigned i = 0; i < 3; i++) {
		/* Also where it has been there for some looks. */
		sim_pass_ms(ring, i * REGISTRATION_CHECK_MS);
		cr_assert_str_eq(logged(), "");
		cr_assert_eq(unlink(reg_path), 0);
		sim_pass_ms(ring, REGISTRATION_CHECK_MS + SETTLE_MS);
		cr_assert_neq(socket_inode(), 0);
		cr_assert_str_eq(logged(), want);
	}
	is_registered();
}

/* That it cannot be made is told once, in these words, and tried every second. */
static void cannot_be_made(const char *told, const char *why)
{
	static const char line[] = "level=warn msg=\"cannot register with kubelet yet\" socket=";
	cr_assert_eq(strncmp(told, line, strlen(line)), 0, "%s", told);
	cr_assert_not_null(strstr(told, why), "%s", told);
	cr_assert_eq(strchr(told, '\n')[1], '\0', "it is told once: %s", told);
	sim_pass_ms(ring, 10 * REGISTRATION_RETRY_MS);
	cr_assert_str_eq(logged(), "");
}

static void can_be_made(void)
{
	sim_pass_ms(ring, REGISTRATION_RETRY_MS + SETTLE_MS);
	cr_assert_neq(socket_inode(), 0);
	cr_assert_str_eq(logged(), "");
}

/* What somebody else has put there stays, be it the socket's name or its directory's. */
Test(registration, what_is_in_its_way_is_waited_for)
{
	char away[sizeof(dir) + 4];
	struct stat st;
	snprintf(away, sizeof(away), "%s.old", dir);
	cr_assert_eq(mknod(reg_path, S_IFREG | 0600, 0), 0);
	cr_assert_eq(registration_open(&registration, &reactor, &config), 0);
	sim_pass_ms(ring, SETTLE_MS);
	cannot_be_made(logged(), "is in the way of the socket");
	cr_assert(lstat(reg_path, &st) == 0 && S_ISREG(st.st_mode));
	cr_assert_eq(unlink(reg_path), 0);
	can_be_made();
	cr_assert_eq(rename(dir, away), 0);
	cr_assert_eq(mknod(dir, S_IFREG | 0600, 0), 0);
	sim_pass_ms(ring, 2 * REGISTRATION_CHECK_MS);
	const char *told = logged();
	cr_assert_not_null(strstr(told, "is gone and made again"), "%s", told);
	cannot_be_made(strchr(told, '\n') + 1, "cannot make the directory");
	cr_assert(lstat(dir, &st) == 0 && S_ISREG(st.st_mode));
	cr_assert_eq(unlink(dir), 0);
	cr_assert_eq(rename(away, dir), 0);
	can_be_made();
}

static int nothing(struct work_job *job)
{
	(void)job;
	return 0;
}

static void nothing_on_end(struct work_job *job, int res)
{
	(void)job;
	(void)res;
}

/* It is tried again when no thread takes it, and nothing is told. */
Test(registration, waits_for_a_thread)
{
	static struct work_job jobs[WORK_QUEUE_MAX];
	for (unsigned i = 0; i < WORK_QUEUE_MAX; i++) {
		jobs[i] = (struct work_job){.run = nothing, .on_end = nothing_on_end};
		cr_assert_eq(work_submit(reactor.work, &jobs[i]), 0);
	}
	cr_assert_eq(registration_open(&registration, &reactor, &config), 0);
	comes_after_ms(REGISTRATION_RETRY_MS);
	cr_assert_str_eq(logged(), "");
}

/* Kubelet needs one connection: with more than there may be the first one goes. */
Test(registration, has_few_connections)
{
	struct sockaddr_un to = {.sun_family = AF_UNIX};
	int fds[CONNECTIONS_MAX + 1];
	announce();
	snprintf(to.sun_path, sizeof(to.sun_path), "%s", reg_path);
	for (unsigned i = 0; i <= CONNECTIONS_MAX; i++) {
		struct pollfd first = {.events = POLLRDHUP};
		fds[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
		cr_assert_eq(connect(fds[i], (const struct sockaddr *)&to, sizeof(to)), 0);
		sim_pass_ms(ring, 1);
		first.fd = fds[0];
		cr_assert_eq(poll(&first, 1, 0), i == CONNECTIONS_MAX, "connection %u", i);
	}
	for (unsigned i = 0; i <= CONNECTIONS_MAX; i++)
		close(fds[i]);
}

/* One byte more than there is room for is refused; one that fits here may be too long for a
 * socket, which is told. */
Test(registration, names_that_are_too_long)
{
	enum { ROOM = sizeof("unix://") + sizeof(((struct sockaddr_un *)0)->sun_path) };
	char long_dir[ROOM];
	struct registration_config too_long = config;
	size_t rest = strlen("unix://") + strlen("/csi.x-reg.sock");
	memset(long_dir, 'd', sizeof(long_dir));
	long_dir[0] = '/';
	too_long.dir = long_dir;
	long_dir[ROOM - rest] = '\0';
	cr_assert_eq(registration_open(&registration, &reactor, &too_long), -ENAMETOOLONG);
	cr_assert_null(registration);
	long_dir[ROOM - rest - 1] = '\0';
	cr_assert_eq(registration_open(&registration, &reactor, &too_long), 0);
	sim_pass_ms(ring, SETTLE_MS);
	cr_assert_not_null(strstr(logged(), "cannot register with kubelet yet"));
}

/* ---- the end ---- */

static void nothing_comes(void)
{
	for (unsigned i = 0; i < 3; i++) {
		cr_assert_eq(socket_inode(), 0);
		sim_pass_ms(ring, 2 * REGISTRATION_AGAIN_MAX_MS);
	}
	cr_assert_str_eq(logged(), "");
}

/* Whatever it waits for: its look, another try, or the end of a refusal's pause. */
Test(registration, a_drain_takes_the_socket_away)
{
	for (unsigned when = 0; when < 3; when++) {
		unsigned drained = 0;
		if (when == 1)
			cr_assert_eq(mkdir(reg_path, 0700), 0);
		cr_assert_eq(registration_open(&registration, &reactor, &config), 0);
		sim_pass_ms(ring, SETTLE_MS);
		if (when == 1)
			cr_assert_eq(rmdir(reg_path), 0);
		else
			cr_assert_neq(socket_inode(), 0);
		if (when == 2)
			notify(false, "no");
		(void)logged();
		registration_drain(registration, 1000, on_drained, &drained);
		turn_until(drained == 1);
		nothing_comes();
		registration_close(registration);
		registration = NULL;
	}
}

static unsigned open_fds(void)
{
	unsigned count = 0;
	for (int fd = 0; fd < 1024; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

/* What is being made then is taken away again. */
Test(registration, a_drain_while_the_socket_is_made)
{
	unsigned drained = 0, before = open_fds();
	cr_assert_eq(registration_open(&registration, &reactor, &config), 0);
	registration_drain(registration, 1000, on_drained, &drained);
	turn_until(drained == 1);
	nothing_comes();
	cr_assert_eq(open_fds(), before);
}

/* Kubelet lets go of a driver that ends: that is no refusal. */
Test(registration, a_refusal_during_the_drain_is_none)
{
	static const uint8_t refused[] = {0x12, 2, 'n', 'o'};
	unsigned drained = 0;
	announce();
	asked_init(&asked, "/pluginregistration.Registration/NotifyRegistrationStatus");
	channel_start(kubelet, &asked.call, refused, sizeof(refused), false);
	turn_until(asked.call.sent);
	sim_pass_ms(ring, 1);
	cr_assert_eq(asked.ends, 0);
	registration_drain(registration, 1000, on_drained, &drained);
	channel_send_end(&asked.call);
	turn_until(asked.ends == 1);
	assert_asked_status(&asked, GRPC_OK);
	turn_until(drained == 1);
	nothing_comes();
}

Test(registration, a_close_while_the_socket_is_made)
{
	unsigned before = open_fds();
	registration_close(NULL);
	cr_assert_eq(registration_open(&registration, &reactor, &config), 0);
	registration_close(registration);
	registration = NULL;
	nothing_comes();
	cr_assert_eq(open_fds(), before);
}
