/* SPDX-License-Identifier: Apache-2.0 */
/* NodePublishVolume of an inline volume, as kubelet asks for it. */
#ifndef RINGVOL_TESTS_INLINE_CALLS_H
#define RINGVOL_TESTS_INLINE_CALLS_H

#include "answers.h"

extern const char *const id;
/* What the pod and its spec say. */
extern const char *uid, *size, *namespace, *pod, *pool_asked; /* NULL: it does not say */
extern const char *more_key, *more_value;
extern const char *target_said; /* NULL: target_path */
extern char pod_dir[96];

void mkdirs(const char *path);
/* What the operator allows, unless a test says otherwise. */
void allow(void);
void allow_image(const char *name);
void open_inline(enum world_fs fs, uint64_t seed);
void restart(void);

const char *asks(void);
enum grpc_status publish(void);
/* As delete_patiently(), for the same reason. */
enum grpc_status unpublish(void);
/* Again until its volume is deleted: another program may have the device open for a moment, and
 * then the volume goes later. */
enum grpc_status unpublish_wholly(void);
/* Whether the inventory does. */
bool has(const char *what);
void nothing_left(void);
/* The answer, and nothing is made. */
void refuses(const char *want);

#endif
