/* SPDX-License-Identifier: Apache-2.0 */
/* Running mkfs as a step, and saying what went wrong with it. */
#include "pool/private.h"

#include <errno.h>
#include <string.h>

int pool_mkfs_run(struct op *op, struct proc *proc, const struct fsimg_spec *spec, int fd,
	const uint8_t uuid[16], char *mem, size_t mem_len)
{
	*proc = (struct proc){.files = {fd}, .file_count = 1};
	int r = fsimg_mkfs_argv(spec, PROC_FILE_PATH, uuid, proc, mem, mem_len);
	if (r < 0)
		return op_fail(op, ERR_INVALID, "the mkfs options for %s cannot be used: %s",
			fsimg_name(spec->type), strerrordesc_np(-r));
	r = op_proc(op, proc);
	return r < 0 ? pool_mkfs_end(op, proc, spec, r) : r;
}

/* What the tool said last, printable. */
static void last_line(const struct proc *proc, char *line, size_t cap)
{
	size_t len = proc->output_len, from;
	while (len > 0 && (proc->output[len - 1] == '\n' || proc->output[len - 1] == ' '))
		len--;
	for (from = len; from > 0 && proc->output[from - 1] != '\n'; from--)
		;
	size_t n = len - from < cap - 1 ? len - from : cap - 1;
	for (size_t i = 0; i < n; i++) {
		char c = proc->output[from + i];
		line[i] = c >= 0x20 && c < 0x7f ? c : '?';
	}
	line[n] = '\0';
}

int pool_mkfs_end(struct op *op, struct proc *proc, const struct fsimg_spec *spec, int res)
{
	static const char *const packages[FSIMG_TYPES] = {[FSIMG_EXT4] = "e2fsprogs",
		[FSIMG_XFS] = "xfsprogs",
		[FSIMG_BTRFS] = "btrfs-progs"};
	char line[200];
	last_line(proc, line, sizeof(line));
	if (res == 0)
		return 0;
	if (res == -ENOENT)
		return op_fail(op, ERR_PRECONDITION,
			"%s is not installed: install the Debian package %s", proc->argv[0],
			packages[spec->type]);
	if (res == -ETIMEDOUT)
		return op_fail(op, ERR_TIMEOUT, "%s took longer than %llu s", proc->argv[0],
			(unsigned long long)proc->timeout_ms / 1000);
	if (res == -EINTR)
		return op_fail(op, ERR_INTERNAL, "%s was killed by signal %d: %s", proc->argv[0],
			proc->signal, line);
	if (res < 0)
		return op_fail_sys(op, res, "running %s", proc->argv[0]);
	return op_fail(
		op, ERR_INTERNAL, "%s failed with exit status %d: %s", proc->argv[0], res, line);
}

/* ---- verify ---- */

static int verify_job(void *arg)
{
	struct pool_verify *verify = arg;
	return fsimg_probe_fd(verify->fd, &verify->probe);
}

int pool_verify_run(struct op *op, struct pool_verify *verify, int fd)
{
	*verify = (struct pool_verify){.fd = fd};
	return op_work(op, verify_job, verify);
}

int pool_verify_end(
	struct op *op, const struct pool_verify *verify, const struct fsimg_spec *spec, int res)
{
	if (res < 0)
		return op_fail_sys(
			op, res, "reading back what mkfs.%s made", fsimg_name(spec->type));
	if (verify->probe.type != spec->type || verify->probe.ambivalent)
		return op_fail(op, ERR_INTERNAL,
			"mkfs.%s said it was done, but there is no %s; is it the real one?",
			fsimg_name(spec->type), fsimg_name(spec->type));
	return 0;
}
