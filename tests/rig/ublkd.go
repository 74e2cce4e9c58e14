// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Ublkd is the data process of a driver under test: `ringvol ublkd` with a socket and a state
// directory in the rig's own. Drivers start it by themselves unless they are told that it is
// external, and then Start does.
type Ublkd struct {
	Socket, State string
	cmd           *exec.Cmd
}

func (r *Rig) newUblkd(dir string) *Ublkd {
	u := &Ublkd{Socket: r.Path(dir, "ublkd", "ublkd.sock"), State: r.Path(dir, "ublkd", "state")}
	r.Defer(func() error {
		u.Kill()
		return nil
	})
	return u
}

// HaveUblk tells why there can be no ublk devices here; nil: there can.
func HaveUblk() error {
	_ = exec.Command("modprobe", "ublk_drv").Run()
	if _, err := os.Stat("/dev/ublk-control"); err != nil {
		return errors.New("this kernel has no ublk (/dev/ublk-control); ./dev vm has one")
	}
	return nil
}

// CanGrowUblk tells whether a ublk device in use can grow here (UBLK_F_UPDATE_SIZE, Linux 6.16).
func CanGrowUblk() bool {
	var name syscall.Utsname
	if syscall.Uname(&name) != nil {
		return false
	}
	var major, minor int
	release := make([]byte, 0, len(name.Release))
	for _, c := range name.Release {
		if c == 0 {
			break
		}
		release = append(release, byte(c))
	}
	_, err := fmt.Sscanf(string(release), "%d.%d", &major, &minor)
	return err == nil && (major > 6 || major == 6 && minor >= 16)
}

// Start runs a data process as a child of the test.
func (u *Ublkd) Start(args ...string) error {
	if err := os.MkdirAll(filepath.Dir(u.Socket), 0o755); err != nil {
		return err
	}
	log, err := os.OpenFile(u.State+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	u.cmd = exec.Command(Binary(), append([]string{"ublkd", "--socket", u.Socket, "--state-dir", u.State}, args...)...)
	u.cmd.Stdout, u.cmd.Stderr = log, log
	return u.cmd.Start()
}

// Pid of the data process, whoever started it; 0: none runs.
func (u *Ublkd) Pid() int {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range all {
		text, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(text), "\x00ublkd\x00") && strings.Contains(string(text), u.Socket) {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			return pid
		}
	}
	return 0
}

// Kill ends it as a crash would, and waits until it is gone.
func (u *Ublkd) Kill() {
	if u.cmd != nil {
		_ = u.cmd.Process.Kill()
		_ = u.cmd.Wait()
		u.cmd = nil
	}
	for range 500 {
		pid := u.Pid()
		if pid == 0 {
			return
		}
		_ = syscall.Kill(pid, syscall.SIGKILL)
		time.Sleep(10 * time.Millisecond)
	}
}

// Devices names what the data process knows of devices, whether it runs or not.
func (u *Ublkd) Devices() []string {
	names, _ := filepath.Glob(filepath.Join(u.State, "dev-*"))
	return names
}

// The messages of src/backends/ublk/ublkd_proto.h, as far as they are needed here: what is left out at the end
// reads as zeros.
const (
	ublkdMagic, ublkdVersion                   = 0x6b627672, 1
	ublkdHello, ublkdDetach, ublkdList         = 1, 3, 5
	ublkdRequestBytes                          = 16 + 8 + 8 + 64 + 16
	ublkdReplyDevice                           = 16 + 8 + 24 + 384 + 16 + 32
	ublkdDeviceTag, ublkdDeviceImage, ublkdEnd = ublkdReplyDevice + 48, ublkdReplyDevice + 112, ublkdReplyDevice + 184
	ublkdDeviceReads                           = ublkdReplyDevice + 152 // then writes, flushes, discards
)

// A conversation with the data process; reply is its last answer.
type ublkdTalk struct {
	conn  net.Conn
	reply []byte
}

func (u *Ublkd) talk() (*ublkdTalk, error) {
	conn, err := net.Dial("unixpacket", u.Socket)
	if err != nil {
		return nil, err
	}
	t := &ublkdTalk{conn, make([]byte, 8192)}
	if err := t.call(ublkdHello, 0, nil); err != nil {
		conn.Close()
		return nil, err
	}
	return t, nil
}

// call sends a request for a device by its number, and if it is known, with what a reply said of it.
func (t *ublkdTalk) call(kind uint16, number uint32, device []byte) error {
	request := make([]byte, ublkdRequestBytes)
	binary.NativeEndian.PutUint32(request, ublkdMagic)
	binary.NativeEndian.PutUint16(request[4:], ublkdVersion)
	binary.NativeEndian.PutUint16(request[6:], kind)
	if device != nil {
		copy(request[16:], device[ublkdDeviceImage:ublkdDeviceImage+16])
		copy(request[32:], device[ublkdDeviceTag:ublkdDeviceTag+64])
	}
	binary.NativeEndian.PutUint32(request[96:], number)
	if _, err := t.conn.Write(request); err != nil {
		return err
	}
	n, err := t.conn.Read(t.reply)
	if err != nil {
		return err
	}
	if n < ublkdEnd {
		return fmt.Errorf("a reply of %d bytes", n)
	}
	if res := int32(binary.NativeEndian.Uint32(t.reply[16:])); res < 0 {
		return fmt.Errorf("request %d: %s", kind, strings.TrimRight(string(t.reply[48:432]), "\x00"))
	}
	return nil
}

// next finds the first device from this number on; false: there is none.
func (t *ublkdTalk) next(from uint32) (number uint32, found bool, err error) {
	if err := t.call(ublkdList, from, nil); err != nil {
		return 0, false, err
	}
	return binary.NativeEndian.Uint32(t.reply[ublkdReplyDevice+4:]),
		binary.NativeEndian.Uint32(t.reply[ublkdReplyDevice:]) != 0, nil
}

// DetachAll takes every device away, as a reboot does. Nothing may be mounted of them.
func (u *Ublkd) DetachAll() error {
	if u.Pid() == 0 {
		return nil
	}
	t, err := u.talk()
	if err != nil {
		return err
	}
	defer t.conn.Close()
	for {
		number, found, err := t.next(0)
		if err != nil || !found {
			return err
		}
		if err := t.call(ublkdDetach, number, slices.Clone(t.reply)); err != nil {
			return err
		}
	}
}

// Served counts the requests of all devices that the data process has served since it started.
func (u *Ublkd) Served() (count uint64, err error) {
	t, err := u.talk()
	if err != nil {
		return 0, err
	}
	defer t.conn.Close()
	for number := uint32(0); ; number++ {
		var found bool
		if number, found, err = t.next(number); err != nil || !found {
			return count, err
		}
		for i := range 4 {
			count += binary.NativeEndian.Uint64(t.reply[ublkdDeviceReads+8*i:])
		}
	}
}
