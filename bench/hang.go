// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"ringvol.dev/tests/rig"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
)

// HELPER_WARM of reactor/helper.h and LANE_HELPERS_MAX of reactor/lane.h.
const helpersWarm, helpersMax = 4, 256

// swallower is a FUSE server that says hello and then takes requests without ever answering: who asks
// waits uninterruptibly, and a kill does not end it.
type swallower struct {
	fds   []int
	paths []string
	stop  [2]int // a pipe; closing its write end ends the loop
	done  chan struct{}
}

func swallow(paths []string) (*swallower, error) {
	s := &swallower{done: make(chan struct{})}
	for _, path := range paths {
		fd, err := mountHanging(path)
		if err != nil {
			s.unmount()
			return nil, err
		}
		s.fds, s.paths = append(s.fds, fd), append(s.paths, path)
	}
	if err := unix.Pipe2(s.stop[:], unix.O_CLOEXEC); err != nil {
		s.unmount()
		return nil, err
	}
	go s.serve()
	return s, nil
}

func mountHanging(path string) (int, error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("no FUSE here: %w", err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)
	if err := unix.Mount("ringvol-hang", path, "fuse", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("mounting FUSE: %w", err)
	}
	if err := sayHello(fd); err != nil {
		unix.Close(fd)
		_ = unix.Unmount(path, unix.MNT_DETACH)
		return -1, fmt.Errorf("FUSE_INIT: %w", err)
	}
	return fd, nil
}

// sayHello answers FUSE_INIT: struct fuse_out_header (len, error, unique) and fuse_init_out (major 7,
// minor 31, ..., max_write).
func sayHello(fd int) error {
	request := make([]byte, 1<<17)
	if n, err := unix.Read(fd, request); err != nil || n < 16 {
		return fmt.Errorf("%d bytes: %w", n, err)
	}
	reply := make([]byte, 16+64)
	binary.NativeEndian.PutUint32(reply, uint32(len(reply)))
	copy(reply[8:16], request[8:16])
	binary.NativeEndian.PutUint32(reply[16:], 7)
	binary.NativeEndian.PutUint32(reply[20:], 31)
	binary.NativeEndian.PutUint32(reply[16+20:], 4096)
	_, err := unix.Write(fd, reply)
	return err
}

func (s *swallower) serve() {
	defer close(s.done)
	request := make([]byte, 1<<17)
	for {
		ready := []unix.PollFd{{Fd: int32(s.stop[0]), Events: unix.POLLIN}}
		for _, fd := range s.fds {
			ready = append(ready, unix.PollFd{Fd: int32(fd), Events: unix.POLLIN})
		}
		if _, err := unix.Poll(ready, -1); err != nil && err != unix.EINTR {
			return
		}
		if ready[0].Revents != 0 {
			return
		}
		for _, r := range ready[1:] {
			if r.Revents&unix.POLLIN != 0 {
				_, _ = unix.Read(int(r.Fd), request)
			}
		}
	}
}

func (s *swallower) unmount() {
	for i, fd := range s.fds {
		unix.Close(fd) // everybody who waits gets an error
		_ = unix.Unmount(s.paths[i], unix.MNT_DETACH)
	}
}

func (s *swallower) end() {
	unix.Close(s.stop[1])
	<-s.done
	unix.Close(s.stop[0])
	s.unmount()
}

// healthy measures stats and publish/unpublish of a few volumes, one after the other.
func healthy(all []*rig.Volume, count int) (stats, publish []float64, err error) {
	for i := range count {
		v := all[i%len(all)]
		t, err := micros(1, func(int) error { _, err := v.Stats(); return err })
		if err != nil {
			return nil, nil, err
		}
		stats = append(stats, t...)
		if err := v.Unpublish(); err != nil {
			return nil, nil, err
		}
		if t, err = micros(1, func(int) error { return v.Publish() }); err != nil {
			return nil, nil, err
		}
		publish = append(publish, t...)
	}
	return stats, publish, nil
}

const well, healthyCalls = 4, 1500

// hang: healthy volumes while twice as many hang as helpers are kept warm. Undisturbed and disturbed
// rounds take turns; while disturbed, the hanging volumes are asked again and again.
func hang(b *bench) error { return hangWith(b, 2*helpersWarm) }

// hangAll: nearly as many as there may be helper processes at all. With more of them healthy volumes wait
// as well: a call that hangs keeps its process, and how a call will end is not known before.
func hangAll(b *bench) error { return hangWith(b, helpersMax-4*helpersWarm) }

func hangWith(b *bench, sick int) error {
	d, _, err := b.open(8 << 30)
	if err != nil {
		return err
	}
	all := volumes(d, "hang0000", sick+well, rig.MountCap("ext4"), volumeSize)
	if err := makePaths(all); err != nil {
		return err
	}
	if err := each(len(all), 8, func(i int) error { return all[i].Up() }); err != nil {
		return err
	}
	ill, fine := all[:sick], all[sick:]
	rounds := min(b.rounds, 5)
	var mine, others, ratios [2][]float64
	wrong, abnormal := 0, 0
	for round := range rounds {
		quietStats, quietPublish, err := healthy(fine, healthyCalls)
		if err != nil {
			return err
		}
		loudStats, loudPublish, bad, sickened, err := disturbed(d, ill, fine)
		if err != nil {
			return fmt.Errorf("%d hanging, round %d: %w", sick, round, err)
		}
		wrong, abnormal = wrong+bad, abnormal+sickened
		for i, pair := range [][2][]float64{{loudStats, quietStats}, {loudPublish, quietPublish}} {
			x, y := quantile(pair[0], 0.99), quantile(pair[1], 0.99)
			mine[i], others[i], ratios[i] = append(mine[i], x), append(others[i], y), append(ratios[i], x/y)
		}
	}
	for i, name := range []string{"NodeGetVolumeStats", "NodePublishVolume"} {
		b.addPairs(row{What: fmt.Sprintf("%s p99 while %d volumes hang", name, sick), Unit: "us",
			Beside: "undisturbed", Bar: "ratio <= 2"}, mine[i], others[i], ratios[i])
	}
	b.add(row{What: fmt.Sprintf("answers of the %d hanging that were not DEADLINE_EXCEEDED", sick), Ours: float64(wrong), Bar: "<= 0"})
	b.add(row{What: fmt.Sprintf("of the %d hanging, read as normal", sick), Ours: float64(sick*rounds - abnormal), Bar: "<= 0"})
	return each(len(all), 8, func(i int) error { return rig.Eventually(30*time.Second, all[i].Gone) })
}

func disturbed(d *rig.Driver, ill, fine []*rig.Volume) (stats, publish []float64, wrong, abnormal int, err error) {
	var paths []string
	for _, v := range ill {
		paths = append(paths, v.Target)
	}
	hanging, err := swallow(paths)
	if err != nil {
		return nil, nil, 0, 0, err
	}
	defer func() {
		hanging.end()
		for _, v := range ill {
			_ = rig.Eventually(30*time.Second, func() error { _, err := v.Stats(); return err })
		}
	}()
	c, err := rig.Dial(d.Socket)
	if err != nil {
		return nil, nil, 0, 0, err
	}
	defer c.Conn.Close()
	stop := make(chan struct{})
	var wait sync.WaitGroup
	var mutex sync.Mutex
	asked := make(chan struct{}, len(ill))
	for _, v := range ill {
		w := v.On(c)
		wait.Go(func() {
			for first := true; ; first = false {
				_, err := w.Stats()
				if rig.Code(err) != codes.DeadlineExceeded {
					mutex.Lock()
					wrong++
					if wrong == 1 {
						fmt.Printf("a hanging volume answered: %v\n", err)
					}
					mutex.Unlock()
				}
				if first {
					asked <- struct{}{}
				}
				select {
				case <-stop:
					return
				case <-time.After(500 * time.Millisecond):
				}
			}
		})
	}
	// From the first call that hangs on, not only once all of them are known.
	stats, publish, err = healthy(fine, healthyCalls)
	for range ill {
		<-asked
	}
	for _, v := range ill {
		reply, err := c.ControllerGetVolume(context.Background(), &csi.ControllerGetVolumeRequest{VolumeId: v.ID})
		if err == nil && reply.GetStatus().GetVolumeCondition().GetAbnormal() {
			abnormal++
		}
	}
	close(stop)
	wait.Wait()
	return stats, publish, wrong, abnormal, err
}

const (
	hostileVolumes = 1000
	hostileConns   = 60
	hostileLists   = 4000
)

// hostile: clients that ask for much and read nothing. What stays resident of it, and what others wait.
func hostile(b *bench) error {
	d, _, err := b.open(16 << 30)
	if err != nil {
		return err
	}
	if err := b.createAll(d, "hostile0", hostileVolumes); err != nil {
		return err
	}
	time.Sleep(2 * time.Second)
	before := statusKiB(d.Pid(), "VmRSS")
	leave, err := rig.Hoard(d.Socket, hostileConns)
	during := statusKiB(d.Pid(), "VmRSS")
	leave()
	if err != nil {
		return err
	}
	time.Sleep(3 * time.Second)
	after := statusKiB(d.Pid(), "VmRSS")
	b.add(row{What: fmt.Sprintf("VmRSS 3 s after %d hostile connections, more than before", hostileConns), Unit: "MiB",
		Ours: (after - before) / 1024, Bar: "<= 8",
		Note: fmt.Sprintf("before %.1f MiB, with all of them open %.1f MiB", before/1024, during/1024)})
	return b.bystander(d)
}

// probes is the p99 of GetPluginInfo, one after the other, in microseconds.
func probeP99(d *rig.Driver, count int) (float64, float64, error) {
	c, err := rig.Dial(d.Socket)
	if err != nil {
		return 0, 0, err
	}
	defer c.Conn.Close()
	times, err := micros(count, func(int) error {
		ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
		defer cancel()
		_, err := c.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
		return err
	})
	return quantile(times, 0.99), quantile(times, 1), err
}

// bystander: what another client waits while 4,000 lists are asked for with windows of zero.
func (b *bench) bystander(d *rig.Driver) error {
	const probes, conns = 500, hostileLists / 125
	var worst float64
	idle := func() (float64, error) {
		p99, _, err := probeP99(d, probes)
		return p99, err
	}
	beside := func() (float64, error) {
		var all []*rig.Hostile
		defer func() {
			for _, h := range all {
				h.Close()
			}
		}()
		asked := make(chan error, 1)
		go func() {
			for range conns {
				h, err := rig.DialHostile(d.Socket)
				if err != nil {
					asked <- err
					return
				}
				all = append(all, h)
				for range hostileLists / conns {
					if h.Request("/csi.v1.Controller/ListVolumes", nil, true) != nil {
						break
					}
				}
			}
			asked <- nil
		}()
		p99, most, err := probeP99(d, probes)
		worst = max(worst, most)
		return p99, errors.Join(err, <-asked)
	}
	if err := b.paired(row{What: fmt.Sprintf("GetPluginInfo p99 while %d lists of %d volumes are asked for and not read",
		hostileLists, hostileVolumes), Unit: "us", Beside: "undisturbed"}, beside, idle); err != nil {
		return err
	}
	b.add(row{What: "the longest of these", Unit: "us", Ours: worst})
	return nil
}
