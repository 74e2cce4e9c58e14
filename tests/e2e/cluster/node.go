// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// Reboot does to the node what a power switch does, as far as that goes without a machine: kubelet, containerd and every
// container die where they are, all mounts and devices of volumes vanish, /run is empty. The control
// plane, which could be anywhere, notices nothing. Then the node starts again.
func (c *Cluster) Reboot() error {
	if err := errors.Join(c.Kubelet.Kill(), c.containerd.Kill()); err != nil {
		return err
	}
	if err := killContainers(cgroupName(c.Dir)); err != nil {
		return err
	}
	for _, dir := range []string{"/var/lib/kubelet", "/run", c.Dir} {
		mounts := rig.MountsBelow(dir)
		for i := len(mounts) - 1; i >= 0; i-- {
			_ = unix.Unmount(mounts[i], unix.MNT_DETACH)
		}
	}
	if err := rig.Eventually(time.Minute, func() error {
		left := loopsOf(c.Dir)
		for _, loop := range left {
			_ = rig.Detach(loop)
		}
		if len(left) > 0 {
			return fmt.Errorf("devices are left: %s", strings.Join(left, ", "))
		}
		return nil
	}); err != nil {
		return err
	}
	entries, err := os.ReadDir("/run")
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if err := os.RemoveAll(filepath.Join("/run", entry.Name())); err != nil {
			return err
		}
	}
	return c.boot()
}

func (c *Cluster) boot() error {
	if err := c.Pool.Mount(); err != nil {
		return err
	}
	if err := c.containerd.Start(); err != nil {
		return err
	}
	if err := c.waitContainerd(); err != nil {
		return err
	}
	if err := c.Kubelet.Start(); err != nil {
		return err
	}
	return c.WaitNode()
}

// killContainers kills the processes of all containers, and what watches over them.
func killContainers(group string) error {
	return rig.Eventually(time.Minute, func() error {
		var alive []string
		for _, pid := range processes() {
			groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
			if err != nil || !isContainer(pid, string(groups), group) {
				continue
			}
			_ = unix.Kill(pid, unix.SIGKILL)
			alive = append(alive, strconv.Itoa(pid))
		}
		if len(alive) > 0 {
			return fmt.Errorf("alive: %s", strings.Join(alive, " "))
		}
		return nil
	})
}

func isContainer(pid int, groups, group string) bool {
	if state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err != nil || strings.Contains(string(state), ") Z ") {
		return false
	}
	if strings.Contains(groups, "/"+group+"/") {
		return true
	}
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return err == nil && strings.HasPrefix(string(name), "containerd-shim")
}

// processes are those of the node: its process namespace has no others.
func processes() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var pids []int
	for _, entry := range entries {
		if pid, err := strconv.Atoi(entry.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// DriverProcess is the process of the node's driver.
func (c *Cluster) DriverProcess() (int, error) {
	for _, pid := range processes() {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		words := strings.Split(string(text), "\x00")
		if err == nil && len(words) > 2 && filepath.Base(words[0]) == "ringvol" && words[1] == "serve" &&
			strings.Contains(string(text), "--kubelet-registration") {
			// A helper has the driver's command line as well; the driver is the first process of its namespace.
			status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			if err == nil && strings.Contains(string(status), fmt.Sprintf("NSpid:\t%d\t1\n", pid)) {
				return pid, nil
			}
		}
	}
	return 0, errors.New("no driver runs")
}
