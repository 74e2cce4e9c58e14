/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Happy path of an export: the subsystem, closed to all -> the host, with its key -> the host is
 * let in -> the namespace, on the device, with its UUID, enabled -> the port, which listens from
 * its first subsystem on. What is there already is left as it is, so that connected clients notice
 * nothing. A client that finds the port without its subsystem is told never to come again: after a
 * reboot all of them are made first, and join the port in one go.
 *
 * Of its end: the host is let in no more -> the subsystem leaves the port, which cuts its
 * connections -> the namespace is disabled, which waits until no request holds it any more: from
 * here on the device is not written to -> the rest is removed. The port stays.
 *
 * How it can fail: the kernel has no nvmet, no TCP for it, or no authentication; the address is not
 * this node's, or in use; the device cannot be opened. The kernel has one lock for all of configfs,
 * so a call may wait for others' calls; the waiting for I/O is not under it.
 */
#include "export/target.h"

#include "attach/keyring.h"
#include "base/address.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { PATH_BYTES = 640, VALUE_BYTES = 320, IP_BYTES = 48, PORT_BYTES = 8 };

/* A port is found and then used, or found empty and then removed. */
static pthread_mutex_t ports_lock = PTHREAD_MUTEX_INITIALIZER;

static int open_root(void)
{
	int fd = open(NVMET_ROOT, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

static int no_nvmet(int res, struct err *err)
{
	if (res == -ENOENT || res == -ENOTDIR)
		return err_set(err, ERR_PRECONDITION,
			"this node's kernel has no " NVMET_ROOT
			": modprobe nvmet nvmet-tcp, and mount configfs at /sys/kernel/config");
	return err_sys(err, res, "opening " NVMET_ROOT);
}

/* ---- one file, one directory, one link ---- */

/* Without its newline; "": it cannot be read. */
static void read_value(int root, const char *path, char ret[VALUE_BYTES])
{
	if (fd_read_file(root, path, ret, VALUE_BYTES) < 0)
		ret[0] = '\0';
	ret[strcspn(ret, "\n")] = '\0';
}

static bool has_value(int root, const char *path, const char *value)
{
	char now[VALUE_BYTES];
	read_value(root, path, now);
	return strcmp(now, value) == 0;
}

static int make_dir(int root, const char *path)
{
	return mkdirat(root, path, 0755) < 0 && errno != EEXIST ? -errno : 0;
}

static int remove_dir(int root, const char *path)
{
	return unlinkat(root, path, AT_REMOVEDIR) < 0 && errno != ENOENT ? -errno : 0;
}

static int make_link(int root, const char *target, const char *path)
{
	return symlinkat(target, root, path) < 0 && errno != EEXIST ? -errno : 0;
}

static int remove_link(int root, const char *path)
{
	return unlinkat(root, path, 0) < 0 && errno != ENOENT ? -errno : 0;
}

static const char *sub(char path[PATH_BYTES], const struct nvmet_export *e, const char *rest)
{
	snprintf(path, PATH_BYTES, "subsystems/%s%s", e->names.subsystem, rest);
	return path;
}

static const char *host(char path[PATH_BYTES], const struct nvmet_export *e, const char *rest)
{
	snprintf(path, PATH_BYTES, "hosts/%s%s", e->names.host, rest);
	return path;
}

static const char *allowed(char path[PATH_BYTES], const struct nvmet_export *e)
{
	snprintf(path, PATH_BYTES, "subsystems/%s/allowed_hosts/%s", e->names.subsystem,
		e->names.host);
	return path;
}

static int fail(struct err *err, int res, const struct nvmet_export *e, const char *what)
{
	return err_sys(err, res, "exporting %s by nvmet: %s", e->device, what);
}

/* ---- the host ---- */

static int no_auth(struct err *err)
{
	return err_set(err, ERR_PRECONDITION,
		"this node's kernel cannot authenticate clients of nvmet (CONFIG_NVME_TARGET_AUTH): use a later kernel, or --export-without-auth where everybody in the network is trusted");
}

/* From before it is there, root alone can read it: the kernel's mode is 0644. It is written each
 * time: it cannot be compared without reading it. */
static int give_key(int root, const struct nvmet_export *e)
{
	char path[PATH_BYTES];
	if (fchmodat(root, host(path, e, "/dhchap_key"), 0600, 0) < 0)
		return -errno;
	return fd_write_file(root, path, e->key);
}

static int make_host(int root, const struct nvmet_export *e, struct err *err)
{
	char path[PATH_BYTES], link[PATH_BYTES], target[PATH_BYTES];
	int r = make_dir(root, host(path, e, ""));
	if (r < 0)
		return fail(err, r, e, "making the host");
	if (e->key[0] != '\0') {
		r = give_key(root, e);
		if (r == -ENOENT)
			return no_auth(err);
		if (r < 0)
			return fail(err, r, e, "giving the host its key");
	}
	snprintf(target, sizeof(target), NVMET_ROOT "/hosts/%s", e->names.host);
	r = make_link(root, target, allowed(link, e));
	return r < 0 ? fail(err, r, e, "letting the host in") : 0;
}

/* Before the port is joined: tlshd looks for it when the host comes. */
static int give_psk(const struct nvmet_export *e, struct err *err)
{
	int32_t serial = keyring_give("nvmet_tcp", e->key, e->names.host, e->names.subsystem, err);
	return serial < 0 ? serial : 0;
}

/* ---- the namespace ---- */

static int enable(int root, const struct nvmet_export *e, const char *on)
{
	char path[PATH_BYTES];
	return fd_write_file(root, sub(path, e, "/namespaces/1/enable"), on);
}

/* An enabled one holds its device open, so the path still names that device. */
static int make_namespace(int root, const struct nvmet_export *e, struct err *err)
{
	char path[PATH_BYTES];
	int r = make_dir(root, sub(path, e, "/namespaces/1"));
	if (r < 0)
		return fail(err, r, e, "making the namespace");
	bool enabled = has_value(root, sub(path, e, "/namespaces/1/enable"), "1");
	if (enabled && has_value(root, sub(path, e, "/namespaces/1/device_path"), e->device) &&
		has_value(root, sub(path, e, "/namespaces/1/device_uuid"), e->uuid))
		return 0;
	r = enabled ? enable(root, e, "0") : 0;
	if (r == 0)
		r = fd_write_file(root, sub(path, e, "/namespaces/1/device_path"), e->device);
	if (r == 0)
		r = fd_write_file(root, sub(path, e, "/namespaces/1/device_uuid"), e->uuid);
	if (r == 0)
		r = enable(root, e, "1");
	return r < 0 ? fail(err, r, e, "enabling the namespace") : 0;
}

/* ---- the port ---- */

struct port {
	char ip[IP_BYTES], number[PORT_BYTES];
	bool v6, tls;
};

static int parse_port(const char *address, struct port *ret)
{
	struct sockaddr_storage parsed;
	socklen_t len;
	int r = address_parse(address, &parsed, &len);
	if (r < 0)
		return r;
	ret->v6 = parsed.ss_family == AF_INET6;
	return getnameinfo((const struct sockaddr *)&parsed, len, ret->ip, sizeof(ret->ip),
		       ret->number, sizeof(ret->number), NI_NUMERICHOST | NI_NUMERICSERV) == 0
		       ? 0
		       : -EINVAL;
}

static bool port_is_ours(int root, unsigned id, const struct port *p)
{
	char path[PATH_BYTES];
	snprintf(path, sizeof(path), "ports/%u/addr_trtype", id);
	if (!has_value(root, path, "tcp"))
		return false;
	snprintf(path, sizeof(path), "ports/%u/addr_traddr", id);
	if (!has_value(root, path, p->ip))
		return false;
	snprintf(path, sizeof(path), "ports/%u/addr_trsvcid", id);
	return has_value(root, path, p->number);
}

static int fill_port(int root, unsigned id, const struct port *p)
{
	const struct {
		const char *name, *value;
	} values[] = {{"addr_trtype", "tcp"}, {"addr_adrfam", p->v6 ? "ipv6" : "ipv4"},
		{"addr_traddr", p->ip}, {"addr_trsvcid", p->number},
		{"addr_tsas", p->tls ? "tls1.3" : NULL}, {"addr_treq", p->tls ? "required" : NULL}};
	int r = 0;
	for (unsigned i = 0; r == 0 && i < sizeof(values) / sizeof(values[0]); i++) {
		char path[PATH_BYTES];
		if (values[i].value == NULL)
			continue;
		snprintf(path, sizeof(path), "ports/%u/%s", id, values[i].name);
		r = fd_write_file(root, path, values[i].value);
	}
	return r;
}

/* A port asks all for TLS, or nobody: kernels before 6.7 have no addr_tsas for TCP. */
static bool port_fits(int root, unsigned id, const struct port *p)
{
	char path[PATH_BYTES];
	snprintf(path, sizeof(path), "ports/%u/addr_tsas", id);
	bool tls = has_value(root, path, "tls1.3");
	snprintf(path, sizeof(path), "ports/%u/addr_treq", id);
	return p->tls ? tls && has_value(root, path, "required") : !tls;
}

static bool is_empty(int root, const char *path)
{
	_cleanup_fd_ int fd = openat(root, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	_cleanup_dir_ DIR *dir = NULL;
	int r = fd < 0 ? -errno : fd_open_dir(fd, &dir);
	return r == 0 && fd_next_entry(dir, &r) == NULL && r == 0;
}

static void drop_if_empty(int root, unsigned id)
{
	char path[PATH_BYTES];
	snprintf(path, sizeof(path), "ports/%u/subsystems", id);
	if (!is_empty(root, path))
		return;
	snprintf(path, sizeof(path), "ports/%u", id);
	(void)remove_dir(root, path);
}

static void keeper_name(unsigned id, char ret[VALUE_BYTES])
{
	snprintf(ret, VALUE_BYTES, NVMET_KEEPER_PREFIX "%u", id);
}

/* Of a port of our address with TLS where it is to be without, or the other way round. Nobody is
 * connected to one that has nothing but its keeper. 0, or -EPROTOTYPE: it has more, and stays. */
static int close_kept(int root, unsigned id)
{
	char name[VALUE_BYTES], link[PATH_BYTES], dir[PATH_BYTES], target[PATH_BYTES];
	keeper_name(id, name);
	snprintf(dir, sizeof(dir), "ports/%u/subsystems", id);
	snprintf(link, sizeof(link), "ports/%u/subsystems/%.96s", id, name);
	int r = remove_link(root, link);
	if (r == 0 && is_empty(root, dir)) {
		drop_if_empty(root, id);
		return 0;
	}
	snprintf(target, sizeof(target), NVMET_ROOT "/subsystems/%.96s", name);
	(void)make_link(root, target, link);
	return r < 0 ? r : -EPROTOTYPE;
}

static int close_unfit(int root, const struct port *p)
{
	int r = 0;
	for (unsigned id = NVMET_PORT_FIRST; r == 0 && id < NVMET_PORT_FIRST + NVMET_PORTS; id++)
		if (port_is_ours(root, id, p) && !port_fits(root, id, p))
			r = close_kept(root, id);
	return r;
}

/* The port of our address, made if need be. Its number, or -errno. */
static int find_port(int root, const struct port *p)
{
	char path[PATH_BYTES];
	int unfit = close_unfit(root, p);
	if (unfit < 0)
		return unfit;
	for (unsigned id = NVMET_PORT_FIRST; id < NVMET_PORT_FIRST + NVMET_PORTS; id++)
		if (port_is_ours(root, id, p))
			return (int)id;
	for (unsigned id = NVMET_PORT_FIRST; id < NVMET_PORT_FIRST + NVMET_PORTS; id++) {
		snprintf(path, sizeof(path), "ports/%u", id);
		if (mkdirat(root, path, 0755) < 0 && errno == EEXIST)
			continue;
		int r = fill_port(root, id, p);
		if (r < 0)
			(void)remove_dir(root, path);
		return r < 0 ? r : (int)id;
	}
	return -ENOSPC;
}

static int listen_fails(struct err *err, int res, const struct nvmet_export *e)
{
	if (res == -EPROTOTYPE)
		return err_set(err, ERR_PRECONDITION,
			"volumes of this node are given to others at %s %s TLS since before --export-tls was changed: detach them all (ControllerUnpublishVolume), or reboot the node",
			e->address, e->tls ? "without" : "with");
	if (res == -EINVAL && e->tls)
		return err_set(err, ERR_PRECONDITION,
			"nvmet cannot listen on %s with TLS: this node's kernel has no nvmet-tcp (modprobe nvmet-tcp), none with TLS (Linux 6.7 and newer, where built with it), or does not take the address",
			e->address);
	if (res == -EADDRINUSE || res == -EADDRNOTAVAIL)
		return err_set(err, ERR_PRECONDITION,
			"nvmet cannot listen on %s: the address is %s; give another one with --export-address",
			e->address, res == -EADDRINUSE ? "in use" : "not this node's");
	if (res == -EINVAL)
		return err_set(err, ERR_PRECONDITION,
			"nvmet cannot listen on %s: this node's kernel has no nvmet-tcp (modprobe nvmet-tcp), or does not take the address",
			e->address);
	return fail(err, res, e, "opening the port");
}

static int link_port(int root, unsigned id, const char *subsystem)
{
	char link[PATH_BYTES], target[PATH_BYTES];
	snprintf(link, sizeof(link), "ports/%u/subsystems/%s", id, subsystem);
	snprintf(target, sizeof(target), NVMET_ROOT "/subsystems/%s", subsystem);
	return make_link(root, target, link);
}

/* A port without a subsystem does not listen, and a node that was fenced would wait as for an owner
 * that is away. So each has one that lets nobody in. */
static int keep_port(int root, unsigned id)
{
	char name[VALUE_BYTES], path[PATH_BYTES];
	keeper_name(id, name);
	snprintf(path, sizeof(path), "subsystems/%.96s", name);
	int r = make_dir(root, path);
	snprintf(path, sizeof(path), "subsystems/%.96s/attr_allow_any_host", name);
	if (r == 0)
		r = fd_write_file(root, path, "0");
	return r == 0 ? link_port(root, id, name) : r;
}

static int join_port(int root, const struct nvmet_export *e, const struct export_names *names,
	size_t count, struct err *err)
{
	struct port p = {.tls = e->tls};
	if (parse_port(e->address, &p) < 0)
		return err_set(
			err, ERR_PRECONDITION, "--export-address %s is not IP:PORT", e->address);
	pthread_mutex_lock(&ports_lock);
	int id = find_port(root, &p), r = id < 0 ? id : 0;
	for (size_t i = 0; r == 0 && i < count; i++)
		r = link_port(root, (unsigned)id, names[i].subsystem);
	if (r == 0)
		r = keep_port(root, (unsigned)id);
	if (r < 0 && id >= 0)
		drop_if_empty(root, (unsigned)id);
	pthread_mutex_unlock(&ports_lock);
	return r < 0 ? listen_fails(err, r, e) : 0;
}

/* Of every port of ours: the address may be another than it was. */
static int leave_ports(int root, const struct nvmet_export *e)
{
	int r = 0;
	pthread_mutex_lock(&ports_lock);
	for (unsigned id = NVMET_PORT_FIRST; r == 0 && id < NVMET_PORT_FIRST + NVMET_PORTS; id++) {
		char link[PATH_BYTES];
		snprintf(link, sizeof(link), "ports/%u/subsystems/%s", id, e->names.subsystem);
		if (unlinkat(root, link, 0) == 0)
			drop_if_empty(root, id);
		else if (errno != ENOENT)
			r = -errno;
	}
	pthread_mutex_unlock(&ports_lock);
	return r;
}

/* ---- all of it ---- */

int nvmet_check(bool auth, bool tls, struct err *err)
{
	_cleanup_fd_ int root = open_root();
	char path[PATH_BYTES];
	if (root < 0)
		return no_nvmet(root, err);
	int checked = tls ? keyring_check("nvmet_tcp", err) : 0;
	if (checked < 0 || !auth)
		return checked;
	/* A host that is let into nothing tells whether hosts have keys. */
	snprintf(path, sizeof(path), "hosts/" ATTACH_HOST_NQN_PREFIX "probe.%ld", (long)gettid());
	int r = make_dir(root, path);
	if (r < 0)
		return err_sys(err, r, "making a host in " NVMET_ROOT);
	char file[PATH_BYTES + 16];
	snprintf(file, sizeof(file), "%s/dhchap_key", path);
	bool has = faccessat(root, file, F_OK, 0) == 0;
	(void)remove_dir(root, path);
	return has ? 0 : no_auth(err);
}

/* Before anything is touched: what others are connected to stays as it is. */
static int check_port(int root, const struct nvmet_export *e, struct err *err)
{
	struct port p = {.tls = e->tls};
	if (parse_port(e->address, &p) < 0)
		return 0; /* join_port() says so */
	pthread_mutex_lock(&ports_lock);
	int r = close_unfit(root, &p);
	pthread_mutex_unlock(&ports_lock);
	return r < 0 ? listen_fails(err, r, e) : 0;
}

/* Its host may be connected, or will be once the address is open. */
static bool is_live(int root, const struct nvmet_export *e)
{
	char path[PATH_BYTES];
	return has_value(root, sub(path, e, "/namespaces/1/enable"), "1") &&
	       faccessat(root, allowed(path, e), F_OK, 0) == 0;
}

static int make_export(int root, const struct nvmet_export *e, struct err *err)
{
	char path[PATH_BYTES];
	int r = e->address != NULL ? check_port(root, e, err) : 0;
	if (r < 0)
		return r;
	r = make_dir(root, sub(path, e, ""));
	if (r == 0)
		r = fd_write_file(root, sub(path, e, "/attr_allow_any_host"), "0");
	if (r < 0)
		return fail(err, r, e, "making the subsystem");
	r = make_host(root, e, err);
	if (r == 0 && e->tls)
		r = give_psk(e, err);
	if (r == 0)
		r = make_namespace(root, e, err);
	return r == 0 && e->address != NULL ? join_port(root, e, &e->names, 1, err) : r;
}

int nvmet_export_make(const struct nvmet_export *e, struct err *err)
{
	_cleanup_fd_ int root = open_root();
	struct err ignored = {0};
	if (root < 0)
		return no_nvmet(root, err);
	bool live = is_live(root, e);
	int r = make_export(root, e, err);
	if (r < 0 && !live)
		(void)nvmet_export_end(e, &ignored);
	return r;
}

bool nvmet_is_open(const char *address)
{
	struct port p = {0};
	_cleanup_fd_ int root = open_root();
	bool found = false;
	if (root < 0 || parse_port(address, &p) < 0)
		return false;
	for (unsigned i = 0; !found && i < NVMET_PORTS; i++)
		found = port_is_ours(root, NVMET_PORT_FIRST + i, &p);
	return found;
}

int nvmet_open(const char *address, bool tls, const struct export_names *names, size_t count,
	struct err *err)
{
	const struct nvmet_export all = {
		.address = address, .device = "what was before", .tls = tls};
	_cleanup_fd_ int root = open_root();
	return root < 0 ? no_nvmet(root, err) : join_port(root, &all, names, count, err);
}

int nvmet_export_end(const struct nvmet_export *e, struct err *err)
{
	_cleanup_fd_ int root = open_root();
	char path[PATH_BYTES];
	if (root == -ENOENT) /* without nvmet there is none */
		return 0;
	if (root < 0)
		return no_nvmet(root, err);
	int r = remove_link(root, allowed(path, e));
	if (r == 0)
		r = leave_ports(root, e);
	if (r == 0) {
		r = enable(root, e, "0");
		if (r == -ENOENT)
			r = 0;
	}
	/* Also of an earlier run's that had TLS. One that stays opens nothing without its export.
	 */
	(void)keyring_drop(e->names.subsystem);
	if (r == 0)
		r = remove_dir(root, sub(path, e, "/namespaces/1"));
	if (r == 0)
		r = remove_dir(root, sub(path, e, ""));
	if (r == 0)
		r = remove_dir(root, host(path, e, ""));
	return r < 0 ? err_sys(err, r, "ending the export %s by nvmet", e->names.subsystem) : 0;
}

int nvmet_export_resize(const struct nvmet_export *e, struct err *err)
{
	_cleanup_fd_ int root = open_root();
	char path[PATH_BYTES];
	if (root < 0)
		return no_nvmet(root, err);
	int r = fd_write_file(root, sub(path, e, "/namespaces/1/revalidate_size"), "1");
	return r < 0 ? fail(err, r, e, "telling of its new size") : 0;
}

struct walk {
	int (*each)(void *arg, const char *subsystem);
	void *arg;
};

static int walk_name(void *arg, const char *name)
{
	const struct walk *walk = arg;
	char pool[9], uuid[UUID_BYTES];
	return export_names_split(name, pool, uuid) ? walk->each(walk->arg, name) : 0;
}

int nvmet_each(int (*each)(void *arg, const char *subsystem), void *arg)
{
	struct walk walk = {each, arg};
	_cleanup_fd_ int root = open_root();
	if (root < 0)
		return root == -ENOENT ? 0 : root;
	_cleanup_fd_ int dir = openat(root, "subsystems", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return dir < 0 ? -errno : fd_each_name(dir, walk_name, &walk);
}

const struct export_target export_nvmet = {
	.check = nvmet_check,
	.make = nvmet_export_make,
	.is_open = nvmet_is_open,
	.open = nvmet_open,
	.end = nvmet_export_end,
	.resize = nvmet_export_resize,
	.each = nvmet_each,
};
