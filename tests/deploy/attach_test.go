// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	storagev1 "k8s.io/api/storage/v1"
)

// With attach.enabled everybody is told: the API server, the controllers beside their attacher, and the nodes. Without it nobody is, and
// while it ends the API server alone is told so: what is attached is detached by those who attached it.
func TestAttaching(t *testing.T) {
	for _, c := range []struct {
		variant          string
		required, served bool
	}{{"as it is", false, false}, {"attached", true, true}, {"attaching ends", false, true}, {nodeMode + "as it is", false, false}} {
		found := objects(t, variants[c.variant]...)
		if driver := only[*storagev1.CSIDriver](t, found); driver.Spec.AttachRequired == nil || *driver.Spec.AttachRequired != c.required ||
			len(driver.Annotations) != 0 {
			t.Errorf("%s: %+v %v", c.variant, driver.Spec.AttachRequired, driver.Annotations)
		}
		for component, pod := range pods(found) {
			names, attach := 0, false
			for _, container := range pod.Containers {
				if container.Name == "attacher" {
					names++
				}
				attach = attach || container.Name == "ringvol" && slices.Contains(container.Args, "--attach")
			}
			controller := component == "controller"
			if served := c.served && (controller || component == "node"); attach != served || (names == 1) != (c.served && controller) {
				t.Errorf("%s: %s serves it: %v, with %d attachers", c.variant, component, attach, names)
			}
		}
	}
}

// The rights to attach come with attaching alone, and are no more than those.
func TestRightsOfAttaching(t *testing.T) {
	without, with := granted(objects(t, "snapshots.enabled=true"), "ringvol-controller"), granted(objects(t, variants["attached"]...), "ringvol-controller")
	const attachments = "storage.k8s.io/volumeattachments"
	wanted := []string{attachments + " get", attachments + " list", attachments + " patch", attachments + " watch", attachments + "/status patch"}
	var more []string
	for right := range with {
		if !without[right] {
			more = append(more, right)
		}
	}
	if slices.Sort(more); !slices.Equal(more, wanted) || len(with) != len(without)+len(wanted) {
		t.Errorf("attaching comes with %q", more)
	}
}

// What a node gives to others is reached at its own address, so its pod has the node's network. Policies do not know such pods: the
// controllers let in whoever the operator names, or everybody, and look at certificates.
func TestRemote(t *testing.T) {
	for _, c := range []struct {
		variant, address string
		more             []string
		peers            int
	}{
		{"remote", "$(NODE_IP):4420", []string{"--owner-timeout=10m", "--owner-fail-after=off"}, 0},
		{"remote, IPv6", "[$(NODE_IP)]:4430", []string{"--export-without-auth", "--owner-timeout=1h", "--owner-fail-after=30s"}, 1},
	} {
		found := objects(t, variants[c.variant]...)
		pod := pods(found)["node"]
		driver := containerOf(t, pod, "ringvol")
		if got := argument(driver, "--export-address="); got != c.address {
			t.Errorf("%s: it is reached at %s", c.variant, got)
		}
		for _, arg := range c.more {
			if !slices.Contains(driver.Args, arg) {
				t.Errorf("%s: %q has no %s", c.variant, driver.Args, arg)
			}
		}
		if !pod.HostNetwork || pod.DNSPolicy != corev1.DNSClusterFirstWithHostNet {
			t.Errorf("%s: network of the node: %v, names: %s", c.variant, pod.HostNetwork, pod.DNSPolicy)
		}
		for _, policy := range all[*networkingv1.NetworkPolicy](found) {
			if policy.Labels["app.kubernetes.io/component"] != "controller" {
				continue
			}
			if rule := policy.Spec.Ingress[1]; rule.Ports[0].Port.StrVal != "cluster" || len(rule.From) != c.peers {
				t.Errorf("%s: controllers are reached by %+v", c.variant, rule)
			}
		}
	}
	if driver := containerOf(t, pods(objects(t, variants["attached"]...))["node"], "ringvol"); slices.ContainsFunc(driver.Args,
		func(arg string) bool { return strings.HasPrefix(arg, "--export") || strings.HasPrefix(arg, "--owner") }) {
		t.Errorf("without attach.remote: %q", driver.Args)
	}
}
