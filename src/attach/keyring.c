/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keyring is nobody's session's, so it is found as keyctl finds it: by its name in /proc/keys,
 * which shows a process what it may see. What is in it the kernel lists and describes. Owns
 * nothing. How it can fail: no module has made the keyring, or the process may not write to it.
 */
#include "attach/keyring.h"

#include "base/secret.h"

#include <errno.h>
#include <linux/keyctl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define KEYRING_NAME ".nvme"

enum { DESCRIBED_BYTES = 160 };

static const char *keys_path = "/proc/keys", *sys_root = "/sys";

void keyring_set_roots(const char *keys, const char *sys)
{
	keys_path = keys != NULL ? keys : "/proc/keys";
	sys_root = sys != NULL ? sys : "/sys";
}

/* A line of /proc/keys: a keyring of that name which can be used. */
static bool is_keyring(const char *line, const char *name, int32_t *ret_serial)
{
	char flags[16], type[16], its[32];
	unsigned serial;
	if (sscanf(line, "%x %15s %*s %*s %*s %*s %*s %15s %31[^:]", &serial, flags, type, its) !=
			4 ||
		strcmp(type, "keyring") != 0 || strpbrk(flags, "RDi") != NULL ||
		strcmp(its, name) != 0)
		return false;
	*ret_serial = (int32_t)serial;
	return true;
}

static int find_keyring(int32_t *ret)
{
	FILE *file = fopen(keys_path, "re");
	char *line = NULL;
	size_t cap = 0;
	int r = -ENOENT;
	if (file == NULL)
		return -errno;
	while (r < 0 && getline(&line, &cap, file) > 0)
		if (is_keyring(line, KEYRING_NAME, ret))
			r = 0;
	free(line);
	fclose(file);
	return r;
}

/* What is linked in it. The number, or -errno; *ret is the caller's to free. */
static int list_keys(int32_t keyring, int32_t **ret)
{
	for (size_t count = 64;; count *= 2) {
		int32_t *keys = calloc(count, sizeof(*keys));
		if (keys == NULL)
			return -ENOMEM;
		long bytes = syscall(SYS_keyctl, KEYCTL_READ, keyring, keys, count * sizeof(*keys));
		if (bytes >= 0 && (size_t)bytes <= count * sizeof(*keys)) {
			*ret = keys;
			return (int)((size_t)bytes / sizeof(*keys));
		}
		free(keys);
		if (bytes < 0)
			return -errno;
	}
}

/* "psk;UID;GID;PERMISSIONS;DESCRIPTION" */
static bool has_identity(int32_t key, const char *identity)
{
	char text[DESCRIBED_BYTES];
	long len = syscall(SYS_keyctl, KEYCTL_DESCRIBE, key, text, sizeof(text));
	if (len < 0 || (size_t)len > sizeof(text)) /* gone, or longer than ours are */
		return false;
	const char *its = strrchr(text, ';');
	return strncmp(text, "psk;", 4) == 0 && its != NULL && strcmp(its + 1, identity) == 0;
}

/* 0: there is none. Its serial number, or -errno. */
static int32_t find_key(int32_t keyring, const char *identity)
{
	int32_t *keys = NULL, found = 0;
	int count = list_keys(keyring, &keys);
	for (int i = 0; keys != NULL && i < count && found == 0; i++)
		if (has_identity(keys[i], identity))
			found = keys[i];
	free(keys);
	return count < 0 ? count : found;
}

int keyring_check(const char *module, struct err *err)
{
	char path[128];
	int32_t keyring;
	const char *name = strcmp(module, "nvmet_tcp") == 0 ? "nvmet-tcp" : "nvme-tcp";
	snprintf(path, sizeof(path), "%s/module/%s", sys_root, module);
	if (access(path, F_OK) < 0)
		return err_set(err, ERR_PRECONDITION,
			"TLS between nodes needs the kernel's %s on this node, which is not loaded: modprobe %s",
			name, name);
	snprintf(path, sizeof(path), "%s/module/%s/parameters/tls_handshake_timeout", sys_root,
		module);
	if (access(path, F_OK) < 0)
		return err_set(err, ERR_PRECONDITION,
			"%s of this node's kernel has no TLS (Linux 6.7 and newer have, where built with it): use such a kernel",
			name);
	int r = find_keyring(&keyring);
	if (r < 0)
		return err_set(err, ERR_PRECONDITION,
			"this process does not see the keyring " KEYRING_NAME
			" in /proc/keys (%s): modprobe nvme-keyring; in a container, leave /proc/keys unmasked (privileged)",
			strerrordesc_np(-r));
	return 0;
}

int32_t keyring_give(const char *module, const char *secret, const char *host_nqn,
	const char *subsystem, struct err *err)
{
	struct psk psk;
	int32_t keyring;
	int r = keyring_check(module, err);
	if (r < 0)
		return r;
	r = psk_make(secret, host_nqn, subsystem, &psk);
	if (r == -EINVAL)
		return err_set(err, ERR_PRECONDITION,
			"%s was attached without a key, and TLS needs one: ControllerUnpublishVolume first",
			subsystem);
	if (r == 0)
		r = find_keyring(&keyring);
	if (r == 0)
		r = find_key(keyring, psk.identity);
	if (r == 0) {
		long serial = syscall(
			SYS_add_key, "psk", psk.identity, psk.key, sizeof(psk.key), keyring);
		r = serial < 0 ? -errno : (int)serial;
	}
	secret_wipe(&psk, sizeof(psk));
	return r < 0 ? err_sys(err, r, "giving the kernel the TLS key for %s", subsystem) : r;
}

int keyring_drop(const char *subsystem)
{
	char identity[PSK_IDENTITY_BYTES];
	int32_t keyring;
	int r = find_keyring(&keyring);
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	psk_identity(subsystem, identity);
	int32_t key = find_key(keyring, identity);
	if (key <= 0)
		return key;
	return syscall(SYS_keyctl, KEYCTL_UNLINK, key, keyring) < 0 && errno != ENOENT ? -errno : 0;
}
