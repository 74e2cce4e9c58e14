/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the departures of a pool. Blocking, on a thread; for load.c. */
#ifndef RINGVOL_POOL_DEPARTURE_LOAD_H
#define RINGVOL_POOL_DEPARTURE_LOAD_H

#include "pool/departure.h"
#include "pool/layout.h"

struct departure_load {
	int root_fd, volumes_fd, trash_fd;
	char uuid8[RECORD_POOL_DIGITS + 1]; /* the pool's */
	bool read_only;
	/* What was read, sorted by kind and key. The images of volumes that have left go to the
	 * trash, and they from here; in a pool that is read-only they are marked alone. */
	struct pool_found *found;
	size_t found_count;
	struct list *departures; /* out */
	int fd;                  /* out: departed/, or /dev/null where there can be none */
};
/* Opens departed/, or makes it, and reads the notes. 0 or -errno. */
int departure_load_run(struct departure_load *load);

#endif
