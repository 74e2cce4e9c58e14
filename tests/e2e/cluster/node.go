// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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

// NodeName is the name of the first node, OtherName that of the other.
const (
	NodeName  = "e2e-node"
	OtherName = "e2e-other"
)

// Node is a machine of the cluster: addresses, a container runtime, a kubelet and a pool of its own.
type Node struct {
	Name, IP, Zone string
	Kubelet        *Process
	Pool           *rig.Pool // the first node's; its path is that of the other node's as well

	c          *Cluster
	podRange   string
	containerd *Process
	holder     int // the process that its namespaces belong to; 0: the cluster's
}

func (c *Cluster) nodes() []*Node { return []*Node{c.Node, c.Other} }

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
 "ipam": {"type": "host-local", "subnet": %q, "dataDir": "/var/lib/cni",
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
clusterDNS: [` + namesIP + `]
clusterDomain: cluster.local
maxPods: 250
evictionHard: {memory.available: "0%%", nodefs.available: "0%%", nodefs.inodesFree: "0%%", imagefs.available: "0%%"}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
volumePluginDir: /var/lib/kubelet/volume-plugins
volumeStatsAggPeriod: 10s
nodeStatusUpdateFrequency: 5s
`

func (n *Node) start() error {
	if err := n.startContainerd(); err != nil {
		return err
	}
	return n.startKubelet()
}

// inside is a command line that runs a program in the node's namespaces.
func (n *Node) inside(program string, args ...string) (string, []string) {
	if n.holder == 0 {
		return program, args
	}
	return "nsenter", append([]string{"--target=" + strconv.Itoa(n.holder), "--mount", "--net", "--uts", "--ipc", "--", program}, args...)
}

// Run runs a program in the node's namespaces.
func (n *Node) Run(program string, args ...string) (string, error) {
	program, args = n.inside(program, args...)
	return rig.Run(program, args...)
}

func (n *Node) process(name, path string, args ...string) *Process {
	if n.holder != 0 {
		name += "-" + n.Name
	}
	path, args = n.inside(path, args...)
	return n.c.process(name, path, args...)
}

// seen is a path of the node's as this program sees it.
func (n *Node) seen(path string) string {
	if n.holder == 0 {
		return path
	}
	return fmt.Sprintf("/proc/%d/root%s", n.holder, path)
}

// join makes the node's namespaces and joins them to the first node's network. The API server's addresses and the other node's
// pods lie behind the first node.
func (n *Node) join(first *Node) error {
	holder, err := holdNamespaces(n.c.Dir, n.Name)
	if err != nil {
		return err
	}
	n.holder = holder
	for _, args := range [][]string{
		{"link", "add", n.link(), "type", "veth", "peer", "name", "eth0", "netns", strconv.Itoa(holder)},
		{"link", "set", n.link(), "master", "node0", "up"},
		{"route", "add", n.podRange, "via", n.IP},
	} {
		if _, err := rig.Run("ip", args...); err != nil {
			return err
		}
	}
	for _, args := range [][]string{
		{"link", "set", "lo", "up"},
		{"addr", "add", n.IP + "/24", "dev", "eth0"},
		{"link", "set", "eth0", "up"},
		{"route", "add", serviceRange, "via", first.IP},
		{"route", "add", first.podRange, "via", first.IP},
	} {
		if _, err := n.Run("ip", args...); err != nil {
			return err
		}
	}
	for _, n := range n.c.nodes() {
		if _, err := n.Run("sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"); err != nil {
			return err
		}
	}
	return nil
}

func (n *Node) link() string { return "to-other" }

// Cut takes the node off the network, Mend brings it back. Not the first node.
func (n *Node) Cut() error {
	_, err := rig.Run("ip", "link", "set", n.link(), "down")
	return err
}

func (n *Node) Mend() error {
	_, err := rig.Run("ip", "link", "set", n.link(), "up")
	return err
}

func (n *Node) startContainerd() error {
	cni := n.c.path(n.Name, "cni")
	if err := os.MkdirAll(cni, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(cni, "10-pods.conflist"), fmt.Appendf(nil, cniConfig, n.podRange), 0o644); err != nil {
		return err
	}
	config := fmt.Sprintf(containerdConfig, n.c.debian("usr/lib/cni"), cni, n.c.debian("usr/sbin/runc"))
	file := n.c.path(n.Name, "containerd.toml")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		return err
	}
	n.containerd = n.process("containerd", n.c.debian("usr/bin/containerd"), "--config="+file)
	if err := n.containerd.Start(); err != nil {
		return err
	}
	return n.waitContainerd()
}

func (n *Node) waitContainerd() error {
	return rig.Eventually(time.Minute, func() error {
		if err := n.containerd.Ended(); err != nil {
			return rig.Stop(err)
		}
		return n.askCRI()
	})
}

// askCRI makes the call with which kubelet begins. containerd answers others before it is ready for this one, and a kubelet
// that comes too early ends; where there is systemd it starts it again.
func (n *Node) askCRI() error {
	conn, err := grpc.NewClient("unix://"+n.seen(containerdSocket), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	// An empty message is a VersionRequest, and of the answer it only matters that there is one.
	return conn.Invoke(ctx, "/runtime.v1.RuntimeService/Version", &emptypb.Empty{}, &emptypb.Empty{})
}

func (n *Node) ctr(args ...string) (string, error) {
	return n.Run(n.c.debian("usr/bin/ctr"), append([]string{"--address", containerdSocket, "--namespace", "k8s.io"}, args...)...)
}

func (n *Node) startKubelet() error {
	group := n.cgroup()
	if err := makeCgroups(group); err != nil {
		return fmt.Errorf("control groups: %w", err)
	}
	pki, name := n.c.pki, "kubelet-"+n.Name
	kubeconfig, err := pki.kubeconfig("node-"+n.Name, "system:node:"+n.Name, "system:nodes")
	if err != nil {
		return err
	}
	if err := pki.issue(name, pkix.Name{CommonName: n.Name}, []string{n.IP, "127.0.0.1"}, []string{n.Name}); err != nil {
		return err
	}
	config := fmt.Sprintf(kubeletConfig, pki.path("ca.crt"), pki.path(name+".crt"), pki.path(name+".key"), "/"+group)
	file := n.c.path(n.Name, "kubelet.yaml")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		return err
	}
	n.Kubelet = n.process("kubelet", n.c.bin("kubelet"), "--config="+file, "--kubeconfig="+kubeconfig,
		"--hostname-override="+n.Name, "--node-ip="+n.IP, "--cert-dir="+n.c.path(n.Name),
		"--node-labels="+ZoneLabel+"="+n.Zone, "--v=2")
	if err := n.Kubelet.Start(); err != nil {
		return err
	}
	return n.WaitNode()
}

// ZoneLabel is a label of every node: the zone that it is in.
const ZoneLabel = "topology.kubernetes.io/zone"

// cgroup is the group that everything the node's kubelet makes lies in.
func (n *Node) cgroup() string { return filepath.Join(cgroupName(n.c.Dir), n.Name) }

// WaitNode waits until kubelet calls the node ready and pods may come.
func (n *Node) WaitNode() error {
	return rig.Eventually(3*time.Minute, func() error {
		if err := n.Kubelet.Ended(); err != nil {
			return rig.Stop(err)
		}
		// What the API server knows may be from before kubelet was started again.
		if err := ready(n.c.Client.CoreV1().RESTClient(), "/api/v1/nodes/"+n.Name+"/proxy/healthz"); err != nil {
			return err
		}
		node, err := n.c.Client.CoreV1().Nodes().Get(context.Background(), n.Name, metav1.GetOptions{})
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

// Reboot does to the first node what a power switch does, as far as that goes without a machine: kubelet, containerd and every
// container die where they are, all mounts and devices of volumes vanish, /run is empty. The control
// plane, which could be anywhere, notices nothing. Then the node starts again.
func (c *Cluster) Reboot() error {
	if err := errors.Join(c.Kubelet.Kill(), c.containerd.Kill()); err != nil {
		return err
	}
	if err := killContainers(c.cgroup()); err != nil {
		return err
	}
	for _, dir := range []string{"/var/lib/kubelet", "/run", c.Dir} {
		mounts := rig.MountsBelow(dir)
		for i := len(mounts) - 1; i >= 0; i-- {
			_ = unix.Unmount(mounts[i], unix.MNT_DETACH)
		}
	}
	if err := rig.Eventually(time.Minute, func() error {
		left := slices.DeleteFunc(loopsOf(c.Dir), c.Other.has)
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

// killContainers kills the processes of all containers of the first node, and what watches over them.
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
	if err != nil || !strings.HasPrefix(string(name), "containerd-shim") {
		return false
	}
	// The other node's are in its own mount namespace.
	its, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid))
	ours, ourErr := os.Readlink("/proc/self/ns/mnt")
	return err == nil && ourErr == nil && its == ours
}

// processes are those of the cluster: its process namespace has no others.
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
func (n *Node) DriverProcess() (int, error) {
	return firstProcess("serve", "--node-id="+n.Name)
}

// LeadersController is the controller's process in the pod whose sidecar has been elected: provisioner, resizer, snapshotter.
func (c *Cluster) LeadersController(sidecar string) (int, error) {
	driver := strings.ReplaceAll(Driver, ".", "-")
	lease, err := c.Client.CoordinationV1().Leases(Namespace).Get(context.Background(), map[string]string{
		"provisioner": driver, "resizer": "external-resizer-" + driver, "snapshotter": "external-snapshotter-leader-" + driver,
	}[sidecar], metav1.GetOptions{})
	if err != nil {
		return 0, err
	}
	if lease.Spec.HolderIdentity == nil {
		return 0, fmt.Errorf("no %s has been elected", sidecar)
	}
	for _, pid := range firstProcesses("controller", "--listen=") {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err == nil && slices.Contains(strings.Split(string(text), "\x00"), "HOSTNAME="+*lease.Spec.HolderIdentity) {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("the controller of %s does not run", *lease.Spec.HolderIdentity)
}

func firstProcess(command, argument string) (int, error) {
	if found := firstProcesses(command, argument); len(found) > 0 {
		return found[0], nil
	}
	return 0, fmt.Errorf("no ringvol %s %s runs", command, argument)
}

// firstProcesses are those of ringvol's with a command and an argument that are the first of their container. A helper has the
// driver's command line as well.
func firstProcesses(command, argument string) []int {
	var found []int
	for _, pid := range processes() {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		words := strings.Split(string(text), "\x00")
		if err != nil || len(words) < 3 || filepath.Base(words[0]) != "ringvol" || words[1] != command ||
			!slices.ContainsFunc(words, func(word string) bool { return strings.HasPrefix(word, argument) }) {
			continue
		}
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err == nil && strings.Contains(string(status), fmt.Sprintf("NSpid:\t%d\t1\n", pid)) {
			found = append(found, pid)
		}
	}
	return found
}
