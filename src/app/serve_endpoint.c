/* SPDX-License-Identifier: Apache-2.0 */
/* Endpoints: a port has to be wanted, and kubelet needs a socket. */
#include "app/serve_endpoint.h"

#include <string.h>
#include <sys/un.h>

/* Any user of the node, and any pod in its network, reaches a port of the loopback: the operator
 * has to say that this is wanted. */
static int check_insecure_tcp(const struct serve_options *o, struct err *err)
{
	for (unsigned i = 0; i < o->endpoint_count && !o->insecure_tcp; i++)
		if (strncmp(o->endpoints[i], "tcp://", 6) == 0)
			return err_set(err, ERR_INVALID,
				"--endpoint '%s': every local user could call the driver there, DeleteVolume included; use unix:///PATH, or give --insecure-tcp to allow it",
				o->endpoints[i]);
	return 0;
}

/* Kubelet is told of a unix socket, and the socket in its directory has a name of a limited length.
 */
static int complete_registration(struct serve_options *o, struct err *err)
{
	size_t max = sizeof(((struct sockaddr_un *)NULL)->sun_path) - 1;
	if (o->kubelet_registration == NULL)
		return 0;
	if (strlen(o->kubelet_registration) + strlen("/") + strlen(o->csi.driver_name) +
			strlen("-reg.sock") >
		max)
		return err_set(err, ERR_INVALID,
			"--kubelet-registration: the socket's path in it would be longer than %zu bytes",
			max);
	for (unsigned i = 0; i < o->endpoint_count && o->kubelet_endpoint == NULL; i++) {
		const char *e = o->endpoints[i];
		if (strncmp(e, "unix:", 5) == 0)
			o->kubelet_endpoint = strncmp(e, "unix://", 7) == 0 ? e + 7 : e + 5;
	}
	if (o->kubelet_endpoint == NULL)
		return err_set(err, ERR_INVALID,
			"--kubelet-registration: kubelet needs a unix socket; give one as --endpoint or --kubelet-endpoint");
	return 0;
}

int serve_endpoint_complete(struct serve_options *o, struct err *err)
{
	int r = check_insecure_tcp(o, err);
	return r < 0 ? r : complete_registration(o, err);
}
