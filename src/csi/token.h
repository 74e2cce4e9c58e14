/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tokens of lists: an id, "what comes behind", with a letter for the kind and a checksum that tells
 * a client's invention from it. Made the same by every process of a cluster.
 */
#ifndef RINGVOL_CSI_TOKEN_H
#define RINGVOL_CSI_TOKEN_H

#include "base/err.h"
#include "pool/record.h"

enum { CSI_TOKEN_BYTES = 2 + 8 + 1 + RECORD_ID_MAX };

void csi_token_print(enum record_kind kind, const char *id, char ret_token[CSI_TOKEN_BYTES]);
/* The id to go on behind; "" for an empty token. 0, or ERR_PENDING: it is none of ours. */
int csi_token_parse(
	enum record_kind kind, const char *token, char ret_id[RECORD_ID_MAX], struct err *err);

#endif
