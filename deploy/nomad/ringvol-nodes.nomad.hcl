# SPDX-License-Identifier: Apache-2.0
# The nodes of ringvol-controller.nomad.hcl, which says what they need:
#
#   nomad job run -var controller=192.0.2.1 deploy/nomad/ringvol-nodes.nomad.hcl

variable "controller" {
  type        = string
  description = "the address of the client that runs the controller"
}

variable "image" {
  type    = string
  default = "ringvol.dev/ringvol:0.1.0"
}

variable "pool" {
  type        = string
  default     = "/var/lib/ringvol"
  description = "the directory on each client that holds the volumes, best on XFS of its own"
}

job "ringvol-nodes" {
  type = "system"

  group "node" {
    task "ringvol" {
      driver = "docker"

      config {
        image           = var.image
        network_mode    = "host"
        readonly_rootfs = true

        args = [
          "serve",
          "--endpoint=unix:///csi/csi.sock",
          "--node-id=${node.unique.name}",
          "--pool=default=${var.pool},init",
          "--ublkd=off",
          # Nowhere else is anything staged, published or tidied away: the csi_plugin's stage_publish_base_dir.
          "--target-root=/local/csi",
          "--http=127.0.0.1:9808",
          # 9809 may be the controller's, on the same client.
          "--controller=${var.controller}:9809",
          "--listen=0.0.0.0:9811",
          "--advertise=${attr.unique.network.ip-address}:9811",
          "--tls-cert=/etc/ringvol/tls/tls.crt",
          "--tls-key=/etc/ringvol/tls/tls.key",
          "--tls-ca=/etc/ringvol/tls/ca.crt",
        ]

        # Mounts, loop devices, io_uring and BPF (docs/kubernetes.md, "Privileges").
        privileged = true

        # The host's own: loop and device-mapper devices appear and go.
        mount {
          type   = "bind"
          source = "/dev"
          target = "/dev"
        }

        mount {
          type     = "bind"
          source   = "/etc/ringvol/tls"
          target   = "/etc/ringvol/tls"
          readonly = true
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
        id                     = "ringvol"
        type                   = "node"
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
