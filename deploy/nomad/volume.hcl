# SPDX-License-Identifier: Apache-2.0
# nomad volume create deploy/nomad/volume.hcl: an ext4 volume on the client node-a. Jobs that use it
# (volume "data" { type = "csi", source = "data", attachment_mode = "file-system", access_mode = "single-node-writer" })
# are placed there.
id        = "data"
name      = "data"
type      = "csi"
plugin_id = "ringvol-node-a"

capacity_min = "1GiB"
capacity_max = "1GiB"

capability {
  access_mode     = "single-node-writer"
  attachment_mode = "file-system"
}

mount_options {
  fs_type = "ext4"
}

# As in a storage class: pool, device, provisioning, blockSize, mkfsOptions, eraseOnDelete, snapshotFreeze, allowVolumeModeChange, encryption
# (its key: a secrets block with the field "key").
parameters {
  pool = "default"
}
