/* SPDX-License-Identifier: Apache-2.0 */
/* What each kind of device can, and which of them this node can have: a table of `doctor`. */
#ifndef RINGVOL_TOOLS_DOCTOR_TABLE_H
#define RINGVOL_TOOLS_DOCTOR_TABLE_H

#include "tools/doctor_findings.h"
#include "tools/json.h"
#include "tools/text.h"

/* After all checks, whose findings say what this node can. 0 or -ENOMEM. */
int doctor_table_print(const struct doctor *d, const struct text_stream *stream);
/* The member "kinds". */
void doctor_table_json(const struct doctor *d, struct json *j);

#endif
