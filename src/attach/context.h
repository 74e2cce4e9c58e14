/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The publish_context of a volume that is published to another node than its own: what its owner
 * answers to ControllerPublishVolume, and that node reads in NodeStageVolume and NodePublishVolume.
 * For the volume's own node the context is empty. docs/attach.md has the table; names stay.
 */
#ifndef RINGVOL_ATTACH_CONTEXT_H
#define RINGVOL_ATTACH_CONTEXT_H

/* All of ours begin so; a context without any is the own node's. */
#define ATTACH_CONTEXT_PREFIX "ringvol.dev/"

/* How the device is reached. Another value is of a later version, and refused by name. */
#define ATTACH_TRANSPORT     "ringvol.dev/transport"
#define ATTACH_TRANSPORT_TCP "tcp"
/* TCP within TLS 1.3, with a key that is made from ATTACH_KEY (psk.h). A value of its own, so that
 * who does not know it refuses it, and never connects without TLS. */
#define ATTACH_TRANSPORT_TLS "tcp-tls"
/* "HOST:PORT"; an IPv6 address in brackets. */
#define ATTACH_ADDRESS "ringvol.dev/address"
/* The NQN of the subsystem, and whom it lets in: the host's NQN and id (a UUID). All three are of
 * this publish alone. */
#define ATTACH_SUBSYSTEM "ringvol.dev/subsystem"
#define ATTACH_HOST      "ringvol.dev/host"
#define ATTACH_HOST_ID   "ringvol.dev/host-id"
/* A secret of this publish, "DHHC-1:00:BASE64:": never logged, never an argument of a process. Not
 * there where the owner exports without authentication. */
#define ATTACH_KEY "ringvol.dev/key"
/* The UUID of the namespace, by which the device is found and by nothing else. */
#define ATTACH_NAMESPACE "ringvol.dev/namespace"
/* What the node cannot read in a record of its own: "block" or "mount", and "ext4", "xfs" or
 * "btrfs" of the latter. */
#define ATTACH_VOLUME_MODE       "ringvol.dev/volume-mode"
#define ATTACH_VOLUME_MODE_BLOCK "block"
#define ATTACH_VOLUME_MODE_MOUNT "mount"
#define ATTACH_FS_TYPE           "ringvol.dev/fs-type"
/* The owner's node id, for people. */
#define ATTACH_NODE "ringvol.dev/node"
/* "true": the publish is read-only, and the node that has it sees to that. Not there: it is
 * writable.
 */
#define ATTACH_READ_ONLY "ringvol.dev/read-only"
/* "luks2": the namespace has the bytes of LUKS2, which are opened where the volume is used, with a
 * key that is in no context. Not there: it is plain. */
#define ATTACH_ENCRYPTION       "ringvol.dev/encryption"
#define ATTACH_ENCRYPTION_LUKS2 "luks2"

/* Of subsystems, and of hosts. What begins otherwise is not ours. */
#define ATTACH_NQN_PREFIX      "nqn.2026-11.dev.ringvol:volume."
#define ATTACH_HOST_NQN_PREFIX "nqn.2026-11.dev.ringvol:host."

enum {
	ATTACH_NQN_BYTES = 224,     /* with the NUL; NVMe's limit */
	ATTACH_KEY_BYTES = 128,     /* likewise; 32, 48 or 64 bytes and their CRC in base64 */
	ATTACH_ADDRESS_BYTES = 280, /* likewise */
};

#endif
