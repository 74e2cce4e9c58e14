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

func (r *Rig) newUblkd() *Ublkd {
	u := &Ublkd{Socket: r.Path("ublkd", "ublkd.sock"), State: r.Path("ublkd", "state")}
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

// The messages of src/blockio/ublkd_proto.h, as far as DetachAll needs them: what is left out at the end
// reads as zeros.
const (
	ublkdMagic, ublkdVersion                   = 0x6b627672, 1
	ublkdHello, ublkdDetach, ublkdList         = 1, 3, 5
	ublkdRequestBytes                          = 16 + 8 + 8 + 64 + 16
	ublkdReplyDevice                           = 16 + 8 + 24 + 384 + 16 + 32
	ublkdDeviceTag, ublkdDeviceImage, ublkdEnd = ublkdReplyDevice + 48, ublkdReplyDevice + 112, ublkdReplyDevice + 128
)

// DetachAll takes every device away, as a reboot does. Nothing may be mounted of them.
func (u *Ublkd) DetachAll() error {
	if u.Pid() == 0 {
		return nil
	}
	conn, err := net.Dial("unixpacket", u.Socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	reply := make([]byte, 8192)
	call := func(kind uint16, device []byte) error {
		request := make([]byte, ublkdRequestBytes)
		binary.NativeEndian.PutUint32(request, ublkdMagic)
		binary.NativeEndian.PutUint16(request[4:], ublkdVersion)
		binary.NativeEndian.PutUint16(request[6:], kind)
		if device != nil {
			copy(request[16:], device[ublkdDeviceImage:ublkdEnd])
			copy(request[32:], device[ublkdDeviceTag:ublkdDeviceTag+64])
			copy(request[96:], device[ublkdReplyDevice+4:ublkdReplyDevice+8])
		}
		if _, err := conn.Write(request); err != nil {
			return err
		}
		n, err := conn.Read(reply)
		if err != nil {
			return err
		}
		if n < ublkdEnd {
			return fmt.Errorf("a reply of %d bytes", n)
		}
		if res := int32(binary.NativeEndian.Uint32(reply[16:])); res < 0 {
			return fmt.Errorf("request %d: %s", kind, strings.TrimRight(string(reply[48:432]), "\x00"))
		}
		return nil
	}
	if err := call(ublkdHello, nil); err != nil {
		return err
	}
	for {
		if err := call(ublkdList, nil); err != nil {
			return err
		}
		if binary.NativeEndian.Uint32(reply[ublkdReplyDevice:]) == 0 {
			return nil
		}
		if err := call(ublkdDetach, slices.Clone(reply)); err != nil {
			return err
		}
	}
}
