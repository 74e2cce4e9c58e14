/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Text that people write: `ringvol serve`'s command line (arguments end with a newline), and what
 * classes and capabilities say to mkfs and mount. Whatever is allowed has to be harmless to the
 * programs it is handed to: that is checked here by other means than the allow lists.
 */
#include "fuzz.h"

#include "blockio/fsimg.h"
#include "serve_options.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

static void try_serve(char *text)
{
	enum { ARGS_MAX = 32 };
	char *argv[ARGS_MAX + 1];
	int argc = 0;
	for (char *word; argc < ARGS_MAX && (word = strsep(&text, "\n")) != NULL;)
		argv[argc++] = word;
	argv[argc] = NULL;
	struct serve_options o = {0};
	struct options_result result = {0};
	struct err err = {0};
	int r = serve_options_parse(&o, &result, argc, argv, &err);
	must(r == 0 ? err.code == ERR_OK : r < 0 && err.code != ERR_OK && err.message[0] != '\0');
	must(strlen(err.message) < sizeof(err.message));
	if (r == 0 && !result.help) {
		must(o.no_pools ? o.pool_count == 0
				: o.pool_count >= 1 && o.pool_count <= POOLS_MAX);
		must(o.endpoint_count >= 1 && o.endpoint_count <= SERVE_ENDPOINTS_MAX);
		for (unsigned i = 0; i < o.pool_count; i++) {
			const struct pool_config *pool = &o.pools[i];
			must(pool->name[0] != '\0' && strlen(pool->name) <= SERVE_POOL_NAME_MAX);
			must(pool->path[0] == '/' && strlen(pool->path) < PATH_MAX);
			must(pool->overcommit >= 0.1 && pool->overcommit <= 1000);
			must(pool->reserve_pct <= 90);
		}
		must(strlen(o.csi.driver_name) <= SERVE_DRIVER_NAME_MAX);
		must(strlen(o.csi.node_id) <= SERVE_NODE_ID_MAX);
		must((o.csi.services & CSI_IDENTITY) != 0);
		must(o.csi.csi_minor == 12 || o.csi.csi_minor == 13);
	}
	serve_options_free(&o);
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
	struct err err = {0};
	int r = fsimg_check_mount_flag(type, flag, &err);
	must(r == 0 ? err.code == ERR_OK : err.code == ERR_INVALID && err.message[0] != '\0');
	if (r != 0)
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
	if (data[0] % 4 < 2)
		try_serve(text);
	else if (data[0] % 4 == 2)
		try_mkfs(type, text);
	else
		try_mount(type, text);
	free(text);
	return 0;
}
