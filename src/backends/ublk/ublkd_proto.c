/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages between driver and data process, one packet each. What comes in is checked here, once:
 * magic, type, length, ends of strings; behind it a message is as long as this build's struct.
 */
#include "backends/ublk/ublkd_proto.h"

#include "base/fd.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

int ublkd_connect(const char *path)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	if (strlen(path) >= sizeof(addr.sun_path))
		return -ENAMETOOLONG;
	strcpy(addr.sun_path, path);
	_cleanup_fd_ int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	if (connect(fd, (const struct sockaddr *)&addr, sizeof(addr)) < 0)
		return -errno;
	struct ucred peer;
	socklen_t len = sizeof(peer);
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0)
		return -errno;
	if (peer.uid != 0)
		return -EPERM;
	/* The kernel takes a dead process's ring down when it likes, and its listener with it. */
	if (peer.pid > 0 && kill(peer.pid, 0) < 0 && errno == ESRCH)
		return -ECONNREFUSED;
	int connected = fd;
	fd = -1;
	return connected;
}

const char *ublkd_connect_why(int r)
{
	switch (r) {
	case -ENOENT:
	case -ECONNREFUSED:
		return "is not running";
	case -EAGAIN:
		return "takes no more connections";
	case -EPERM:
		return "does not belong to root";
	default:
		return "cannot be reached";
	}
}

int ublkd_send(int fd, const struct ublkd_request *request, int image_fd)
{
	struct ublkd_request r = *request;
	r.head.magic = UBLKD_MAGIC;
	r.head.version = UBLKD_VERSION;
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {0};
	struct iovec iov = {&r, sizeof(r)};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	if (image_fd >= 0) {
		msg.msg_control = control;
		msg.msg_controllen = sizeof(control);
		struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(cmsg), &image_fd, sizeof(int));
	}
	ssize_t n;
	do
		n = sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : 0;
}

/* Makes a message of `len` bytes as long as this build's struct. */
static int check(struct ublkd_head *head, size_t len, size_t bytes)
{
	if (len < sizeof(*head) || head->magic != UBLKD_MAGIC)
		return -EPROTO;
	if (len < bytes)
		memset((char *)head + len, 0, bytes - len);
	return 0;
}

#define END_STRING(s) ((s)[sizeof(s) - 1] = '\0')

int ublkd_check_reply(struct ublkd_reply *reply, size_t len)
{
	END_STRING(reply->code);
	END_STRING(reply->message);
	END_STRING(reply->build);
	END_STRING(reply->device.node);
	END_STRING(reply->device.tag);
	END_STRING(reply->device.why);
	return check(&reply->head, len, sizeof(*reply));
}

int ublkd_check_request(struct ublkd_request *request, size_t len)
{
	END_STRING(request->tag);
	END_STRING(request->path);
	return check(&request->head, len, sizeof(*request));
}

/* A code that only the other end knows reads as "internal". */
static enum err_code code_of(const char *name)
{
	for (unsigned code = ERR_OK + 1; code <= ERR_INTERNAL; code++)
		if (strcmp(err_code_name((enum err_code)code), name) == 0)
			return (enum err_code)code;
	return ERR_INTERNAL;
}

int ublkd_reply_result(const struct ublkd_reply *reply, struct err *err)
{
	if (reply->res >= 0)
		return 0;
	err_set(err, code_of(reply->code), "%s",
		reply->message[0] != '\0' ? reply->message : "the data process gave no reason");
	err->errnum = -reply->res;
	return reply->res;
}

void ublkd_reply_fail(struct ublkd_reply *reply, int res, const struct err *err)
{
	enum err_code code = err->code != ERR_OK ? err->code : ERR_INTERNAL;
	reply->res = res < 0 ? res : -EIO;
	snprintf(reply->code, sizeof(reply->code), "%s", err_code_name(code));
	snprintf(reply->message, sizeof(reply->message), "%s", err->message);
}
