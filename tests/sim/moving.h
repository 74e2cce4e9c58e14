/* SPDX-License-Identifier: Apache-2.0 */
/* A volume "source" that moves from the far node to the world's: what the tests of that share. */
#ifndef RINGVOL_TESTS_MOVING_H
#define RINGVOL_TESTS_MOVING_H

#include "far.h"

enum { SIZE = 8 * MIB, PIECE = 64 << 10 };

void open_move(enum world_fs fs, uint64_t seed);
void close_move(void);

/* Its image at the far node, for writing; bytes and holes that its grant's image has not. */
int move_open_source(void);
void move_change(void);
/* What the source has now is what move_taken() asks for. */
void move_expect(void);
extern uint8_t move_expected[SIZE];

/* What a controller does: a grant and its offer; TakeVolume; both. move_message is the last one's.
 */
enum err_code move_give(void);
enum grpc_status move_take_only(const char *id, const char *pool);
enum grpc_status move_take(void);
extern char move_message[512];

bool move_is_in(struct pools *pools);
/* The volume is at one node, or all of it in a finished part at this one. */
void move_at_one(const char *after);
/* It is here, with the bytes that were expected, and nothing is left at any node. */
void move_taken(const char *after);
/* It is deleted, and its departure forgotten. */
void move_undo(void);

#endif
