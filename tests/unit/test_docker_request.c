/* SPDX-License-Identifier: Apache-2.0 */
/* What docker asks for, as JSON: what is taken, and what is refused with which words. */
#include "docker/request.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static struct arena *arena;
static struct docker_request req;
static struct err err;

static int parse(enum docker_verb verb, const char *text)
{
	arena_unref(arena);
	arena = arena_new(0);
	err_clear(&err);
	return docker_request_parse(verb, (const uint8_t *)text, strlen(text), arena, &req, &err);
}

static void teardown(void)
{
	arena_unref(arena);
}

TestSuite(docker_request, .fini = teardown);

Test(docker_request, what_docker_sends)
{
	cr_assert_eq(parse(DOCKER_ACTIVATE, ""), 0);
	cr_assert_eq(parse(DOCKER_LIST, "{}"), 0);
	cr_assert_eq(parse(DOCKER_CAPABILITIES, ""), 0);
	cr_assert_eq(parse(DOCKER_CREATE,
			     "{\"Name\":\"data\",\"Opts\":{\"size\":\"1Gi\",\"pool\":\"fast\"}}"),
		0);
	cr_assert_str_eq(req.name, "data");
	cr_assert_eq(req.n_options, 2);
	cr_assert_str_eq(req.options[0].key, "size");
	cr_assert_str_eq(req.options[0].value, "1Gi");
	cr_assert_str_eq(req.options[1].key, "pool");
	cr_assert_eq(parse(DOCKER_CREATE, "{\"Name\":\"d\",\"Opts\":null}"), 0);
	cr_assert_eq(parse(DOCKER_CREATE, "{\"Name\":\"d\"}"), 0);
	cr_assert_eq(req.n_options, 0);
	cr_assert_eq(parse(DOCKER_MOUNT, "{\"Name\":\"d\",\"ID\":\"a0b1\"}"), 0);
	cr_assert_str_eq(req.id, "a0b1");
	/* A field of a later protocol. */
	cr_assert_eq(parse(DOCKER_GET, "{\"Name\":\"d\",\"New\":[1,{}]}"), 0);
	cr_assert_str_eq(req.name, "d");
}

Test(docker_request, what_is_refused)
{
	static const struct {
		enum docker_verb verb;
		const char *text, *why;
	} table[] = {
		{DOCKER_GET, "", "no JSON object"},
		{DOCKER_GET, "[]", "no JSON object"},
		{DOCKER_GET, "\"d\"", "no JSON object"},
		{DOCKER_GET, "{\"Name\":\"d\"", "no JSON object"},
		{DOCKER_GET, "{\"Name\":\"d\"} x", "no JSON object"},
		{DOCKER_GET, "{\"Name\":\"a\",\"Name\":\"b\"}", "no JSON object"},
		{DOCKER_GET, "{\"Name\":\"a\\u0000b\"}", "no JSON object"},
		{DOCKER_GET, "{\"Name\":\"\xff\"}", "no JSON object"},
		{DOCKER_GET, "{}", "Name is missing"},
		{DOCKER_GET, "{\"Name\":7}", "Name is missing"},
		{DOCKER_GET, "{\"Name\":\"\"}", "Name has 1 to 120"},
		{DOCKER_GET, "{\"Name\":\".\"}", "Name has"},
		{DOCKER_GET, "{\"Name\":\"..\"}", "Name has"},
		{DOCKER_GET, "{\"Name\":\"../x\"}", "Name has"},
		{DOCKER_GET, "{\"Name\":\"a/b\"}", "Name has"},
		{DOCKER_GET, "{\"Name\":\"-a\"}", "Name has"},
		{DOCKER_GET, "{\"Name\":\"_a\"}", "Name has"},
		{DOCKER_GET, "{\"Name\":\"a b\"}", "Name has"},
		{DOCKER_GET, "{\"Name\":\"\xc3\xa4\"}", "Name has"},
		{DOCKER_MOUNT, "{\"Name\":\"d\"}", "ID is missing"},
		{DOCKER_MOUNT, "{\"Name\":\"d\",\"ID\":\"..\"}", "ID has"},
		{DOCKER_UNMOUNT, "{\"Name\":\"d\",\"ID\":\"a/b\"}", "ID has"},
		{DOCKER_CREATE, "{\"Name\":\"d\",\"Opts\":[]}", "Opts is no object"},
		{DOCKER_CREATE, "{\"Name\":\"d\",\"Opts\":{\"size\":1}}", "'size' is no string"},
	};
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		cr_assert_lt(parse(table[i].verb, table[i].text), 0, "%s", table[i].text);
		cr_assert_eq(err.code, ERR_INVALID);
		cr_assert_not_null(
			strstr(err.message, table[i].why), "%s: %s", table[i].text, err.message);
	}
}

Test(docker_request, limits)
{
	char text[8192], name[DOCKER_NAME_MAX + 2];
	memset(name, 'a', sizeof(name));
	name[DOCKER_NAME_MAX] = '\0';
	snprintf(text, sizeof(text), "{\"Name\":\"%s\"}", name);
	cr_assert_eq(parse(DOCKER_GET, text), 0);
	name[DOCKER_NAME_MAX] = 'a';
	name[DOCKER_NAME_MAX + 1] = '\0';
	snprintf(text, sizeof(text), "{\"Name\":\"%s\"}", name);
	cr_assert_lt(parse(DOCKER_GET, text), 0);
	for (unsigned count = DOCKER_OPTIONS_MAX; count <= DOCKER_OPTIONS_MAX + 1; count++) {
		int len = snprintf(text, sizeof(text), "{\"Name\":\"d\",\"Opts\":{");
		for (unsigned i = 0; i < count; i++)
			len += snprintf(text + len, sizeof(text) - (size_t)len, "%s\"o%u\":\"v\"",
				i > 0 ? "," : "", i);
		snprintf(text + len, sizeof(text) - (size_t)len, "}}");
		cr_assert_eq(parse(DOCKER_CREATE, text) == 0, count == DOCKER_OPTIONS_MAX);
	}
}
