/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_nvme.h"

#include "attach/fabrics.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct fake_nvme fake_nvme;

ssize_t __real_write(int fd, const void *buf, size_t count);
ssize_t __wrap_write(int fd, const void *buf, size_t count);

static void put(const char *path, const char *text)
{
	char full[256];
	snprintf(full, sizeof(full), "%s/%s", fake_nvme.dir, path);
	for (char *slash = full + strlen(fake_nvme.dir) + 1; (slash = strchr(slash, '/')) != NULL;
		slash++) {
		*slash = '\0';
		(void)mkdir(full, 0700);
		*slash = '/';
	}
	FILE *f = fopen(full, "we");
	cr_assert_not_null(f, "%s", full);
	fputs(text, f);
	fputs("\n", f);
	fclose(f);
}

static void drop(const char *fmt, unsigned n)
{
	char path[64], command[256];
	snprintf(path, sizeof(path), fmt, n);
	snprintf(command, sizeof(command), "rm -rf %s/%s", fake_nvme.dir, path);
	cr_assert_eq(system(command), 0);
}

static void put_of(const char *fmt, unsigned n, const char *text)
{
	char path[128];
	snprintf(path, sizeof(path), fmt, n);
	put(path, text);
}

static void put_disk(unsigned n, const char *subsystem, const char *uuid, uint64_t size_bytes)
{
	char text[64], path[128];
	snprintf(text, sizeof(text), "%d:%u", FAKE_NVME_MAJOR, n);
	snprintf(path, sizeof(path), "sys/block/nvme%un1/dev", n);
	put(path, text);
	snprintf(text, sizeof(text), "%llu", (unsigned long long)(size_bytes / 512));
	snprintf(path, sizeof(path), "sys/block/nvme%un1/size", n);
	put(path, text);
	snprintf(path, sizeof(path), "sys/block/nvme%un1/ro", n);
	put(path, fake_nvme.read_only ? "1" : "0");
	snprintf(path, sizeof(path), "sys/block/nvme%un1/hidden", n);
	put(path, "0");
	snprintf(path, sizeof(path), "sys/block/nvme%un1/uuid", n);
	put(path, uuid);
	snprintf(path, sizeof(path), "sys/block/nvme%un1/device/subsysnqn", n);
	put(path, subsystem);
	/* One path to it, as multipath shows it: the same but hidden. */
	snprintf(path, sizeof(path), "sys/block/nvme%uc1n1/hidden", n);
	put(path, "1");
	snprintf(path, sizeof(path), "sys/block/nvme%uc1n1/uuid", n);
	put(path, uuid);
	snprintf(path, sizeof(path), "sys/block/nvme%uc1n1/device/subsysnqn", n);
	put(path, subsystem);
}

void fake_nvme_add(
	unsigned n, const char *subsystem, const char *host, const char *uuid, uint64_t size_bytes)
{
	put_of("sys/class/nvme/nvme%u/transport", n, "tcp");
	put_of("sys/class/nvme/nvme%u/subsysnqn", n, subsystem);
	put_of("sys/class/nvme/nvme%u/hostnqn", n, host);
	put_of("sys/class/nvme/nvme%u/address", n, "traddr=192.0.2.1,trsvcid=4420");
	put_of("sys/class/nvme/nvme%u/state", n, "live");
	put_of("sys/class/nvme/nvme%u/dhchap_secret", n, "secret");
	put_of("sys/class/nvme/nvme%u/delete_controller", n, "");
	put_of("sys/class/nvme/nvme%u/rescan_controller", n, "");
	if (uuid != NULL)
		put_disk(n, subsystem, uuid, size_bytes);
}

void fake_nvme_state(unsigned n, const char *state)
{
	put_of("sys/class/nvme/nvme%u/state", n, state);
}

void fake_nvme_lose_disk(unsigned n)
{
	drop("sys/block/nvme%un1", n);
	drop("sys/block/nvme%uc1n1", n);
}

void fake_nvme_lose(unsigned n)
{
	fake_nvme_lose_disk(n);
	drop("sys/class/nvme/nvme%u", n);
}

bool fake_nvme_has(unsigned n)
{
	char path[128];
	snprintf(path, sizeof(path), "%s/sys/class/nvme/nvme%u", fake_nvme.dir, n);
	return access(path, F_OK) == 0;
}

unsigned fake_nvme_key_mode(unsigned n)
{
	struct stat st;
	char path[128];
	snprintf(path, sizeof(path), "%s/sys/class/nvme/nvme%u/dhchap_secret", fake_nvme.dir, n);
	cr_assert_eq(stat(path, &st), 0);
	return st.st_mode & 07777;
}

/* ---- what is written ---- */

static void option(const char *key, char *ret, size_t cap)
{
	const char *at = strstr(fake_nvme.options, key);
	cr_assert_not_null(at, "%s in %s", key, fake_nvme.options);
	snprintf(ret, cap, "%.*s", (int)strcspn(at + strlen(key), ",\n"), at + strlen(key));
}

static ssize_t on_connect(const void *buf, size_t count)
{
	char subsystem[ATTACH_NQN_BYTES], host[ATTACH_NQN_BYTES];
	snprintf(fake_nvme.options, sizeof(fake_nvme.options), "%.*s", (int)count,
		(const char *)buf);
	if (fake_nvme.connect_errno != 0) {
		errno = fake_nvme.connect_errno;
		return -1;
	}
	option(",nqn=", subsystem, sizeof(subsystem));
	option(",hostnqn=", host, sizeof(host));
	fake_nvme_add(10 + fake_nvme.connects++, subsystem, host,
		fake_nvme.no_disk ? NULL : fake_nvme.uuid, fake_nvme.size_bytes);
	return (ssize_t)count;
}

ssize_t __wrap_write(int fd, const void *buf, size_t count)
{
	char link[64], path[256];
	unsigned n;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	ssize_t len = fake_nvme.dir[0] != '\0' ? readlink(link, path, sizeof(path) - 1) : -1;
	size_t at = strlen(fake_nvme.dir);
	if (len < (ssize_t)at || memcmp(path, fake_nvme.dir, at) != 0)
		return __real_write(fd, buf, count);
	path[len] = '\0';
	if (strcmp(path + at, "/dev/nvme-fabrics") == 0)
		return on_connect(buf, count);
	if (sscanf(path + at, "/sys/class/nvme/nvme%u", &n) != 1)
		return __real_write(fd, buf, count);
	if (strstr(path, "/delete_controller") != NULL) {
		fake_nvme.deletes++;
		if (!fake_nvme.stuck)
			fake_nvme_lose(n);
		return (ssize_t)count;
	}
	if (strstr(path, "/rescan_controller") != NULL) {
		char size[32];
		fake_nvme.rescans++;
		if (fake_nvme.size_after_rescan != 0) {
			snprintf(size, sizeof(size), "%llu",
				(unsigned long long)(fake_nvme.size_after_rescan / 512));
			put_of("sys/block/nvme%un1/size", n, size);
		}
		return (ssize_t)count;
	}
	return __real_write(fd, buf, count);
}

/* ---- life ---- */

void fake_nvme_open(void)
{
	static char root[96], dev[96]; /* they are kept */
	fake_nvme = (struct fake_nvme){.size_bytes = 64 << 20};
	strcpy(fake_nvme.dir, "/tmp/ringvol-nvme-XXXXXX");
	cr_assert_not_null(mkdtemp(fake_nvme.dir));
	put("dev/nvme-fabrics", "");
	put("sys/module/nvme_tcp/initstate", "live");
	put("sys/class/nvme/keep", "");
	put("sys/block/keep", "");
	snprintf(root, sizeof(root), "%s/sys", fake_nvme.dir);
	snprintf(dev, sizeof(dev), "%s/dev", fake_nvme.dir);
	fabrics_set_roots(root, dev);
}

void fake_nvme_close(void)
{
	char command[128];
	snprintf(command, sizeof(command), "rm -rf %s", fake_nvme.dir);
	cr_assert_eq(system(command), 0);
	fake_nvme.dir[0] = '\0';
	fabrics_set_roots(NULL, NULL);
}
