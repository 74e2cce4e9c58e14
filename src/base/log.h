/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One line per event on stderr, logfmt or JSON:
 *   ts=2026-11-20T14:02:26.123Z level=info msg="operation done" op=CreateVolume volume=pvc-1
 * Below csi nothing logs above debug. Values are quoted and escaped here, so callers pass raw text.
 */
#ifndef RINGVOL_BASE_LOG_H
#define RINGVOL_BASE_LOG_H

#include <stdbool.h>

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };
enum log_format { LOG_FORMAT_LOGFMT, LOG_FORMAT_JSON };

void log_open(enum log_level level, enum log_format format);
bool log_enabled(enum log_level level);

struct log_field {
	const char *key;
	const char *value; /* NULL: the field is left out */
};

/* fields ends with an entry whose key is NULL. A line is written whole, by one write(2) of its own
 * or with others; stderr that would block loses lines, never the loop's time. */
void log_event(enum log_level level, const char *msg, const struct log_field *fields);

/* The calling thread (one at most) holds its lines of level info and debug back until log_flush(),
 * or until they are many or a worse one follows, whose writer may not live on. */
void log_hold(void);
void log_flush(void);
/* Flushes, and holds no more. */
void log_unhold(void);

#define log_fields(...) ((const struct log_field[]){__VA_ARGS__, {NULL, NULL}})

#endif
