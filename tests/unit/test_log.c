/* SPDX-License-Identifier: Apache-2.0 */
/* Log lines: one line each, whatever the values are. */
#include "base/log.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int from_log;

static void setup(void)
{
	int pair[2];
	cr_assert_eq(pipe2(pair, O_CLOEXEC | O_NONBLOCK), 0);
	cr_assert_eq(dup2(pair[1], STDERR_FILENO), STDERR_FILENO);
	close(pair[1]);
	from_log = pair[0];
}

TestSuite(log, .init = setup);

/* What was logged, from behind the time stamp. */
static const char *logged(void)
{
	static char line[8192];
	ssize_t n = read(from_log, line, sizeof(line) - 1);
	if (n <= 0)
		return "";
	line[n] = '\0';
	cr_assert_eq(strchr(line, '\n'), line + n - 1, "not one line: %s", line);
	const char *level = strstr(line, "level");
	cr_assert_not_null(level);
	return level;
}

#define ODD "q\" b\\ n\n t\t e\033[31m d\x7f c\xc2\x9b u\u00fc bad\xff\xc3 end"

Test(log, logfmt)
{
	log_open(LOG_LEVEL_INFO, LOG_FORMAT_LOGFMT);
	log_event(LOG_LEVEL_INFO, "hello", log_fields({"a", "b"}, {"none", NULL}, {"e", ""}));
	cr_assert_str_eq(logged(), "level=info msg=hello a=b e=\"\"\n");
	log_event(LOG_LEVEL_WARN, "two words", log_fields({"odd", ODD}, {"u", "\u00fc"}));
	cr_assert_str_eq(logged(),
		"level=warn msg=\"two words\" odd=\"q\\\" b\\\\ n\\n t\\u0009 e\\u001b[31m d\\u007f "
		"c\\u009b u\u00fc bad\ufffd\ufffd end\" u=\"\u00fc\"\n");
	log_event(LOG_LEVEL_ERROR, "x", log_fields({"forged", "a level=info msg=b"}));
	cr_assert_str_eq(logged(), "level=error msg=x forged=\"a level=info msg=b\"\n");
}

Test(log, json)
{
	log_open(LOG_LEVEL_INFO, LOG_FORMAT_JSON);
	log_event(LOG_LEVEL_INFO, "hello", log_fields({"a", "b"}, {"none", NULL}, {"e", ""}));
	cr_assert_str_eq(logged(), "level\":\"info\",\"msg\":\"hello\",\"a\":\"b\",\"e\":\"\"}\n");
	log_event(LOG_LEVEL_WARN, "two words", log_fields({"odd", ODD}));
	cr_assert_str_eq(logged(),
		"level\":\"warn\",\"msg\":\"two words\",\"odd\":\"q\\\" b\\\\ n\\n t\\u0009 "
		"e\\u001b[31m "
		"d\\u007f c\\u009b u\u00fc bad\ufffd\ufffd end\"}\n");
}

Test(log, levels)
{
	log_open(LOG_LEVEL_WARN, LOG_FORMAT_LOGFMT);
	log_event(LOG_LEVEL_INFO, "not this", NULL);
	log_event(LOG_LEVEL_DEBUG, "nor this", NULL);
	cr_assert_str_eq(logged(), "");
	log_event(LOG_LEVEL_WARN, "this", NULL);
	cr_assert_str_eq(logged(), "level=warn msg=this\n");
	cr_assert(log_enabled(LOG_LEVEL_ERROR));
	cr_assert_not(log_enabled(LOG_LEVEL_INFO));
}

/* A reader that stopped reading costs lines, not time. */
Test(log, a_full_pipe_loses_lines)
{
	log_open(LOG_LEVEL_INFO, LOG_FORMAT_LOGFMT);
	char text[1001];
	memset(text, 'x', 1000);
	text[1000] = '\0';
	for (unsigned i = 0; i < 1000; i++)
		log_event(LOG_LEVEL_INFO, text, NULL);
	char in[4096];
	size_t all = 0;
	for (ssize_t n; (n = read(from_log, in, sizeof(in))) > 0;)
		all += (size_t)n;
	cr_assert_gt(all, 4096);
	cr_assert_lt(all, 1000 * 1000);
	log_event(LOG_LEVEL_INFO, "again", NULL);
	cr_assert_str_eq(logged(), "level=info msg=again\n");
}

/* ---- lines that are held back ---- */

static unsigned lines(char *text, size_t cap)
{
	unsigned count = 0;
	ssize_t n = read(from_log, text, cap - 1);
	for (ssize_t i = 0; i < n; i++)
		count += text[i] == '\n';
	text[n < 0 ? 0 : n] = '\0';
	return count;
}

Test(log, held_lines_come_together)
{
	char text[16384];
	log_open(LOG_LEVEL_INFO, LOG_FORMAT_LOGFMT);
	log_hold();
	for (unsigned i = 0; i < 10; i++)
		log_event(LOG_LEVEL_INFO, "held", NULL);
	cr_assert_eq(lines(text, sizeof(text)), 0);
	log_flush();
	cr_assert_eq(lines(text, sizeof(text)), 10);
	log_flush();
	cr_assert_eq(lines(text, sizeof(text)), 0);

	/* Who warns may be about to fall; the order stays. */
	log_event(LOG_LEVEL_INFO, "first", NULL);
	log_event(LOG_LEVEL_WARN, "second", NULL);
	cr_assert_eq(lines(text, sizeof(text)), 2);
	cr_assert_lt(strstr(text, "first"), strstr(text, "second"));

	log_event(LOG_LEVEL_INFO, "last", NULL);
	log_unhold();
	cr_assert_eq(lines(text, sizeof(text)), 1);
	log_event(LOG_LEVEL_INFO, "at once", NULL);
	cr_assert_eq(lines(text, sizeof(text)), 1);
}

/* More than is held goes out before it is told to, whole lines in their order, and a line longer
 * than all that is held as well. */
Test(log, held_lines_have_a_limit)
{
	static char text[65536], longer[5000];
	char number[16];
	unsigned seen = 0;
	log_open(LOG_LEVEL_INFO, LOG_FORMAT_LOGFMT);
	log_hold();
	for (unsigned i = 0; i < 200; i++) {
		snprintf(number, sizeof(number), "n%u", i);
		log_event(LOG_LEVEL_INFO, number, NULL);
	}
	cr_assert_gt(seen = lines(text, sizeof(text)), 0);
	cr_assert_lt(seen, 200);
	memset(longer, 'x', sizeof(longer) - 1);
	log_event(LOG_LEVEL_INFO, longer, NULL);
	seen += lines(text + strlen(text), sizeof(text) - strlen(text));
	cr_assert_eq(seen, 201);
	const char *at = text;
	for (unsigned i = 0; i < 200; i++) {
		snprintf(number, sizeof(number), "msg=n%u\n", i);
		at = strstr(at, number);
		cr_assert_not_null(at, "%s", number);
	}
	cr_assert_not_null(strstr(at, longer));
	log_unhold();
}

Test(log, the_time_is_now)
{
	char text[4096], zone;
	struct tm tm = {0};
	int ms;
	log_open(LOG_LEVEL_INFO, LOG_FORMAT_LOGFMT);
	for (unsigned i = 0; i < 3; i++) {
		struct timespec before, after;
		clock_gettime(CLOCK_REALTIME, &before);
		log_event(LOG_LEVEL_INFO, "now", NULL);
		clock_gettime(CLOCK_REALTIME, &after);
		cr_assert_eq(lines(text, sizeof(text)), 1);
		cr_assert_eq(sscanf(text, "ts=%d-%d-%dT%d:%d:%d.%3d%c", &tm.tm_year, &tm.tm_mon,
				     &tm.tm_mday, &tm.tm_hour, &tm.tm_min, &tm.tm_sec, &ms, &zone),
			8, "%s", text);
		cr_assert_eq(zone, 'Z');
		tm.tm_year -= 1900;
		tm.tm_mon--;
		long long at = (long long)timegm(&tm) * 1000 + ms;
		cr_assert_geq(at, before.tv_sec * 1000LL + before.tv_nsec / 1000000);
		cr_assert_leq(at, after.tv_sec * 1000LL + after.tv_nsec / 1000000);
		usleep(600000); /* into another second */
	}
}
