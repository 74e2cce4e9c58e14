/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads a command line by a table. Flags are set in the order they come; each row that no flag
 * named is then looked up in the environment, and at last gets its fallback, so that a flag always
 * replaces the variable and the variable the default. Fails at the first thing it does not
 * understand, with one line that says where the value came from.
 */
#include "base/options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

enum {
	NEAREST_MAX_LEN = 40,
	NEAREST_EDITS = 3, /* more than this is another word */
	SHOWN_VALUE = 96,  /* bytes of a value that an error repeats */
	CHOICES_BYTES = 128,
};

static unsigned min3(unsigned a, unsigned b, unsigned c)
{
	unsigned ab = a < b ? a : b;
	return ab < c ? ab : c;
}

/* Levenshtein's distance, one row at a time. */
static unsigned edits(const char *a, const char *b)
{
	size_t n = strlen(b);
	unsigned row[NEAREST_MAX_LEN + 1];
	if (strlen(a) > NEAREST_MAX_LEN || n > NEAREST_MAX_LEN)
		return NEAREST_MAX_LEN;
	for (unsigned j = 0; j <= n; j++)
		row[j] = j;
	for (unsigned i = 1; a[i - 1] != '\0'; i++) {
		unsigned diagonal = row[0];
		row[0] = i;
		for (unsigned j = 1; j <= n; j++) {
			unsigned above = row[j];
			row[j] = min3(row[j] + 1, row[j - 1] + 1,
				diagonal + (a[i - 1] == b[j - 1] ? 0 : 1));
			diagonal = above;
		}
	}
	return row[n];
}

const char *options_nearest(const char *word, const char *const *names)
{
	const char *best = NULL;
	unsigned least = NEAREST_EDITS + 1;
	for (; *names != NULL; names++) {
		unsigned distance = edits(word, *names);
		/* A short name is not near just because all of it can be exchanged. */
		if (distance < least && distance * 2 <= strlen(*names)) {
			least = distance;
			best = *names;
		}
	}
	return best;
}

/* ---- rows ---- */

static const struct option_row *row_find(
	const struct command *command, const char *flag, size_t len)
{
	for (const struct option_row *row = command->options; row->flag != NULL; row++)
		if (strlen(row->flag) == len && memcmp(row->flag, flag, len) == 0)
			return row;
	return NULL;
}

static int fail_unknown(const struct command *command, const char *arg, size_t len, struct err *err)
{
	const char *names[OPTIONS_MAX + 2];
	unsigned count = 0;
	for (const struct option_row *row = command->options; row->flag != NULL; row++)
		names[count++] = row->flag;
	names[count++] = "--help";
	names[count] = NULL;

	char flag[SHOWN_VALUE];
	snprintf(flag, sizeof(flag), "%.*s", (int)len, arg);
	const char *near = strcmp(flag, "-h") == 0 ? "--help" : options_nearest(flag, names);
	if (near != NULL)
		return err_set(
			err, ERR_INVALID, "unknown option '%s'; did you mean '%s'?", flag, near);
	return err_set(err, ERR_INVALID, "unknown option '%s'; see 'ringvol %s --help'", flag,
		command->name);
}

/* ---- values ---- */

int options_choice(const char *value, const char *choices, struct err *err)
{
	char copy[CHOICES_BYTES], shown[CHOICES_BYTES] = "", *rest = copy, *name;
	const char *names[OPTION_CHOICES_MAX + 1] = {NULL};
	int found = -EINVAL;
	snprintf(copy, sizeof(copy), "%s", choices);
	for (int i = 0; i < OPTION_CHOICES_MAX && (name = strsep(&rest, "|")) != NULL; i++) {
		names[i] = name;
		size_t len = strlen(shown);
		snprintf(shown + len, sizeof(shown) - len, "%s%s", i == 0 ? "" : ", ", name);
		if (strcmp(value, name) == 0)
			found = i;
	}
	if (found >= 0)
		return found;
	const char *near = options_nearest(value, names);
	return err_set(err, ERR_INVALID, "not one of %s%s%s%s", shown,
		near != NULL ? "; did you mean '" : "", near != NULL ? near : "",
		near != NULL ? "'?" : "");
}

/* strtoull() would take a sign and blanks. */
bool options_number(const char *value, uint64_t min, uint64_t max, uint64_t *ret)
{
	uint64_t n = 0;
	const char *s = value;
	for (; *s >= '0' && *s <= '9'; s++)
		if (__builtin_mul_overflow(n, 10, &n) ||
			__builtin_add_overflow(n, (uint64_t)(*s - '0'), &n))
			break;
	if (s == value || *s != '\0' || n < min || n > max)
		return false;
	*ret = n;
	return true;
}

static int check_path(const char *path, struct err *err)
{
	return path[0] == '/' ? 0 : err_set(err, ERR_INVALID, "the path must be absolute");
}

/* Digits, and what Kubernetes has behind them. */
bool options_quantity(const char *value, uint64_t *ret)
{
	static const struct {
		const char *suffix;
		uint64_t times;
	} units[] = {
		{"", 1},
		{"k", 1000},
		{"M", 1000000},
		{"G", 1000000000},
		{"T", UINT64_C(1000000000000)},
		{"P", UINT64_C(1000000000000000)},
		{"Ki", UINT64_C(1) << 10},
		{"Mi", UINT64_C(1) << 20},
		{"Gi", UINT64_C(1) << 30},
		{"Ti", UINT64_C(1) << 40},
		{"Pi", UINT64_C(1) << 50},
	};
	size_t digits = strspn(value, "0123456789");
	uint64_t number = 0;
	if (digits == 0 || digits > 18)
		return false;
	for (size_t i = 0; i < digits; i++)
		number = number * 10 + (uint64_t)(value[i] - '0');
	for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
		if (strcmp(value + digits, units[i].suffix) == 0)
			return !__builtin_mul_overflow(number, units[i].times, ret);
	return false;
}

int options_socket(const char *path, bool relative, struct err *err)
{
	if (path[0] != '/' && (!relative || path[0] == '\0'))
		return err_set(err, ERR_INVALID,
			"the socket's path must be absolute, as in /run/ringvol/csi.sock");
	if (path[strlen(path) - 1] == '/')
		return err_set(err, ERR_INVALID, "the socket's path names a directory");
	/* One byte is the ending NUL. */
	size_t max = sizeof(((struct sockaddr_un *)NULL)->sun_path) - 1;
	if (strlen(path) > max)
		return err_set(err, ERR_INVALID, "the socket's path is longer than %zu bytes", max);
	return 0;
}

static void keep_number(const struct option_row *row, void *target, uint64_t n)
{
	char *at = (char *)target + row->at;
	if (row->size == sizeof(bool))
		*(bool *)(void *)at = n != 0;
	else if (row->size == sizeof(uint32_t))
		*(uint32_t *)(void *)at = (uint32_t)n;
	else
		*(uint64_t *)(void *)at = n;
}

static int take_number(
	const struct option_row *row, void *target, const char *value, struct err *err)
{
	uint64_t n = 0;
	int r = 0;
	if (row->kind == OPTION_NUMBER) {
		if (!options_number(value, row->min, row->max, &n))
			r = err_set(err, ERR_INVALID, "not a number from %llu to %llu",
				(unsigned long long)row->min, (unsigned long long)row->max);
	} else if (row->kind == OPTION_FLAG) {
		r = value == NULL ? 0 : options_choice(value, "true|false|1|0", err);
		n = r % 2 == 0;
	} else {
		r = options_choice(value, row->choices != NULL ? row->choices : row->value, err);
		bool places = row->numbers[0] == 0 && row->numbers[1] == 0;
		n = r < 0 ? 0 : places ? (uint64_t)r : (uint64_t)row->numbers[r];
	}
	if (r >= 0)
		keep_number(row, target, n);
	return r;
}

static int take_value(
	const struct option_row *row, void *target, const char *value, struct err *err)
{
	if (row->kind == OPTION_SET)
		return row->set(target, value, err);
	if (row->kind != OPTION_PATH && row->kind != OPTION_SOCKET)
		return take_number(row, target, value, err);
	int r = row->kind == OPTION_PATH ? check_path(value, err)
					 : options_socket(value, false, err);
	if (r == 0)
		*(const char **)(void *)((char *)target + row->at) = value;
	return r;
}

/* source: the flag or the variable the value came from. */
static int row_set(const struct option_row *row, const char *source, const char *value,
	void *target, struct err *err)
{
	struct err why = {0};
	int r = take_value(row, target, value, &why);
	if (r >= 0)
		return 0;
	err_set(err, why.code == ERR_OK ? ERR_INVALID : why.code, "%s '%.*s': %s", source,
		SHOWN_VALUE, value == NULL ? "" : value, why.message);
	return r;
}

static int row_set_environment(
	const struct option_row *row, void *target, bool *ret_found, struct err *err)
{
	for (unsigned i = 0; i < 2 && row->environment[i] != NULL; i++) {
		const char *value = getenv(row->environment[i]);
		if (value == NULL || *value == '\0')
			continue;
		*ret_found = true;
		if (row->separator == '\0')
			return row_set(row, row->environment[i], value, target, err);
		/* Empty pieces are skipped: "a;" and ";a" are what templates make of lists. */
		const char separators[] = {row->separator, '\0'};
		for (size_t len; *value != '\0'; value += len + (value[len] != '\0')) {
			len = strcspn(value, separators);
			if (len == 0)
				continue;
			char *piece = strndup(value, len);
			int r = piece == NULL
					? err_set(err, ERR_NO_ROOM, "out of memory")
					: row_set(row, row->environment[i], piece, target, err);
			free(piece);
			if (r < 0)
				return r;
		}
		return 0;
	}
	return 0;
}

static int set_missing(
	const struct command *command, const bool *given, void *target, struct err *err)
{
	for (const struct option_row *row = command->options; row->flag != NULL; row++) {
		if (given[row - command->options])
			continue;
		bool found = false;
		int r = row_set_environment(row, target, &found, err);
		if (r >= 0 && !found && row->fallback != NULL)
			r = row_set(row, "default", row->fallback, target, err);
		if (r < 0)
			return r;
	}
	return 0;
}

static int take_operand(
	const struct command *command, const char *arg, struct options_result *res, struct err *err)
{
	for (unsigned i = 0; i < OPERANDS_MAX && command->operands[i] != NULL; i++)
		if (res->operands[i] == NULL) {
			res->operands[i] = arg;
			return 0;
		}
	return err_set(err, ERR_INVALID, "unexpected argument '%.*s'; see 'ringvol %s --help'",
		SHOWN_VALUE, arg, command->name);
}

/* Takes argv[i] (and the value behind it). Returns how many words it took, or -errno. */
static int take_flag(const struct command *command, int argc, char *const *argv, int i, bool *given,
	void *target, struct err *err)
{
	const char *arg = argv[i];
	size_t len = strcspn(arg, "=");
	const struct option_row *row = row_find(command, arg, len);
	if (row == NULL)
		return fail_unknown(command, arg, len, err);
	const char *value = arg[len] == '=' ? arg + len + 1 : NULL;
	int took = 1;
	if (row->value == NULL && value != NULL)
		return err_set(err, ERR_INVALID, "%s takes no value; see 'ringvol %s --help'",
			row->flag, command->name);
	if (row->value != NULL && value == NULL) {
		if (i + 1 >= argc)
			return err_set(err, ERR_INVALID, "%s needs a value: %s %s", row->flag,
				row->flag, row->value);
		value = argv[i + 1];
		took = 2;
	}
	given[row - command->options] = true;
	int r = row_set(row, row->flag, value, target, err);
	return r < 0 ? r : took;
}

static int parse(const struct command *command, int argc, char *const *argv, void *target,
	struct options_result *ret, struct err *err)
{
	bool given[OPTIONS_MAX] = {false};
	bool flags_over = false;
	struct options_result res = {0};
	for (int i = 0; i < argc;) {
		int r = 1;
		/* "-" is standard input, for a command that reads something. */
		bool lone = argv[i][0] == '-' && argv[i][1] == '\0' && command->operands[0] != NULL;
		if (flags_over || argv[i][0] != '-' || lone) {
			r = take_operand(command, argv[i], &res, err);
			i++;
		} else if (strcmp(argv[i], "--help") == 0) {
			*ret = (struct options_result){.help = true};
			return 0;
		} else if (strcmp(argv[i], "--") == 0) {
			flags_over = true;
			i++;
		} else {
			r = take_flag(command, argc, argv, i, given, target, err);
			i += r;
		}
		if (r < 0)
			return r;
	}
	for (unsigned i = 0; i < OPERANDS_MAX; i++)
		if (command->operands[i] != NULL && command->operands[i][0] != '[' &&
			res.operands[i] == NULL)
			return err_set(err, ERR_INVALID, "%s is missing; see 'ringvol %s --help'",
				command->operands[i], command->name);
	int r = set_missing(command, given, target, err);
	if (r < 0)
		return r;
	*ret = res;
	return 0;
}

int options_parse(const struct command *command, int argc, char *const *argv, void *target,
	struct options_result *ret, struct err *err)
{
	int r = parse(command, argc, argv, target, ret, err);
	/* What it repeats of a value may hold anything; the promise is one line. */
	for (char *c = err->message; r < 0 && *c != '\0'; c++)
		if ((unsigned char)*c < ' ' || *c == 0x7f)
			*c = '?';
	return r;
}

static void print_indented(FILE *out, const char *indent, const char *text)
{
	for (size_t len; *text != '\0'; text += len + (text[len] != '\0')) {
		len = strcspn(text, "\n");
		fprintf(out, "%s%.*s\n", indent, (int)len, text);
	}
}

void options_print_help(const struct command *command, FILE *out)
{
	fprintf(out, "usage: ringvol %s%s", command->name,
		command->options[0].flag != NULL ? " [OPTION...]" : "");
	for (unsigned i = 0; i < OPERANDS_MAX && command->operands[i] != NULL; i++)
		fprintf(out, " %s", command->operands[i]);
	fputs("\n\n", out);
	print_indented(out, "", command->summary);
	fputs("\noptions:\n", out);
	for (const struct option_row *row = command->options; row->flag != NULL; row++) {
		fprintf(out, "  %s%s%s\n", row->flag, row->value != NULL ? " " : "",
			row->value != NULL ? row->value : "");
		print_indented(out, "      ", row->help);
		const char *fallback =
			row->fallback_help != NULL ? row->fallback_help : row->fallback;
		const char *gap = "      ";
		for (unsigned i = 0; i < 2 && row->environment[i] != NULL; i++) {
			fprintf(out, "%s%s", i == 0 ? "      environment: " : ", ",
				row->environment[i]);
			if (row->separator != '\0')
				fprintf(out, " ('%c' between)", row->separator);
			gap = "; ";
		}
		if (fallback != NULL)
			fprintf(out, "%sdefault: %s", gap, fallback);
		if (fallback != NULL || row->environment[0] != NULL)
			fputs("\n", out);
	}
	fputs("  --help\n      this text\n", out);
}
