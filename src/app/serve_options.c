/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The options of `ringvol serve`: the table at the end, and a setter for each row that no kind of
 * value (base/options.h) fits. A setter checks a value fully, so that what is wrong is said before
 * anything is opened, and copies what it keeps.
 */
#include "app/serve_options.h"

#include "app/borrow_option.h"
#include "app/export_option.h"
#include "app/inline_option.h"
#include "app/serve_docker.h"
#include "app/serve_endpoint.h"
#include "app/serve_provider.h"
#include "app/tls_options.h"
#include "app/values.h"
#include "backends/ublk/ublkd_proto.h"
#include "base/address.h"
#include "csi/topology.h"
#include "node/cgroup.h"
#include "rpc/dial.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_alnum(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

static int keep(struct serve_options *o, const char *value, const char **ret, struct err *err)
{
	const char *copy = arena_strdup(o->arena, value);
	if (copy == NULL)
		return err_set(err, ERR_NO_ROOM, "out of memory");
	*ret = copy;
	return 0;
}

/* ---- endpoint ---- */

static int set_endpoint(void *target, const char *value, struct err *err)
{
	struct serve_options *o = target;
	int r = value_endpoint(value, err);
	if (r < 0)
		return r;
	for (unsigned i = 0; i < o->endpoint_count; i++)
		if (strcmp(o->endpoints[i], value) == 0)
			return err_set(err, ERR_INVALID, "given twice");
	if (o->endpoint_count == SERVE_ENDPOINTS_MAX)
		return err_set(err, ERR_INVALID, "more than %d endpoints", SERVE_ENDPOINTS_MAX);
	r = keep(o, value, &o->endpoints[o->endpoint_count], err);
	if (r < 0)
		return r;
	o->endpoint_count++;
	return 0;
}

/* ---- names ---- */

static int set_driver_name(void *target, const char *value, struct err *err)
{
	struct serve_options *o = target;
	int r = value_driver_name(value, err);
	return r < 0 ? r : keep(o, value, &o->csi.driver_name, err);
}

static int set_node_id(void *target, const char *value, struct err *err)
{
	size_t len = strlen(value);
	if (len == 0 || len > SERVE_NODE_ID_MAX)
		return err_set(
			err, ERR_INVALID, "a node's id has 1 to %d bytes", SERVE_NODE_ID_MAX);
	for (size_t i = 0; i < len; i++)
		if (value[i] <= ' ' || value[i] >= 0x7f)
			return err_set(err, ERR_INVALID,
				"a node's id has printable ASCII characters and no blanks");
	struct serve_options *o = target;
	return keep(o, value, &o->csi.node_id, err);
}

/* ---- pool ---- */

static int check_pool_name(const char *name, struct err *err)
{
	size_t len = strlen(name);
	bool ok = len > 0 && len <= SERVE_POOL_NAME_MAX && is_alnum(name[0]);
	for (size_t i = 1; ok && i < len; i++)
		ok = is_alnum(name[i]) || strchr("-_.", name[i]) != NULL;
	if (ok)
		return 0;
	return err_set(err, ERR_INVALID,
		"a pool's name has 1 to %d letters, digits, '-', '_' or '.', a letter or digit "
		"first",
		SERVE_POOL_NAME_MAX);
}

/* A plain decimal number; strtod() would also take "inf", "nan" and hexadecimal. */
static int parse_overcommit(const char *s, double *ret, struct err *err)
{
	char *end;
	double f = s[strspn(s, "0123456789.")] == '\0' && *s != '\0' ? strtod(s, &end) : 0;
	if (!(f >= 0.1 && f <= 1000) || *end != '\0')
		return err_set(err, ERR_INVALID, "overcommit is a number from 0.1 to 1000");
	*ret = f;
	return 0;
}

static int set_pool_setting(struct pool_config *pool, char *setting, struct err *err)
{
	char *value = strchr(setting, '=');
	if (value != NULL)
		*value++ = '\0';
	if (strcmp(setting, "init") == 0 && value == NULL) {
		pool->init = true;
		return 0;
	}
	if (strcmp(setting, "overcommit") == 0 && value != NULL)
		return parse_overcommit(value, &pool->overcommit, err);
	if (strcmp(setting, "reserve") == 0 && value != NULL) {
		uint64_t pct;
		if (!options_number(value, 0, 90, &pct))
			return err_set(err, ERR_INVALID, "reserve is a percentage from 0 to 90");
		pool->reserve_pct = (unsigned)pct;
		return 0;
	}
	static const char *const names[] = {"overcommit", "reserve", "init", NULL};
	const char *near = options_nearest(setting, names);
	return err_set(err, ERR_INVALID, "'%.40s' is none of overcommit=F, reserve=PCT, init%s%s%s",
		setting, near != NULL ? "; did you mean '" : "", near != NULL ? near : "",
		near != NULL ? "'?" : "");
}

static int set_pool(void *target, const char *value, struct err *err)
{
	struct serve_options *o = target;
	bool none = strcmp(value, "none") == 0;
	if (o->no_pools || (none && o->pool_count > 0))
		return err_set(err, ERR_INVALID, "none leaves no room for other pools");
	o->no_pools = none;
	if (none)
		return 0;
	char *name = arena_strdup(o->arena, value);
	if (name == NULL)
		return err_set(err, ERR_NO_ROOM, "out of memory");
	char *settings = strchr(name, ',');
	if (settings != NULL)
		*settings++ = '\0';
	char *path = strchr(name, '=');
	if (path == NULL)
		return err_set(err, ERR_INVALID,
			"not NAME=PATH[,overcommit=F][,reserve=PCT][,init] or none");
	*path++ = '\0';

	struct pool_config pool = {.name = name, .path = path, .overcommit = 1.0, .reserve_pct = 5};
	int r = check_pool_name(name, err);
	if (r < 0)
		return r;
	if (path[0] != '/' || strlen(path) >= PATH_MAX)
		return err_set(err, ERR_INVALID, "a pool's path must be absolute");
	while (settings != NULL) {
		char *setting = strsep(&settings, ",");
		r = set_pool_setting(&pool, setting, err);
		if (r < 0)
			return r;
	}
	for (unsigned i = 0; i < o->pool_count; i++) {
		if (strcmp(o->pools[i].name, name) == 0)
			return err_set(
				err, ERR_INVALID, "there are two pools of the name %s", name);
		if (strcmp(o->pools[i].path, path) == 0)
			return err_set(
				err, ERR_INVALID, "it has the path of pool %s", o->pools[i].name);
	}
	if (o->pool_count == POOLS_MAX)
		return err_set(err, ERR_INVALID, "more than %d pools", POOLS_MAX);
	o->pools[o->pool_count++] = pool;
	return 0;
}

static int set_inline(void *target, const char *value, struct err *err)
{
	struct serve_options *o = target;
	return inline_option_parse(&o->csi.inlines, o->arena, value, err);
}

/* ---- topology ---- */

static int set_topology(void *target, const char *value, struct err *err)
{
	struct serve_options *o = target;
	char *key = arena_strdup(o->arena, value);
	if (key == NULL)
		return err_set(err, ERR_NO_ROOM, "out of memory");
	char *its = strchr(key, '=');
	if (its == NULL)
		return err_set(err, ERR_INVALID, "not KEY=VALUE");
	*its++ = '\0';
	return csi_topology_add(&o->csi, key, its, err);
}

/* ---- the cluster ---- */

static int check_host_port(const char *value, struct err *err)
{
	struct dial_target target;
	struct err why = {0};
	if (strncmp(value, "unix:", 5) == 0 || dial_parse(value, &target, &why) < 0)
		return err_set(err, ERR_INVALID, "not HOST:PORT");
	return 0;
}

static int set_controller(void *target, const char *value, struct err *err)
{
	struct serve_options *o = target;
	int r = check_host_port(value, err);
	if (r < 0)
		return r;
	for (unsigned i = 0; i < o->controller_count; i++)
		if (strcmp(o->controllers[i], value) == 0)
			return err_set(err, ERR_INVALID, "given twice");
	if (o->controller_count == MEMBER_CONTROLLERS_MAX)
		return err_set(
			err, ERR_INVALID, "more than %d controllers", MEMBER_CONTROLLERS_MAX);
	r = keep(o, value, &o->controllers[o->controller_count], err);
	o->controller_count += r == 0;
	return r;
}

static int set_listen(void *target, const char *value, struct err *err)
{
	struct serve_options *o = target;
	int r = value_address(value, "192.0.2.1:9810, 0.0.0.0:9810 or [::]:9810", err);
	return r < 0 ? r : keep(o, value, &o->listen, err);
}

static int set_export_address(void *target, const char *value, struct err *err)
{
	struct serve_options *o = target;
	int r = value_export_address(value, err);
	return r < 0 ? r : keep(o, value, &o->export_address, err);
}

static int set_advertise(void *target, const char *value, struct err *err)
{
	struct serve_options *o = target;
	int r = check_host_port(value, err);
	return r < 0 ? r : keep(o, value, &o->advertise, err);
}

static bool is_wildcard(const char *address)
{
	struct sockaddr_storage parsed;
	socklen_t len;
	if (address_parse(address, &parsed, &len) < 0)
		return false;
	if (parsed.ss_family == AF_INET)
		return ((const struct sockaddr_in *)&parsed)->sin_addr.s_addr == INADDR_ANY;
	return IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)&parsed)->sin6_addr);
}

/* Whoever joins is called back. */
static int complete_cluster(struct serve_options *o, struct err *err)
{
	o->csi.clustered = o->controller_count != 0;
	if (o->controller_count == 0) {
		const char *flag = o->listen != NULL ? "--listen" : "--advertise";
		if (o->listen == NULL && o->advertise == NULL)
			return 0;
		return err_set(err, ERR_INVALID,
			"%s is for controllers of a cluster; say which with --controller", flag);
	}
	if (o->listen == NULL)
		return err_set(err, ERR_INVALID,
			"--controller needs --listen ADDR:PORT: controllers call this node there");
	if (o->advertise == NULL && is_wildcard(o->listen))
		return err_set(err, ERR_INVALID,
			"--listen %s is every address of this host: give the one that controllers and "
			"nodes reach it at with --advertise HOST:PORT",
			o->listen);
	if (o->advertise == NULL)
		o->advertise = o->listen;
	return tls_options_check(&o->tls, "--controller", err);
}

/* ---- others ---- */

static int set_services(void *target, const char *value, struct err *err)
{
	static const unsigned bits[] = {
		CSI_IDENTITY, CSI_CONTROLLER, CSI_NODE, CSI_GROUP, CSI_SNAPSHOT_METADATA};
	unsigned services = CSI_IDENTITY;
	for (size_t len;; value += len + 1) {
		char name[32];
		len = strcspn(value, ",");
		snprintf(name, sizeof(name), "%.*s", (int)len, value);
		int i = options_choice(
			name, "identity|controller|node|group|snapshotmetadata", err);
		if (i < 0)
			return i;
		services |= bits[i];
		if (value[len] == '\0')
			break;
	}
	((struct serve_options *)target)->csi.services = services;
	return 0;
}

/* ':' is between roots in the environment, ours and the helper processes'. */
static int set_target_root(void *target, const char *value, struct err *err)
{
	struct serve_options *o = target;
	if (value[0] != '/' || strlen(value) >= PATH_MAX)
		return err_set(err, ERR_INVALID, "the directory's path must be absolute");
	if (strchr(value, ':') != NULL)
		return err_set(err, ERR_INVALID, "a ':' cannot be in it");
	if (value[strspn(value, "/")] == '\0')
		return err_set(err, ERR_INVALID, "'/' holds everything; name a directory below it");
	if (o->target_root_count == SERVE_TARGET_ROOTS_MAX)
		return err_set(err, ERR_INVALID, "more than %d roots", SERVE_TARGET_ROOTS_MAX);
	int r = keep(o, value, &o->target_roots[o->target_root_count], err);
	o->target_root_count += r == 0;
	return r;
}

static int set_trim_interval(void *target, const char *value, struct err *err)
{
	struct serve_options *o = target;
	if (strcmp(value, "off") == 0) {
		o->trim_interval_s = 0;
		return 0;
	}
	return value_duration(value, SERVE_TRIM_INTERVAL_MAX_S, &o->trim_interval_s, err);
}

static int set_owner_timeout(void *target, const char *value, struct err *err)
{
	return borrow_option_loss(&((struct serve_options *)target)->borrow, value, err);
}

static int set_owner_fail(void *target, const char *value, struct err *err)
{
	return borrow_option_fail(&((struct serve_options *)target)->borrow, value, err);
}

static int set_http(void *target, const char *value, struct err *err)
{
	struct serve_options *o = target;
	if (strcmp(value, "off") == 0) {
		o->http = NULL;
		return 0;
	}
	int r = value_address(value, "as 127.0.0.1:9808, 0.0.0.0:9808 or [::]:9808; or off", err);
	return r < 0 ? r : keep(o, value, &o->http, err);
}

static int set_cgroup_root(void *target, const char *value, struct err *err)
{
	struct serve_options *o = target;
	if (strcmp(value, "off") == 0) {
		o->cgroup_root = NULL;
		return 0;
	}
	if (value[0] != '/')
		return err_set(err, ERR_INVALID, "it has to be an absolute path, or off");
	return keep(o, value, &o->cgroup_root, err);
}

static const struct option_row rows[] = {
	{"--endpoint", "unix:///PATH|tcp://127.0.0.1:PORT", {"CSI_ENDPOINT"},
		.fallback = "unix:///run/ringvol/csi.sock",
		.help = "where CSI is served; repeatable\n"
			"tcp needs --insecure-tcp",
		.set = set_endpoint},
	{"--insecure-tcp", .environment = {"RINGVOL_INSECURE_TCP"}, .fallback_help = "false",
		.help = "allow tcp endpoints: they have neither encryption nor authentication,\n"
			"so every local user and every pod in the host's network can call\n"
			"the driver and delete volumes",
		.kind = OPTION_FLAG, OPTION_IN(struct serve_options, insecure_tcp)},
	{"--driver-name", "NAME", {"RINGVOL_DRIVER_NAME"}, .fallback = "csi.ringvol.dev",
		.help = "the name storage classes call it by", .set = set_driver_name},
	{"--node-id", "ID", {"NODE_ID", "KUBE_NODE_NAME"}, .fallback_help = "the host name",
		.help = "this node's name", .set = set_node_id},
	{"--topology", "KEY=VALUE", {"RINGVOL_TOPOLOGY"}, .separator = ';', .fallback_help = "none",
		.help = "where this node is, beside its own name: a zone, a rack; repeatable\n"
			"(topology.kubernetes.io/zone=a)",
		.set = set_topology},
	{"--pool", "NAME=PATH[,overcommit=F][,reserve=PCT][,init]|none", {"RINGVOL_POOLS"},
		.separator = ';', .fallback = "default=/var/lib/ringvol",
		.help = "a directory to keep volumes in; repeatable\n"
			"overcommit: how often its space may be promised (1.0)\n"
			"reserve: percent of its file system never promised (5)\n"
			"init: make it a pool if the directory is empty\n"
			"none: a driver that only says what it can do, as a central sidecar asks",
		.set = set_pool},
	{"--services", "LIST", {"RINGVOL_SERVICES"},
		.fallback = "identity,controller,node,group,snapshotmetadata",
		.help = "the services to serve, commas between; identity always is",
		.set = set_services},
	{"--http", "ADDR:PORT|off", {"RINGVOL_HTTP"}, .fallback = "127.0.0.1:9808",
		.help = "where /healthz, /readyz and /metrics are served; an address in use is "
			"waited for",
		.set = set_http},
	{"--controller", "HOST:PORT", {"RINGVOL_CONTROLLERS"}, .separator = ';',
		.fallback_help = "none",
		.help = "a controller of the cluster to join; repeatable: each replica\n"
			"needs --listen and --tls-cert, --tls-key, --tls-ca",
		.set = set_controller},
	{"--listen", "ADDR:PORT", {"RINGVOL_LISTEN"}, .fallback_help = "off",
		.help = "where controllers and other nodes call this one, with TLS; an address in "
			"use is\n"
			"waited for",
		.set = set_listen},
	{"--advertise", "HOST:PORT", {"RINGVOL_ADVERTISE"},
		.fallback_help = "the address of --listen",
		.help = "how they reach --listen; needed if that is 0.0.0.0 or [::]",
		.set = set_advertise},
	TLS_OPTION_ROWS(struct serve_options, tls),
	{"--target-root", "DIR", {"RINGVOL_TARGET_ROOTS"}, .separator = ':',
		.fallback_help = "no limit",
		.help = "where volumes are staged and published, below it; repeatable (kubelet's "
			"directories\n"
			"pods and plugins); never in pools, /dev, /proc, /sys or /run/ringvol",
		.set = set_target_root},
	{"--kubelet-registration", "DIR", {"RINGVOL_KUBELET_REGISTRATION"}, .fallback_help = "off",
		.help = "register with kubelet, whose registry directory this is\n"
			"(/var/lib/kubelet/plugins_registry)",
		.kind = OPTION_PATH, OPTION_IN(struct serve_options, kubelet_registration)},
	{"--kubelet-endpoint", "PATH", {"RINGVOL_KUBELET_ENDPOINT"},
		.fallback_help = "the first unix socket of --endpoint",
		.help = "our socket as kubelet sees it, from outside the container",
		.kind = OPTION_SOCKET, OPTION_IN(struct serve_options, kubelet_endpoint)},
	{"--controller-expand", "on|node", {"RINGVOL_CONTROLLER_EXPAND"}, .fallback = "on",
		.help = "who grows a volume: the controller service, or NodeExpandVolume alone",
		.kind = OPTION_CHOICE, OPTION_IN(struct serve_options, csi.controller_expand),
		.numbers = {true, false}},
	{"--inline",
		"off|pools=A:B,namespaces=N:M|*[,sources=I:J|*][,max-size=N][,iops=N][,bandwidth=N]",
		{"RINGVOL_INLINE"}, .fallback = "off",
		.help = "inline volumes, which pods ask for in their own spec\n"
			"pools: they may be in; the first one if a pod names none\n"
			"namespaces: of pods that may have them; * for all\n"
			"sources: golden images that they may begin as; * for all (none)\n"
			"max-size: bytes of one volume (1Gi)\n"
			"iops, bandwidth: operations and bytes a second of one volume, each way (no limit)",
		.set = set_inline},
	{"--attach", NULL, {"RINGVOL_ATTACH"}, .fallback_help = "off",
		.help = "serve ControllerPublishVolume and ControllerUnpublishVolume: which node a "
			"volume\nis attached to is kept, and it is used on no other",
		.kind = OPTION_FLAG, OPTION_IN(struct serve_options, csi.attach)},
	{"--export-address", "IP:PORT", {"RINGVOL_EXPORT_ADDRESS"}, .fallback_help = "off",
		.help = "where nvmet gives volumes with attach: remote to other nodes, with --attach",
		.set = set_export_address},
	{"--export-without-auth", NULL, {"RINGVOL_EXPORT_WITHOUT_AUTH"}, .fallback_help = "off",
		.help = "without keys: who knows a volume's names could write to it",
		.kind = OPTION_FLAG, OPTION_IN(struct serve_options, export_without_auth)},
	{"--export-tls", NULL, {"RINGVOL_EXPORT_TLS"}, .fallback_help = "off",
		.help = "other nodes reach volumes within TLS 1.3 alone; both nodes need tlshd",
		.kind = OPTION_FLAG, OPTION_IN(struct serve_options, export_tls)},
	{"--staging", "on|off", {"RINGVOL_STAGING"}, .fallback = "on",
		.help = "off: for orchestrators that publish without staging; NodePublishVolume "
			"attaches\n"
			"and mounts, and the last NodeUnpublishVolume of a volume lets its device "
			"go",
		.kind = OPTION_CHOICE, OPTION_IN(struct serve_options, csi.staging),
		.numbers = {true, false}},
	{"--csi-version", "both|1.12|1.13", {"RINGVOL_CSI_VERSION"}, .fallback = "both",
		.help = "whose health capabilities are advertised; the calls of both are served\n"
			"1.12: VOLUME_CONDITION; 1.13: GET_VOLUME_HEALTH and its like, and "
			"snapshots' topology",
		.kind = OPTION_CHOICE, OPTION_IN(struct serve_options, csi.health),
		.numbers = {CSI_HEALTH_1_12 | CSI_HEALTH_1_13, CSI_HEALTH_1_12, CSI_HEALTH_1_13}},
	{"--max-volumes-per-node", "N", {"RINGVOL_MAX_VOLUMES"}, .fallback = "0",
		.help = "at most so many volumes on this node, whatever devices it could have;\n"
			"0: as many as it can have devices (NodeGetInfo tells the scheduler)",
		.kind = OPTION_NUMBER, OPTION_IN(struct serve_options, csi.max_volumes),
		.max = INT32_MAX},
	{"--trim-interval", "DURATION|off", {"RINGVOL_TRIM_INTERVAL"}, .fallback = "off",
		.help = "how often the file systems of thin volumes in use are asked to give back\n"
			"what they do not use, as fstrim does: 12h, 7d; one volume at a time",
		.set = set_trim_interval},
	{"--owner-timeout", "DURATION", {"RINGVOL_OWNER_TIMEOUT"}, .fallback = "10m",
		.help = "how long the I/O of a volume of another node waits for that node; then the\n"
			"volume's device is gone",
		.set = set_owner_timeout},
	{"--owner-fail-after", "DURATION|off", {"RINGVOL_OWNER_FAIL_AFTER"}, .fallback = "off",
		.help = "when such I/O fails, before that; it goes on if the node is back in time",
		.set = set_owner_fail},
	{"--transfer-rate", "BYTES", {"RINGVOL_TRANSFER_RATE"}, .fallback = "0",
		.help = "how many bytes a second copies to and from other nodes may take, all\n"
			"together; 0: no limit",
		.kind = OPTION_NUMBER, OPTION_IN(struct serve_options, transfer.rate_bytes),
		.max = INT64_MAX},
	{"--ublkd", "start|external|off", {"RINGVOL_UBLKD"}, .fallback = "start",
		.help = "the data process of ublk volumes\n"
			"start: started when one is needed and none answers\n"
			"external: a service or pod of its own runs 'ringvol ublkd'\n"
			"off: no ublk volumes on this node",
		.kind = OPTION_CHOICE, OPTION_IN(struct serve_options, ublk)},
	{"--ublkd-socket", "PATH", {"RINGVOL_UBLKD_SOCKET"}, .fallback = UBLKD_SOCKET,
		.help = "where the data process listens", .kind = OPTION_SOCKET,
		OPTION_IN(struct serve_options, ublkd.socket_path)},
	{"--ublkd-state-dir", "PATH", {"RINGVOL_UBLKD_STATE_DIR"}, .fallback = UBLKD_STATE_DIR,
		.help = "where it keeps what it knows of its devices; not across a reboot",
		.kind = OPTION_PATH, OPTION_IN(struct serve_options, ublkd.state_dir)},
	{"--cgroup-root", "DIR|off", {"RINGVOL_CGROUP_ROOT"}, .fallback = CGROUP_ROOT,
		.help = "where the node's cgroup v2 hierarchy is mounted: I/O limits of loop and "
			"disk\n"
			"volumes are put in force in the pods' cgroups",
		.set = set_cgroup_root},
	{"--block-on-loop", NULL, {"RINGVOL_BLOCK_ON_LOOP"}, .fallback_help = "off",
		.help = "give pods with raw block volumes the loop node itself, where else a "
			"device-mapper\n"
			"device stands between. Whoever holds a loop node can make it serve "
			"another image:\n"
			"for nodes without device mapper whose pods are trusted",
		.kind = OPTION_FLAG, OPTION_IN(struct serve_options, loop.block_on_loop)},
	{"--docker-plugin", "PATH", {"RINGVOL_DOCKER_PLUGIN"}, .fallback_help = "off",
		.help = "the socket of a volume plugin for docker and podman, as in\n"
			"/run/docker/plugins/ringvol.sock",
		.kind = OPTION_SOCKET, OPTION_IN(struct serve_options, docker_plugin)},
	{"--docker-mounts", "DIR", {"RINGVOL_DOCKER_MOUNTS"}, .fallback = "/run/ringvol-docker",
		.help = "where it mounts volumes", .kind = OPTION_PATH,
		OPTION_IN(struct serve_options, docker_mounts)},
	{"--storage-provider", "PATH", {"RINGVOL_STORAGE_PROVIDER"}, .fallback_help = "off",
		.help = "the socket of a provider of storage for systemd, as in\n"
			"/run/systemd/io.systemd.StorageProvider/ringvol",
		.kind = OPTION_SOCKET, OPTION_IN(struct serve_options, storage_provider)},
	{"--storage-provider-mounts", "DIR", {"RINGVOL_STORAGE_PROVIDER_MOUNTS"},
		.fallback = "/run/ringvol-storage", .help = "where it mounts volumes",
		.kind = OPTION_PATH, OPTION_IN(struct serve_options, storage_mounts)},
	{"--storage-provider-idle", "SECONDS", {"RINGVOL_STORAGE_PROVIDER_IDLE"}, .fallback = "60",
		.help = "for how long it keeps a volume attached that nobody uses",
		.kind = OPTION_NUMBER, OPTION_IN(struct serve_options, storage_idle_s), .min = 1,
		.max = 86400},
	{"--log-level", "error|warn|info|debug", {"RINGVOL_LOG_LEVEL"}, .fallback = "info",
		.help = "what is logged, on standard error", .kind = OPTION_CHOICE,
		OPTION_IN(struct serve_options, log_level)},
	{"--log-format", "logfmt|json", {"RINGVOL_LOG_FORMAT"}, .fallback = "logfmt",
		.help = "how a line looks", .kind = OPTION_CHOICE,
		OPTION_IN(struct serve_options, log_format)},
	{NULL},
};

const struct command serve_command = {
	.name = "serve",
	.summary = "Serves CSI for the pools of this node until SIGTERM, which lets running "
		   "operations end\n"
		   "(10 seconds at most; a second SIGTERM ends at once). A pool that is missing or "
		   "sick\n"
		   "does not stop it. A flag overrides its environment variable.",
	.options = rows,
};

int serve_options_parse(struct serve_options *ret, struct options_result *ret_result, int argc,
	char *const *argv, struct err *err)
{
	ret->arena = arena_new(0);
	if (ret->arena == NULL)
		return err_set(err, ERR_NO_ROOM, "out of memory");
	int r = options_parse(&serve_command, argc, argv, ret, ret_result, err);
	if (r == 0 && !ret_result->help)
		r = serve_endpoint_complete(ret, err);
	if (r == 0 && !ret_result->help)
		r = complete_cluster(ret, err);
	if (r == 0 && !ret_result->help)
		r = serve_docker_complete(ret, err);
	if (r == 0 && !ret_result->help)
		r = serve_provider_complete(ret, err);
	if (r == 0 && !ret_result->help)
		r = export_option_check(ret, err);
	if (r == 0)
		ret->ublkd.start = ret->ublk == SERVE_UBLKD_START;
	if (r < 0 || ret_result->help || ret->csi.node_id != NULL)
		return r;
	char host[HOST_NAME_MAX + 1];
	if (gethostname(host, sizeof(host)) < 0)
		return err_sys(err, -errno, "--node-id: cannot ask for the host name");
	host[HOST_NAME_MAX] = '\0';
	struct err why = {0};
	r = set_node_id(ret, host, &why);
	if (r < 0)
		err_set(err, ERR_INVALID, "--node-id is needed, the host name '%s' will not do: %s",
			host, why.message);
	return r;
}

void serve_options_free(struct serve_options *options)
{
	arena_unref(options->arena);
	options->arena = NULL;
}
