/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One write to /dev/nvme-fabrics, and a few files of sysfs. Owns nothing: the kernel keeps all
 * there is to know.
 *
 * Happy path: the owner's name is resolved -> the options are written, which returns when the
 * kernel is connected -> the device with the namespace's UUID appears. How it can fail: no module,
 * nobody answers, the owner knows neither this host nor its key; the kernel's log says more than
 * its errno. Files of sysfs may go while they are read: what goes is not there.
 */
#include "attach/fabrics.h"

#include "attach/keyring.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/secret.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	PATH_BYTES = 320,
	RECONNECT_S = 2, /* between two attempts */
	/* A connection ends when what is under way has; the kernel gives up on that by itself. */
	GONE_WAIT_MS = 10000,
	GONE_LOOK_MS = 20,
	SECTOR_BYTES = 512,
	HIDE_PAUSE_US = 500,
	QUEUES = 8, /* of one connection at most, each a socket; the kernel's default is one for
		       each processor */
};

static const char *sys_root = "/sys", *dev_root = "/dev";

void fabrics_set_roots(const char *sys, const char *dev)
{
	sys_root = sys != NULL ? sys : "/sys";
	dev_root = dev != NULL ? dev : "/dev";
}

/* ---- sysfs ---- */

/* An attribute without its newline. Its length or -errno; what is too long is no value of ours. */
static int read_attr(const char *dir, const char *name, const char *attr, char *ret, size_t cap)
{
	char path[PATH_BYTES];
	int n = snprintf(path, sizeof(path), "%s/%s/%s/%s", sys_root, dir, name, attr);
	if (n < 0 || (size_t)n >= sizeof(path))
		return -ENAMETOOLONG;
	ssize_t len = fd_read_file(AT_FDCWD, path, ret, cap);
	if (len < 0)
		return (int)len;
	ret[strcspn(ret, "\n")] = '\0';
	return (int)strlen(ret);
}

static int write_attr(const char *dir, const char *name, const char *attr, const char *value)
{
	char path[PATH_BYTES];
	int n = snprintf(path, sizeof(path), "%s/%s/%s/%s", sys_root, dir, name, attr);
	return n < 0 || (size_t)n >= sizeof(path) ? -ENAMETOOLONG
						  : fd_write_file(AT_FDCWD, path, value);
}

static bool begins(const char *text, const char *prefix)
{
	return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* ---- connections ---- */

#define CTRL_DIR "class/nvme"
#define DISK_DIR "block"

/* False: it is gone, or another's. */
static bool read_ctrl(const char *name, struct fabrics_ctrl *ret)
{
	struct fabrics_ctrl ctrl = {0};
	char transport[16];
	if (!begins(name, "nvme") || strlen(name) >= sizeof(ctrl.name) ||
		read_attr(CTRL_DIR, name, "transport", transport, sizeof(transport)) <= 0 ||
		strcmp(transport, "tcp") != 0 ||
		read_attr(CTRL_DIR, name, "subsysnqn", ctrl.subsystem, sizeof(ctrl.subsystem)) <=
			0 ||
		read_attr(CTRL_DIR, name, "hostnqn", ctrl.host_nqn, sizeof(ctrl.host_nqn)) <= 0)
		return false;
	if (!begins(ctrl.subsystem, ATTACH_NQN_PREFIX) ||
		!begins(ctrl.host_nqn, ATTACH_HOST_NQN_PREFIX))
		return false;
	snprintf(ctrl.name, sizeof(ctrl.name), "%s", name);
	if (read_attr(CTRL_DIR, name, "address", ctrl.address, sizeof(ctrl.address)) < 0)
		ctrl.address[0] = '\0';
	if (read_attr(CTRL_DIR, name, "state", ctrl.state, sizeof(ctrl.state)) < 0)
		ctrl.state[0] = '\0';
	*ret = ctrl;
	return true;
}

struct each {
	int (*each)(void *arg, const struct fabrics_ctrl *ctrl);
	void *arg;
};

static int on_ctrl(void *arg, const char *name)
{
	const struct each *each = arg;
	struct fabrics_ctrl ctrl;
	return read_ctrl(name, &ctrl) ? each->each(each->arg, &ctrl) : 0;
}

/* A class that is not there has nothing in it. */
static int each_name(const char *dir, int (*each)(void *arg, const char *name), void *arg)
{
	char path[PATH_BYTES];
	snprintf(path, sizeof(path), "%s/%s", sys_root, dir);
	_cleanup_fd_ int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT ? 0 : -errno;
	return fd_each_name(fd, each, arg);
}

int fabrics_each(int (*each)(void *arg, const struct fabrics_ctrl *ctrl), void *arg)
{
	return each_name(CTRL_DIR, on_ctrl, &(struct each){each, arg});
}

struct find {
	const char *subsystem, *host_nqn;
	struct fabrics_ctrl found;
};

static int on_found(void *arg, const struct fabrics_ctrl *ctrl)
{
	struct find *find = arg;
	if (strcmp(ctrl->subsystem, find->subsystem) != 0 ||
		(find->host_nqn != NULL && strcmp(ctrl->host_nqn, find->host_nqn) != 0))
		return 0;
	find->found = *ctrl;
	return 1;
}

int fabrics_find(const char *subsystem, const char *host_nqn, struct fabrics_ctrl *ret)
{
	struct find find = {.subsystem = subsystem, .host_nqn = host_nqn};
	int r = fabrics_each(on_found, &find);
	if (r <= 0)
		return r < 0 ? r : -ENOENT;
	*ret = find.found;
	return 0;
}

/* ---- devices ---- */

/* False: it is gone, hidden (a path of several to one device), or another's. */
static bool read_disk(const char *name, struct fabrics_disk *ret)
{
	struct fabrics_disk disk = {0};
	char text[32];
	if (!begins(name, "nvme") || strlen(name) >= sizeof(disk.name) ||
		read_attr(DISK_DIR, name, "device/subsysnqn", disk.subsystem,
			sizeof(disk.subsystem)) <= 0 ||
		!begins(disk.subsystem, ATTACH_NQN_PREFIX))
		return false;
	if (read_attr(DISK_DIR, name, "hidden", text, sizeof(text)) > 0 && strcmp(text, "0") != 0)
		return false;
	if (read_attr(DISK_DIR, name, "dev", text, sizeof(text)) <= 0 ||
		sscanf(text, "%u:%u", &disk.major, &disk.minor) != 2 ||
		read_attr(DISK_DIR, name, "size", text, sizeof(text)) <= 0)
		return false;
	disk.size_bytes = strtoull(text, NULL, 10) * SECTOR_BYTES;
	disk.read_only =
		read_attr(DISK_DIR, name, "ro", text, sizeof(text)) > 0 && strcmp(text, "1") == 0;
	snprintf(disk.name, sizeof(disk.name), "%s", name);
	*ret = disk;
	return true;
}

struct find_disk {
	const char *subsystem, *namespace_id;
	uint32_t major, minor; /* where subsystem is NULL */
	struct fabrics_disk found;
};

static int on_disk(void *arg, const char *name)
{
	struct find_disk *find = arg;
	struct fabrics_disk disk;
	char uuid[64];
	if (!read_disk(name, &disk))
		return 0;
	if (find->subsystem == NULL && (disk.major != find->major || disk.minor != find->minor))
		return 0;
	if (find->subsystem != NULL &&
		(strcmp(disk.subsystem, find->subsystem) != 0 ||
			read_attr(DISK_DIR, name, "uuid", uuid, sizeof(uuid)) <= 0 ||
			strcasecmp(uuid, find->namespace_id) != 0))
		return 0;
	find->found = disk;
	return 1;
}

static int find_disk(struct find_disk *find, struct fabrics_disk *ret)
{
	int r = each_name(DISK_DIR, on_disk, find);
	if (r <= 0)
		return r < 0 ? r : -ENOENT;
	*ret = find->found;
	return 0;
}

int fabrics_disk(const char *subsystem, const char *namespace_id, struct fabrics_disk *ret)
{
	return find_disk(&(struct find_disk){subsystem, namespace_id, 0, 0, {{0}}}, ret);
}

int fabrics_disk_at(uint32_t dev_major, uint32_t dev_minor, struct fabrics_disk *ret)
{
	return find_disk(&(struct find_disk){NULL, NULL, dev_major, dev_minor, {{0}}}, ret);
}

/* ---- connecting ---- */

static int refuse_module(struct err *err)
{
	return err_set(err, ERR_PRECONDITION,
		"a volume of another node needs the kernel's NVMe client over TCP, which this node lacks: load its module (modprobe nvme-tcp; Ubuntu: package linux-modules-extra)");
}

int fabrics_check(struct err *err)
{
	char path[PATH_BYTES];
	snprintf(path, sizeof(path), "%s/nvme-fabrics", dev_root);
	return access(path, F_OK) == 0 ? 0 : refuse_module(err);
}

int fabrics_options(const struct attach_terms *terms, const char *address,
	const struct fabrics_waits *waits, int32_t tls_key, char ret[FABRICS_OPTIONS_BYTES])
{
	char fail[40] = "", tls[40] = "";
	if (waits->fail_s != 0)
		snprintf(fail, sizeof(fail), ",fast_io_fail_tmo=%u", waits->fail_s);
	if (tls_key != 0)
		snprintf(tls, sizeof(tls), ",tls,tls_key=%" PRId32, tls_key);
	int n = snprintf(ret, FABRICS_OPTIONS_BYTES,
		"transport=tcp,traddr=%s,trsvcid=%s,nqn=%s,hostnqn=%s,hostid=%s,"
		"nr_io_queues=%d,reconnect_delay=%d,ctrl_loss_tmo=%u%s%s%s%s",
		address, terms->port, terms->subsystem, terms->host_nqn, terms->host_id, QUEUES,
		RECONNECT_S, waits->loss_s, fail, tls,
		terms->key[0] != '\0' ? ",dhchap_secret=" : "", terms->key);
	return n < 0 || n >= FABRICS_OPTIONS_BYTES ? -E2BIG : 0;
}

/* In numbers, as the kernel wants it. 0 or an error of getaddrinfo(). */
static int resolve(const struct attach_terms *terms, char ret[INET6_ADDRSTRLEN])
{
	const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_ADDRCONFIG};
	struct addrinfo *found = NULL;
	struct in6_addr any;
	if (inet_pton(AF_INET, terms->host, &any) == 1 ||
		inet_pton(AF_INET6, terms->host, &any) == 1) {
		snprintf(ret, INET6_ADDRSTRLEN, "%.*s", INET6_ADDRSTRLEN - 1, terms->host);
		return 0;
	}
	int r = getaddrinfo(terms->host, terms->port, &hints, &found);
	if (r == 0)
		r = getnameinfo(found->ai_addr, found->ai_addrlen, ret, INET6_ADDRSTRLEN, NULL, 0,
			NI_NUMERICHOST);
	if (found != NULL)
		freeaddrinfo(found);
	return r;
}

static int fail_connect(int res, const struct attach_terms *terms, struct err *err)
{
	char path[PATH_BYTES];
	snprintf(path, sizeof(path), "%s/module/nvme_tcp", sys_root);
	switch (res) {
	case -ECONNREFUSED:
	case -ECONNRESET:
	case -EHOSTUNREACH:
	case -ENETUNREACH:
	case -ETIMEDOUT:
	case -ENOTCONN:
	case -ECONNABORTED:
	case -EPIPE:
		return err_set(err, ERR_UNAVAILABLE,
			"node %s, which has the volume, does not answer at %s port %s (%s)",
			terms->node, terms->host, terms->port, strerrordesc_np(-res));
	case -EINVAL:
		if (access(path, F_OK) < 0)
			return refuse_module(err);
		if (terms->key[0] == '\0')
			break;
		/* Linux 6.1 of Debian and others do not know the option. */
		return err_set(err, ERR_PRECONDITION,
			"this node's kernel takes no key for a volume of another node (NVMe DH-HMAC-CHAP, CONFIG_NVME_HOST_AUTH), and node %s wants one: a newer kernel has it, see the kernel log",
			terms->node);
	case -EACCES:
	case -EIO:
	case -ENOKEY:
	case -EKEYREJECTED:
	case -EPROTO:
		return err_set(err, ERR_PRECONDITION,
			"node %s refuses this node: the volume is not published to it any more, or with another key; see the kernel log of both nodes (%s)",
			terms->node, strerrordesc_np(-res));
	default:
		break;
	}
	return err_sys(err, res, "connecting to node %s at %s port %s", terms->node, terms->host,
		terms->port);
}

/* What the handshake comes to, where it is not what TCP says without it. 0: that. */
static int fail_tls(int res, const struct attach_terms *terms, struct err *err)
{
	switch (res) {
	case -ESRCH:
		return err_set(err, ERR_PRECONDITION,
			"node %s gives the volume over TLS, and this node has no tlshd for the handshake: install the package ktls-utils and start tlshd, in the host's network and once nvme-tcp is loaded",
			terms->node);
	case -ENOKEY:
		return err_set(err, ERR_PRECONDITION,
			"the kernel does not find the TLS key that this driver gave it: run the driver in the host's network (hostNetwork)");
	case -ETIMEDOUT:
	case -EACCES:
	case -EIO:
	case -EPROTO:
	case -EKEYREJECTED:
	case -ECONNRESET:
	case -ECONNABORTED:
	case -ENOTCONN:
	case -EPIPE:
		return err_set(err, ERR_UNAVAILABLE,
			"node %s, which has the volume, does not take this node's TLS at %s port %s (%s): see whether tlshd (package ktls-utils) runs on both nodes and was started after nvme-tcp and nvmet-tcp were loaded, and the volume is still published; the journal of tlshd and the kernel log of both say more",
			terms->node, terms->host, terms->port, strerrordesc_np(-res));
	default:
		return 0;
	}
}

static int write_options(const char *options)
{
	char path[PATH_BYTES];
	snprintf(path, sizeof(path), "%s/nvme-fabrics", dev_root);
	_cleanup_fd_ int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	ssize_t n = write(fd, options, strlen(options));
	return n < 0 ? -errno : 0;
}

/* ---- the key in sysfs ---- */

/* The kernel shows a connection's key to everybody who can read sysfs, and pods can (Linux 6.1,
 * 6.12, 7.2: dhchap_secret is 0444). Connections are there before they are made. So while one is
 * made, a thread takes the attribute from everybody but root as soon as it appears. */
struct hider {
	const char *subsystem;
	atomic_bool over;
};

static int hide_key(void *arg, const struct fabrics_ctrl *ctrl)
{
	const struct hider *hider = arg;
	char path[PATH_BYTES];
	if (strcmp(ctrl->subsystem, hider->subsystem) != 0)
		return 0;
	snprintf(path, sizeof(path), "%s/" CTRL_DIR "/%s/dhchap_secret", sys_root, ctrl->name);
	return chmod(path, S_IRUSR | S_IWUSR) < 0 && errno != ENOENT ? -errno : 0;
}

static void *hide_keys(void *arg)
{
	struct hider *hider = arg;
	while (!atomic_load(&hider->over)) {
		(void)fabrics_each(hide_key, hider);
		(void)usleep(HIDE_PAUSE_US);
	}
	return NULL;
}

/* 0 or -errno: of the write, or else of the last look. */
static int write_hidden(const char *options, const char *subsystem)
{
	struct hider hider = {.subsystem = subsystem};
	pthread_t thread;
	int r = -pthread_create(&thread, NULL, hide_keys, &hider);
	if (r < 0)
		return r;
	r = write_options(options);
	atomic_store(&hider.over, true);
	pthread_join(thread, NULL);
	int hidden = fabrics_each(hide_key, &hider);
	return r < 0 ? r : hidden;
}

int fabrics_connect(
	const struct attach_terms *terms, const struct fabrics_waits *waits, struct err *err)
{
	char options[FABRICS_OPTIONS_BYTES], address[INET6_ADDRSTRLEN];
	int unknown = resolve(terms, address);
	if (unknown != 0)
		return err_set(err, ERR_UNAVAILABLE, "the name of node %s, %s, is not found: %s",
			terms->node, terms->host, gai_strerror(unknown));
	int32_t tls_key = terms->tls ? keyring_give("nvme_tcp", terms->key, terms->host_nqn,
					       terms->subsystem, err)
				     : 0;
	if (tls_key < 0)
		return tls_key;
	int r = fabrics_options(terms, address, waits, tls_key, options);
	if (r == 0 && terms->key[0] != '\0')
		r = write_hidden(options, terms->subsystem);
	else if (r == 0)
		r = write_options(options);
	secret_wipe(options, sizeof(options));
	if (r == 0 || r == -EALREADY)
		return 0;
	if (terms->tls)
		(void)keyring_drop(terms->subsystem);
	int tls = terms->tls ? fail_tls(r, terms, err) : 0;
	if (tls < 0)
		return tls;
	if (r == -ENOENT || r == -ENODEV || r == -ENXIO)
		return refuse_module(err);
	return fail_connect(r, terms, err);
}

/* ---- afterwards ---- */

int fabrics_rescan(const struct fabrics_ctrl *ctrl)
{
	return write_attr(CTRL_DIR, ctrl->name, "rescan_controller", "1");
}

/* Its name may be another's by now. */
static bool is_there(const struct fabrics_ctrl *ctrl)
{
	struct fabrics_ctrl now;
	return read_ctrl(ctrl->name, &now) && strcmp(now.subsystem, ctrl->subsystem) == 0 &&
	       strcmp(now.host_nqn, ctrl->host_nqn) == 0;
}

int fabrics_disconnect(const struct fabrics_ctrl *ctrl)
{
	if (!is_there(ctrl))
		return 0;
	int r = write_attr(CTRL_DIR, ctrl->name, "delete_controller", "1");
	/* Somebody else, or the kernel, is about to. */
	if (r < 0 && r != -ENOENT && r != -ENODEV && r != -EBUSY && r != -EIO)
		return r;
	for (unsigned ms = 0; ms < GONE_WAIT_MS; ms += GONE_LOOK_MS) {
		if (!is_there(ctrl))
			return 0;
		clock_sleep_ms(GONE_LOOK_MS);
	}
	return -EBUSY;
}
