/* SPDX-License-Identifier: Apache-2.0 */
/* Volumes of other nodes below the services: what a publish_context says, the NVMe client (as
 * files, fake_nvme.h), and the calls over both and a device mapper in memory (fake_dm.h). */
#include "attach/calls.h"
#include "attach/fabrics.h"
#include "attach/keyring.h"
#include "attach/sweep.h"
#include "attach/terms.h"
#include "blockio/blkdev.h"
#include "fake_dm.h"
#include "fake_nvme.h"
#include "mount/mnt_scan.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SUBSYSTEM ATTACH_NQN_PREFIX "0123.abc"
#define HOST      ATTACH_HOST_NQN_PREFIX "b.0123"
#define UUID      "01234567-89ab-4cde-8f01-23456789abcd"
#define HOST_ID   "11111111-2222-4333-8444-555555555555"
#define KEY       "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:"
#define TAG       "ringvol:0badcafe:12345678"

int __wrap_dm_open(struct dm *ret, const char *path);
int __wrap_dm_open_node(uint32_t dev_major, uint32_t dev_minor, int flags);
bool __wrap_dm_is_loaded(void);
void __wrap_clock_sleep_ms(unsigned ms);
int __wrap_fsimg_probe_expected(int fd, enum fsimg_type type, struct fsimg_probe *ret);
int __wrap_mnt_scan(void (*each)(void *arg, const struct mnt_entry *entry), void *arg);
int __real_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...);

int32_t __wrap_keyring_give(const char *module, const char *secret, const char *host_nqn,
	const char *subsystem, struct err *err);
int __wrap_keyring_drop(const char *subsystem);

static int dm_open_res;
static unsigned slept_ms;
static struct fsimg_probe probe_says;
static int probe_res;

int __wrap_dm_open(struct dm *ret, const char *path)
{
	(void)path;
	if (dm_open_res == 0)
		*ret = (struct dm){.fd = -1, .call = fake_dm_call};
	return dm_open_res;
}

/* Nobody has it open. */
int __wrap_dm_open_node(uint32_t dev_major, uint32_t dev_minor, int flags)
{
	(void)dev_major;
	(void)dev_minor;
	(void)flags;
	return -ENXIO;
}

/* The node of the first cover is published, if so. */
static bool published;
int __wrap_mnt_scan(void (*each)(void *arg, const struct mnt_entry *entry), void *arg)
{
	const struct mnt_entry entry = {.dev_major = FAKE_DM_MAJOR,
		.dev_minor = FAKE_DM_MINOR,
		.bound_node = true,
		.path = "/pods/a"};
	if (published)
		each(arg, &entry);
	return 0;
}

bool __wrap_dm_is_loaded(void)
{
	return true;
}

/* A keyring without a kernel: whether it has the key of SUBSYSTEM. */
enum { TLS_SERIAL = 77 };
static bool has_tls_key, no_keyring;
int32_t __wrap_keyring_give(const char *module, const char *secret, const char *host_nqn,
	const char *subsystem, struct err *err)
{
	cr_assert_str_eq(module, "nvme_tcp");
	cr_assert_str_eq(secret, KEY);
	cr_assert_str_eq(host_nqn, HOST);
	cr_assert_str_eq(subsystem, SUBSYSTEM);
	if (no_keyring)
		return err_set(err, ERR_PRECONDITION, "modprobe nvme-keyring");
	has_tls_key = true;
	return TLS_SERIAL;
}

int __wrap_keyring_drop(const char *subsystem)
{
	if (strcmp(subsystem, SUBSYSTEM) == 0)
		has_tls_key = false;
	return 0;
}

void __wrap_clock_sleep_ms(unsigned ms)
{
	slept_ms += ms;
}

int __wrap_fsimg_probe_expected(int fd, enum fsimg_type type, struct fsimg_probe *ret)
{
	(void)fd;
	(void)type;
	*ret = probe_says;
	return probe_res;
}

int __wrap_open64(const char *path, int flags, ...)
{
	return __real_open64(
		strncmp(path, "/dev/dm-", 8) == 0 ? "/dev/null" : path, flags & ~O_CREAT);
}

/* ---- what a context says ---- */

enum { PAIRS = 12 };
static struct attach_pair pairs[PAIRS] = {
	{ATTACH_TRANSPORT, "tcp"},
	{ATTACH_ADDRESS, "192.0.2.1:4420"},
	{ATTACH_SUBSYSTEM, SUBSYSTEM},
	{ATTACH_HOST, HOST},
	{ATTACH_HOST_ID, HOST_ID},
	{ATTACH_KEY, KEY},
	{ATTACH_NAMESPACE, UUID},
	{ATTACH_VOLUME_MODE, "mount"},
	{ATTACH_FS_TYPE, "ext4"},
	{ATTACH_NODE, "node-a"},
	{ATTACH_READ_ONLY, "false"},
	{"ringvol.dev/of-a-later-version", "whatever, it is"},
};

static struct attach_pair *pair(const char *key)
{
	for (unsigned i = 0; i < PAIRS; i++)
		if (strcmp(pairs[i].key, key) == 0)
			return &pairs[i];
	cr_assert_fail("%s", key);
	return NULL;
}

static int parse_with(const char *key, const char *value, struct attach_terms *ret, struct err *err)
{
	struct attach_pair *p = pair(key);
	const char *was = p->value, *name = p->key;
	if (value == NULL)
		p->key = "absent";
	else
		p->value = value;
	err_clear(err);
	int r = attach_terms_parse(pairs, PAIRS, ret, err);
	p->key = name;
	p->value = was;
	return r;
}

Test(attach, a_context_is_read)
{
	struct attach_terms t;
	struct err err = {0};
	cr_assert(attach_terms_given(pairs, PAIRS));
	cr_assert(!attach_terms_given(pairs + 1, PAIRS - 1));
	cr_assert_eq(attach_terms_parse(pairs, PAIRS, &t, &err), 0, "%s", err.message);
	cr_assert_str_eq(t.host, "192.0.2.1");
	cr_assert_str_eq(t.port, "4420");
	cr_assert_str_eq(t.subsystem, SUBSYSTEM);
	cr_assert_str_eq(t.key, KEY);
	cr_assert(t.fs == FSIMG_EXT4 && !t.block && !t.read_only);
	cr_assert_eq(parse_with(ATTACH_ADDRESS, "[2001:db8::1]:65535", &t, &err), 0);
	cr_assert_str_eq(t.host, "2001:db8::1");
	cr_assert_eq(parse_with(ATTACH_ADDRESS, "node-a.example:1", &t, &err), 0);
	cr_assert_eq(parse_with(ATTACH_KEY, NULL, &t, &err), 0);
	cr_assert_str_eq(t.key, "");
	cr_assert_not(t.tls);
	cr_assert_eq(parse_with(ATTACH_TRANSPORT, ATTACH_TRANSPORT_TLS, &t, &err), 0);
	cr_assert(t.tls);
	cr_assert_eq(parse_with(ATTACH_READ_ONLY, "true", &t, &err), 0);
	cr_assert(t.read_only);
}

/* Nothing that could become another option of the kernel's, or a line of a log. */
Test(attach, a_context_that_cannot_be_is_refused)
{
	static char long_nqn[400];
	memset(long_nqn, 'a', sizeof(long_nqn) - 1);
	memcpy(long_nqn, ATTACH_NQN_PREFIX, strlen(ATTACH_NQN_PREFIX));
	static const struct {
		const char *key, *value;
	} bad[] = {
		{ATTACH_ADDRESS, NULL},
		{ATTACH_ADDRESS, ""},
		{ATTACH_ADDRESS, "192.0.2.1"},
		{ATTACH_ADDRESS, ":4420"},
		{ATTACH_ADDRESS, "192.0.2.1:"},
		{ATTACH_ADDRESS, "192.0.2.1:0"},
		{ATTACH_ADDRESS, "192.0.2.1:65536"},
		{ATTACH_ADDRESS, "192.0.2.1:44 20"},
		{ATTACH_ADDRESS, "192.0.2.1:+4420"},
		{ATTACH_ADDRESS, "192.0.2.1,hostnqn=x:4420"},
		{ATTACH_ADDRESS, "192.0.2.1\n:4420"},
		{ATTACH_ADDRESS, "[2001:db8::1:4420"},
		{ATTACH_ADDRESS, "[]:4420"},
		{ATTACH_ADDRESS, "[node-a]:4420"},
		{ATTACH_ADDRESS, "2001:db8::1:4420"},
		{ATTACH_SUBSYSTEM, NULL},
		{ATTACH_SUBSYSTEM, ""},
		{ATTACH_SUBSYSTEM, ATTACH_NQN_PREFIX},
		{ATTACH_SUBSYSTEM, "nqn.2014-08.org.nvmexpress:uuid:1"},
		{ATTACH_SUBSYSTEM, SUBSYSTEM ",ctrl_loss_tmo=-1"},
		{ATTACH_SUBSYSTEM, SUBSYSTEM "\n"},
		{ATTACH_SUBSYSTEM, SUBSYSTEM "/.."},
		{ATTACH_SUBSYSTEM, long_nqn},
		{ATTACH_HOST, NULL},
		{ATTACH_HOST, SUBSYSTEM},
		{ATTACH_HOST, HOST ",x"},
		{ATTACH_HOST_ID, NULL},
		{ATTACH_HOST_ID, "1"},
		{ATTACH_HOST_ID, HOST_ID ","},
		{ATTACH_NAMESPACE, NULL},
		{ATTACH_NAMESPACE, "01234567-89AB-4cde-8f01-23456789abcd"},
		{ATTACH_KEY, ""},
		{ATTACH_KEY, "DHHC-1:00:short:"},
		{ATTACH_KEY, "DHHC-1:04:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:"},
		{ATTACH_KEY, "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n"},
		{ATTACH_KEY, "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ,n:"},
		{ATTACH_KEY, "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:,x"},
		{ATTACH_VOLUME_MODE, NULL},
		{ATTACH_VOLUME_MODE, "file"},
		{ATTACH_VOLUME_MODE, "block"}, /* with a file system */
		{ATTACH_FS_TYPE, NULL},
		{ATTACH_FS_TYPE, "ntfs"},
		{ATTACH_NODE, NULL},
		{ATTACH_NODE, ""},
		{ATTACH_NODE, "a\nb"},
		{ATTACH_READ_ONLY, "yes"},
	};
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct attach_terms t;
		struct err err = {0};
		cr_assert_lt(
			parse_with(bad[i].key, bad[i].value, &t, &err), 0, "%u %s", i, bad[i].key);
		cr_assert_eq(err.code, ERR_INVALID, "%u %s", i, bad[i].key);
		cr_assert_null(strstr(err.message, "ia6z"), "%s", err.message);
		cr_assert_str_eq(t.key, "", "it is wiped");
	}
	struct attach_terms t;
	struct err err = {0};
	cr_assert_lt(parse_with(ATTACH_TRANSPORT, "rdma", &t, &err), 0);
	cr_assert_eq(err.code, ERR_PRECONDITION);
	pairs[PAIRS - 1] = (struct attach_pair){ATTACH_ENCRYPTION, "luks3"};
	err_clear(&err);
	cr_assert_lt(attach_terms_parse(pairs, PAIRS, &t, &err), 0);
	cr_assert_eq(err.code, ERR_PRECONDITION);
	pairs[PAIRS - 1].value = ATTACH_ENCRYPTION_LUKS2;
	cr_assert_eq(attach_terms_parse(pairs, PAIRS, &t, &err), 0);
	cr_assert(t.encrypted);
}

/* ---- the calls ---- */

static helper_fn *table[ATTACH_CALLS];
static struct attach_take_req take_req;
static struct attach_info info;

static void begin(void)
{
	struct err err = {0};
	attach_calls_fill(table);
	fake_nvme_open();
	fake_nvme.uuid = UUID;
	fake_dm_reboot(false);
	probe_says =
		(struct fsimg_probe){.type = FSIMG_EXT4, .fs_bytes = 64 << 20, .found = "ext4"};
	probe_res = dm_open_res = 0;
	take_req = (struct attach_take_req){.tag = TAG, .waits = {600, 0}, .probe = true};
	cr_assert_eq(attach_terms_parse(pairs, PAIRS, &take_req.terms, &err), 0);
}

static int call(unsigned fn, const void *req, size_t req_len)
{
	size_t len = sizeof(info);
	int r = table[fn](req, req_len, &info, &len);
	cr_assert_eq(len, sizeof(info));
	cr_assert_eq(r < 0, info.err.code != ERR_OK);
	cr_assert_null(strstr(info.err.message, "ia6z"), "%s", info.err.message);
	return r;
}

static int take(void)
{
	return call(ATTACH_TAKE, &take_req, sizeof(take_req));
}

static struct attach_volume_req volume_req = {.tag = TAG};

static int ask(unsigned fn)
{
	return call(fn, &volume_req, sizeof(volume_req));
}

static unsigned covers(void)
{
	unsigned count = 0;
	for (unsigned i = 0; i < FAKE_DM_DEVICES; i++)
		count += fake_dm_devices[i].there;
	return count;
}

Test(attach, taking_looking_growing_and_giving_back)
{
	begin();
	cr_assert_eq(take(), 0, "%s", info.err.message);
	cr_assert(info.there && info.alive && !info.found && !info.read_only);
	cr_assert_eq(info.size_bytes, 64 << 20);
	cr_assert_eq(info.cover.below_major, FAKE_NVME_MAJOR);
	cr_assert_str_eq(info.ctrl.name, "nvme10");
	cr_assert_str_eq(fake_nvme.options,
		"transport=tcp,traddr=192.0.2.1,trsvcid=4420,nqn=" SUBSYSTEM ",hostnqn=" HOST
		",hostid=" HOST_ID
		",nr_io_queues=8,reconnect_delay=2,ctrl_loss_tmo=600,dhchap_secret=" KEY);
	cr_assert_eq(fake_nvme_key_mode(10), 0600);
	cr_assert_str_eq(fake_dm_devices[0].name, "ringvol-cover-0badcafe-12345678");
	cr_assert_str_eq(fake_dm_devices[0].uuid, "RINGVOL-guard-cover-0badcafe-12345678");
	cr_assert_eq(take(), 0, "a repeat");
	cr_assert(info.found);
	cr_assert_eq(fake_nvme.connects, 1);
	cr_assert_eq(ask(ATTACH_LOOK), 0);
	cr_assert(info.alive);
	cr_assert_str_eq(info.ctrl.state, "live");
	fake_nvme_state(10, "connecting");
	cr_assert_eq(ask(ATTACH_LOOK), 0);
	cr_assert_str_eq(info.ctrl.state, "connecting");
	fake_nvme_state(10, "live");
	volume_req.want_bytes = 128 << 20;
	cr_assert_lt(ask(ATTACH_GROW), 0, "its owner has not grown it");
	cr_assert_eq(info.err.code, ERR_UNAVAILABLE);
	fake_nvme.size_after_rescan = 128 << 20;
	cr_assert_eq(ask(ATTACH_GROW), 0, "%s", info.err.message);
	cr_assert_eq(info.size_bytes, 128 << 20);
	unsigned loads = fake_dm_loads;
	cr_assert_eq(ask(ATTACH_GROW), 0, "a repeat");
	cr_assert_eq(fake_dm_loads, loads, "its cover is as large already");
	cr_assert_eq(ask(ATTACH_GIVE), 0, "%s", info.err.message);
	cr_assert(!fake_nvme_has(10));
	cr_assert_eq(covers(), 0);
	cr_assert_eq(ask(ATTACH_GIVE), 0, "a repeat");
	cr_assert_eq(fake_nvme.deletes, 1);
	cr_assert_lt(ask(ATTACH_GROW), 0);
	fake_nvme_close();
}

/* A block device that this machine has and nobody asks anything of: the fake device mapper only
 * names it. */
static bool any_device(uint32_t *ret_major, uint32_t *ret_minor, uint64_t *ret_bytes)
{
	for (unsigned minor = 0; minor < 256; minor++)
		for (unsigned major = 0; major < 260; major++) {
			struct blkdev dev;
			if (blkdev_look(major, minor, &dev) == 0 && dev.size_bytes >= 64 << 20) {
				*ret_major = major;
				*ret_minor = minor;
				*ret_bytes = dev.size_bytes;
				return true;
			}
		}
	return false;
}

static struct attach_swap_req swap_req = {.volume = {.tag = TAG}};

static int swap(void)
{
	return call(ATTACH_SWAP, &swap_req, sizeof(swap_req));
}

/* It is suspended, goes on, and is suspended for good until it goes on over another device. */
Test(attach, a_cover_that_moves)
{
	begin();
	if (!any_device(&swap_req.major, &swap_req.minor, &swap_req.size_bytes))
		cr_skip_test("no block device of 64 MiB");
	cr_assert_lt(ask(ATTACH_SUSPEND), 0, "there is none");
	cr_assert_eq(info.err.code, ERR_PRECONDITION);
	cr_assert_eq(ask(ATTACH_RESUME), 0);
	cr_assert_lt(swap(), 0);
	cr_assert_eq(take(), 0, "%s", info.err.message);
	for (unsigned i = 0; i < 2; i++) {
		cr_assert_eq(ask(ATTACH_SUSPEND), 0, "%s", info.err.message);
		cr_assert(info.suspended && info.alive && !info.local);
		cr_assert(fake_dm_devices[0].suspended);
	}
	cr_assert_eq(ask(ATTACH_LOOK), 0);
	cr_assert(info.suspended);
	for (unsigned i = 0; i < 2; i++) {
		cr_assert_eq(ask(ATTACH_RESUME), 0, "%s", info.err.message);
		cr_assert(!info.suspended && !fake_dm_devices[0].suspended);
	}
	cr_assert_lt(swap(), 0, "what is in use is not swapped");
	cr_assert_eq(info.err.code, ERR_PRECONDITION);
	cr_assert_eq(ask(ATTACH_SUSPEND), 0);
	uint64_t bytes = swap_req.size_bytes;
	swap_req.size_bytes = 32 << 20;
	cr_assert_lt(swap(), 0, "it is too small");
	cr_assert_not_null(strstr(info.err.message, "is smaller"), "%s", info.err.message);
	swap_req.size_bytes = bytes;
	static const unsigned long requests[] = {DM_TABLE_LOAD, DM_DEV_SUSPEND, DM_DEV_STATUS};
	for (unsigned i = 0; i < sizeof(requests) / sizeof(requests[0]); i++) {
		fake_dm_fail_request = requests[i];
		fake_dm_fail_with = -EIO;
		cr_assert_lt(swap(), 0, "%u", i);
		cr_assert(fake_dm_devices[0].suspended && fake_nvme_has(10), "%u", i);
	}
	for (unsigned i = 0; i < 2; i++) {
		cr_assert_eq(swap(), 0, "%s", info.err.message);
		cr_assert(info.local && info.alive && !info.suspended);
		cr_assert_eq(info.cover.below_major, swap_req.major);
		cr_assert_eq(info.cover.below_minor, swap_req.minor);
		cr_assert_eq(info.size_bytes, 64 << 20, "its own stays");
		cr_assert_eq(info.major, FAKE_DM_MAJOR);
		cr_assert_eq(info.minor, FAKE_DM_MINOR);
		cr_assert(!fake_nvme_has(10), "the connection has ended");
	}
	cr_assert_lt(ask(ATTACH_SUSPEND), 0, "it does not move once more");
	cr_assert_eq(ask(ATTACH_LOOK), 0);
	cr_assert(info.local && info.alive && info.ctrl.name[0] == '\0');
	cr_assert_eq(ask(ATTACH_GIVE), 0, "%s", info.err.message);
	cr_assert_eq(covers(), 0);
	fake_nvme_close();
}

/* What an attempt has loaded does not come into use with a resume. */
Test(attach, a_swap_that_is_given_up)
{
	begin();
	if (!any_device(&swap_req.major, &swap_req.minor, &swap_req.size_bytes))
		cr_skip_test("no block device of 64 MiB");
	cr_assert_eq(take(), 0);
	uint32_t below = info.cover.below_minor;
	cr_assert_eq(ask(ATTACH_SUSPEND), 0);
	fake_dm_fail_request = DM_DEV_SUSPEND;
	fake_dm_fail_with = -EIO;
	cr_assert_lt(swap(), 0);
	cr_assert_eq(fake_dm_devices[0].next.count, 2);
	cr_assert_eq(ask(ATTACH_RESUME), 0, "%s", info.err.message);
	cr_assert_eq(ask(ATTACH_LOOK), 0);
	cr_assert(!info.local && !info.suspended);
	cr_assert_eq(info.cover.below_minor, below);
	cr_assert_eq(ask(ATTACH_GIVE), 0);
	fake_nvme_close();
}

Test(attach, waits_and_no_key)
{
	begin();
	take_req.waits = (struct fabrics_waits){.loss_s = 30, .fail_s = 5};
	take_req.terms.key[0] = '\0';
	take_req.read_only = true;
	cr_assert_eq(take(), 0);
	cr_assert(info.read_only);
	cr_assert_not_null(strstr(
		fake_nvme.options, ",reconnect_delay=2,ctrl_loss_tmo=30,fast_io_fail_tmo=5"));
	cr_assert_null(strstr(fake_nvme.options, "dhchap"));
	fake_nvme_close();
}

/* Whatever fails, no connection and no cover of this attempt stays, and the next one succeeds. */
Test(attach, every_failure_of_taking)
{
	static const struct {
		int connect;
		enum err_code code;
	} refusals[] = {
		{ECONNREFUSED, ERR_UNAVAILABLE},
		{EHOSTUNREACH, ERR_UNAVAILABLE},
		{ETIMEDOUT, ERR_UNAVAILABLE},
		{EACCES, ERR_PRECONDITION},
		{EIO, ERR_PRECONDITION},
		{EINVAL, ERR_PRECONDITION},
		{ENODEV, ERR_PRECONDITION},
		{ENOMEM, ERR_NO_ROOM},
	};
	static const unsigned long requests[] = {
		DM_DEV_CREATE, DM_TABLE_LOAD, DM_DEV_SUSPEND, DM_DEV_STATUS};
	begin();
	for (unsigned i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
		fake_nvme.connect_errno = refusals[i].connect;
		cr_assert_lt(take(), 0);
		cr_assert_eq(info.err.code, refusals[i].code, "%d: %s", refusals[i].connect,
			info.err.message);
	}
	fake_nvme.connect_errno = 0;
	cr_assert_eq(fake_nvme.connects, 0);
	fake_nvme.no_disk = true;
	cr_assert_lt(take(), 0);
	cr_assert_eq(info.err.code, ERR_PRECONDITION);
	fake_nvme.no_disk = false;
	fake_nvme.uuid = HOST_ID; /* another namespace */
	cr_assert_lt(take(), 0);
	cr_assert_eq(info.err.code, ERR_PRECONDITION);
	fake_nvme.uuid = UUID;
	fake_nvme.read_only = true;
	cr_assert_lt(take(), 0);
	cr_assert_eq(info.err.code, ERR_PRECONDITION);
	fake_nvme.read_only = false;
	for (unsigned i = 0; i < sizeof(requests) / sizeof(requests[0]); i++) {
		fake_dm_fail_request = requests[i];
		fake_dm_fail_with = -EIO;
		cr_assert_lt(take(), 0, "%u", i);
		cr_assert_eq(covers(), 0, "%u", i);
	}
	probe_says.type = FSIMG_XFS;
	cr_assert_lt(take(), 0);
	cr_assert_eq(info.err.code, ERR_DATA_LOSS);
	probe_says.type = FSIMG_EXT4;
	probe_res = -EIO;
	cr_assert_lt(take(), 0);
	probe_res = 0;
	dm_open_res = -ENOENT;
	cr_assert_lt(take(), 0);
	cr_assert_not_null(strstr(info.err.message, "modprobe dm_mod"));
	dm_open_res = 0;
	cr_assert_eq(fake_nvme.deletes, fake_nvme.connects, "each has ended");
	cr_assert_eq(covers(), 0);
	cr_assert_eq(take(), 0, "%s", info.err.message);
	fake_nvme_close();
}

/* With TLS the kernel is told which key to use, and has it as long as there is a connection. */
Test(attach, within_tls)
{
	static const struct {
		int connect;
		enum err_code code;
		const char *says;
	} refusals[] = {
		{ESRCH, ERR_PRECONDITION, "ktls-utils"},
		{ENOKEY, ERR_PRECONDITION, "hostNetwork"},
		{ETIMEDOUT, ERR_UNAVAILABLE, "tlshd"},
		{EACCES, ERR_UNAVAILABLE, "still published"},
		{ECONNRESET, ERR_UNAVAILABLE, "kernel log of both"},
		{ECONNREFUSED, ERR_UNAVAILABLE, "does not answer"},
		{ENODEV, ERR_PRECONDITION, "modprobe nvme-tcp"},
	};
	begin();
	take_req.terms.tls = true;
	no_keyring = true;
	cr_assert_lt(take(), 0);
	cr_expect_str_eq(info.err.message, "modprobe nvme-keyring");
	cr_expect_str_eq(fake_nvme.options, "", "nothing connects without");
	no_keyring = false;
	for (unsigned i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
		fake_nvme.connect_errno = refusals[i].connect;
		cr_assert_lt(take(), 0);
		cr_expect_eq(info.err.code, refusals[i].code, "%d", refusals[i].connect);
		cr_expect_not_null(
			strstr(info.err.message, refusals[i].says), "%s", info.err.message);
		cr_expect(!has_tls_key);
	}
	fake_nvme.connect_errno = 0;
	cr_assert_eq(take(), 0, "%s", info.err.message);
	cr_expect_not_null(strstr(fake_nvme.options, ",tls,tls_key=77,dhchap_secret="), "%s",
		fake_nvme.options);
	cr_expect(has_tls_key);
	cr_assert_eq(ask(ATTACH_GIVE), 0);
	cr_expect(!has_tls_key);
	take_req.terms.tls = false;
	cr_assert_eq(take(), 0, "%s", info.err.message);
	cr_expect_null(strstr(fake_nvme.options, "tls"), "%s", fake_nvme.options);
	fake_nvme_close();
}

Test(attach, no_module)
{
	char command[128];
	begin();
	snprintf(command, sizeof(command), "rm %s/dev/nvme-fabrics", fake_nvme.dir);
	cr_assert_eq(system(command), 0);
	cr_assert_lt(take(), 0);
	cr_assert_eq(info.err.code, ERR_PRECONDITION);
	cr_assert_not_null(strstr(info.err.message, "modprobe nvme-tcp"), "%s", info.err.message);
	fake_nvme_close();
	begin();
	snprintf(command, sizeof(command), "rm -r %s/sys/module/nvme_tcp", fake_nvme.dir);
	cr_assert_eq(system(command), 0);
	fake_nvme.connect_errno = EINVAL;
	cr_assert_lt(take(), 0);
	cr_assert_not_null(strstr(info.err.message, "modprobe nvme-tcp"), "%s", info.err.message);
	fake_nvme_close();
}

/* A connection that an attempt left is used; one that is not live is not. */
Test(attach, a_half_done_attempt_is_completed)
{
	begin();
	fake_nvme_add(3, SUBSYSTEM, HOST, UUID, 64 << 20);
	cr_assert_eq(take(), 0, "%s", info.err.message);
	cr_assert_str_eq(info.ctrl.name, "nvme3");
	cr_assert_eq(fake_nvme.connects, 0);
	cr_assert_eq(ask(ATTACH_GIVE), 0);
	fake_nvme_add(3, SUBSYSTEM, HOST, UUID, 64 << 20);
	fake_nvme_state(3, "connecting");
	cr_assert_eq(take(), 0, "%s", info.err.message);
	cr_assert(!fake_nvme_has(3));
	cr_assert_str_eq(info.ctrl.name, "nvme10");
	/* Its device is gone for good: taken anew, unless somebody has it open. */
	fake_nvme_lose(10);
	cr_assert_eq(ask(ATTACH_LOOK), 0);
	cr_assert(info.there && !info.alive);
	fake_dm_devices[0].open = 1;
	cr_assert_lt(take(), 0);
	cr_assert_eq(info.err.code, ERR_PRECONDITION);
	fake_dm_devices[0].open = 0;
	published = true;
	cr_assert_lt(take(), 0);
	cr_assert_eq(info.err.code, ERR_PRECONDITION);
	published = false;
	cr_assert_eq(take(), 0, "%s", info.err.message);
	cr_assert(info.alive);
	cr_assert_eq(covers(), 1);
	/* A connection that does not end is no success. */
	fake_nvme.stuck = true;
	cr_assert_lt(ask(ATTACH_GIVE), 0);
	cr_assert_eq(info.err.code, ERR_TIMEOUT);
	fake_nvme.stuck = false;
	strcpy(volume_req.subsystem, SUBSYSTEM);
	cr_assert_eq(ask(ATTACH_GIVE), 0, "%s", info.err.message);
	cr_assert(!fake_nvme_has(11));
	fake_nvme_close();
}

/* ---- leftovers ---- */

static struct attach_sweep_req sweep_req;
static struct attach_sweep_info swept;

static void sweep(void)
{
	size_t len = sizeof(swept);
	cr_assert_eq(table[ATTACH_SWEEP](&sweep_req, sizeof(sweep_req), &swept, &len), 0, "%s",
		swept.err.message);
	sweep_req.count = swept.count;
	memcpy(sweep_req.left, swept.left, sizeof(sweep_req.left));
}

static unsigned found;
static void on_cover(void *arg, const char *tag, const struct attach_info *cover)
{
	(void)arg;
	found++;
	cr_assert_str_eq(tag, TAG);
	cr_assert(cover->alive);
	cr_assert_str_eq(cover->ctrl.subsystem, SUBSYSTEM);
}

Test(attach, leftovers_end_and_nothing_else_does)
{
	begin();
	cr_assert_eq(take(), 0);
	fake_nvme_add(1, ATTACH_NQN_PREFIX "left", HOST, UUID, 64 << 20);
	fake_nvme_add(2, "nqn.2014-08.org.nvmexpress:uuid:1", HOST, UUID, 64 << 20);
	fake_nvme_add(3, ATTACH_NQN_PREFIX "by.hand", "nqn.2014-08.org.nvmexpress:uuid:2", UUID,
		64 << 20);
	sweep();
	cr_assert(swept.count == 1 && swept.ended == 0);
	cr_assert_str_eq(swept.left[0].name, "nvme1");
	cr_assert(fake_nvme_has(1), "not at the first look");
	sweep();
	cr_assert(swept.count == 0 && swept.ended == 1);
	cr_assert(!fake_nvme_has(1) && fake_nvme_has(2) && fake_nvme_has(3) && fake_nvme_has(10));
	/* One that has come instead is not the one that was seen. */
	fake_nvme_add(1, ATTACH_NQN_PREFIX "left", HOST, UUID, 64 << 20);
	sweep();
	fake_nvme_add(1, ATTACH_NQN_PREFIX "new", HOST, UUID, 64 << 20);
	sweep();
	cr_assert(swept.count == 1 && swept.ended == 0);
	/* A cover whose device is gone goes once nobody has it open. */
	fake_nvme_lose(10);
	fake_dm_devices[0].open = 1;
	sweep();
	cr_assert_eq(covers(), 1);
	fake_dm_devices[0].open = 0;
	published = true;
	sweep();
	cr_assert_eq(covers(), 1);
	published = false;
	sweep();
	cr_assert_eq(swept.ended_covers, 1);
	cr_assert_eq(covers(), 0);
	/* Where not all covers are known nothing ends. */
	fake_nvme_add(1, ATTACH_NQN_PREFIX "left", HOST, UUID, 64 << 20);
	sweep();
	size_t len = sizeof(swept);
	fake_dm_fail_request = DM_LIST_DEVICES;
	fake_dm_fail_with = -EIO;
	cr_assert_lt(table[ATTACH_SWEEP](&sweep_req, sizeof(sweep_req), &swept, &len), 0);
	cr_assert(fake_nvme_has(1));
	fake_nvme_close();
}

/* ---- encrypted ---- */

/* What the child makes over the cover; 0 bytes: it was killed half way. */
static struct fake_device *put_opened(uint64_t bytes)
{
	struct fake_device *d = &fake_dm_devices[1];
	*d = (struct fake_device){.there = true};
	strcpy(d->name, "ringvol-crypt-0badcafe-12345678-0");
	strcpy(d->uuid, "RINGVOL-crypt-0badcafe-12345678-0");
	d->now.count = bytes != 0;
	d->now.targets[0] = (struct dm_target){.length_sectors = bytes / 512, .type = "crypt"};
	snprintf(d->now.targets[0].params, DM_PARAMS_BYTES, "aes-xts-plain64 00 0 %u:%u 32768",
		FAKE_DM_MAJOR, FAKE_DM_MINOR);
	return d;
}

static void begin_encrypted(void)
{
	begin();
	take_req.terms.encrypted = true;
	cr_assert_eq(take(), 0, "%s", info.err.message);
	cr_assert(info.there && !info.opened);
	cr_assert_eq(info.probe.type, FSIMG_NONE, "ciphertext is not looked through");
	cr_assert_str_eq(info.cover.path, info.path);
}

static int ask_opened(void)
{
	return call(ATTACH_OPENED, &take_req, sizeof(take_req));
}

Test(attach, what_was_opened_is_told)
{
	begin_encrypted();
	cr_assert_lt(ask_opened(), 0, "nobody has opened it");
	cr_assert_eq(info.err.code, ERR_UNAVAILABLE);
	put_opened(48 << 20);
	cr_assert_eq(ask_opened(), 0, "%s", info.err.message);
	cr_assert(info.opened && info.probe.type == FSIMG_EXT4);
	cr_assert_eq(info.minor, FAKE_DM_MINOR + 1);
	cr_assert_eq(info.size_bytes, 48 << 20);
	cr_assert_eq(info.cover.minor, FAKE_DM_MINOR);
	cr_assert_eq(info.cover.size_bytes, 64 << 20);
	probe_says.type = FSIMG_XFS;
	cr_assert_lt(ask_opened(), 0);
	cr_assert_eq(info.err.code, ERR_DATA_LOSS);
	cr_assert_eq(covers(), 2, "what was there stays");
	probe_says.type = FSIMG_EXT4;
	cr_assert_eq(take(), 0, "a repeat");
	cr_assert(info.found && info.opened);
	cr_assert_eq(attach_each_cover(on_cover, NULL), 0);
	cr_assert_eq(found, 1);
	/* The sizes that are asked for and told are the volume's. */
	fake_nvme.size_after_rescan = 80 << 20;
	volume_req.want_bytes = 64 << 20;
	cr_assert_eq(ask(ATTACH_GROW), 0, "%s", info.err.message);
	cr_assert_eq(info.cover.size_bytes, 80 << 20);
	volume_req.want_bytes = 65 << 20;
	cr_assert_lt(ask(ATTACH_GROW), 0);
	cr_assert_not_null(
		strstr(info.err.message, "shows 67108864 bytes"), "%s", info.err.message);
	cr_assert_eq(ask(ATTACH_GIVE), 0, "%s", info.err.message);
	cr_assert_eq(covers(), 0);
	fake_nvme_close();
}

/* What a killed child has left goes with the next call, and what is not ours is not touched. */
Test(attach, what_stands_over_a_cover)
{
	begin_encrypted();
	put_opened(0);
	cr_assert_eq(take(), 0, "%s", info.err.message);
	cr_assert(!info.opened);
	cr_assert_eq(covers(), 1);
	put_opened(0);
	cr_assert_eq(ask(ATTACH_GIVE), 0);
	cr_assert_eq(covers(), 0);
	cr_assert_eq(take(), 0);
	strcpy(put_opened(48 << 20)->now.targets[0].type, "linear");
	cr_assert_lt(take(), 0);
	cr_assert_eq(info.err.code, ERR_PRECONDITION);
	cr_assert_eq(ask(ATTACH_LOOK), 0);
	cr_assert(!info.opened);
	cr_assert_eq(covers(), 2);
	strcpy(put_opened(48 << 20)->name, "renamed");
	cr_assert_lt(take(), 0);
	cr_assert_eq(info.err.code, ERR_PRECONDITION);
	fake_dm_devices[1].there = false;
	static const unsigned long requests[] = {DM_DEV_STATUS, DM_DEV_REMOVE};
	for (unsigned i = 0; i < sizeof(requests) / sizeof(requests[0]); i++) {
		put_opened(48 << 20);
		fake_dm_fail_request = requests[i];
		fake_dm_fail_with = -EIO;
		cr_assert_lt(ask(ATTACH_GIVE), 0, "%u", i);
		cr_assert_eq(covers(), 2, "%u", i);
	}
	cr_assert_eq(ask(ATTACH_GIVE), 0, "%s", info.err.message);
	cr_assert_eq(covers(), 0);
	fake_nvme_close();
}

/* A cover under what somebody uses is in use; under what nobody does it is a leftover, but only
 * once its own device is gone. */
Test(attach, what_is_opened_keeps_its_cover)
{
	begin_encrypted();
	put_opened(48 << 20);
	sweep();
	sweep();
	cr_assert_eq(covers(), 2);
	cr_assert(fake_nvme_has(10));
	fake_nvme_lose(10);
	fake_dm_devices[1].open = 1;
	sweep();
	cr_assert_eq(covers(), 2);
	cr_assert_lt(take(), 0);
	cr_assert_not_null(strstr(info.err.message, "/dev/dm-301"), "%s", info.err.message);
	fake_dm_devices[1].open = 0;
	sweep();
	cr_assert_eq(swept.ended_covers, 1);
	cr_assert_eq(covers(), 0);
	cr_assert_eq(take(), 0, "%s", info.err.message);
	put_opened(48 << 20);
	fake_nvme_lose(11);
	cr_assert_eq(take(), 0, "%s", info.err.message);
	cr_assert(!info.opened && !info.found && info.alive);
	cr_assert_eq(covers(), 1);
	fake_nvme_close();
}

Test(attach, covers_of_earlier_runs_are_found)
{
	begin();
	cr_assert_eq(attach_each_cover(on_cover, NULL), 0);
	cr_assert_eq(found, 0);
	cr_assert_eq(take(), 0);
	cr_assert_eq(attach_each_cover(on_cover, NULL), 0);
	cr_assert_eq(found, 1);
	fake_nvme_close();
}

Test(attach, requests_of_another_size_are_refused)
{
	begin();
	for (unsigned fn = ATTACH_TAKE; fn < ATTACH_CALLS; fn++) {
		char request[16] = {0};
		size_t len = sizeof(info);
		cr_assert_eq(table[fn](request, sizeof(request), &info, &len), -EINVAL);
	}
	fake_nvme_close();
}
