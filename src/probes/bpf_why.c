/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Why the probes could not be loaded, in a sentence with its remedy. libbpf writes what it and the
 * kernel's verifier have to say to a callback of the whole process; the verifier's verdict, the
 * last line of its log, is kept from there. Nothing here can fail.
 */
#include "probes/private.h"

#include <bpf/libbpf.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char verdict[160];
static bool refused; /* by the verifier */
static libbpf_print_fn_t print_before;

/* Statistics that follow the verdict. */
static bool is_verdict(const char *line)
{
	static const char *const others[] = {
		"processed ", "verification time", "stack depth", "mark_precise", "--", "libbpf:"};
	if (*line == '\0')
		return false;
	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		if (strncmp(line, others[i], strlen(others[i])) == 0)
			return false;
	return true;
}

static void keep_verdict(char *log)
{
	refused = true;
	for (char *save, *line = strtok_r(log, "\n", &save); line != NULL;
		line = strtok_r(NULL, "\n", &save))
		if (is_verdict(line))
			snprintf(verdict, sizeof(verdict), "%s", line);
}

__attribute__((format(printf, 2, 0))) static int look_at(
	enum libbpf_print_level level, const char *format, va_list args)
{
	char *message;
	if (level != LIBBPF_WARN || vasprintf(&message, format, args) < 0)
		return 0;
	char *log = strstr(message, "BEGIN PROG LOAD LOG --");
	if (log != NULL)
		keep_verdict(strchr(log, '\n') != NULL ? strchr(log, '\n') : log);
	free(message);
	return 0;
}

void probe_why_begin(void)
{
	verdict[0] = '\0';
	refused = false;
	print_before = libbpf_set_print(look_at);
}

void probe_why_end(int error, char ret_why[PROBES_WHY_MAX])
{
	libbpf_set_print(print_before);
	if (error == 0)
		return;
	if (error == -EPERM)
		snprintf(ret_why, PROBES_WHY_MAX,
			"BPF is not allowed here: give the driver CAP_BPF and CAP_PERFMON (or CAP_SYS_ADMIN) "
			"and a seccomp profile with bpf()");
	else if (access("/sys/kernel/btf/vmlinux", R_OK) < 0)
		snprintf(ret_why, PROBES_WHY_MAX,
			"this kernel does not describe its types (no /sys/kernel/btf/vmlinux): "
			"run one built with CONFIG_DEBUG_INFO_BTF");
	else if (error == -ENOSYS)
		snprintf(ret_why, PROBES_WHY_MAX,
			"this kernel has no BPF: run one built with CONFIG_BPF_SYSCALL");
	else if (refused)
		snprintf(ret_why, PROBES_WHY_MAX,
			"the kernel's verifier refused the probes (\"%s\"): please report it with the "
			"output of uname -r",
			verdict);
	else if (error == -ESRCH || error == -ENOENT)
		snprintf(ret_why, PROBES_WHY_MAX,
			"this kernel lacks the block layer's tracepoints: run one built with "
			"CONFIG_BLOCK and CONFIG_TRACEPOINTS");
	else
		snprintf(ret_why, PROBES_WHY_MAX,
			"the probes could not be loaded (%s): please report it with the output of uname -r",
			strerrordesc_np(-error));
}
