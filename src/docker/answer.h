/* SPDX-License-Identifier: Apache-2.0 */
/* What docker is answered: JSON objects. Each is text to be freed with free(); NULL: out of memory.
 */
#ifndef RINGVOL_DOCKER_ANSWER_H
#define RINGVOL_DOCKER_ANSWER_H

struct pool_object;
struct pools;

char *docker_answer_activate(void);
char *docker_answer_capabilities(void);
/* "" for none. */
char *docker_answer_error(const char *message);
/* Where a volume is mounted; "": nowhere. */
char *docker_answer_mountpoint(const char *path);
/* mounts: as of names.h. */
char *docker_answer_volume(const struct pool_object *volume, const char *mounts);
/* Of all pools. */
char *docker_answer_list(const struct pools *pools, const char *mounts);

#endif
