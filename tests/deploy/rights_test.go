// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
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
	snapshotter := "deploy/kubernetes/csi-snapshotter/rbac-csi-snapshotter.yaml"
	for account, modules := range map[string][][2]string{
		"ringvol-node":    {{base + "provisioner/v6", "deploy/kubernetes/rbac.yaml"}, {base + "snapshotter/v8", snapshotter}},
		"ringvol-resizer": {{base + "resizer/v2", "deploy/kubernetes/rbac.yaml"}},
		"ringvol-snapshot-controller": {{base + "snapshotter/v8",
			"deploy/kubernetes/snapshot-controller/rbac-snapshot-controller.yaml"}},
	} {
		t.Run(account, func(t *testing.T) {
			asked := rights{}
			for _, module := range modules {
				for right := range upstream(t, module[0], module[1]) {
					asked[right] = true
				}
			}
			if account == "ringvol-snapshot-controller" {
				// Theirs, but as a comment: for distributed snapshotting.
				for _, verb := range []string{"get", "list", "watch"} {
					asked["/nodes "+verb] = true
				}
			}
			have := granted(objects(t, variants["everything"]...), account)
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
	found := objects(t, variants["everything"]...)
	for _, account := range []string{"ringvol-node", "ringvol-resizer", "ringvol-snapshot-controller"} {
		for right := range granted(found, account) {
			for _, no := range []string{"*", "secrets", "/pods create", "/pods exec", "serviceaccounts", "rolebindings",
				"clusterroles", " escalate", " bind", " impersonate", "nodes/proxy"} {
				if strings.Contains(right, no) {
					t.Errorf("%s has %s", account, right)
				}
			}
		}
	}
	if len(granted(found, "ringvol-ublkd")) != 0 {
		t.Error("the data process has rights")
	}
	// Every binding leads to a role and an account that are there.
	for _, binding := range all[*rbacv1.ClusterRoleBinding](found) {
		if len(granted(found, binding.RoleRef.Name)) == 0 || binding.Subjects[0].Name != binding.RoleRef.Name ||
			binding.Subjects[0].Namespace != "storage" {
			t.Errorf("binding %s: %+v %+v", binding.Name, binding.RoleRef, binding.Subjects)
		}
	}
	// Without snapshots there is nothing of them.
	for right := range granted(objects(t, "snapshots.enabled=false"), "ringvol-node") {
		if strings.Contains(right, "snapshot") {
			t.Errorf("without snapshots: %s", right)
		}
	}
}
