// SPDX-License-Identifier: Apache-2.0

// Package conformance runs csi-test's sanity suite against the driver, once with mounted xfs volumes, once
// with raw block volumes, both again without staging, twice on a pool on a raw disk (thick and thin), once against a
// controller with three nodes behind it, and with --attach against one driver and against a controller. Every case is
// a test of its own, so that passes, failures and
// skips are counted by name.
//
// It is a module of its own: the suite brings the bindings of CSI 1.13, which have lost the condition
// of 1.12 that other tests read, and one program cannot have both.
package conformance

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/onsi/ginkgo/v2"
	"github.com/onsi/ginkgo/v2/types"
	"github.com/onsi/gomega"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

type mode struct {
	name, access string
	params       map[string]string
	size, grown  int64
	cluster      bool
	disk         bool // the pool lies on a raw disk
	unstaged     bool // --staging off
	attach       bool // --attach
}

// xfs, as ext4 grows online only with CAP_SYS_RESOURCE.
var modes = []mode{
	{"mount", "mount", map[string]string{"csi.storage.k8s.io/fstype": "xfs"}, 320 * rig.MiB, 640 * rig.MiB, false, false, false, false},
	{"block", "block", nil, 32 * rig.MiB, 64 * rig.MiB, false, false, false, false},
	{"cluster", "mount", map[string]string{"csi.storage.k8s.io/fstype": "xfs"}, 320 * rig.MiB, 640 * rig.MiB, true, false, false, false},
	{"raw", "mount", map[string]string{"csi.storage.k8s.io/fstype": "ext4"}, 48 * rig.MiB, 96 * rig.MiB, false, true, false, false},
	{"thin", "mount", map[string]string{"csi.storage.k8s.io/fstype": "ext4", "provisioning": "thin"}, 48 * rig.MiB, 96 * rig.MiB, false, true, false, false},
	{"unstaged", "mount", map[string]string{"csi.storage.k8s.io/fstype": "xfs"}, 320 * rig.MiB, 640 * rig.MiB, false, false, true, false},
	{"unstaged block", "block", nil, 32 * rig.MiB, 64 * rig.MiB, false, false, true, false},
	{"attached", "mount", map[string]string{"csi.storage.k8s.io/fstype": "xfs"}, 320 * rig.MiB, 640 * rig.MiB, false, false, false, true},
	{"attached cluster", "block", nil, 32 * rig.MiB, 64 * rig.MiB, true, false, false, true},
}

func (m mode) args() []string {
	var args []string
	if m.unstaged {
		args = append(args, "--staging", "off")
	}
	if m.attach {
		args = append(args, "--attach")
	}
	return args
}

// system is what a suite asks: a driver, or a node and the controller before it.
type system struct {
	*rig.Driver
	controller *rig.Controller
	others     []*rig.Node
}

// end looks for what is left and ends all processes.
func (s *system) end(t *testing.T) {
	drivers := []*rig.Driver{s.Driver}
	for _, n := range s.others {
		drivers = append(drivers, n.Driver)
	}
	for _, d := range drivers {
		if err := d.Leaks(); err != nil {
			t.Error(err)
		}
		if err := d.Term(); err != nil {
			t.Error(err)
		}
	}
	if s.controller != nil {
		if err := s.controller.Term(); err != nil {
			t.Error(err)
		}
	}
}

// startCluster runs a controller and three nodes. The suite knows no topology: the controller makes volumes where there is
// most room, and that is the node that the suite has as its own.
func startCluster(t *testing.T, r *rig.Rig, args ...string) (*system, error) {
	c, err := r.NewCluster()
	if err != nil {
		return nil, err
	}
	s := &system{}
	if s.controller, err = c.StartController("controller", args...); err != nil {
		return nil, err
	}
	for i, size := range []int64{256 << 30, 16 << 30, 8 << 30} {
		n, err := c.StartNode([]string{"node-a", "node-b", "node-c"}[i], size, args...)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			s.Driver = n.Driver
		} else {
			s.others = append(s.others, n)
		}
	}
	return s, s.controller.AwaitJoined("node-a", "node-b", "node-c")
}

// start runs a driver of its own for a mode, on a pool that is large but sparse.
func start(t *testing.T, m mode) *system {
	r, err := rig.New()
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	var s *system
	switch {
	case m.cluster:
		s, err = startCluster(t, r, m.args()...)
	case m.disk:
		s, err = startOnDisk(r)
	default:
		s, err = startDriver(r, m.args()...)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"plugins", "pods"} {
		if err := os.MkdirAll(s.Kubelet+"/"+dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func startDriver(r *rig.Rig, args ...string) (*system, error) {
	p, err := r.NewPool("default", "xfs", 64<<30)
	if err != nil {
		return nil, err
	}
	s := &system{Driver: r.NewDriver(p)}
	s.Args = args
	if err := s.Start(); err != nil {
		return nil, err
	}
	return s, s.AwaitReady()
}

func startOnDisk(r *rig.Rig) (*system, error) {
	disk, err := r.NewDisk("first", 4<<30)
	if err != nil {
		return nil, err
	}
	p, err := r.RawPool("default", disk.Path)
	if err != nil {
		return nil, err
	}
	s := &system{Driver: r.NewDriver(p)}
	s.PoolOptions = ""
	if err := s.Start(); err != nil {
		return nil, err
	}
	if err := s.AwaitReady(); err != nil || rig.HasThinPools() != nil {
		return s, err
	}
	// Before enough of a new pool is overwritten, the first thin volume is asked for again.
	first := s.Volume("first", rig.MountCap("ext4"), 48*rig.MiB)
	first.Params = map[string]string{"provisioning": "thin"}
	return s, errors.Join(rig.Eventually(2*time.Minute, first.Create), first.Delete())
}

// Thick volumes of raw pools have no snapshots, and the suite asks whoever says that the driver takes them. Thin ones have all.
const leftOutOnDisks = `(^| )raw .*[Ss]napshot`

func TestSanity(t *testing.T) {
	// ext4 grows online only with CAP_SYS_RESOURCE: the guest has it and asks for ext4 here.
	if fs := os.Getenv("RINGVOL_SANITY_FSTYPE"); fs != "" {
		modes[0].params["csi.storage.k8s.io/fstype"] = fs
	}
	// One of them, where time is short.
	if name := os.Getenv("RINGVOL_SANITY_MODE"); name != "" {
		modes = slices.DeleteFunc(modes, func(m mode) bool { return m.name != name && !(name == "raw" && m.disk) })
	}
	if !rig.HasDeviceMapper() {
		modes = slices.DeleteFunc(modes, func(m mode) bool { return m.disk })
		t.Log("no device mapper here: nothing is asked of a pool on a raw disk")
	} else if why := rig.HasThinPools(); why != nil {
		modes = slices.DeleteFunc(modes, func(m mode) bool { return m.name == "thin" })
		t.Logf("nothing is asked of thin volumes on a raw disk: %v", why)
	}
	systems := make([]*system, len(modes))
	var contexts []*sanity.TestContext
	for i, m := range modes {
		systems[i] = start(t, m)
		config := sanity.NewTestConfig()
		config.Address = systems[i].Socket
		if systems[i].controller != nil {
			config.ControllerAddress = systems[i].controller.Socket
		}
		config.DialOptions = append(config.DialOptions, grpc.WithUnaryInterceptor(sized))
		config.ControllerDialOptions = append(config.ControllerDialOptions, grpc.WithUnaryInterceptor(sized))
		config.TargetPath = systems[i].Kubelet + "/pods/target"
		config.StagingPath = systems[i].Kubelet + "/plugins/staging"
		config.TestVolumeAccessType = m.access
		config.TestVolumeParameters = m.params
		config.TestVolumeMutableParameters = map[string]string{"iops": "100k", "bandwidth": "1Gi"}
		config.TestVolumeSize = m.size
		config.TestVolumeExpandSize = m.grown
		config.IdempotentCount = 5
		ginkgo.Describe(m.name, func() {
			contexts = append(contexts, sanity.GinkgoTest(&config))
		})
	}
	var specs types.SpecReports
	ginkgo.ReportAfterSuite("collect", func(report ginkgo.Report) { specs = report.SpecReports })
	gomega.RegisterFailHandler(ginkgo.Fail)
	suite, reporter := ginkgo.GinkgoConfiguration()
	suite.RandomSeed = 1
	suite.SkipStrings = []string{leftOutOnDisks}
	reporter.Succinct, reporter.NoColor = true, true
	// The suite's verdict is that of its cases below.
	ginkgo.RunSpecs(quiet{t}, "csi-sanity", suite, reporter)
	for _, c := range contexts {
		c.Finalize()
	}
	for _, spec := range specs {
		if spec.LeafNodeType != types.NodeTypeIt {
			continue
		}
		name := strings.NewReplacer("/", "_").Replace(spec.FullText())
		t.Run(name, func(t *testing.T) {
			switch {
			case spec.State.Is(types.SpecStateSkipped | types.SpecStatePending):
				reason := spec.Failure.Message
				if reason == "" {
					reason = "pending in csi-test"
				}
				t.Skip(reason)
			case spec.State.Is(types.SpecStateFailureStates):
				t.Error(spec.Failure.Message)
				t.Log(spec.Failure.Location.String())
				t.Log(spec.CapturedGinkgoWriterOutput)
			}
		})
	}
	if len(specs) < 50*len(modes) {
		t.Errorf("only %d cases ran", len(specs))
	}
	for i, s := range systems {
		t.Run(modes[i].name+" leaves nothing", s.end)
		if t.Failed() {
			t.Logf("the driver's last words, %s:\n%s", modes[i].name, s.LogTail(40))
			if s.controller != nil {
				t.Logf("the controller's:\n%s", s.controller.LogTail(40))
			}
		}
	}
}

// sized has an answer know its own size, as a request does that was sent. csi-test 5.6.0 compares a snapshot's topology with
// the one of a request, with all that Go's protobuf keeps beside the fields.
func sized(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
	options ...grpc.CallOption) error {
	err := invoke(ctx, method, request, reply, conn, options...)
	if message, ok := reply.(proto.Message); ok {
		proto.Size(message)
	}
	return err
}

// quiet keeps the suite from failing the test by itself.
type quiet struct{ t *testing.T }

func (quiet) Fail() {}
