/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text that people write: `ringvol serve`'s command line (as lines, or as values of options that
 * the table has), and what classes and capabilities say to mkfs and mount. Whatever is allowed has
 * to be harmless to the programs it is handed to: that is checked here by other means than the
 * allow lists.
 */
#include "fuzz.h"

#include "app/serve_options.h"
#include "app/values.h"
#include "blockio/fsimg.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/un.h>

enum { ARGS_MAX = 32 };

/* A unix socket can have it. */
static void check_socket_path(const char *path)
{
	must(path[0] == '/' && path[strlen(path) - 1] != '/');
	must(strlen(path) < sizeof(((struct sockaddr_un *)NULL)->sun_path));
}

static void check_endpoint(const char *endpoint)
{
	if (strncmp(endpoint, "unix:", 5) == 0)
		check_socket_path(endpoint + (strncmp(endpoint, "unix://", 7) == 0 ? 7 : 5));
	else
		must(strncmp(endpoint, "tcp://127.0.0.1:", 16) == 0 ||
			strncmp(endpoint, "tcp://[::1]:", 12) == 0);
}

static void check_pool(const struct pool_config *pool)
{
	must(pool->name[0] != '\0' && strlen(pool->name) <= SERVE_POOL_NAME_MAX);
	must(pool->path[0] == '/' && strlen(pool->path) < PATH_MAX);
	must(pool->overcommit >= 0.1 && pool->overcommit <= 1000);
	must(pool->reserve_pct <= 90);
}

/* What stands in every row of the table is there, and can be used. */
static void check_serve(const struct serve_options *o)
{
	must(o->endpoint_count >= 1 && o->endpoint_count <= SERVE_ENDPOINTS_MAX);
	for (unsigned i = 0; i < o->endpoint_count; i++)
		check_endpoint(o->endpoints[i]);
	for (unsigned i = 0; i < o->endpoint_count; i++)
		must(o->insecure_tcp || strncmp(o->endpoints[i], "tcp://", 6) != 0);
	must(o->no_pools ? o->pool_count == 0 : o->pool_count >= 1 && o->pool_count <= POOLS_MAX);
	for (unsigned i = 0; i < o->pool_count; i++)
		check_pool(&o->pools[i]);
	must(o->http == NULL || strchr(o->http, ':') != NULL);
	must(o->csi.driver_name[0] != '\0');
	must(strlen(o->csi.driver_name) <= DRIVER_NAME_MAX);
	must(o->csi.node_id[0] != '\0' && strlen(o->csi.node_id) <= SERVE_NODE_ID_MAX);
	must((o->csi.services & CSI_IDENTITY) != 0);
	must((o->csi.services & ~(unsigned)(CSI_IDENTITY | CSI_CONTROLLER | CSI_NODE | CSI_GROUP |
					    CSI_SNAPSHOT_METADATA)) == 0);
	must(o->csi.health != 0 && o->csi.health <= (CSI_HEALTH_1_12 | CSI_HEALTH_1_13));
	must(o->csi.max_volumes >= 0 && o->csi.max_volumes <= INT32_MAX);
	must(o->log_level <= LOG_LEVEL_DEBUG && o->log_format <= LOG_FORMAT_JSON);
	must(o->ublk <= SERVE_UBLKD_OFF);
	must(o->ublkd.start == (o->ublk == SERVE_UBLKD_START));
	check_socket_path(o->ublkd.socket_path);
	must(o->ublkd.state_dir[0] == '/');
	if (o->kubelet_endpoint != NULL)
		check_socket_path(o->kubelet_endpoint);
	if (o->kubelet_registration == NULL)
		return;
	char socket[PATH_MAX];
	must(o->kubelet_endpoint != NULL);
	snprintf(socket, sizeof(socket), "%s/%s-reg.sock", o->kubelet_registration,
		o->csi.driver_name);
	check_socket_path(socket);
}

static void try_serve(int argc, char *const *argv)
{
	struct serve_options o = {0};
	struct options_result result = {0};
	struct err err = {0};
	int r = serve_options_parse(&o, &result, argc, argv, &err);
	must(r == 0 ? err.code == ERR_OK : r < 0 && err.code != ERR_OK && err.message[0] != '\0');
	must(strlen(err.message) < sizeof(err.message));
	if (r == 0 && !result.help)
		check_serve(&o);
	serve_options_free(&o);
}

/* Each line an argument. */
static void try_serve_lines(char *text)
{
	char *argv[ARGS_MAX + 1];
	int argc = 0;
	for (char *word; argc < ARGS_MAX && (word = strsep(&text, "\n")) != NULL;)
		argv[argc++] = word;
	argv[argc] = NULL;
	try_serve(argc, argv);
}

/* Each line a value, its first byte says of which option: every row of the table is reached. */
static void try_serve_values(char *text)
{
	char *argv[2 * ARGS_MAX + 1];
	unsigned rows = 0;
	int argc = 0;
	while (serve_command.options[rows].flag != NULL)
		rows++;
	for (char *line; argc < 2 * ARGS_MAX && (line = strsep(&text, "\n")) != NULL;) {
		if (line[0] == '\0')
			continue;
		argv[argc++] =
			(char *)(uintptr_t)serve_command.options[(uint8_t)line[0] % rows].flag;
		argv[argc++] = line + 1;
	}
	argv[argc] = NULL;
	try_serve(argc, argv);
}

/* What could name a file, another device, or a second command line. */
static void check_harmless(const char *text)
{
	must(strpbrk(text, "/\\\"'`$;&|<>*?(){}[]~#!\t\n\r") == NULL);
	must(strstr(text, "..") == NULL || strchr(text, '/') == NULL);
	for (const char *c = text; *c != '\0'; c++)
		must(*c >= ' ' && *c < 0x7f);
}

static void check_argv(enum fsimg_type type, const char *options)
{
	const uint8_t uuid[16] = {1};
	struct proc proc = {0};
	char mem[1024];
	const struct fsimg_spec spec = {
		.type = type, .size_bytes = 1 << 30, .block_size = 4096, .mkfs_options = options};
	int r = fsimg_mkfs_argv(&spec, "/image", uuid, &proc, mem, sizeof(mem));
	/* Blocks smaller than the device's are refused here, not by the allow list. */
	must(r == 0 || (r == -EINVAL && type == FSIMG_EXT4 && strstr(options, "-b") != NULL));
	if (r < 0)
		return;
	unsigned paths = 0;
	for (unsigned i = 1; proc.argv[i] != NULL; i++) {
		must(proc.argv[i][0] != '\0');
		paths += strchr(proc.argv[i], '/') != NULL;
	}
	must(paths == 1);
}

static void try_mkfs(enum fsimg_type type, const char *options)
{
	struct err err = {0};
	int r = fsimg_check_mkfs_options(type, options, &err);
	must(r == 0 ? err.code == ERR_OK : err.code == ERR_INVALID && err.message[0] != '\0');
	if (r != 0)
		return;
	check_harmless(options);
	if (type != FSIMG_NONE)
		check_argv(type, options);
	else
		must(strspn(options, " ") == strlen(options));
}

static void try_mount(enum fsimg_type type, const char *flag)
{
	static const char *const never[] = {"bind", "rbind", "move", "remount", "loop", "offset",
		"device", "logdev", "rtdev", "journal_dev", "journal_path", "subvol", "subvolid",
		"degraded", "usrjquota", "grpjquota", "private", "shared", "context", "helper",
		"X-mount.mkdir", "user", "users", "rescue", "sb", "init"};
	if (!fsimg_mount_flag_ok(type, flag))
		return;
	check_harmless(flag);
	must(flag[0] != '\0' && strchr(flag, ',') == NULL && strchr(flag, ' ') == NULL);
	size_t len = strcspn(flag, "=");
	for (unsigned i = 0; i < sizeof(never) / sizeof(never[0]); i++)
		must(strlen(never[i]) != len || memcmp(never[i], flag, len) != 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	if (len == 0)
		return 0;
	char *text = fuzz_text(data + 1, len - 1);
	enum fsimg_type type = data[0] / 4 % FSIMG_TYPES;
	if (data[0] % 4 == 0)
		try_serve_lines(text);
	else if (data[0] % 4 == 1)
		try_serve_values(text);
	else if (data[0] % 4 == 2)
		try_mkfs(type, text);
	else
		try_mount(type, text);
	free(text);
	return 0;
}
