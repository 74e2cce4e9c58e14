# SPDX-License-Identifier: Apache-2.0
# ringvol on all Nomad clients as one plugin, with a controller (docs/cluster.md), with the docker driver:
#
#   nomad job run -var controller=192.0.2.1 deploy/nomad/ringvol-controller.nomad.hcl
#   nomad job run -var controller=192.0.2.1 deploy/nomad/ringvol-nodes.nomad.hcl
#
# Nomad sees one plugin "ringvol": its volumes are made on any client, and jobs are placed where their volumes are. The
# controller runs on one client, whose address is `controller`. Each client has its certificate in /etc/ringvol/tls (ca.crt,
# tls.crt, tls.key), that of the controller in /etc/ringvol/controller. The clients' docker plugin needs `allow_privileged =
# true`, and Nomad at least 1.3.

variable "controller" {
  type        = string
  description = "the address of the client that runs the controller"
}

variable "image" {
  type    = string
  default = "ringvol.dev/ringvol:0.1.0"
}

job "ringvol-controller" {
  type = "service"

  constraint {
    attribute = "${attr.unique.network.ip-address}"
    value     = var.controller
  }

  group "controller" {
    task "ringvol" {
      driver = "docker"

      config {
        image           = var.image
        network_mode    = "host"
        readonly_rootfs = true
        cap_drop        = ["ALL"]
        # io_uring is not in docker's profile.
        security_opt = ["seccomp=unconfined"]

        args = [
          "controller",
          "--endpoint=unix:///csi/csi.sock",
          "--listen=0.0.0.0:9809",
          "--tls-cert=/etc/ringvol/tls/tls.crt",
          "--tls-key=/etc/ringvol/tls/tls.key",
          "--tls-ca=/etc/ringvol/tls/ca.crt",
          # Nomad asks the plugin. The node's driver has the port on the same client.
          "--http=127.0.0.1:9810",
        ]

        mount {
          type     = "bind"
          source   = "/etc/ringvol/controller"
          target   = "/etc/ringvol/tls"
          readonly = true
        }
      }

      csi_plugin {
        id             = "ringvol"
        type           = "controller"
        mount_dir      = "/csi"
        health_timeout = "30s"
      }

      kill_timeout = "15s"

      resources {
        cpu    = 50
        memory = 64
      }
    }
  }
}
