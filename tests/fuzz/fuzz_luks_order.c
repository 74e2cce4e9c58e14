/* SPDX-License-Identifier: Apache-2.0 */
/* What the child that opens encrypted volumes is told. */
#include "backends/crypt/luks_order.h"

#include "fuzz.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct luks_order order;
	if (luks_order_parse(data, size, &order) < 0)
		return 0;
	/* What it takes it says again, but for bytes that mean nothing. */
	static uint8_t again[LUKS_ORDER_BYTES_MAX];
	struct luks_order second;
	luks_order_print(&order, again);
	memcpy(again + LUKS_HEAD_BYTES, order.key, order.key_len);
	must(luks_order_parse(again, LUKS_HEAD_BYTES + order.key_len, &second) == 0);
	must(second.what == order.what && second.key_len == order.key_len);
	must(strcmp(second.path, order.path) == 0 && strcmp(second.name, order.name) == 0);
	must(strcmp(second.uuid, order.uuid) == 0);
	return 0;
}
