/* SPDX-License-Identifier: Apache-2.0 */
#include "trials.h"

#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

enum { STEPS_MAX = 200 };

bool masks_tags;

/* The members of a group have its random part in their names. */
static void look(char text[INVENTORY_BYTES])
{
	static const char member[] = "group.";
	world_inventory(w, text, INVENTORY_BYTES);
	for (char *at = text; (at = strstr(at, member)) != NULL; at += sizeof(member))
		memset(at + strlen(member), 'x', 8);
	static const char device[] = "device ringvol:xxxxxxxx:";
	for (char *at = text; masks_tags && (at = strstr(at, "device ringvol:")) != NULL; at++)
		memset(at + strlen(device), 'x', 8);
}

/* A loop device stays bound until the last who has it open has closed it, and that may be a process
 * of another test that looks at all devices. */
enum { LINGER_TURNS = 150, LINGER_US = 20000 };

/* What is there when nothing lingers. */
static void look_patiently(char text[INVENTORY_BYTES])
{
	look(text);
	for (unsigned i = 0; i < LINGER_TURNS && strstr(text, WORLD_LINGERS) != NULL; i++) {
		usleep(LINGER_US);
		look(text);
	}
}

/* Up to what is expected: one of two, or one alone (other: NULL). */
static void look_for(
	char text[INVENTORY_BYTES], const char *one, const char *other, bool but_frozen)
{
	for (unsigned i = 0;; i++) {
		look(text);
		char *frozen = but_frozen ? strstr(text, "frozen ") : NULL;
		if (frozen != NULL)
			*frozen = '\0';
		bool is = strcmp(text, one) == 0 || (other != NULL && strcmp(text, other) == 0);
		if (is || i == LINGER_TURNS || strstr(text, "device ") == NULL)
			return;
		usleep(LINGER_US);
	}
}

/* A step whose failure may leave the volume frozen, with a mark for the retry. */
static bool is_thaw(const char *step)
{
	return strstr(step, "/release") != NULL ||
	       strncmp(step, "release ", strlen("release ")) == 0 ||
	       strncmp(step, "thaw/", strlen("thaw/")) == 0;
}

unsigned fail_each_step(const struct trial *t)
{
	char before[INVENTORY_BYTES], after[INVENTORY_BYTES], failed[INVENTORY_BYTES];

	/* Once without a fault: warms caches (templates, helper descriptors) and shows the end
	 * state. */
	cr_assert_eq(t->run(), GRPC_OK, "%s", t->name);
	world_settle(w);
	look_patiently(after);
	cr_assert_eq(t->back(), GRPC_OK, "%s: opposite", t->name);
	world_settle(w);
	look_patiently(before);

	for (unsigned n = 0; n < STEPS_MAX; n++) {
		w->fault_hit = false;
		w->fault_after = (int)n;
		enum grpc_status status = t->run();
		w->fault_after = -1;
		if (!w->fault_hit) {
			cr_assert_eq(status, GRPC_OK);
			cr_assert_eq(t->back(), GRPC_OK);
			world_settle(w);
			look_for(failed, before, NULL, false); /* the next one meets no device */
			return n;
		}
		cr_assert(status == GRPC_INTERNAL || status == GRPC_OK,
			"%s failed at %s: status %d", t->name, w->fault_at, status);
		world_settle(w);
		bool any = status != GRPC_OK && !t->all_or_nothing;
		if (any)
			look(failed);
		else
			look_for(failed, after, status != GRPC_OK ? before : NULL,
				status != GRPC_OK && is_thaw(w->fault_at));
		if (status == GRPC_OK)
			cr_assert_str_eq(failed, after,
				"%s failed at %s, answered OK, and left\n%s\ninstead of\n%s",
				t->name, w->fault_at, failed, after);
		if (t->all_or_nothing && status != GRPC_OK)
			cr_assert(strcmp(failed, before) == 0 || strcmp(failed, after) == 0,
				"%s failed at %s and left\n%s\nbefore it was\n%s", t->name,
				w->fault_at, failed, before);
		cr_assert_eq(t->run(), GRPC_OK, "%s: the retry after %s", t->name, w->fault_at);
		cr_assert_eq(t->back(), GRPC_OK, "%s: opposite after %s", t->name, w->fault_at);
		world_settle(w);
		look_for(failed, before, NULL, false);
		cr_assert_str_eq(failed, before,
			"%s failed at %s, retried, undone, and left\n%s\nbefore it was\n%s",
			t->name, w->fault_at, failed, before);
	}
	cr_assert_fail("%s never ended without a fault", t->name);
	return 0;
}
