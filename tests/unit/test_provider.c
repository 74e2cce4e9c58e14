/* SPDX-License-Identifier: Apache-2.0 */
/* Varlink as the provider speaks it, and the parameters of its methods: what is taken, and what is
 * refused. */
#include "varlink_peer.h"

#include "provider/interface.h"

#include <criterion/criterion.h>
#include <stdio.h>

static struct varlink_peer peer;

static void setup(void)
{
	peer_open(&peer);
}

static void teardown(void)
{
	peer_close(&peer);
}

TestSuite(varlink, .init = setup, .fini = teardown);

static void send_text(const char *text)
{
	peer_feed(&peer, text, strlen(text) + 1);
}

/* What has come out since, with '|' for NUL. */
static const char *told(void)
{
	static char text[4096];
	size_t len = peer.out.len < sizeof(text) - 1 ? peer.out.len : sizeof(text) - 1;
	memcpy(text, peer.out.data != NULL ? (const char *)peer.out.data : "", len);
	text[len] = '\0';
	for (size_t i = 0; i < len; i++)
		if (text[i] == '\0')
			text[i] = '|';
	peer.out.len = 0;
	return text;
}

Test(varlink, calls_and_answers)
{
	send_text("{\"method\":\"a\",\"parameters\":{\"name\":\"data\"}}");
	cr_assert_str_eq(told(), "{\"parameters\":{\"name\":\"data\"}}|");
	send_text("{\"method\":\"a\"}");
	cr_assert_str_eq(told(), "{\"error\":\"wrong\",\"parameters\":{\"parameter\":\"name\"}}|");
	send_text("{\"method\":\"a\",\"parameters\":null,\"more\":true,\"later\":[1]}");
	cr_assert_not_null(strstr(told(), "wrong"));
	send_text("{\"method\":\"a\",\"oneway\":true}");
	send_text("{\"method\":\"fd\",\"oneway\":true}");
	cr_assert_str_eq(told(), "");
	cr_assert_eq(peer.fds, 0);
	cr_assert_eq(peer.calls, 5);
}

Test(varlink, bytes_come_as_they_like)
{
	static const char text[] = "{\"method\":\"a\",\"parameters\":{\"name\":\"d\"}}";
	for (size_t i = 0; i < sizeof(text); i++) {
		cr_assert_eq(peer.calls, 0);
		cr_assert(peer.session->ops->wants_input(peer.session));
		peer_feed(&peer, text + i, 1);
	}
	cr_assert_eq(peer.calls, 1);
	cr_assert_str_eq(told(), "{\"parameters\":{\"name\":\"d\"}}|");
}

Test(varlink, many_answers)
{
	send_text("{\"method\":\"many0\",\"more\":true}");
	cr_assert_str_eq(told(), "{\"error\":\"none\",\"parameters\":{}}|");
	send_text("{\"method\":\"many3\",\"more\":true}");
	cr_assert_str_eq(told(), "{\"parameters\":{\"n\":3},\"continues\":true}|"
				 "{\"parameters\":{\"n\":2},\"continues\":true}|"
				 "{\"parameters\":{\"n\":1}}|");
	send_text("{\"method\":\"many2999\",\"more\":true}");
	cr_assert_gt(peer.out.len, 2999 * 20);
	cr_assert_eq(peer.wakes, 0, "nothing is told from inside");
}

Test(varlink, an_answer_may_come_later)
{
	static const char more[] = "{\"method\":\"fd\"}\0{\"method\":\"a\"}";
	send_text("{\"method\":\"later\"}");
	cr_assert_str_eq(told(), "");
	cr_assert_not(peer.session->ops->wants_input(peer.session));
	peer_feed(&peer, more, sizeof(more));
	cr_assert_eq(peer.calls, 1);
	peer_answer(&peer);
	cr_assert_eq(peer.wakes, 1);
	cr_assert_eq(peer.calls, 3);
	cr_assert_eq(peer.fds, 1);
	cr_assert_eq(peer.fd_at, strlen("{\"parameters\":{\"late\":true}}") + 1,
		"a descriptor goes with the first byte of its answer");
	cr_assert(peer.session->ops->wants_input(peer.session));
}

Test(varlink, descriptors_stay_apart)
{
	static const char two[] = "{\"method\":\"a\"}\0{\"method\":\"fd\"}\0{\"method\":\"fd\"}";
	peer_feed(&peer, two, sizeof(two));
	cr_assert_eq(peer.fds, 2);
	cr_assert_eq(peer.calls, 3);
}

Test(varlink, a_client_that_goes)
{
	struct varlink_peer other;
	peer_open(&other);
	peer_feed(&other, "{\"method\":\"later\"}", sizeof("{\"method\":\"later\"}"));
	cr_assert_not_null(other.later);
	other.session->ops->free(other.session);
	cr_assert(other.gone);
	buf_free(&other.out);
	/* One that only sends no more still gets its answer. */
	send_text("{\"method\":\"later\"}");
	peer.session->ops->input_ended(peer.session);
	cr_assert_not(peer.session->ops->finished(peer.session));
	peer_answer(&peer);
	cr_assert_str_eq(told(), "{\"parameters\":{\"late\":true}}|");
	cr_assert(peer.session->ops->finished(peer.session));
}

Test(varlink, a_drain_ends_it)
{
	send_text("{\"method\":\"later\"}");
	peer.session->ops->drain(peer.session);
	cr_assert_not(peer.session->ops->finished(peer.session));
	peer_answer(&peer);
	cr_assert(peer.session->ops->finished(peer.session));
}

Test(varlink, what_is_no_call_ends_the_connection)
{
	static const char *const bad[] = {"", "{}", "[]", "7", "{\"method\":1}",
		"{\"method\":\"a\"", "{\"method\":\"a\",\"method\":\"b\"}",
		"{\"method\":\"a\",\"parameters\":[]}",
		"{\"method\":\"a\",\"parameters\":{\"name\":\"\\u0000\"}}",
		"{\"method\":\"\xff\"}"};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		peer_close(&peer);
		peer_open(&peer);
		send_text(bad[i]);
		cr_assert_eq(peer.calls, 0, "%s", bad[i]);
		cr_assert(peer.session->ops->finished(peer.session), "%s", bad[i]);
		cr_assert(peer.session->dead);
	}
	char *spaces = malloc(VARLINK_MESSAGE_MAX + 2);
	memset(spaces, ' ', VARLINK_MESSAGE_MAX + 2);
	peer_close(&peer);
	peer_open(&peer);
	peer_feed(&peer, spaces, VARLINK_MESSAGE_MAX + 1);
	cr_assert(peer.session->dead);
	free(spaces);
}

/* ---- parameters ---- */

static struct arena *arena;
static struct provider_acquire req;

static const char *parse(const char *text)
{
	arena_unref(arena);
	arena = arena_new(0);
	json_t *parameters = json_loads(text, 0, NULL);
	cr_assert_not_null(parameters, "%s", text);
	static char wrong[64];
	const char *r = provider_acquire_parse(parameters, arena, &req);
	snprintf(wrong, sizeof(wrong), "%s", r != NULL ? r : "ok");
	json_decref(parameters);
	return wrong;
}

Test(provider, what_systemd_asks_for)
{
	cr_assert_str_eq(parse("{\"name\":\"data\",\"createMode\":\"new\",\"template\":\"xfs\","
			       "\"readOnly\":false,\"requestAs\":\"dir\","
			       "\"createSizeBytes\":1073741824,"
			       "\"allowInteractiveAuthentication\":true}"),
		"ok");
	cr_assert_str_eq(req.name, "data");
	cr_assert_str_eq(req.template, "xfs");
	cr_assert_eq(req.create, PROVIDER_CREATE_NEW);
	cr_assert_eq(req.writes, PROVIDER_WRITABLE);
	cr_assert_eq(req.type, PROVIDER_DIR);
	cr_assert_eq(req.size_bytes, 1 << 30);
	cr_assert_str_eq(parse("{\"name\":\"d\",\"createMode\":null,\"template\":null,"
			       "\"readOnly\":null,\"requestAs\":null,\"createSizeBytes\":null}"),
		"ok");
	cr_assert_eq(req.create, PROVIDER_CREATE_ANY);
	cr_assert_eq(req.writes, PROVIDER_AS_CAN_BE);
	cr_assert_eq(req.type, PROVIDER_TYPE_ANY);
	cr_assert_str_eq(req.template, "");
	/* Nothing is made to be read. */
	cr_assert_str_eq(parse("{\"name\":\"d\",\"readOnly\":true}"), "ok");
	cr_assert_eq(req.create, PROVIDER_CREATE_OPEN);
	arena_unref(arena);
}

Test(provider, what_is_refused)
{
	static const struct {
		const char *text, *wrong;
	} table[] = {
		{"{}", "name"},
		{"{\"name\":null}", "name"},
		{"{\"name\":\"\"}", "name"},
		{"{\"name\":\"..\"}", "name"},
		{"{\"name\":\"a/b\"}", "name"},
		{"{\"name\":\"a b\"}", "name"},
		{"{\"name\":\"\\u00e4\"}", "name"},
		{"{\"name\":[]}", "name"},
		{"{\"name\":\"d\",\"size\":1}", "size"},
		{"{\"name\":\"d\",\"createMode\":\"\"}", "createMode"},
		{"{\"name\":\"d\",\"createMode\":1}", "createMode"},
		{"{\"name\":\"d\",\"requestAs\":\"any\"}", "requestAs"},
		{"{\"name\":\"d\",\"template\":7}", "template"},
		{"{\"name\":\"d\",\"template\":\"a\\nb\"}", "template"},
		{"{\"name\":\"d\",\"readOnly\":1}", "readOnly"},
		{"{\"name\":\"d\",\"createSizeBytes\":0}", "createSizeBytes"},
		{"{\"name\":\"d\",\"createSizeBytes\":1.5}", "createSizeBytes"},
		{"{\"name\":\"d\",\"createSizeBytes\":\"1G\"}", "createSizeBytes"},
		{"{\"name\":\"d\",\"readOnly\":true,\"createMode\":\"new\"}", "readOnly"},
	};
	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
		cr_assert_str_eq(parse(table[i].text), table[i].wrong, "%s: %s", table[i].text,
			parse(table[i].text));
	arena_unref(arena);
}

Test(provider, interfaces_are_described)
{
	cr_assert_not_null(strstr(interface_description("io.systemd.StorageProvider"),
		"interface io.systemd.StorageProvider\n"));
	cr_assert_not_null(interface_description("org.varlink.service"));
	cr_assert_null(interface_description("io.systemd"));
	json_t *info = interface_info();
	cr_assert_eq(json_array_size(json_object_get(info, "interfaces")), 2);
	json_decref(info);
}
