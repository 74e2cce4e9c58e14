/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ./dev mutate: writes down which basic blocks of a test program run. Linked with programs that are
 * compiled with -fsanitize-coverage=trace-pc, and not compiled with it itself. The file is named by
 * MUTATE_RAN: one byte for each byte of the program's code, shared with whatever the program forks
 * or executes again, and so whole even where a process is killed. Without the file, and before the
 * constructor, nothing is written.
 */
#define _GNU_SOURCE /* dl_iterate_phdr */
#include <fcntl.h>
#include <link.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

extern const char etext[];
void __sanitizer_cov_trace_pc(void);

static unsigned char *ran;
static const char *start;

/* The program itself comes first. */
static int program(struct dl_phdr_info *info, size_t size, void *arg)
{
	(void)size;
	(void)arg;
	start = (const char *)info->dlpi_addr;
	return 1;
}

__attribute__((constructor(101))) static void open_ran(void)
{
	const char *name = getenv("MUTATE_RAN");
	int fd = name ? open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0666) : -1;
	if (fd < 0)
		return;
	dl_iterate_phdr(program, NULL);
	size_t size = (size_t)(etext - start);
	void *map = ftruncate(fd, (off_t)size) == 0
			    ? mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
			    : MAP_FAILED;
	if (map != MAP_FAILED)
		ran = map;
	close(fd);
}

void __sanitizer_cov_trace_pc(void)
{
	if (ran)
		ran[(const char *)__builtin_return_address(0) - start] = 1;
}
