/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads as much of three configuration languages as says whether our devices are taken.
 *
 * Happy path: comments are blanked, the setting is found, its patterns are tried on a name of each
 * kind of device that we have. A file that cannot be understood counts as silent: the finding then
 * says how to be sure.
 */
#include "tools/doctor_node_conf.h"

#include <ctype.h>
#include <fnmatch.h>
#include <regex.h>
#include <stddef.h>
#include <string.h>

/* One of each kind. */
static const char *const device_names[] = {
	"/dev/loop0", "/dev/ublkb0", "/dev/mapper/ringvol-00000000-00000000"};
enum { DEVICE_NAMES = sizeof(device_names) / sizeof(device_names[0]), PATTERN_BYTES = 256 };

static void blank_comments(char *text)
{
	bool quoted = false, comment = false;
	for (char *at = text; *at != '\0'; at++) {
		if (*at == '\n')
			quoted = comment = false;
		else if (comment)
			*at = ' ';
		else if (*at == '"')
			quoted = !quoted;
		else if (*at == '#' && !quoted)
			*at = ' ', comment = true;
	}
}

static bool is_word(char c)
{
	return isalnum((unsigned char)c) || c == '_';
}

/* Behind the word where it stands alone, NULL if it is not there. */
static char *after_word(char *text, const char *word)
{
	size_t len = strlen(word);
	for (char *at = text; (at = strstr(at, word)) != NULL; at += len)
		if ((at == text || !is_word(at[-1])) && !is_word(at[len]))
			return at + len;
	return NULL;
}

/* What stands behind "word =". */
static char *value_of(char *text, const char *word)
{
	char *at = after_word(text, word);
	if (at == NULL)
		return NULL;
	at += strspn(at, " \t");
	return *at == '=' ? at + 1 + strspn(at + 1, " \t\n") : NULL;
}

static bool regex_matches(const char *pattern, const char *name)
{
	regex_t compiled;
	if (regcomp(&compiled, pattern, REG_EXTENDED | REG_NOSUB) != 0)
		return false;
	bool matches = regexec(&compiled, name, 0, NULL, 0) == 0;
	regfree(&compiled);
	return matches;
}

/* ---- LVM ---- */

/* The next string between quotation marks before end. false: there is none, or it is too long. */
static bool next_string(const char **at, const char *end, char ret[PATTERN_BYTES])
{
	const char *open = memchr(*at, '"', (size_t)(end - *at));
	const char *close = open == NULL ? NULL : memchr(open + 1, '"', (size_t)(end - open - 1));
	if (close == NULL || close - open > PATTERN_BYTES)
		return false;
	memcpy(ret, open + 1, (size_t)(close - open - 1));
	ret[close - open - 1] = '\0';
	*at = close + 1;
	return true;
}

/* "r|^/dev/loop|": the first pattern that matches decides, and what none matches is taken. */
static bool lvm_takes(const char *from, const char *end, const char *name)
{
	char pattern[PATTERN_BYTES];
	while (next_string(&from, end, pattern)) {
		size_t len = strlen(pattern);
		if (len < 3 || strchr("ar", pattern[0]) == NULL)
			continue;
		char delimiter = pattern[1];
		delimiter = delimiter == '(' ? ')' : delimiter == '[' ? ']' : delimiter;
		if (pattern[len - 1] != delimiter)
			continue;
		pattern[len - 1] = '\0';
		if (regex_matches(pattern + 2, name))
			return pattern[0] == 'a';
	}
	return true;
}

/* A list in brackets, or one string. */
static const char *lvm_value_end(const char *from)
{
	bool quoted = false;
	char last = *from == '[' ? ']' : '\n';
	for (const char *at = from; *at != '\0'; at++) {
		quoted = quoted != (*at == '"');
		if (*at == last && !quoted)
			return at;
	}
	return from + strlen(from);
}

enum doctor_conf doctor_conf_lvm_filter(char *text)
{
	blank_comments(text);
	const char *from = value_of(text, "global_filter");
	if (from == NULL)
		return DOCTOR_CONF_SILENT;
	const char *end = lvm_value_end(from);
	for (unsigned i = 0; i < DEVICE_NAMES; i++)
		if (lvm_takes(from, end, device_names[i]))
			return DOCTOR_CONF_TAKES;
	return DOCTOR_CONF_LEAVES;
}

enum doctor_conf doctor_conf_lvm_devices_file(char *text)
{
	blank_comments(text);
	const char *value = value_of(text, "use_devicesfile");
	if (value == NULL)
		return DOCTOR_CONF_SILENT;
	return *value == '1' ? DOCTOR_CONF_LEAVES : DOCTOR_CONF_TAKES;
}

/* ---- mdadm ---- */

/* The words of a line in turn; a line that begins with a blank goes on with the one before. */
struct md_line {
	bool is_auto, is_device;
};

static void md_begin(struct md_line *line, const char *word)
{
	/* mdadm takes a keyword by its first three letters. */
	line->is_auto = strncasecmp(word, "auto", strlen(word)) == 0 && strlen(word) >= 3;
	line->is_device = strncasecmp(word, "device", strlen(word)) == 0 && strlen(word) >= 3;
}

/* The first word that speaks of our devices' metadata decides. */
static enum doctor_conf md_auto(const char *word)
{
	if (strcasecmp(word, "-all") == 0)
		return DOCTOR_CONF_LEAVES;
	return word[0] == '+' || strcasecmp(word, "homehost") == 0 ? DOCTOR_CONF_TAKES
								   : DOCTOR_CONF_SILENT;
}

static enum doctor_conf md_device(const char *word)
{
	if (strcasecmp(word, "partitions") == 0)
		return DOCTOR_CONF_TAKES;
	for (unsigned i = 0; i < DEVICE_NAMES; i++)
		if (fnmatch(word, device_names[i], FNM_PATHNAME) == 0)
			return DOCTOR_CONF_TAKES;
	return DOCTOR_CONF_LEAVES;
}

enum doctor_conf doctor_conf_md(char *text)
{
	enum doctor_conf by_auto = DOCTOR_CONF_SILENT, by_device = DOCTOR_CONF_SILENT;
	struct md_line line = {0};
	char *save = NULL;
	blank_comments(text);
	for (char *row = strtok_r(text, "\n", &save); row != NULL;
		row = strtok_r(NULL, "\n", &save)) {
		bool begins = !isblank((unsigned char)row[0]);
		char *inner = NULL;
		for (char *word = strtok_r(row, " \t", &inner); word != NULL;
			word = strtok_r(NULL, " \t", &inner)) {
			if (begins)
				md_begin(&line, word);
			else if (line.is_auto && by_auto == DOCTOR_CONF_SILENT)
				by_auto = md_auto(word);
			else if (line.is_device && by_device != DOCTOR_CONF_TAKES)
				by_device = md_device(word);
			begins = false;
		}
	}
	/* Either of them keeps a device out; "DEVICE partitions" is no more than the default. */
	return by_device == DOCTOR_CONF_LEAVES ? DOCTOR_CONF_LEAVES : by_auto;
}

/* ---- multipath ---- */

enum doctor_conf doctor_conf_multipath(char *text)
{
	blank_comments(text);
	const char *from = after_word(text, "blacklist_exceptions");
	const char *end = from == NULL ? NULL : strchr(from, '}');
	if (end == NULL)
		return DOCTOR_CONF_SILENT;
	for (const char *at = from; (at = strstr(at, "devnode")) != NULL && at < end;) {
		char pattern[PATTERN_BYTES];
		at += strlen("devnode");
		if (!next_string(&at, end, pattern))
			return DOCTOR_CONF_LEAVES;
		/* multipath asks of "loop0", without a directory. */
		for (unsigned i = 0; i < DEVICE_NAMES; i++)
			if (regex_matches(pattern, strrchr(device_names[i], '/') + 1))
				return DOCTOR_CONF_TAKES;
	}
	return DOCTOR_CONF_LEAVES;
}
