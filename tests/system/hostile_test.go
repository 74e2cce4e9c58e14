// SPDX-License-Identifier: Apache-2.0

package system

import (
	"fmt"
	"testing"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
)

// TestHoardedMemory has 60 clients make the driver keep as much as they can. Others are served beside them, what is
// kept stays within the budget of all requests and answers, and when they have gone the memory is the system's again.
func TestHoardedMemory(t *testing.T) {
	const budget, slack, kept = 64 * mib, 64 * mib, 24 * mib
	if testing.Short() {
		t.Skip("a build with sanitizers keeps what is freed")
	}
	b := open(t, "xfs", 4<<30)
	volumes := make([]*rig.Volume, 200)
	for i := range volumes {
		volumes[i] = b.d.Volume(fmt.Sprintf("hoard-%03d", i), rig.BlockCap(), 16*mib)
		b.must(volumes[i].Create())
	}
	resident := func() int64 { return residentBytes(t, b.d.Pid()) }
	before := resident()
	leave, err := rig.Hoard(b.d.Socket, 60)
	during := resident()
	_, asked := b.c.GetPluginInfo(short(t), &csi.GetPluginInfoRequest{})
	leave()
	b.must(err)
	b.must(asked)
	t.Logf("VmRSS: %d bytes before, %d with 60 hostile connections", before, during)
	if during > before+budget+slack {
		t.Errorf("60 connections made %d bytes out of %d", during, before)
	}
	b.eventually(func() error {
		if after := resident(); after > before+kept {
			return fmt.Errorf("%d bytes stay resident, %d were before", after, before)
		}
		return nil
	})
	for _, v := range volumes {
		b.must(v.Delete())
	}
}
