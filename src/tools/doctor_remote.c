/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Volumes of other nodes: whether they can be used here, whether this node can give its own away,
 * and whether both can be had within TLS. The driver's own checks are asked, which touch nothing
 * but a host of nvmet that is made and removed again.
 */
#include "attach/fabrics.h"
#include "attach/keyring.h"
#include "base/fd.h"
#include "export/nvmet.h"
#include "tools/doctor_findings.h"
#include "tools/doctor_node.h"
#include "tools/text.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A message of theirs is "what: remedy". */
static void add_err(
	struct doctor *d, enum doctor_verdict verdict, const struct err *err, const char *wanted_if)
{
	const char *remedy = strstr(err->message, ": ");
	int len = remedy != NULL ? (int)(remedy - err->message) : (int)strlen(err->message);
	doctor_add(d, verdict, tool_text(&d->args, "%.*s", len, err->message),
		tool_text(&d->args, "%s%s", remedy != NULL ? remedy + 2 : "see the kernel log",
			wanted_if));
}

static void look_at_client(struct doctor *d)
{
	struct err err = {0};
	if (fabrics_check(&err) == 0)
		doctor_add(d, DOCTOR_OK, "volumes of other nodes can be used here", "");
	else
		add_err(d, DOCTOR_MISSING, &err, ", if volumes of other nodes are to be used here");
}

static void look_at_target(struct doctor *d)
{
	struct err err = {0};
	if (nvmet_check(true, false, &err) == 0)
		doctor_add(d, DOCTOR_OK,
			"volumes of this node can be given to others, each with a key", "");
	else
		add_err(d, DOCTOR_MISSING, &err,
			", if volumes of this node are to be used on others");
}

/* ---- TLS ---- */

static int is_tlshd(void *arg, const char *name)
{
	char path[320], comm[32];
	snprintf(path, sizeof(path), "/proc/%.255s/comm", name);
	if (name[0] < '0' || name[0] > '9' ||
		fd_read_file(AT_FDCWD, path, comm, sizeof(comm)) < 0 ||
		strcmp(comm, "tlshd\n") != 0)
		return 0;
	*(bool *)arg = true;
	return 1;
}

static bool tlshd_runs(void)
{
	bool runs = false;
	_cleanup_fd_ int proc = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (proc >= 0)
		(void)fd_each_name(proc, is_tlshd, &runs);
	return runs;
}

static bool is_loaded(const char *module)
{
	char path[64];
	snprintf(path, sizeof(path), "/sys/module/%s", module);
	return access(path, F_OK) == 0;
}

/* Nothing to say where neither end is there. */
static void look_at_tls(struct doctor *d)
{
	static const char wanted_if[] = ", if nodes are to have TLS between them (--export-tls)";
	static const char *const modules[] = {"nvme_tcp", "nvmet_tcp"};
	unsigned loaded = 0;
	for (unsigned i = 0; i < 2; i++) {
		struct err err = {0};
		if (!is_loaded(modules[i]))
			continue;
		loaded++;
		if (keyring_check(modules[i], &err) < 0) {
			add_err(d, DOCTOR_MISSING, &err, wanted_if);
			return;
		}
	}
	if (loaded == 0)
		return;
	if (tlshd_runs())
		doctor_add(d, DOCTOR_OK, "the kernel has it, and tlshd runs", "");
	else if (doctor_on_the_node())
		doctor_add(d, DOCTOR_LIMITED,
			"the kernel has it, but no tlshd runs: no handshake succeeds",
			tool_text(&d->args, "install ktls-utils and start tlshd%s", wanted_if));
	else
		doctor_add(d, DOCTOR_UNKNOWN,
			"the kernel has it; whether tlshd runs cannot be seen from this container",
			"run ringvol doctor on the node itself, or see docs/attach.md");
}

const struct doctor_check doctor_remote_checks[] = {
	{"nvme-tcp", false, look_at_client},
	{"nvmet", false, look_at_target},
	{"nvme TLS", false, look_at_tls},
	{NULL},
};
