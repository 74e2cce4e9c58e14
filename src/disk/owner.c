/* SPDX-License-Identifier: Apache-2.0 */
#include "disk/owner.h"

#include "base/clock.h"
#include "base/fd.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>

/* Some firmware has nothing but zeros or ones there. */
static bool tells_apart(const char *text)
{
	return strspn(text, "0-") != strlen(text) && strspn(text, "fF-") != strlen(text);
}

void disk_machine(char ret[DISK_MACHINE_MAX])
{
	static const char *const files[] = {
		"/sys/class/dmi/id/product_uuid",
		"/etc/machine-id",
	};
	ret[0] = '\0';
	for (unsigned i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
		char text[DISK_MACHINE_MAX];
		if (fd_read_file(AT_FDCWD, files[i], text, sizeof(text)) <= 0)
			continue;
		size_t len = strspn(text, "0123456789abcdefABCDEF-");
		if (text[len] != '\n' && text[len] != '\0')
			continue;
		text[len] = '\0';
		if (!tells_apart(text))
			continue;
		memcpy(ret, text, len + 1);
		return;
	}
}

bool disk_owner_is(const struct disk_header *header, const char *node)
{
	char machine[DISK_MACHINE_MAX];
	disk_machine(machine);
	if (node != NULL && strcmp(node, header->owner) != 0)
		return false;
	return strcmp(machine, header->owner_machine) == 0;
}

int disk_owner_check(
	const struct disk_header *header, const char *node, const char *path, struct err *err)
{
	if (header->owner[0] == '\0' || disk_owner_is(header, node))
		return 0;
	char since[CLOCK_BYTES];
	clock_print(header->owner_since_ns, since);
	return err_set(err, ERR_UNAVAILABLE,
		"the node %.64s%s serves the pool since %s: run 'ringvol pool release' there, or, if "
		"that node is off for good, 'ringvol pool release --take-over %s' here",
		header->owner,
		node != NULL && strcmp(node, header->owner) == 0 ? " on another machine" : "",
		since, path);
}

bool disk_owner_set(struct disk_header *header, const char *node)
{
	if (node == NULL ? header->owner[0] == '\0'
			 : header->owner[0] != '\0' && disk_owner_is(header, node))
		return false;
	memset(header->owner, 0, sizeof(header->owner));
	memset(header->owner_machine, 0, sizeof(header->owner_machine));
	header->owner_since_ns = 0;
	if (node == NULL)
		return true;
	snprintf(header->owner, sizeof(header->owner), "%s", node);
	disk_machine(header->owner_machine);
	header->owner_since_ns = clock_now_ns();
	return true;
}
