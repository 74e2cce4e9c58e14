// SPDX-License-Identifier: Apache-2.0

package system

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// What the sidecars' --extra-create-metadata says of claim and snapshot is told by ls, with and without the driver, by the
// log of each operation, and after a restart; never by metrics.
func TestClaims(t *testing.T) {
	b := newBed(t, "xfs", 1<<30)
	b.must(b.d.ServeHTTP())
	b.d.Args = append(b.d.Args, "--log-format", "json")
	b.start()
	v := b.volume("pvc-0a1b", "xfs")
	v.Size = 320 * mib
	v.Params = map[string]string{"csi.storage.k8s.io/pvc/name": "data-db-0", "csi.storage.k8s.io/pvc/namespace": "shop",
		"csi.storage.k8s.io/pv/name": "pvc-0a1b"}
	b.must(v.Up())
	odd := b.volume("odd", "ext4")
	odd.Params = map[string]string{"csi.storage.k8s.io/pvc/name": "no name\nlevel=error",
		"csi.storage.k8s.io/pvc/namespace": "shop"}
	b.must(odd.Create())
	snapshot, err := b.c.CreateSnapshot(short(t), &csi.CreateSnapshotRequest{SourceVolumeId: v.ID, Name: "snapshot-1",
		Parameters: map[string]string{"csi.storage.k8s.io/volumesnapshot/name": "before-sale",
			"csi.storage.k8s.io/volumesnapshot/namespace": "shop"}})
	b.must(err)

	told := func(when string) {
		t.Helper()
		args := []string{"ls", "--endpoint", "unix://" + b.d.Socket, "--pool", b.pool.Path}
		table, err := rig.Run(rig.Binary(), args...)
		b.must(err)
		if strings.Count(table, "shop/data-db-0") != 1 || strings.Count(table, "shop/before-sale") != 1 ||
			!strings.Contains(table, "CLAIM") || strings.Contains(table, "no name") {
			t.Errorf("%s: %s", when, table)
		}
		text, err := rig.Run(rig.Binary(), append(args, "--json")...)
		b.must(err)
		var all struct {
			Volumes, Snapshots []struct{ Name, Claim string }
		}
		b.must(json.Unmarshal([]byte(text[strings.Index(text, "{"):]), &all)) // a note on standard error comes first
		claims := map[string]string{}
		for _, object := range append(all.Volumes, all.Snapshots...) {
			claims[object.Name] = object.Claim
		}
		if claims["pvc-0a1b"] != "shop/data-db-0" || claims["snapshot-1"] != "shop/before-sale" || claims["odd"] != "" {
			t.Errorf("%s: %v", when, claims)
		}
	}
	told("at once")
	_, metrics, err := b.d.Get("/metrics")
	b.must(err)
	if strings.Contains(metrics, "data-db-0") {
		t.Error("the claim is a label of a metric")
	}
	b.must(b.d.Term())
	told("without a driver")
	b.start()
	told("after a restart")
	b.must(v.Down())
	_, err = b.c.DeleteSnapshot(short(t), &csi.DeleteSnapshotRequest{SnapshotId: snapshot.GetSnapshot().GetSnapshotId()})
	b.must(err)
	b.must(v.Delete())
	b.must(odd.Delete())
	b.must(b.d.Term())
	b.untidy = true // the trash of a driver that has ended

	text, err := os.ReadFile(b.d.Log)
	b.must(err)
	claims := map[string]string{}
	for line := range strings.Lines(string(text)) {
		var fields map[string]string
		b.must(json.Unmarshal([]byte(line), &fields))
		if fields["subject"] != "odd" {
			claims[fields["op"]] = fields["claim"]
		} else if fields["claim"] != "" {
			t.Errorf("a claim of no sound name: %s", line)
		}
	}
	for _, op := range []string{"CreateVolume", "NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume",
		"NodeUnstageVolume", "DeleteVolume"} {
		if claims[op] != "shop/data-db-0" {
			t.Errorf("%s of %q", op, claims[op])
		}
	}
	for _, op := range []string{"CreateSnapshot", "DeleteSnapshot"} {
		if claims[op] != "shop/before-sale" {
			t.Errorf("%s of %q", op, claims[op])
		}
	}
}
