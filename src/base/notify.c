/* SPDX-License-Identifier: Apache-2.0 */
/* One datagram to $NOTIFY_SOCKET, whose first byte may be '@' for the abstract namespace. */
#include "base/notify.h"

#include "base/fd.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

int notify_send(const char *state)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	if (path == NULL || *path == '\0')
		return 0;
	size_t len = strlen(path);
	if ((path[0] != '/' && path[0] != '@') || len >= sizeof(addr.sun_path))
		return -EINVAL;
	memcpy(addr.sun_path, path, len);
	if (path[0] == '@')
		addr.sun_path[0] = '\0';
	_cleanup_fd_ int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	socklen_t addr_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
	if (sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&addr, addr_len) < 0)
		return -errno;
	return 0;
}
