/* SPDX-License-Identifier: Apache-2.0 */
/* Command lines of `serve`: flags, environment, defaults, each refusal, hints, and the help text.
 */
#include "app/serve_options.h"
#include "app/values.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct serve_options o;
static struct options_result result;
static struct err err;

static void clean_environment(void)
{
	for (const struct option_row *row = serve_command.options; row->flag != NULL; row++)
		for (unsigned i = 0; i < 2 && row->environment[i] != NULL; i++)
			unsetenv(row->environment[i]);
}

static int parse(char *const *argv)
{
	int argc = 0;
	while (argv[argc] != NULL)
		argc++;
	serve_options_free(&o);
	o = (struct serve_options){0};
	result = (struct options_result){0};
	err_clear(&err);
	return serve_options_parse(&o, &result, argc, argv, &err);
}

#define PARSE(...) parse((char *const[]){__VA_ARGS__ __VA_OPT__(, ) NULL})

#define REFUSED(part, ...)                                                                         \
	do {                                                                                       \
		cr_assert_eq(PARSE(__VA_ARGS__), -EINVAL, "accepted; wanted: %s", part);           \
		cr_assert_not_null(                                                                \
			strstr(err.message, part), "'%s' lacks '%s'", err.message, part);          \
		cr_assert_null(strchr(err.message, '\n'));                                         \
	} while (0)

static void finish(void)
{
	serve_options_free(&o);
}

TestSuite(options, .init = clean_environment, .fini = finish);

Test(options, loop_nodes_in_pods_are_accepted_by_name)
{
	cr_assert_eq(PARSE(), 0);
	cr_expect_not(o.loop.block_on_loop);
	cr_assert_eq(PARSE("--block-on-loop"), 0, "%s", err.message);
	cr_expect(o.loop.block_on_loop);
	REFUSED("takes no value", "--block-on-loop=true");
	static const char *const values[] = {"false", "true", "0", "1"};
	for (unsigned i = 0; i < 4; i++) {
		setenv("RINGVOL_BLOCK_ON_LOOP", values[i], 1);
		cr_assert_eq(PARSE(), 0, "%s", err.message);
		cr_expect_eq(o.loop.block_on_loop, i % 2 == 1, "%s", values[i]);
	}
	setenv("RINGVOL_BLOCK_ON_LOOP", "maybe", 1);
	REFUSED("RINGVOL_BLOCK_ON_LOOP 'maybe'", NULL);
	cr_assert_eq(PARSE("--block-on-loop"), 0, "the flag wins");
	unsetenv("RINGVOL_BLOCK_ON_LOOP");
}

Test(options, defaults_are_the_contract)
{
	char host[256];
	gethostname(host, sizeof(host));
	cr_assert_eq(PARSE(), 0, "%s", err.message);
	cr_assert_eq(o.endpoint_count, 1);
	cr_assert_str_eq(o.endpoints[0], "unix:///run/ringvol/csi.sock");
	cr_assert_str_eq(o.csi.driver_name, "csi.ringvol.dev");
	cr_assert_str_eq(o.csi.node_id, host);
	cr_assert_eq(o.pool_count, 1);
	cr_assert_str_eq(o.pools[0].name, "default");
	cr_assert_str_eq(o.pools[0].path, "/var/lib/ringvol");
	cr_assert_eq(o.pools[0].overcommit, 1.0);
	cr_assert_eq(o.pools[0].reserve_pct, 5);
	cr_assert_not(o.pools[0].init);
	cr_assert_eq(o.csi.services,
		CSI_IDENTITY | CSI_CONTROLLER | CSI_NODE | CSI_GROUP | CSI_SNAPSHOT_METADATA);
	cr_assert(o.csi.controller_expand);
	cr_assert(o.csi.staging);
	cr_assert_not(o.csi.attach);
	cr_assert_null(o.export_address);
	cr_assert_eq(o.csi.inlines.n_pools, 0);
	cr_assert_eq(o.csi.health, CSI_HEALTH_1_12 | CSI_HEALTH_1_13);
	cr_assert_not(o.insecure_tcp);
	cr_assert_eq(o.csi.max_volumes, 0);
	cr_assert_eq(o.trim_interval_s, 0);
	cr_assert(o.borrow.loss_s == 600 && o.borrow.fail_s == 0);
	cr_assert_eq(o.log_level, LOG_LEVEL_INFO);
	cr_assert_eq(o.log_format, LOG_FORMAT_LOGFMT);
	cr_assert_str_eq(o.http, "127.0.0.1:9808");
	cr_assert_null(o.docker_plugin);
	cr_assert_str_eq(o.docker_mounts, "/run/ringvol-docker");
}

Test(options, docker)
{
	cr_assert_eq(
		PARSE("--docker-plugin=/run/docker/plugins/ringvol.sock"), 0, "%s", err.message);
	cr_assert_str_eq(o.docker_plugin, "/run/docker/plugins/ringvol.sock");
	cr_assert_eq(o.target_root_count, 0);
	cr_assert_eq(PARSE("--docker-plugin", "/a.sock", "--docker-mounts", "/m", "--target-root",
			     "/var/lib/kubelet/pods"),
		0, "%s", err.message);
	cr_assert_eq(o.target_root_count, 2);
	cr_assert_str_eq(o.target_roots[1], "/m");
	REFUSED("absolute", "--docker-plugin", "a.sock");
	REFUSED("absolute", "--docker-mounts", "m");
	REFUSED("needs the services controller and node", "--docker-plugin", "/a.sock",
		"--services", "node");
}

Test(options, waits_for_owners)
{
	cr_assert_eq(
		PARSE("--owner-timeout=90s", "--owner-fail-after", "1m"), 0, "%s", err.message);
	cr_assert(o.borrow.loss_s == 90 && o.borrow.fail_s == 60);
	cr_assert_eq(PARSE("--owner-fail-after=off"), 0);
	cr_assert_eq(o.borrow.fail_s, 0);
	static char *const bad[] = {"--owner-timeout=off", "--owner-timeout=0s",
		"--owner-timeout=25h", "--owner-fail-after=", "--owner-fail-after=2d"};
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		cr_assert_lt(PARSE(bad[i]), 0, "%s", bad[i]);
}

Test(options, flags_in_both_forms)
{
	cr_assert_eq(
		PARSE("--endpoint", "unix:///a/b.sock", "--endpoint=tcp://127.0.0.1:1",
			"--endpoint=tcp://[::1]:65535", "--endpoint", "unix:/c", "--insecure-tcp",
			"--driver-name=a.b-c.D9", "--node-id", "n/1", "--services", "node,identity",
			"--controller-expand=node", "--staging=off", "--csi-version=1.13",
			"--max-volumes-per-node", "110", "--trim-interval=12h", "--log-level=debug",
			"--log-format", "json", "--http=off"),
		0, "%s", err.message);
	cr_assert_eq(o.endpoint_count, 4);
	cr_assert_str_eq(o.endpoints[1], "tcp://127.0.0.1:1");
	cr_assert_str_eq(o.endpoints[3], "unix:/c");
	cr_assert_str_eq(o.csi.driver_name, "a.b-c.D9");
	cr_assert_str_eq(o.csi.node_id, "n/1");
	cr_assert_eq(o.csi.services, CSI_IDENTITY | CSI_NODE);
	cr_assert_not(o.csi.controller_expand);
	cr_assert_not(o.csi.staging);
	cr_assert_eq(o.csi.health, CSI_HEALTH_1_13);
	cr_assert(o.insecure_tcp);
	cr_assert_eq(o.csi.max_volumes, 110);
	cr_assert_eq(o.trim_interval_s, 12 * 3600);
	cr_assert_eq(o.log_level, LOG_LEVEL_DEBUG);
	cr_assert_eq(o.log_format, LOG_FORMAT_JSON);
	cr_assert_null(o.http);
}

Test(options, attach)
{
	cr_assert_eq(PARSE("--attach"), 0, "%s", err.message);
	cr_expect(o.csi.attach);
	cr_expect_null(o.export_address);
	cr_assert_eq(PARSE("--attach", "--export-address", "192.0.2.1:4420"), 0, "%s", err.message);
	cr_expect_str_eq(o.export_address, "192.0.2.1:4420");
	cr_expect_not(o.export_without_auth);
	cr_assert_eq(
		PARSE("--attach", "--export-address=[2001:db8::1]:4420", "--export-without-auth"),
		0, "%s", err.message);
	cr_expect(o.export_without_auth);
	cr_expect_not(o.export_tls);
	cr_assert_eq(PARSE("--attach", "--export-address=192.0.2.1:4420", "--export-tls"), 0, "%s",
		err.message);
	cr_expect(o.export_tls);
	REFUSED("--export-address", "--attach", "--export-tls");
	REFUSED("one of the two", "--attach", "--export-address=192.0.2.1:4420", "--export-tls",
		"--export-without-auth");
	REFUSED("--attach", "--export-address=192.0.2.1:4420");
	REFUSED("--export-address", "--attach", "--export-without-auth");
	REFUSED("IP:PORT", "--attach", "--export-address=node.example:4420");
	REFUSED("IP:PORT", "--attach", "--export-address=192.0.2.1");
	REFUSED("IP:PORT", "--attach", "--export-address=192.0.2.1:0");
	REFUSED("IP:PORT", "--attach", "--export-address=192.0.2.1:65536");
	REFUSED("IP:PORT", "--attach", "--export-address=2001:db8::1:4420");
	REFUSED("the one address", "--attach", "--export-address=0.0.0.0:4420");
	REFUSED("the one address", "--attach", "--export-address=[::]:4420");
}

Test(options, topology)
{
	cr_assert_eq(PARSE(), 0);
	cr_expect_eq(o.csi.n_topology, 0);
	cr_assert_eq(PARSE("--topology", "topology.kubernetes.io/zone=a", "--topology=rack=r1"), 0,
		"%s", err.message);
	cr_assert_eq(o.csi.n_topology, 2);
	cr_expect_str_eq(o.csi.topology[0].key, "topology.kubernetes.io/zone");
	cr_expect_str_eq(o.csi.topology[0].value, "a");
	cr_expect_str_eq(o.csi.topology[1].key, "rack");
	cr_expect_str_eq(o.csi.topology[1].value, "r1");
	setenv("RINGVOL_TOPOLOGY", "zone=a;rack=b", 1);
	cr_assert_eq(PARSE(), 0, "%s", err.message);
	cr_assert_eq(o.csi.n_topology, 2);
	cr_expect_str_eq(o.csi.topology[1].key, "rack");
	unsetenv("RINGVOL_TOPOLOGY");
	REFUSED("not KEY=VALUE", "--topology=zone");
	REFUSED("the key is no label's", "--topology==a");
	REFUSED("the value is no label's", "--topology=a=");
	REFUSED("the value is no label's", "--topology=a=b=c");
	REFUSED("the key is given twice", "--topology=a=b", "--topology=A=c");
	REFUSED("is the node's own segment", "--topology=topology.ringvol.dev/node=a");
}

#define TLS "--tls-cert=/c", "--tls-key=/k", "--tls-ca=/a"

Test(options, cluster)
{
	cr_assert_eq(PARSE(), 0);
	cr_expect_eq(o.controller_count, 0);
	cr_assert_eq(PARSE("--controller", "c-0.ringvol:9810", "--controller=[fd00::1]:9810",
			     "--controller=10.0.0.1:9810", "--listen=192.0.2.7:9811", TLS),
		0, "%s", err.message);
	cr_assert_eq(o.controller_count, 3);
	cr_expect_str_eq(o.controllers[0], "c-0.ringvol:9810");
	cr_expect_str_eq(o.controllers[1], "[fd00::1]:9810");
	cr_expect_str_eq(o.listen, "192.0.2.7:9811");
	cr_expect_str_eq(o.advertise, "192.0.2.7:9811", "the address itself");
	cr_expect_str_eq(o.tls.cert, "/c");
	cr_expect_str_eq(o.tls.key, "/k");
	cr_expect_str_eq(o.tls.ca, "/a");
	cr_assert_eq(
		PARSE("--controller=c:1", "--listen=[::]:9811", "--advertise=n1.lan:9811", TLS), 0,
		"%s", err.message);
	cr_expect_str_eq(o.advertise, "n1.lan:9811");
	setenv("RINGVOL_CONTROLLERS", "a:1;b:2", 1);
	setenv("RINGVOL_LISTEN", "0.0.0.0:9811", 1);
	setenv("RINGVOL_ADVERTISE", "n:9811", 1);
	cr_assert_eq(PARSE(TLS), 0, "%s", err.message);
	cr_assert_eq(o.controller_count, 2);
	cr_expect_str_eq(o.controllers[1], "b:2");
	cr_expect_str_eq(o.listen, "0.0.0.0:9811");
	cr_expect_str_eq(o.advertise, "n:9811");
}

Test(options, cluster_refused)
{
	REFUSED("needs --listen", "--controller=a:1", TLS);
	REFUSED("needs --tls-cert", "--controller=a:1", "--listen=10.0.0.1:1");
	REFUSED("needs --tls-ca", "--controller=a:1", "--listen=10.0.0.1:1", "--tls-cert=/c",
		"--tls-key=/k");
	REFUSED("--advertise HOST:PORT", "--controller=a:1", "--listen=0.0.0.0:1", TLS);
	REFUSED("--advertise HOST:PORT", "--controller=a:1", "--listen=[::]:1", TLS);
	REFUSED("say which with --controller", "--listen=10.0.0.1:1", TLS);
	REFUSED("--advertise is for controllers", "--advertise=10.0.0.1:1");
	REFUSED("given twice", "--controller=a:1", "--controller=a:1");
	static const char *const bad[] = {
		"", "a", "a:", ":1", "a:0", "a:65536", "a:b", "unix:///x", "fd00::1:9810", "a b:1"};
	char flag[64];
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		snprintf(flag, sizeof(flag), "--controller=%s", bad[i]);
		REFUSED("not HOST:PORT", flag);
		snprintf(flag, sizeof(flag), "--advertise=%s", bad[i]);
		REFUSED("not HOST:PORT", flag);
	}
	REFUSED("not ADDR:PORT", "--listen=n1.lan:1");
	REFUSED("more than 8 controllers", "--controller=a:1", "--controller=a:2",
		"--controller=a:3", "--controller=a:4", "--controller=a:5", "--controller=a:6",
		"--controller=a:7", "--controller=a:8", "--controller=a:9");
}

Test(options, the_last_of_a_single_flag_counts)
{
	cr_assert_eq(PARSE("--node-id=a", "--node-id=b"), 0);
	cr_assert_str_eq(o.csi.node_id, "b");
	/* Identity is part of every plugin. */
	cr_assert_eq(PARSE("--services=controller"), 0);
	cr_assert_eq(o.csi.services, CSI_IDENTITY | CSI_CONTROLLER);
}

Test(options, pools)
{
	cr_assert_eq(PARSE("--pool", "fast=/mnt/a=b,overcommit=2.5,reserve=0,init", "--pool=b=/"),
		0, "%s", err.message);
	cr_assert_eq(o.pool_count, 2);
	cr_assert_str_eq(o.pools[0].name, "fast");
	cr_assert_str_eq(o.pools[0].path, "/mnt/a=b");
	cr_assert_eq(o.pools[0].overcommit, 2.5);
	cr_assert_eq(o.pools[0].reserve_pct, 0);
	cr_assert(o.pools[0].init);
	cr_assert_str_eq(o.pools[1].path, "/");

	cr_assert_eq(PARSE("--pool=none"), 0, "%s", err.message);
	cr_assert_eq(o.pool_count, 0, "the default is not added");
	cr_assert(o.no_pools);
	REFUSED("other pools", "--pool=none", "--pool=a=/a");
	REFUSED("other pools", "--pool=a=/a", "--pool=none");

	REFUSED("NAME=PATH", "--pool=fast");
	REFUSED("NAME=PATH", "--pool=");
	REFUSED("name has", "--pool==/a");
	REFUSED("name has", "--pool=-a=/a");
	REFUSED("name has", "--pool=a b=/a");
	REFUSED("absolute", "--pool=a=b");
	REFUSED("absolute", "--pool=a=");
	REFUSED("overcommit is", "--pool=a=/a,overcommit=0");
	REFUSED("overcommit is", "--pool=a=/a,overcommit=nan");
	REFUSED("overcommit is", "--pool=a=/a,overcommit=1.2.3");
	REFUSED("overcommit is", "--pool=a=/a,overcommit=");
	REFUSED("overcommit is", "--pool=a=/a,overcommit=-1");
	REFUSED("overcommit=F", "--pool=a=/a,overcommit");
	REFUSED("reserve is", "--pool=a=/a,reserve=91");
	REFUSED("reserve is", "--pool=a=/a,reserve=5%");
	REFUSED("did you mean 'init'", "--pool=a=/a,inti");
	REFUSED("'init' is none of", "--pool=a=/a,init=yes");
	REFUSED("'' is none of", "--pool=a=/a,");
	REFUSED("two pools of the name a", "--pool=a=/a", "--pool=a=/b");
	REFUSED("path of pool a", "--pool=a=/a", "--pool=b=/a");
}

Test(options, named_limits)
{
	char text[POOLS_MAX + 1][32], *argv[POOLS_MAX + 2] = {NULL};
	for (unsigned i = 0; i <= POOLS_MAX; i++) {
		snprintf(text[i], sizeof(text[i]), "--pool=p%u=/p/%u", i, i);
		argv[i] = text[i];
	}
	cr_assert_eq(parse(argv), -EINVAL);
	cr_assert_not_null(strstr(err.message, "more than 16 pools"), "%s", err.message);
	argv[POOLS_MAX] = NULL;
	cr_assert_eq(parse(argv), 0, "%s", err.message);

	for (unsigned i = 0; i <= SERVE_ENDPOINTS_MAX; i++)
		snprintf(text[i], sizeof(text[i]), "--endpoint=unix:///%u", i);
	argv[SERVE_ENDPOINTS_MAX + 1] = NULL;
	cr_assert_eq(parse(argv), -EINVAL);
	cr_assert_not_null(strstr(err.message, "more than 8 endpoints"), "%s", err.message);
}

Test(options, endpoints_refused)
{
	char path[160] = "unix:///";
	memset(path + 8, 'a', 107);
	REFUSED("longer than 107 bytes", "--endpoint", path);
	path[8 + 106] = '\0';
	cr_assert_eq(PARSE("--endpoint", path), 0, "%s", err.message);
	REFUSED("absolute", "--endpoint=unix://run/csi.sock");
	REFUSED("absolute", "--endpoint=unix:");
	REFUSED("directory", "--endpoint=unix:///run/");
	REFUSED("not unix:///PATH", "--endpoint=/run/csi.sock");
	REFUSED("not unix:///PATH", "--endpoint=");
	REFUSED("loopback only", "--endpoint=tcp://0.0.0.0:80");
	REFUSED("loopback only", "--endpoint=tcp://localhost:80");
	REFUSED("port", "--endpoint=tcp://127.0.0.1:0");
	REFUSED("port", "--endpoint=tcp://127.0.0.1:65536");
	REFUSED("port", "--endpoint=tcp://127.0.0.1:+80");
	REFUSED("port", "--endpoint=tcp://[::1]:");
	REFUSED("twice", "--endpoint=unix:///a", "--endpoint=unix:///a");
}

/* Any local user could delete volumes through it. */
Test(options, tcp_is_refused_unless_it_is_called_insecure)
{
	REFUSED("--insecure-tcp", "--endpoint=tcp://127.0.0.1:9000");
	REFUSED("--insecure-tcp", "--endpoint=unix:///a", "--endpoint=tcp://[::1]:9000");
	setenv("CSI_ENDPOINT", "tcp://127.0.0.1:9000", 1);
	REFUSED("--insecure-tcp", "--http=off");
	setenv("RINGVOL_INSECURE_TCP", "false", 1);
	REFUSED("--insecure-tcp", "--http=off");
	setenv("RINGVOL_INSECURE_TCP", "yes", 1);
	REFUSED("not one of true, false", "--http=off");
	setenv("RINGVOL_INSECURE_TCP", "true", 1);
	cr_assert_eq(PARSE("--http=off"), 0, "%s", err.message);
	cr_assert_str_eq(o.endpoints[0], "tcp://127.0.0.1:9000");
	unsetenv("RINGVOL_INSECURE_TCP");
	cr_assert_eq(PARSE("--insecure-tcp"), 0, "%s", err.message);
	unsetenv("CSI_ENDPOINT");
	cr_assert_eq(PARSE("--insecure-tcp"), 0, "%s", err.message);
	REFUSED("takes no value", "--insecure-tcp=true");
}

Test(options, names_refused)
{
	char name[300];
	memset(name, 'a', sizeof(name));
	name[DRIVER_NAME_MAX] = '\0';
	cr_assert_eq(PARSE("--driver-name", name), 0, "%s", err.message);
	name[DRIVER_NAME_MAX] = 'a';
	name[DRIVER_NAME_MAX + 1] = '\0';
	REFUSED("1 to 63 bytes", "--driver-name", name);
	REFUSED("1 to 63 bytes", "--driver-name=");
	char *const bad[] = {
		".a", "a.", "-a", "a-", "a..b", "a.-b", "a-.b", "a_b", "a/b", "\xc3\xa9"};
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		REFUSED("domain name", "--driver-name", bad[i]);

	memset(name, 'a', sizeof(name));
	name[SERVE_NODE_ID_MAX] = '\0';
	cr_assert_eq(PARSE("--node-id", name), 0, "%s", err.message);
	name[SERVE_NODE_ID_MAX] = 'a';
	name[SERVE_NODE_ID_MAX + 1] = '\0';
	REFUSED("1 to 256 bytes", "--node-id", name);
	REFUSED("1 to 256 bytes", "--node-id=");
	REFUSED("blanks", "--node-id=a b");
	REFUSED("blanks", "--node-id=a\n");
	REFUSED("ASCII", "--node-id=\xff");
}

Test(options, choices_refused_with_a_hint)
{
	REFUSED("did you mean 'controller'", "--services=identity,contoller");
	REFUSED("not one of identity", "--services=");
	REFUSED("not one of identity", "--services=node,");
	REFUSED("not one of on, node", "--controller-expand=off");
	REFUSED("not one of on, off", "--staging=node");
	REFUSED("say which pools and namespaces", "--inline=pools=default");
	REFUSED("say which pools and namespaces", "--inline=namespaces=*");
	REFUSED("'on' is not KEY=VALUE", "--inline=on");
	REFUSED("did you mean 'pools'", "--inline=pool=default");
	REFUSED("max-size is a number", "--inline=pools=default,namespaces=*,max-size=1");
	REFUSED("namespaces are names", "--inline=pools=default,namespaces=a::b");
	REFUSED("sources are names", "--inline=pools=default,namespaces=*,sources=a:*");
	REFUSED("not one of both, 1.12, 1.13", "--csi-version=1.1");
	REFUSED("did you mean 'debug'", "--log-level=debgu");
	REFUSED("not one of logfmt, json", "--log-format=xml");
	REFUSED("not a number with a unit", "--trim-interval=12");
	REFUSED("not a number with a unit", "--trim-interval=d");
	REFUSED("not a number with a unit", "--trim-interval=1hh");
	REFUSED("not a number with a unit", "--trim-interval=");
	REFUSED("a second at least", "--trim-interval=0s");
	REFUSED("366 days at most", "--trim-interval=367d");
	REFUSED("366 days at most", "--trim-interval=99999999999999999999s");
	REFUSED("not a number", "--max-volumes-per-node=-1");
	REFUSED("not a number", "--max-volumes-per-node=99999999999999999999");
	REFUSED("not a number", "--max-volumes-per-node=");
	REFUSED("ADDR:PORT", "--http=localhost:9808");
	REFUSED("ADDR:PORT", "--http=:9808");
	REFUSED("ADDR:PORT", "--http=127.0.0.1:0");
	REFUSED("ADDR:PORT", "--http=127.0.0.1:65536");
	REFUSED("ADDR:PORT", "--http=[::1:9808");
	REFUSED("ADDR:PORT", "--http=");
}

Test(options, unknown_words_refused)
{
	REFUSED("unknown option '--endpont'; did you mean '--endpoint'?", "--endpont=unix:///a");
	REFUSED("unknown option '-h'; did you mean '--help'?", "-h");
	REFUSED("unknown option '--zzzzzzzzz'; see 'ringvol serve --help'", "--zzzzzzzzz");
	REFUSED("unknown option '-'", "-");
	REFUSED("unknown option '--help'", "--help=x");
	/* A part of a name is not the name. */
	REFUSED("did you mean '--endpoint'?", "--endpoin", "unix:///a");
	REFUSED("unexpected argument 'x'", "x");
	REFUSED("unexpected argument '--pool'", "--", "--pool");
	REFUSED("--pool needs a value: --pool NAME=PATH", "--pool");
	char word[4096];
	memset(word, '-', sizeof(word) - 1);
	word[sizeof(word) - 1] = '\0';
	REFUSED("unknown option", word);
	memset(word, 'a', sizeof(word) - 1);
	REFUSED("see 'ringvol serve --help'", word);
	REFUSED("NAME=PATH", "--pool", word);
}

Test(options, environment_stands_in_for_flags)
{
	setenv("CSI_ENDPOINT", "unix:///csi/csi.sock", 1);
	setenv("RINGVOL_POOLS", "a=/a,init;;b=/b;", 1);
	setenv("KUBE_NODE_NAME", "second", 1);
	setenv("RINGVOL_SERVICES", "identity,node", 1);
	setenv("RINGVOL_MAX_VOLUMES", "7", 1);
	setenv("RINGVOL_LOG_LEVEL", "", 1);
	cr_assert_eq(PARSE(), 0, "%s", err.message);
	cr_assert_str_eq(o.endpoints[0], "unix:///csi/csi.sock");
	cr_assert_eq(o.pool_count, 2);
	cr_assert(o.pools[0].init);
	cr_assert_str_eq(o.pools[1].path, "/b");
	cr_assert_str_eq(o.csi.node_id, "second");
	cr_assert_eq(o.csi.services, CSI_IDENTITY | CSI_NODE);
	cr_assert_eq(o.csi.max_volumes, 7);
	cr_assert_eq(o.log_level, LOG_LEVEL_INFO);

	setenv("NODE_ID", "first", 1);
	cr_assert_eq(PARSE(), 0);
	cr_assert_str_eq(o.csi.node_id, "first");

	/* A flag replaces its variable, lists included. */
	cr_assert_eq(PARSE("--pool=c=/c", "--endpoint=unix:///x", "--node-id=flag"), 0);
	cr_assert_eq(o.pool_count, 1);
	cr_assert_str_eq(o.pools[0].name, "c");
	cr_assert_eq(o.endpoint_count, 1);
	cr_assert_str_eq(o.csi.node_id, "flag");
}

Test(options, environment_is_refused_by_its_name)
{
	setenv("RINGVOL_POOLS", "a=/a;b=rel", 1);
	REFUSED("RINGVOL_POOLS 'b=rel': a pool's path must be absolute");
	unsetenv("RINGVOL_POOLS");
	setenv("RINGVOL_HTTP", "localhost:9808", 1);
	REFUSED("RINGVOL_HTTP 'localhost:9808'");
	/* What a flag replaces is not looked at, nor is anything after --help. */
	cr_assert_eq(PARSE("--http=off"), 0, "%s", err.message);
	cr_assert_eq(PARSE("--help", "--bogus"), 0);
	cr_assert(result.help);
}

Test(options, help_tells_all_rows)
{
	char *text = NULL;
	size_t len = 0;
	FILE *out = open_memstream(&text, &len);
	options_print_help(&serve_command, out);
	fclose(out);
	for (const struct option_row *row = serve_command.options; row->flag != NULL; row++) {
		cr_assert_not_null(strstr(text, row->flag));
		cr_assert_not_null(strstr(text, row->environment[0]), "%s", row->environment[0]);
		if (row->fallback != NULL)
			cr_assert_not_null(strstr(text, row->fallback));
	}
	for (const char *line = text; line != NULL && *line != '\0'; line = strchr(line, '\n')) {
		line += *line == '\n';
		cr_assert_leq(strcspn(line, "\n"), 100);
		cr_assert(line[0] == '\0' || line[strcspn(line, "\n") - (*line != '\n')] != ' ');
	}
	free(text);
}

static int set_count(void *target, const char *value, struct err *e)
{
	(void)e;
	cr_assert_null(value);
	++*(int *)target;
	return 0;
}

Test(options, operands_and_flags_without_a_value)
{
	static const struct option_row rows[] = {
		{"--json", .help = "x", .set = set_count},
		{NULL},
	};
	const struct command command = {
		.name = "t", .operands = {"PATH"}, .summary = "x", .options = rows};
	int count = 0;
	struct options_result res = {0};
	char *const words[] = {"--json", "--", "--json"};
	cr_assert_eq(options_parse(&command, 3, words, &count, &res, &err), 0, "%s", err.message);
	cr_assert_eq(count, 1);
	cr_assert_str_eq(res.operands[0], "--json");

	const struct command two = {
		.name = "t", .operands = {"FROM", "TO"}, .summary = "x", .options = rows};
	char *const both[] = {"-", "--json", "to"};
	cr_assert_eq(options_parse(&two, 3, both, &count, &res, &err), 0, "%s", err.message);
	cr_assert_str_eq(res.operands[0], "-");
	cr_assert_str_eq(res.operands[1], "to");
	cr_assert_eq(options_parse(&two, 1, both, &count, &res, &err), -EINVAL);
	cr_assert_str_eq(err.message, "TO is missing; see 'ringvol t --help'");
	err_clear(&err);

	const struct command perhaps = {
		.name = "t", .operands = {"FROM", "[TO]"}, .summary = "x", .options = rows};
	cr_assert_eq(options_parse(&perhaps, 1, both, &count, &res, &err), 0, "%s", err.message);
	cr_assert_str_eq(res.operands[0], "-");
	cr_assert_null(res.operands[1]);
	cr_assert_eq(options_parse(&perhaps, 3, both, &count, &res, &err), 0, "%s", err.message);
	cr_assert_str_eq(res.operands[1], "to");
	cr_assert_eq(options_parse(&perhaps, 0, both, &count, &res, &err), -EINVAL);
	err_clear(&err);

	const struct {
		int argc;
		char *argv[2];
		const char *part;
	} bad[] = {
		{1, {"--json=1"}, "--json takes no value"},
		{1, {"--json"}, "PATH is missing"},
		{2, {"a", "b"}, "unexpected argument 'b'"},
	};
	for (unsigned i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		err_clear(&err);
		cr_assert_eq(options_parse(&command, bad[i].argc, bad[i].argv, &count, &res, &err),
			-EINVAL);
		cr_assert_not_null(strstr(err.message, bad[i].part), "%s", err.message);
	}
}

Test(options, nearest_name)
{
	static const char *const names[] = {"serve", "pool", "--help", NULL};
	cr_assert_str_eq(options_nearest("sevre", names), "serve");
	cr_assert_str_eq(options_nearest("pol", names), "pool");
	cr_assert_null(options_nearest("doctor", names));
	cr_assert_null(options_nearest("", names));
	cr_assert_null(options_nearest("ls", names));
}

Test(options, quantities)
{
	uint64_t n = 0;
	cr_expect(options_quantity("4Gi", &n));
	cr_expect_eq(n, UINT64_C(4) << 30);
	cr_expect(options_quantity("1k", &n));
	cr_expect_eq(n, 1000);
	cr_expect(options_quantity("7", &n));
	cr_expect_eq(n, 7);
	static const char *const wrong[] = {"", "Gi", "4Zi", "-1", "1.5Gi", "4 Gi", "9999999Pi"};
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		cr_expect_not(options_quantity(wrong[i], &n), "%s", wrong[i]);
}
