// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// rights are "group/resource verb".
type rights map[string]bool

func (r rights) add(rules []rbacv1.PolicyRule) {
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					r[group+"/"+resource+" "+verb] = true
				}
			}
		}
	}
}

// granted are the rights of one service account.
func granted(from []runtime.Object, account string) rights {
	found := rights{}
	for _, role := range all[*rbacv1.ClusterRole](from) {
		if role.Name == account {
			found.add(role.Rules)
		}
	}
	for _, role := range all[*rbacv1.Role](from) {
		if role.Name == account {
			found.add(role.Rules)
		}
	}
	return found
}

// upstream are the rights that a sidecar's own manifests ask for, out of the module it is built from.
func upstream(t *testing.T, module, files string) rights {
	t.Helper()
	cmd := exec.Command("go", "mod", "download", "-json", module)
	cmd.Dir = top + "/tests/e2e/parts/sidecars"
	if strings.HasSuffix(module, "snapshot-metadata") {
		cmd.Dir = top + "/tests/e2e/parts/snapshot-metadata"
	}
	out, err := cmd.Output()
	var about struct{ Dir, Error string }
	if json.Unmarshal(out, &about) != nil || about.Dir == "" {
		t.Skipf("%s cannot be had: %v %s", module, err, about.Error)
	}
	paths, err := filepath.Glob(filepath.Join(about.Dir, files))
	if err != nil || len(paths) == 0 {
		t.Fatalf("%s has no %s", module, files)
	}
	found := rights{}
	for _, path := range paths {
		objects, err := decode(t, []byte(read(t, path)))
		if err != nil {
			t.Fatal(err)
		}
		for _, role := range all[*rbacv1.ClusterRole](objects) {
			found.add(role.Rules)
		}
		for _, role := range all[*rbacv1.Role](objects) {
			found.add(role.Rules)
		}
	}
	if len(found) < 10 {
		t.Fatalf("%s: %v", files, found)
	}
	return found
}

// Nobody has a right that the sidecars' own manifests do not ask for, and some are left out.
func TestNoMoreRightsThanUpstream(t *testing.T) {
	const base = "github.com/kubernetes-csi/external-"
	provisioner := [2]string{base + "provisioner/v6", "deploy/kubernetes/rbac.yaml"}
	snapshotter := [2]string{base + "snapshotter/v8", "deploy/kubernetes/csi-snapshotter/rbac-csi-snapshotter.yaml"}
	resizer := [2]string{base + "resizer/v2", "deploy/kubernetes/rbac.yaml"}
	controller := [2]string{base + "snapshotter/v8", "deploy/kubernetes/snapshot-controller/rbac-snapshot-controller.yaml"}
	metadata := [2]string{base + "snapshot-metadata", "deploy/snapshot-metadata-cluster-role.yaml"}
	attacher := [2]string{base + "attacher/v4", "deploy/kubernetes/rbac.yaml"}
	inController := [][2]string{provisioner, snapshotter, resizer}
	sets := []string{"apps/statefulsets get"}
	for _, c := range []struct {
		variant, account string
		modules          [][2]string
		also             []string // theirs, but as a comment, or of what the provisioner's pod belongs to
	}{
		{"everything", "ringvol-controller", inController, sets},
		{"groups", "ringvol-controller", inController, sets},
		{"groups", "ringvol-snapshot-controller", [][2]string{controller}, nil},
		{"metadata", "ringvol-controller", append(slices.Clone(inController), metadata), sets},
		{"attached", "ringvol-controller", append(slices.Clone(inController), attacher), sets},
		// The health monitor's module is not on the proxy: all that its rbac.yaml asks for beyond the others' is this.
		{"watched", "ringvol-controller", inController, sets},
		{"everything", "ringvol-snapshot-controller", [][2]string{controller}, nil},
		{nodeMode + "everything", "ringvol-node", [][2]string{provisioner, snapshotter}, []string{"storage.k8s.io/volumeattributesclasses get"}}, // its source does
		{nodeMode + "everything", "ringvol-resizer", [][2]string{resizer}, nil},
		{nodeMode + "everything", "ringvol-snapshot-controller", [][2]string{controller}, []string{"/nodes get", "/nodes list", "/nodes watch"}},
	} {
		t.Run(c.variant+"/"+c.account, func(t *testing.T) {
			asked := rights{}
			for _, module := range c.modules {
				for right := range upstream(t, module[0], module[1]) {
					asked[right] = true
				}
			}
			for _, right := range c.also {
				asked[right] = true
			}
			have := granted(objects(t, variants[c.variant]...), c.account)
			if len(have) == 0 {
				t.Fatal("no rights at all")
			}
			for right := range have {
				if !asked[right] {
					t.Errorf("%s is not asked for", right)
				}
			}
			if len(have) >= len(asked) {
				t.Errorf("%d rights of %d: none was left out", len(have), len(asked))
			}
		})
	}
}

func TestNothingToEscalateWith(t *testing.T) {
	for _, variant := range []string{"everything", nodeMode + "everything", "watched", "groups", "metadata", "attached"} {
		found := objects(t, variants[variant]...)
		for _, account := range []string{"ringvol-node", "ringvol-controller", "ringvol-resizer", "ringvol-snapshot-controller"} {
			for right := range granted(found, account) {
				for _, no := range []string{"*", "secrets", "/pods create", "/pods exec", "serviceaccounts", "rolebindings",
					"clusterroles", " escalate", " bind", " impersonate", "nodes/proxy"} {
					if strings.Contains(right, no) {
						t.Errorf("%s: %s has %s", variant, account, right)
					}
				}
			}
		}
		if len(granted(found, "ringvol-ublkd")) != 0 {
			t.Errorf("%s: the data process has rights", variant)
		}
		// Every binding leads to a role and an account that are there.
		for _, binding := range all[*rbacv1.ClusterRoleBinding](found) {
			if len(granted(found, binding.RoleRef.Name)) == 0 || binding.Subjects[0].Name != binding.RoleRef.Name ||
				binding.Subjects[0].Namespace != "storage" {
				t.Errorf("%s: binding %s: %+v %+v", variant, binding.Name, binding.RoleRef, binding.Subjects)
			}
		}
	}
	// Without snapshots there is nothing of them, and without a health monitor nothing of pods.
	for _, values := range [][]string{{"snapshots.enabled=false"}, {"snapshots.enabled=false", "mode=node"}} {
		found := objects(t, values...)
		for _, account := range []string{"ringvol-node", "ringvol-controller"} {
			for right := range granted(found, account) {
				if strings.Contains(right, "snapshot") || right == "/pods list" {
					t.Errorf("%q: %s has %s", values, account, right)
				}
			}
		}
	}
}
