/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The terminal as a screen: its other buffer, keys as they are typed. However the process ends but
 * by SIGKILL, the terminal is as it was before; ^Z puts it back, too, and a SIGCONT takes it again.
 */
#ifndef RINGVOL_TOOLS_SCREEN_H
#define RINGVOL_TOOLS_SCREEN_H

#include "base/buf.h"

#include <stdbool.h>
#include <stdint.h>

enum screen_key {
	SCREEN_NONE = 0, /* the time is over */
	/* Printable keys are themselves. */
	SCREEN_UP = 256,
	SCREEN_DOWN,
	SCREEN_LEFT,
	SCREEN_RIGHT,
	SCREEN_PAGE_UP,
	SCREEN_PAGE_DOWN,
	SCREEN_HOME,
	SCREEN_OTHER,
	SCREEN_RESIZED, /* or continued: draw again */
};

/* Standard output is a terminal. 0 or -errno. */
int screen_open(void);
void screen_close(void);
/* Draws lines (each ending with a newline; no control but colours in them) from the top, at most
 * as many as there are. 0 or -errno. */
int screen_draw(const struct buf *text, unsigned lines);
/* The next key, for timeout_ms at most. Without a terminal as standard input there are none. */
int screen_key(uint64_t timeout_ms);

#endif
