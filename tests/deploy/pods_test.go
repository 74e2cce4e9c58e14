// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// pods returns the pod templates by the component that they are; of several groups of nodes the last.
func pods(from []runtime.Object) map[string]corev1.PodSpec {
	found := map[string]corev1.PodSpec{}
	for _, set := range all[*appsv1.DaemonSet](from) {
		found[set.Labels["app.kubernetes.io/component"]] = set.Spec.Template.Spec
	}
	for _, deployment := range all[*appsv1.Deployment](from) {
		found[deployment.Labels["app.kubernetes.io/component"]] = deployment.Spec.Template.Spec
	}
	for _, set := range all[*appsv1.StatefulSet](from) {
		found[set.Labels["app.kubernetes.io/component"]] = set.Spec.Template.Spec
	}
	return found
}

// expanded are a container's arguments as it gets them: $(NAME) is its variable, or some name for what the node fills in.
func expanded(container corev1.Container) []string {
	var args []string
	for _, arg := range container.Args {
		for _, variable := range container.Env {
			value := variable.Value
			if variable.ValueFrom != nil {
				value = "node-a"
				if path := variable.ValueFrom.FieldRef.FieldPath; path == "status.podIP" || path == "status.hostIP" {
					value = "192.0.2.7"
				}
				if strings.Contains(environment(container, "RINGVOL_ADVERTISE"), "[") {
					value = strings.Replace(value, "192.0.2.7", "2001:db8::7", 1)
				}
			}
			arg = strings.ReplaceAll(arg, "$("+variable.Name+")", value)
		}
		args = append(args, arg)
	}
	return args
}

// flagsOf are the flags that a container's variables stand for.
func flagsOf(container corev1.Container) []string {
	var args []string
	for _, c := range []struct{ variable, flag, separator string }{
		{"RINGVOL_CONTROLLERS", "--controller=", ";"}, {"RINGVOL_ADVERTISE", "--advertise=", "\n"},
		{"RINGVOL_TLS_CERT", "--tls-cert=", "\n"}, {"RINGVOL_TLS_KEY", "--tls-key=", "\n"}, {"RINGVOL_TLS_CA", "--tls-ca=", "\n"},
	} {
		if value := environment(container, c.variable); value != "" {
			for one := range strings.SplitSeq(value, c.separator) {
				args = append(args, c.flag+one)
			}
		}
	}
	full := container
	full.Args = args
	return expanded(full)
}

func environment(container corev1.Container, name string) string {
	for _, variable := range container.Env {
		if variable.Name == name {
			return variable.Value
		}
	}
	return ""
}

// ringvol checks all that stands before --help and opens nothing. What comes by the environment is given as flags.
func TestDriverTakesItsFlags(t *testing.T) {
	ringvol := os.Getenv("RINGVOL_BIN")
	if ringvol == "" {
		t.Skip("RINGVOL_BIN names no ringvol")
	}
	accepts := func(args ...string) (string, bool) {
		out, err := exec.Command(ringvol, append(args, "--help")...).CombinedOutput()
		return string(out), err == nil
	}
	for name, values := range variants {
		seen := 0
		for component, pod := range pods(objects(t, values...)) {
			for _, container := range pod.Containers {
				if !strings.HasPrefix(container.Image, "ringvol.dev/") {
					continue
				}
				seen++
				args := append(expanded(container), flagsOf(container)...)
				if endpoint := environment(container, "CSI_ENDPOINT"); endpoint != "" && argument(container, "--endpoint=") == "" {
					args = append(args, "--endpoint="+endpoint)
				}
				if list := environment(container, "RINGVOL_POOLS"); list != "" {
					for pool := range strings.SplitSeq(list, ";") {
						args = append(args, "--pool="+pool)
					}
				}
				if out, ok := accepts(args...); !ok {
					t.Errorf("%s: %s: %q: %s", name, component, args, out)
				}
				if out, ok := accepts(append(args, "--no-such-flag")...); ok {
					t.Errorf("an unknown flag was taken: %s", out)
				}
			}
		}
		if seen < 2 {
			t.Errorf("%s: %d containers of ringvol", name, seen)
		}
	}
}

// Sidecars parse all flags before they look at --version.
func TestSidecarsTakeTheirFlags(t *testing.T) {
	for _, variant := range []string{"everything", nodeMode + "everything", "watched", "groups", "metadata", "attached"} {
		sidecarsTakeTheirFlags(t, variant)
	}
}

func sidecarsTakeTheirFlags(t *testing.T, variant string) {
	for component, pod := range pods(objects(t, variants[variant]...)) {
		for _, container := range pod.Containers {
			name := strings.Split(filepath.Base(container.Image), ":")[0]
			if name == "ringvol" || variant == "watched" && container.Name != "health-monitor" {
				continue
			}
			t.Run(variant+"/"+name, func(t *testing.T) {
				binary := filepath.Join(top, ".cache/e2e/bin", name)
				if _, err := os.Stat(binary); err != nil {
					t.Skipf("no %s: %v (./dev e2e builds it)", name, err)
				}
				cmd := exec.Command(binary, append(expanded(container), "--version")...)
				cmd.Env = append(os.Environ(), "NODE_NAME=node-a")
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%s: %q: %v\n%s", component, container.Args, err, out)
				}
				if out, err := exec.Command(binary, "--no-such-flag", "--version").CombinedOutput(); err == nil {
					t.Errorf("an unknown flag was taken: %s", out)
				}
			})
		}
	}
}

// Who may do what to the node: the driver and the data process, and nobody else anything.
func TestPrivileges(t *testing.T) {
	driver := []string{"/dev", "/run/ringvol", "/sys/fs/cgroup", "/var/lib/kubelet", "/var/lib/ringvol"}
	ublkd := []string{"/dev", "/run/ringvol", "/var/lib/ringvol"}
	for variant, hostPaths := range map[string]map[string][]string{
		"everything": {"node": driver, "ublkd": ublkd, "controller": nil, "snapshot-controller": nil},
		nodeMode + "everything": {"node": append(slices.Clone(driver), "/var/lib/kubelet/plugins/csi.ringvol.dev"), "ublkd": ublkd,
			"resizer": nil, "snapshot-controller": nil},
		"watched":  {"node": {"/dev", "/sys/fs/cgroup", "/var/lib/kubelet", "/var/lib/ringvol"}, "controller": nil},
		"remote":   {"node": {"/dev", "/sys/fs/cgroup", "/sys/kernel", "/var/lib/kubelet", "/var/lib/ringvol"}, "controller": nil},
		"attached": {"node": {"/dev", "/sys/fs/cgroup", "/var/lib/kubelet", "/var/lib/ringvol"}, "controller": nil},
	} {
		t.Run(variant, func(t *testing.T) {
			found := pods(objects(t, variants[variant]...))
			if len(found) != len(hostPaths) {
				t.Errorf("%d kinds of pods", len(found))
			}
			for component, pod := range found {
				privilegesOf(t, component, pod, hostPaths[component])
			}
		})
	}
}

func privilegesOf(t *testing.T, component string, pod corev1.PodSpec, hostPaths []string) {
	var has []string
	for _, volume := range pod.Volumes {
		if volume.HostPath != nil {
			has = append(has, volume.HostPath.Path)
		}
	}
	slices.Sort(has)
	wanted := slices.Sorted(slices.Values(hostPaths))
	if !slices.Equal(has, wanted) {
		t.Errorf("%s has the node's %q, not %q", component, has, wanted)
	}
	if host := len(hostPaths) > 0 && slices.Contains(hostPaths, "/sys/kernel"); pod.HostNetwork != host || pod.HostPID || pod.HostIPC {
		t.Errorf("%s has a namespace of the node", component)
	}
	for _, container := range pod.Containers {
		security := container.SecurityContext
		if security == nil || security.ReadOnlyRootFilesystem == nil || !*security.ReadOnlyRootFilesystem {
			t.Errorf("%s: %s may write to its image", component, container.Name)
			continue
		}
		needs := component == "node" && container.Name == "ringvol" || component == "ublkd"
		privileged := security.Privileged != nil && *security.Privileged
		if privileged != needs {
			t.Errorf("%s: %s: privileged is %v", component, container.Name, privileged)
		}
		if !needs && (security.AllowPrivilegeEscalation == nil || *security.AllowPrivilegeEscalation ||
			security.Capabilities == nil || len(security.Capabilities.Add) != 0 ||
			len(security.Capabilities.Drop) != 1 || security.Capabilities.Drop[0] != "ALL") {
			t.Errorf("%s: %s keeps capabilities", component, container.Name)
		}
		if !needs && component != "node" && (pod.SecurityContext.RunAsNonRoot == nil || !*pod.SecurityContext.RunAsNonRoot) {
			t.Errorf("%s: %s may be root", component, container.Name)
		}
		for _, mount := range container.VolumeMounts {
			both := mount.MountPropagation != nil && *mount.MountPropagation == corev1.MountPropagationBidirectional
			if both != (component == "node" && mount.Name == "kubelet") {
				t.Errorf("%s: %s: %s: Bidirectional is %v", component, container.Name, mount.Name, both)
			}
			if mount.Name == "tls" && (container.Name != "ringvol" || !mount.ReadOnly) {
				t.Errorf("%s: %s has the certificate: %+v", component, container.Name, mount)
			}
		}
		if container.Resources.Requests.Memory().IsZero() || container.Resources.Requests.Cpu().IsZero() {
			t.Errorf("%s: %s asks for no resources", component, container.Name)
		}
	}
	if token := pod.AutomountServiceAccountToken; component == "ublkd" && (token == nil || *token) {
		t.Error("ublkd has a token")
	}
}

// Two drivers never meet on a node, and the data process is left alone.
func TestUpdates(t *testing.T) {
	for _, set := range all[*appsv1.DaemonSet](objects(t, variants["ublk"]...)) {
		strategy := set.Spec.UpdateStrategy
		switch set.Labels["app.kubernetes.io/component"] {
		case "node":
			if strategy.Type != appsv1.RollingUpdateDaemonSetStrategyType || strategy.RollingUpdate.MaxSurge.IntValue() != 0 {
				t.Errorf("node: %+v", strategy)
			}
			// The drain takes 10 s.
			if *set.Spec.Template.Spec.TerminationGracePeriodSeconds < 11 {
				t.Error("node: killed before it has drained")
			}
		case "ublkd":
			if strategy.Type != appsv1.OnDeleteDaemonSetStrategyType {
				t.Errorf("ublkd: %+v", strategy)
			}
		}
	}
}

// A pool is made only where that was asked for: a directory that is not there is never made a pool on the root disk.
func TestPools(t *testing.T) {
	found := pods(objects(t, "pools[0].name=a", "pools[0].hostPath=/mnt/a", "pools[0].options=reserve=3\\,init",
		"pools[1].name=b", "pools[1].hostPath=/mnt/b", "ublk.enabled=true"))
	for _, component := range []string{"node", "ublkd"} {
		types := map[string]corev1.HostPathType{}
		mounted := map[string]bool{}
		for _, volume := range found[component].Volumes {
			if volume.HostPath != nil {
				types[volume.HostPath.Path] = *volume.HostPath.Type
			}
		}
		for _, mount := range found[component].Containers[0].VolumeMounts {
			mounted[mount.MountPath] = mount.MountPropagation != nil &&
				*mount.MountPropagation == corev1.MountPropagationHostToContainer
		}
		if types["/mnt/a"] != corev1.HostPathDirectoryOrCreate || types["/mnt/b"] != corev1.HostPathUnset {
			t.Errorf("%s: %v", component, types)
		}
		if !mounted["/mnt/a"] || !mounted["/mnt/b"] {
			t.Errorf("%s: disks mounted later are not seen: %v", component, mounted)
		}
	}
	driver := found["node"].Containers[0]
	if got := environment(driver, "RINGVOL_POOLS"); got != "a=/mnt/a,reserve=3,init;b=/mnt/b" {
		t.Errorf("RINGVOL_POOLS is %q", got)
	}
}
