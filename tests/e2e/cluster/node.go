// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/x509/pkix"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"ringvol.dev/tests/rig"
)

// NodeName is the name of the one node.
const NodeName = "e2e-node"

const containerdSocket = "/run/containerd/containerd.sock"

// restrict_oom_score_adj: where CAP_SYS_RESOURCE is missing nobody can lower that figure.
const containerdConfig = `version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.snapshotter.v1.btrfs",
	"io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper"]
[grpc]
address = "` + containerdSocket + `"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "` + pauseImage + `"
restrict_oom_score_adj = true
disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = %q
conf_dir = %q
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = %q
SystemdCgroup = false
`

const cniConfig = `{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "ptp", "mtu": 1500,
 "ipam": {"type": "host-local", "subnet": "` + podRange + `", "dataDir": "/var/lib/cni",
  "routes": [{"dst": "0.0.0.0/0"}]}}]}
`

// Evictions and collection of images are off: they are about the machine's disk, which is not the node's alone.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: %[1]q}
authorization: {mode: Webhook}
tlsCertFile: %[2]q
tlsPrivateKeyFile: %[3]q
containerRuntimeEndpoint: unix://` + containerdSocket + `
cgroupDriver: cgroupfs
cgroupRoot: %[4]q
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
makeIPTablesUtilChains: false
clusterDNS: [10.96.0.10]
maxPods: 250
evictionHard: {memory.available: "0%%", nodefs.available: "0%%", nodefs.inodesFree: "0%%", imagefs.available: "0%%"}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
volumePluginDir: /var/lib/kubelet/volume-plugins
volumeStatsAggPeriod: 10s
nodeStatusUpdateFrequency: 5s
`

func (c *Cluster) node() error {
	if err := c.startContainerd(); err != nil {
		return err
	}
	return c.startKubelet()
}

func (c *Cluster) startContainerd() error {
	if err := os.WriteFile(c.path("cni", "10-pods.conflist"), []byte(cniConfig), 0o644); err != nil {
		return err
	}
	config := fmt.Sprintf(containerdConfig, c.debian("usr/lib/cni"), c.path("cni"), c.debian("usr/sbin/runc"))
	if err := os.WriteFile(c.path("containerd.toml"), []byte(config), 0o644); err != nil {
		return err
	}
	c.containerd = c.process("containerd", c.debian("usr/bin/containerd"), "--config="+c.path("containerd.toml"))
	if err := c.containerd.Start(); err != nil {
		return err
	}
	return c.waitContainerd()
}

func (c *Cluster) waitContainerd() error {
	return rig.Eventually(time.Minute, func() error {
		if err := c.containerd.Ended(); err != nil {
			return rig.Stop(err)
		}
		return askCRI()
	})
}

// askCRI makes the call with which kubelet begins. containerd answers others before it is ready for this one, and a kubelet
// that comes too early ends; where there is systemd it starts it again.
func askCRI() error {
	conn, err := grpc.NewClient("unix://"+containerdSocket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	// An empty message is a VersionRequest, and of the answer it only matters that there is one.
	return conn.Invoke(ctx, "/runtime.v1.RuntimeService/Version", &emptypb.Empty{}, &emptypb.Empty{})
}

func (c *Cluster) ctr(args ...string) (string, error) {
	return rig.Run(c.debian("usr/bin/ctr"),
		append([]string{"--address", containerdSocket, "--namespace", "k8s.io"}, args...)...)
}

func (c *Cluster) startKubelet() error {
	if err := makeCgroups(c.Dir); err != nil {
		return fmt.Errorf("control groups: %w", err)
	}
	kubeconfig, err := c.pki.kubeconfig("node", "system:node:"+NodeName, "system:nodes")
	if err != nil {
		return err
	}
	if err := c.pki.issue("kubelet", pkix.Name{CommonName: NodeName}, []string{nodeIP, "127.0.0.1"},
		[]string{NodeName}); err != nil {
		return err
	}
	config := fmt.Sprintf(kubeletConfig, c.pki.path("ca.crt"), c.pki.path("kubelet.crt"), c.pki.path("kubelet.key"),
		"/"+cgroupName(c.Dir))
	if err := os.WriteFile(c.path("kubelet.yaml"), []byte(config), 0o644); err != nil {
		return err
	}
	c.Kubelet = c.process("kubelet", c.bin("kubelet"), "--config="+c.path("kubelet.yaml"), "--kubeconfig="+kubeconfig,
		"--hostname-override="+NodeName, "--node-ip="+nodeIP, "--cert-dir="+c.path("pki"), "--v=2")
	if err := c.Kubelet.Start(); err != nil {
		return err
	}
	return c.WaitNode()
}

// WaitNode waits until kubelet calls the node ready and pods may come.
func (c *Cluster) WaitNode() error {
	return rig.Eventually(3*time.Minute, func() error {
		if err := c.Kubelet.Ended(); err != nil {
			return rig.Stop(err)
		}
		// What the API server knows may be from before kubelet was started again.
		if err := ready(c.Client.CoreV1().RESTClient(), "/api/v1/nodes/"+NodeName+"/proxy/healthz"); err != nil {
			return err
		}
		node, err := c.Client.CoreV1().Nodes().Get(context.Background(), NodeName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(node.Spec.Taints) > 0 {
			return fmt.Errorf("the node has taints: %v", node.Spec.Taints)
		}
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady {
				if condition.Status == corev1.ConditionTrue {
					return nil
				}
				return fmt.Errorf("the node is not ready: %s", condition.Message)
			}
		}
		return fmt.Errorf("the node says nothing of being ready")
	})
}
