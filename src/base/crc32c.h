/* SPDX-License-Identifier: Apache-2.0 */
/* CRC-32C (Castagnoli), as iSCSI, ext4 and btrfs have it: of "123456789" it is 0xe3069283. */
#ifndef RINGVOL_BASE_CRC32C_H
#define RINGVOL_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

uint32_t crc32c(const void *data, size_t len);
/* Of what has the checksum `before`, and data behind it. */
uint32_t crc32c_on(uint32_t before, const void *data, size_t len);
/* Without the processor's instruction: for tests, and where there is none. */
uint32_t crc32c_by_table(const void *data, size_t len);

#endif
