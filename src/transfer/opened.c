/* SPDX-License-Identifier: Apache-2.0 */
/* The id is the source's own name and random part, so a record of anything else does not fit it. */
#include "transfer/opened.h"

#include "cluster.pb-c.h"
#include "pool/pool.h"

#include <errno.h>
#include <string.h>

static int take_record(const Ringvol__V1__OpenCopyResponse *response, const char *source_id,
	struct record **ret_rec)
{
	struct record_id id;
	struct record *rec;
	if (response->record.len > RECORD_BYTES_MAX || record_id_parse(source_id, &id) < 0)
		return -EBADMSG;
	int r = record_parse(
		(const char *)response->record.data, response->record.len, id.key, &rec);
	if (r < 0)
		return r;
	if (strcmp(rec->random, id.random) != 0 || rec->moves > OPENED_MOVES_MAX ||
		rec->size_bytes != response->size_bytes || rec->size_bytes == 0 ||
		rec->size_bytes % POOL_SIZE_ALIGN != 0 || rec->size_bytes > INT64_MAX ||
		record_image_bytes(rec) > INT64_MAX) {
		record_free(rec);
		return -EBADMSG;
	}
	*ret_rec = rec;
	return 0;
}

int opened_parse(const uint8_t *data, size_t len, const char *source_id, struct record **ret_rec,
	uint64_t *ret_allocated_bytes)
{
	Ringvol__V1__OpenCopyResponse *response =
		len > 2 * RECORD_BYTES_MAX
			? NULL
			: ringvol__v1__open_copy_response__unpack(NULL, len, data);
	*ret_rec = NULL;
	if (response == NULL)
		return -EBADMSG;
	int r = take_record(response, source_id, ret_rec);
	*ret_allocated_bytes = response->allocated_bytes;
	ringvol__v1__open_copy_response__free_unpacked(response, NULL);
	return r;
}
