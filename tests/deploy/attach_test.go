// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"slices"
	"testing"

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
