# SPDX-License-Identifier: Apache-2.0
# ringvol on one Nomad client, with the docker driver:
#
#   nomad job run -var node=$(hostname) deploy/nomad/ringvol.nomad.hcl
#
# One job and one plugin for each client: Nomad asks any controller of a plugin for a volume, and a volume of ringvol is where
# its controller is. The client's docker plugin needs `allow_privileged = true`, and Nomad at least 1.3.

variable "node" {
  type        = string
  description = "the client, by its name"
}

variable "image" {
  type    = string
  default = "ringvol.dev/ringvol:0.1.0"
}

variable "pool" {
  type        = string
  default     = "/var/lib/ringvol"
  description = "the directory on the client that holds the volumes, best on XFS of its own"
}

job "ringvol" {
  id   = "ringvol-${var.node}"
  name = "ringvol-${var.node}"
  type = "system"

  constraint {
    attribute = "${node.unique.name}"
    value     = var.node
  }

  group "node" {
    task "ringvol" {
      driver = "docker"

      config {
        image           = var.image
        readonly_rootfs = true

        args = [
          "serve",
          "--endpoint=unix:///csi/csi.sock",
          "--node-id=${node.unique.name}",
          "--pool=default=${var.pool},init",
          "--ublkd=off",
          # Nowhere else is anything staged, published or tidied away: the csi_plugin's stage_publish_base_dir.
          "--target-root=/local/csi",
          # docker's own health checks are not needed: Nomad asks the plugin.
          "--http=127.0.0.1:9808",
        ]

        # Mounts, loop devices, io_uring and BPF (docs/kubernetes.md, "Privileges").
        privileged = true

        # The host's own: loop and device-mapper devices appear and go.
        mount {
          type   = "bind"
          source = "/dev"
          target = "/dev"
        }

        # A disk that is mounted there later is seen.
        mount {
          type   = "bind"
          source = var.pool
          target = var.pool

          bind_options {
            propagation = "rslave"
          }
        }
      }

      # Nomad mounts its own directories there, so that what is mounted in them reaches the client.
      csi_plugin {
        id                     = "ringvol-${var.node}"
        type                   = "monolith"
        mount_dir              = "/csi"
        stage_publish_base_dir = "/local/csi"
        health_timeout         = "30s"
      }

      # The driver drains within 10 s. Volumes in use do not notice that it is away.
      kill_timeout = "15s"

      resources {
        cpu        = 50
        memory     = 64
        memory_max = 512 # file system checks
      }
    }
  }
}
