/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Raw ANSI, as every terminal of the last thirty years has it. Happy path: other buffer, cursor
 * off, no echo; draw, wait for a key; back.
 *
 * A process can have one. Handlers touch only what is below, with calls that are safe in them.
 */
#include "tools/screen.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

static const char enter[] = "\033[?1049h\033[?25l\033[H\033[2J";
static const char leave[] = "\033[0m\033[?25h\033[?1049l";

static struct termios before, raw;
static bool keys; /* standard input is a terminal */
static volatile sig_atomic_t is_open, redraw;

static void say(const char *s, size_t len)
{
	while (len > 0) {
		ssize_t n = write(STDOUT_FILENO, s, len);
		if (n < 0)
			return;
		s += n;
		len -= (size_t)n;
	}
}

static void put_back(void)
{
	say(leave, sizeof(leave) - 1);
	if (keys)
		tcsetattr(STDIN_FILENO, TCSANOW, &before);
}

static void take(void)
{
	if (keys)
		tcsetattr(STDIN_FILENO, TCSANOW, &raw);
	say(enter, sizeof(enter) - 1);
}

/* The default action follows when the handler returns: it was reset, and the signal is pending. */
static void on_end(int sig)
{
	if (is_open)
		put_back();
	is_open = 0;
	raise(sig);
}

static void on_stop(int sig)
{
	(void)sig;
	int saved = errno;
	if (is_open)
		put_back();
	raise(SIGSTOP);
	if (is_open)
		take();
	redraw = 1;
	errno = saved;
}

static void on_resize(int sig)
{
	(void)sig;
	redraw = 1;
}

static void handle_signals(void)
{
	static const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGABRT, SIGSEGV,
		SIGBUS, SIGFPE, SIGILL};
	struct sigaction end = {.sa_handler = on_end, .sa_flags = (int)SA_RESETHAND};
	struct sigaction stop = {.sa_handler = on_stop, .sa_flags = SA_RESTART};
	struct sigaction resize = {.sa_handler = on_resize, .sa_flags = SA_RESTART};
	for (unsigned i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
		sigaction(ends[i], &end, NULL);
	sigaction(SIGTSTP, &stop, NULL);
	sigaction(SIGWINCH, &resize, NULL);
	/* Only while a key is waited for: a call to the driver is not cut short. */
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGWINCH);
	sigaddset(&set, SIGTSTP);
	sigprocmask(SIG_BLOCK, &set, NULL);
}

int screen_open(void)
{
	keys = tcgetattr(STDIN_FILENO, &before) == 0;
	raw = before;
	raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
	raw.c_cc[VMIN] = 1;
	raw.c_cc[VTIME] = 0;
	handle_signals();
	is_open = 1;
	take();
	return 0;
}

void screen_close(void)
{
	if (!is_open)
		return;
	is_open = 0;
	put_back();
}

/* A line is wiped before it is written: behind a full one the cursor still stands on its last
 * character. */
int screen_draw(const struct buf *text, unsigned lines)
{
	static const char home[] = "\033[H", wipe_line[] = "\033[K", wipe_rest[] = "\033[J";
	struct buf out = {0};
	int r = buf_append(&out, home, sizeof(home) - 1);
	size_t at = 0;
	for (unsigned i = 0; r == 0 && i < lines && at < text->len; i++) {
		const uint8_t *end = memchr(text->data + at, '\n', text->len - at);
		size_t len = end != NULL ? (size_t)(end - text->data) - at : text->len - at;
		/* A newline in the last line would scroll. */
		if (i > 0)
			r = buf_append(&out, "\r\n", 2);
		if (r == 0)
			r = buf_append(&out, wipe_line, sizeof(wipe_line) - 1);
		if (r == 0)
			r = buf_append(&out, text->data + at, len);
		at += len + 1;
	}
	if (r == 0)
		r = buf_append(&out, wipe_rest, sizeof(wipe_rest) - 1);
	if (r == 0)
		say((const char *)out.data, out.len);
	buf_free(&out);
	return r;
}

/* What follows the escape character came with it, or it was the key. */
static int escape_key(void)
{
	char rest[8] = {0};
	struct pollfd more = {.fd = STDIN_FILENO, .events = POLLIN};
	if (poll(&more, 1, 20) != 1 || read(STDIN_FILENO, rest, sizeof(rest) - 1) <= 0)
		return SCREEN_OTHER;
	if (rest[0] != '[' && rest[0] != 'O')
		return SCREEN_OTHER;
	static const char codes[] = "ABCDH56";
	static const int screen_keys[] = {SCREEN_UP, SCREEN_DOWN, SCREEN_RIGHT, SCREEN_LEFT,
		SCREEN_HOME, SCREEN_PAGE_UP, SCREEN_PAGE_DOWN};
	const char *code = rest[1] != '\0' ? strchr(codes, rest[1]) : NULL;
	return code != NULL ? screen_keys[code - codes] : SCREEN_OTHER;
}

static int read_key(void)
{
	unsigned char c;
	ssize_t n = read(STDIN_FILENO, &c, 1);
	if (n <= 0) {
		keys = keys && n < 0 && errno == EINTR; /* a terminal that has hung up */
		return SCREEN_OTHER;
	}
	if (c == 0x1B)
		return escape_key();
	return c >= 0x20 && c < 0x7F ? c : SCREEN_OTHER;
}

int screen_key(uint64_t timeout_ms)
{
	sigset_t none;
	struct pollfd wait = {.fd = STDIN_FILENO, .events = POLLIN};
	struct timespec time = {
		.tv_sec = (time_t)(timeout_ms / 1000),
		.tv_nsec = (long)(timeout_ms % 1000) * 1000000,
	};
	sigemptyset(&none);
	int r = ppoll(&wait, keys ? 1 : 0, &time, &none);
	if (redraw) {
		redraw = 0;
		return SCREEN_RESIZED;
	}
	if (r < 0)
		return SCREEN_OTHER;
	return r == 0 ? SCREEN_NONE : read_key();
}
