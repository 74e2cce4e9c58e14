/* SPDX-License-Identifier: Apache-2.0 */
/* Command lines of `controller`: what it takes, each refusal, and what goes with what. */
#include "app/controller_options.h"

#include "csi/csi.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct controller_options o;
static struct options_result result;
static struct err err;

static void clean_environment(void)
{
	for (const struct option_row *row = controller_command.options; row->flag != NULL; row++)
		for (unsigned i = 0; i < 2 && row->environment[i] != NULL; i++)
			unsetenv(row->environment[i]);
}

static int parse(char *const *argv)
{
	int argc = 0;
	while (argv[argc] != NULL)
		argc++;
	controller_options_free(&o);
	o = (struct controller_options){0};
	result = (struct options_result){0};
	err_clear(&err);
	return controller_options_parse(&o, &result, argc, argv, &err);
}

#define PARSE(...) parse((char *const[]){__VA_ARGS__ __VA_OPT__(, ) NULL})
#define REFUSED(part, ...)                                                                         \
	do {                                                                                       \
		cr_assert_eq(PARSE(__VA_ARGS__), -EINVAL, "accepted; wanted: %s", part);           \
		cr_assert_not_null(                                                                \
			strstr(err.message, part), "'%s' lacks '%s'", err.message, part);          \
		cr_assert_null(strchr(err.message, '\n'));                                         \
	} while (0)

#define CLUSTER                                                                                    \
	"--listen", "127.0.0.1:9809", "--tls-cert", "/c", "--tls-key", "/k", "--tls-ca", "/a"

static void finish(void)
{
	controller_options_free(&o);
}

TestSuite(controller_options, .init = clean_environment, .fini = finish);

Test(controller_options, a_cluster)
{
	cr_assert_eq(PARSE(CLUSTER), 0, "%s", err.message);
	cr_assert_eq(o.endpoint_count, 1);
	cr_assert_str_eq(o.endpoints[0], "unix:///run/ringvol/controller.sock");
	cr_assert_str_eq(o.listen, "127.0.0.1:9809");
	cr_assert_str_eq(o.http, "127.0.0.1:9808");
	cr_assert_str_eq(o.driver_name, "csi.ringvol.dev");
	cr_assert_str_eq(o.tls.cert, "/c");
	cr_assert_str_eq(o.tls.key, "/k");
	cr_assert_str_eq(o.tls.ca, "/a");
	cr_assert(o.controller_expand && o.health == (CSI_HEALTH_1_12 | CSI_HEALTH_1_13));
	cr_assert(o.node == NULL && o.forget_count == 0);
	cr_assert_eq(PARSE(CLUSTER, "--endpoint", "unix:///a", "--endpoint", "unix:///b", "--http",
			     "off", "--forget-pool", "0123abcd", "--forget-pool", "89abcdef",
			     "--forget-pool", "0123abcd", "--controller-expand", "node",
			     "--csi-version", "1.13", "--driver-name", "my.driver"),
		0, "%s", err.message);
	cr_assert_eq(o.endpoint_count, 2);
	cr_assert_null(o.http);
	cr_assert_eq(o.forget_count, 2);
	cr_assert_str_eq(o.forget[1], "89abcdef");
	cr_assert(!o.controller_expand && o.health == CSI_HEALTH_1_13);
	cr_assert_str_eq(o.driver_name, "my.driver");
}

Test(controller_options, by_environment)
{
	setenv("CSI_ENDPOINT", "unix:///run/x.sock", 1);
	setenv("RINGVOL_LISTEN", "[::]:9809", 1);
	setenv("RINGVOL_TLS_CERT", "/c", 1);
	setenv("RINGVOL_TLS_KEY", "/k", 1);
	setenv("RINGVOL_TLS_CA", "/a", 1);
	setenv("RINGVOL_FORGET_POOLS", "0123abcd,89abcdef", 1);
	cr_assert_eq(PARSE(), 0, "%s", err.message);
	cr_assert_str_eq(o.endpoints[0], "unix:///run/x.sock");
	cr_assert_str_eq(o.listen, "[::]:9809");
	cr_assert_eq(o.forget_count, 2);
}

Test(controller_options, one_node_alone)
{
	cr_assert_eq(PARSE("--node", "unix:///run/node.sock"), 0, "%s", err.message);
	cr_assert_str_eq(o.node, "unix:///run/node.sock");
	cr_assert_null(o.listen);
	REFUSED("do not go with it", "--node", "unix:///n", "--listen", "127.0.0.1:1");
	REFUSED("do not go with it", "--node", "unix:///n", "--tls-ca", "/a");
	REFUSED("do not go with it", "--node", "unix:///n", "--forget-pool", "0123abcd");
	REFUSED("in a circle", "--node", "unix:///n", "--endpoint", "unix:///n");
	REFUSED("not unix:///PATH", "--node", "tcp://127.0.0.1:1");
	REFUSED("not unix:///PATH", "--node", "10.0.0.1:1");
}

Test(controller_options, what_cannot_be)
{
	REFUSED("--listen is needed");
	REFUSED("--listen needs --tls-cert", "--listen", "127.0.0.1:9809");
	REFUSED("--listen needs --tls-ca", "--listen", "127.0.0.1:9809", "--tls-cert", "/c",
		"--tls-key", "/k");
	REFUSED("not ADDR:PORT", CLUSTER, "--listen", "localhost:1");
	REFUSED("not ADDR:PORT", CLUSTER, "--listen", "127.0.0.1:65536");
	REFUSED("not ADDR:PORT", CLUSTER, "--http", "on");
	REFUSED("not unix:///PATH", CLUSTER, "--endpoint", "tcp://127.0.0.1:1");
	REFUSED("given twice", CLUSTER, "--endpoint", "unix:///a", "--endpoint", "unix:///a");
	REFUSED("first 8 digits", CLUSTER, "--forget-pool", "0123abc");
	REFUSED("first 8 digits", CLUSTER, "--forget-pool", "0123abcdef");
	REFUSED("first 8 digits", CLUSTER, "--forget-pool", "0123ABCD");
	REFUSED("a driver's name", CLUSTER, "--driver-name", "-x");
	REFUSED("--pool", CLUSTER, "--pool", "x=/x");
}

Test(controller_options, limits)
{
	char *argv[2 * CONTROLLER_FORGET_MAX + 16] = {CLUSTER};
	char pools[CONTROLLER_FORGET_MAX + 1][9];
	unsigned argc = 8;
	for (unsigned i = 0; i < CONTROLLER_FORGET_MAX; i++) {
		snprintf(pools[i], sizeof(pools[i]), "%08x", i);
		argv[argc++] = "--forget-pool";
		argv[argc++] = pools[i];
	}
	cr_assert_eq(parse(argv), 0, "%s", err.message);
	cr_assert_eq(o.forget_count, CONTROLLER_FORGET_MAX);
	argv[argc++] = "--forget-pool";
	argv[argc++] = "ffffffff";
	cr_assert_eq(parse(argv), -EINVAL);
	cr_assert_not_null(strstr(err.message, "more than 256 pools"));
	REFUSED("more than 8 endpoints", CLUSTER, "--endpoint", "unix:///1", "--endpoint",
		"unix:///2", "--endpoint", "unix:///3", "--endpoint", "unix:///4", "--endpoint",
		"unix:///5", "--endpoint", "unix:///6", "--endpoint", "unix:///7", "--endpoint",
		"unix:///8", "--endpoint", "unix:///9");
}
