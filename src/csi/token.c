/* SPDX-License-Identifier: Apache-2.0 */
/* "v:<checksum, 8>:<id>", or "s:" for snapshots. Pure functions. */
#include "csi/token.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static char token_letter(enum record_kind kind)
{
	return kind == RECORD_VOLUME ? 'v' : 's';
}

void csi_token_print(enum record_kind kind, const char *id, char ret_token[CSI_TOKEN_BYTES])
{
	uint32_t sum = 0x811c9dc5; /* FNV-1a */
	for (const char *p = id; *p != '\0'; p++)
		sum = (sum ^ (unsigned char)*p) * 0x01000193;
	snprintf(ret_token, CSI_TOKEN_BYTES, "%c:%08" PRIx32 ":%s", token_letter(kind), sum, id);
}

int csi_token_parse(
	enum record_kind kind, const char *token, char ret_id[RECORD_ID_MAX], struct err *err)
{
	char again[CSI_TOKEN_BYTES];
	size_t len = strlen(token);
	ret_id[0] = '\0';
	if (len == 0)
		return 0;
	if (len > 11 && len - 11 < RECORD_ID_MAX) {
		strcpy(ret_id, token + 11);
		csi_token_print(kind, ret_id, again);
		if (strcmp(again, token) == 0)
			return 0;
	}
	return err_set(err, ERR_PENDING,
		"starting_token: is none of this driver's; list again from the start");
}
