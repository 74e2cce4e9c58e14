// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	groupsnapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	storagev1 "k8s.io/api/storage/v1"
)

func containerOf(t *testing.T, pod corev1.PodSpec, name string) corev1.Container {
	t.Helper()
	for _, container := range pod.Containers {
		if container.Name == name {
			return container
		}
	}
	t.Fatalf("no container %s", name)
	return corev1.Container{}
}

// Whoever floods the driver's port starves no probe: they are asked over its socket, by a command that it has.
func TestProbesAreNotOfTheNetwork(t *testing.T) {
	ringvol := os.Getenv("RINGVOL_BIN")
	for name, values := range variants {
		for component, pod := range pods(objects(t, values...)) {
			for _, container := range pod.Containers {
				probes := map[string]*corev1.Probe{"liveness": container.LivenessProbe, "readiness": container.ReadinessProbe,
					"startup": container.StartupProbe}
				for kind, probe := range probes {
					if probe == nil {
						continue
					}
					if probe.Exec == nil || probe.HTTPGet != nil || !slices.Equal(probe.Exec.Command[:2], []string{"ringvol", "health"}) {
						t.Errorf("%s: %s: the %s probe is no ringvol health", name, component, kind)
						continue
					}
					if got := slices.Contains(probe.Exec.Command, "--ready"); got != (kind == "readiness") {
						t.Errorf("%s: %s: the %s probe asks whether it is ready: %v", name, component, kind, got)
					}
					if ringvol == "" {
						continue
					}
					args := append(slices.Clone(probe.Exec.Command[1:]), "--help")
					if out, err := exec.Command(ringvol, args...).CombinedOutput(); err != nil {
						t.Errorf("%s: %q: %s", component, args, out)
					}
					if endpoint := "--endpoint=" + argument(container, "--endpoint="); environment(container, "CSI_ENDPOINT") == "" &&
						!slices.Contains(probe.Exec.Command, endpoint) {
						t.Errorf("%s: %s: %q does not ask where the driver listens, %s", name, component, probe.Exec.Command, endpoint)
					}
				}
				if container.Name == "ringvol" && container.LivenessProbe == nil {
					t.Errorf("%s: %s: nobody asks whether it lives", name, component)
				}
			}
		}
	}
}

func argument(container corev1.Container, prefix string) string {
	for _, arg := range container.Args {
		if value, found := strings.CutPrefix(arg, prefix); found {
			return value
		}
	}
	return ""
}

// Every pod of ours has a policy of its own, that lets in metrics, controllers and nodes where they belong, and nothing else.
func TestNetworkPolicies(t *testing.T) {
	between := map[string][]string{"node": {"controller", "node"}, "controller": {"node"}}
	for _, c := range []struct {
		variant string
		peers   int
		pods    []string
	}{
		{"as it is", 0, []string{"controller", "node"}},
		{"guarded", 1, []string{"controller", "node", "ublkd"}},
		{"open", 0, nil},
		{nodeMode + "as it is", 0, []string{"node", "resizer"}},
		{nodeMode + "guarded", 1, []string{"node", "resizer", "ublkd"}},
		{nodeMode + "open", 0, nil},
	} {
		found := objects(t, variants[c.variant]...)
		var named []string
		for _, policy := range all[*networkingv1.NetworkPolicy](found) {
			component := policy.Spec.PodSelector.MatchLabels["app.kubernetes.io/component"]
			named = append(named, component)
			if !slices.Equal(policy.Spec.PolicyTypes, []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}) {
				t.Errorf("%s: %s: %v", c.variant, component, policy.Spec.PolicyTypes)
			}
			if component == "ublkd" {
				if len(policy.Spec.Ingress) != 0 {
					t.Errorf("%s: the data process can be reached: %v", c.variant, policy.Spec.Ingress)
				}
				continue
			}
			ports := []string{"http"}
			if strings.HasPrefix(c.variant, nodeMode) {
				between = nil
			}
			if peers := between[component]; peers != nil {
				ports = append(ports, "cluster")
				if len(policy.Spec.Ingress) != 2 || !slices.Equal(peersOf(policy.Spec.Ingress[1]), peers) {
					t.Errorf("%s: %s is reached by %+v", c.variant, component, policy.Spec.Ingress)
				}
			}
			if len(policy.Spec.Ingress) != len(ports) || len(policy.Spec.Ingress[0].From) != c.peers {
				t.Fatalf("%s: %s: %+v", c.variant, component, policy.Spec.Ingress)
			}
			container := containerOf(t, pods(found)[component], "ringvol")
			if len(container.Ports) != len(ports) {
				t.Errorf("%s: %s has the ports %+v", c.variant, component, container.Ports)
			}
			for i, port := range ports {
				let := policy.Spec.Ingress[i].Ports
				if len(let) != 1 || let[0].Port.StrVal != port || container.Ports[i].Name != port {
					t.Errorf("%s: %s: %+v is not the port %s", c.variant, component, let, port)
				}
			}
		}
		slices.Sort(named)
		if !slices.Equal(named, c.pods) {
			t.Errorf("%s: policies for %v", c.variant, named)
		}
	}
}

// peersOf are the components that a rule lets in; one without is "".
func peersOf(rule networkingv1.NetworkPolicyIngressRule) []string {
	var peers []string
	for _, peer := range rule.From {
		component := ""
		if peer.PodSelector != nil && peer.PodSelector.MatchLabels["app.kubernetes.io/instance"] == "ringvol" {
			component = peer.PodSelector.MatchLabels["app.kubernetes.io/component"]
		}
		peers = append(peers, component)
	}
	return peers
}

func TestDigests(t *testing.T) {
	found := pods(objects(t, variants["guarded"]...))
	if image := containerOf(t, found["controller"], "resizer").Image; !strings.HasSuffix(image, "@"+someDigest) {
		t.Errorf("the resizer is %s", image)
	}
	if image := containerOf(t, found["ublkd"], "ublkd").Image; !strings.HasSuffix(image, ":"+version(t)+"@"+someDigest) {
		t.Errorf("the data process is %s", image)
	}
	if image := containerOf(t, pods(objects(t, variants["open"]...))["controller"], "provisioner").Image; strings.Contains(image, "@") {
		t.Errorf("the provisioner without a digest is %s", image)
	}
	lines := strings.Split(read(t, chart+"/values.yaml"), "\n")
	for i, line := range lines {
		// Those of the health monitor and of snapshot metadata are off, and their images were not at hand.
		if strings.HasPrefix(line, "    digest: ") && !strings.HasPrefix(line, "    digest: sha256:") &&
			!strings.Contains(lines[i-1], "health-monitor") && !strings.Contains(lines[i-1], "snapshot-metadata") {
			t.Errorf("the chart does not pin an image of a sidecar: %s", line)
		}
	}
}

// What the sidecars and kubelet are told.
func TestWhatIsTold(t *testing.T) {
	found := objects(t, variants["everything"]...)
	if driver := only[*storagev1.CSIDriver](t, found); driver.Spec.SELinuxMount == nil || !*driver.Spec.SELinuxMount {
		t.Error("kubelet does not mount with a label")
	}
	inline, none := only[*storagev1.CSIDriver](t, found).Spec, only[*storagev1.CSIDriver](t, objects(t)).Spec
	if !slices.Contains(inline.VolumeLifecycleModes, storagev1.VolumeLifecycleEphemeral) || !*inline.PodInfoOnMount {
		t.Errorf("inline.enabled: %v", inline)
	}
	if slices.Contains(none.VolumeLifecycleModes, storagev1.VolumeLifecycleEphemeral) || *none.PodInfoOnMount {
		t.Errorf("inline volumes by default: %v", none)
	}
	if said := argument(containerOf(t, pods(found)["node"], "ringvol"), "--inline="); said !=
		"pools=default,namespaces=ci:dev,sources=root,max-size=1Gi,iops=5000,bandwidth=100Mi" {
		t.Errorf("--inline=%s", said)
	}
	for component, pod := range map[string]corev1.PodSpec{"controller": pods(found)["controller"],
		"node": pods(objects(t, variants[nodeMode+"everything"]...))["node"]} {
		for _, sidecar := range []string{"provisioner", "snapshotter"} {
			if !slices.Contains(containerOf(t, pod, sidecar).Args, "--extra-create-metadata") {
				t.Errorf("%s: %s does not say what it makes things for", component, sidecar)
			}
		}
		if argument(containerOf(t, pod, "ringvol"), "--csi-version=") != "both" {
			t.Errorf("%s: not both versions' health is told", component)
		}
	}
	if len(all[*appsv1.DaemonSet](found)) == 0 {
		t.Error("no node")
	}
}

// The registry is one of the test's own: skopeo is a script.
func TestPinImages(t *testing.T) {
	dir := t.TempDir()
	values := filepath.Join(dir, "values.yaml")
	script := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "skopeo"), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(values, []byte(read(t, chart+"/values.yaml")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	pin := func() (string, error) {
		cmd := exec.Command("bash", top+"/scripts/pin-images.sh", values)
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	script("echo " + someDigest)
	if out, err := pin(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if got := strings.Count(read(t, values), "    digest: "+someDigest+"\n"); got != 7 {
		t.Errorf("%d of 7 images are pinned", got)
	}
	if got := strings.Count(read(t, values), "\n"); got != strings.Count(read(t, chart+"/values.yaml"), "\n") {
		t.Errorf("%d lines", got)
	}
	for name, text := range map[string]string{"no answer": "exit 1", "no digest": "echo latest"} {
		script(text)
		if out, err := pin(); err == nil || !strings.Contains(out, "registry.k8s.io/sig-storage/csi-provisioner") {
			t.Errorf("%s: %v: %s", name, err, out)
		}
		if read(t, values) != read(t, chart+"/values.yaml") {
			t.Errorf("%s: the values were changed", name)
		}
	}
}

// What backup programs are told leads to the sidecar, with a certificate that its clients can check, and to nothing else.
func TestSnapshotMetadata(t *testing.T) {
	found := objects(t, variants["metadata"]...)
	told := only[*metadataService](t, found)
	if told.Name != "csi.ringvol.dev" || told.Spec.Audience != "csi.ringvol.dev" {
		t.Errorf("it is %q for %q", told.Name, told.Spec.Audience)
	}
	pod := pods(found)["controller"]
	sidecar := containerOf(t, pod, "snapshot-metadata")
	// The sidecar reads from the same object which audience it wants.
	if !granted(found, "ringvol-controller")["cbt.storage.k8s.io/snapshotmetadataservices get"] {
		t.Error("the sidecar may not read what clients are told")
	}
	host, port, _ := cutLast(told.Spec.Address, ":")
	for _, service := range all[*corev1.Service](found) {
		if service.Name+"."+service.Namespace+".svc" != host {
			continue
		}
		if got := service.Spec.Ports[0]; fmt.Sprint(got.Port) != port || got.TargetPort.StrVal != sidecar.Ports[0].Name {
			t.Errorf("the service leads to %+v", got)
		}
		host = ""
	}
	if host != "" {
		t.Errorf("no service is %s", told.Spec.Address)
	}
	for _, secret := range all[*corev1.Secret](found) {
		if secret.Name != "ringvol-snapshot-metadata-tls" {
			continue
		}
		if !bytes.Equal(secret.Data["ca.crt"], told.Spec.CACert) {
			t.Error("clients are told of another CA")
		}
		name, _, _ := cutLast(told.Spec.Address, ":")
		if err := certificate(t, secret).VerifyHostname(name); err != nil {
			t.Error(err)
		}
	}
	for _, policy := range all[*networkingv1.NetworkPolicy](found) {
		last := policy.Spec.Ingress[len(policy.Spec.Ingress)-1]
		reached := last.Ports[0].Port.StrVal == "metadata"
		if reached != (policy.Labels["app.kubernetes.io/component"] == "controller") || reached && len(last.From) != 1 {
			t.Errorf("%s: %+v", policy.Name, policy.Spec.Ingress)
		}
	}
	own := objects(t, variants["metadata's own certificate"]...)
	if told := only[*metadataService](t, own); string(told.Spec.CACert) != "PEM" || told.Spec.Audience != "backups" {
		t.Errorf("clients are told %+v", told.Spec)
	}
	for _, volume := range pods(own)["controller"].Volumes {
		if volume.Name == "snapshot-metadata-tls" && volume.Secret.SecretName != "m" {
			t.Errorf("the certificate is %s", volume.Secret.SecretName)
		}
	}
}

// What is said of groups goes together; and what the scheduler is told of a node's volumes is asked for anew.
func TestGroupsAndLimits(t *testing.T) {
	for _, c := range []struct {
		variant, gate, period string
		classes               int
	}{
		{"everything", "CSIVolumeGroupSnapshot=false", "60", 0},
		{"groups", "CSIVolumeGroupSnapshot=true", "none", 1},
	} {
		found := objects(t, variants[c.variant]...)
		for component, name := range map[string]string{"controller": "snapshotter", "snapshot-controller": "snapshot-controller"} {
			if got := argument(containerOf(t, pods(found)[component], name), "--feature-gates="); got != c.gate {
				t.Errorf("%s: the %s has the gates %s", c.variant, name, got)
			}
		}
		if got := len(all[*groupsnapshotv1.VolumeGroupSnapshotClass](found)); got != c.classes {
			t.Errorf("%s: %d classes of groups", c.variant, got)
		}
		period := "none"
		if asked := only[*storagev1.CSIDriver](t, found).Spec.NodeAllocatableUpdatePeriodSeconds; asked != nil {
			period = fmt.Sprint(*asked)
		}
		if period != c.period {
			t.Errorf("%s: kubelet asks for the count every %s s", c.variant, period)
		}
	}
	found := objects(t, variants["everything"]...)
	if class := only[*storagev1.VolumeAttributesClass](t, found); class.DriverName != "csi.ringvol.dev" || class.Parameters["iops"] != "1000" {
		t.Errorf("the class is %+v", class)
	}
	if got := argument(containerOf(t, pods(found)["node"], "ringvol"), "--trim-interval="); got != "12h" {
		t.Errorf("volumes are trimmed every %q", got)
	}
}
