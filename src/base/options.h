/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Command lines: one table of options per command gives parsing, the environment as a fallback,
 * defaults and the text of --help. The same setter sees a value wherever it came from.
 */
#ifndef RINGVOL_OPTIONS_H
#define RINGVOL_OPTIONS_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum {
	OPTIONS_MAX = 64, /* rows of one table */
	OPTION_CHOICES_MAX = 12,
	OPERANDS_MAX = 2,
};

/* What a value has to be, and what the command's options get of it. */
enum option_kind {
	OPTION_SET,    /* set() says */
	OPTION_FLAG,   /* bool: true by the flag; its variable says true, false, 1 or 0 */
	OPTION_CHOICE, /* bool or an enum: one of `choices`; its place there, or numbers[place] */
	OPTION_NUMBER, /* 4 or 8 bytes, unsigned: from min to max */
	OPTION_PATH,   /* const char *: an absolute path; the value itself, not a copy */
	OPTION_SOCKET, /* the same, and a unix socket can have it */
};

/* Where the value of a row is kept, in the options of a command. */
#define OPTION_IN(type, member) .at = offsetof(type, member), .size = sizeof(((type *)NULL)->member)

/* Ends with a NULL flag. --help need not be listed. */
struct option_row {
	const char *flag;           /* "--pool" */
	const char *value;          /* how --help names its value; NULL: it takes none */
	const char *environment[2]; /* looked at in this order; an empty variable counts as unset */
	char separator;             /* between the values of a variable; '\0': it holds one */
	const char *fallback; /* the value when nothing else gives one; NULL: set is not called */
	const char *fallback_help; /* what --help says instead of fallback */
	const char *help;          /* lines end with '\n', but for the last */
	enum option_kind kind;
	size_t at, size;     /* OPTION_IN() */
	const char *choices; /* "on|node"; NULL: as `value` has them */
	int numbers[OPTION_CHOICES_MAX];
	uint64_t min, max;
	/* For what no kind fits. 0, or a negative errno with a sentence in *err that need not
	 * repeat flag and value. A repeated flag calls it again: it appends or replaces. */
	int (*set)(void *target, const char *value, struct err *err);
};

struct command {
	const char *name; /* "pool init" */
	/* Those that it needs, in their order, then "[THOSE]" that may be left out; NULL: no more
	 */
	const char *operands[OPERANDS_MAX];
	const char *summary; /* for --help, lines as above */
	const struct option_row *options;
};

struct options_result {
	bool help;                          /* --help was met: nothing after it was looked at */
	const char *operands[OPERANDS_MAX]; /* they point into argv */
};

/* argv: what follows the command's name. Flags are taken as "--flag VALUE" or "--flag=VALUE"; "--"
 * ends them. -EINVAL (or the setter's errno) with one line in *err that names what is wrong and
 * ends with a hint. */
int options_parse(const struct command *command, int argc, char *const *argv, void *target,
	struct options_result *ret, struct err *err);
void options_print_help(const struct command *command, FILE *out);

/* The place of value in choices ("on|node"), or -EINVAL with all of them in *err. */
int options_choice(const char *value, const char *choices, struct err *err);
/* Decimal digits and nothing else; false when it is no number from min to max. */
bool options_number(const char *value, uint64_t min, uint64_t max, uint64_t *ret);
/* A number with k, M, G, T, P, Ki, Mi, Gi, Ti or Pi behind it; false: it is none, or too large. */
bool options_quantity(const char *value, uint64_t *ret);
/* 0 if a unix socket can have the path, and it is absolute or may be `relative`; else -EINVAL and
 * what is wrong. */
int options_socket(const char *path, bool relative, struct err *err);

/* The name (of a list that ends with NULL) a person may have meant by `word`; NULL if none is near.
 */
const char *options_nearest(const char *word, const char *const *names);

#endif
