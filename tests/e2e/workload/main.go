// SPDX-License-Identifier: Apache-2.0

// Command workload is what runs in the pods of ./dev e2e: it waits, writes and checks data, tells what it sees of
// its volume, and keeps a volume busy with I/O that it verifies. It is static and alone in its image.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"unsafe"
)

const usage = `usage: workload pause
       workload put PATH BYTES SEED     writes and syncs
       workload check PATH BYTES SEED   an error unless PATH begins with what put wrote
       workload stat PATH               size, owner and file system as JSON
       workload io PATH BLOCKS          writes and verifies without end, then 'status' answers
       workload status                  what 'io' in the same pod has done, as JSON`

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "workload:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New(usage)
	}
	command, args := args[0], args[1:]
	switch {
	case command == "pause" && len(args) == 0:
		return pause()
	case command == "put" && len(args) == 3:
		return put(args[0], args[1], args[2])
	case command == "check" && len(args) == 3:
		return check(args[0], args[1], args[2])
	case command == "stat" && len(args) == 1:
		return stat(args[0])
	case command == "io" && len(args) == 2:
		return keepBusy(args[0], args[1])
	case command == "status" && len(args) == 0:
		return status()
	}
	return errors.New(usage)
}

// pause waits to be told to end. As process 1 of its container it is where orphans end up.
func pause() error {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGCHLD)
	for s := range signals {
		if s != syscall.SIGCHLD {
			return nil
		}
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
	return nil
}

// stream is what a seed stands for.
func stream(bytes, seed string) (io.Reader, error) {
	count, err := strconv.ParseInt(bytes, 10, 64)
	if err != nil {
		return nil, err
	}
	var key [32]byte
	copy(key[:], seed)
	return io.LimitReader(rand.NewChaCha8(key), count), nil
}

func put(path, bytes, seed string) error {
	data, err := stream(bytes, seed)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	if _, err = io.Copy(file, data); err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

func check(path, bytes, seed string) error {
	want, err := stream(bytes, seed)
	if err != nil {
		return err
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	a, b := make([]byte, 1<<16), make([]byte, 1<<16)
	for offset := int64(0); ; {
		n, err := io.ReadFull(want, a)
		if n == 0 && err == io.EOF {
			return nil
		} else if err != nil && err != io.ErrUnexpectedEOF {
			return err
		}
		if _, err := io.ReadFull(file, b[:n]); err != nil {
			return fmt.Errorf("reading at %d: %w", offset, err)
		}
		if string(a[:n]) != string(b[:n]) {
			return fmt.Errorf("other data than was written, in the 64 KiB from %d on", offset)
		}
		offset += int64(n)
	}
}

func stat(path string) error {
	var st syscall.Stat_t
	if err := syscall.Stat(path, &st); err != nil {
		return err
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(path, &fs); err != nil {
		return err
	}
	seen := Seen{UID: st.Uid, GID: st.Gid, Mode: st.Mode & 0o7777, FSType: fs.Type,
		FSBytes: int64(fs.Blocks) * fs.Bsize, ReadOnly: fs.Flags&syscall.MS_RDONLY != 0}
	if st.Mode&syscall.S_IFMT == syscall.S_IFBLK {
		device, err := os.Open(path)
		if err != nil {
			return err
		}
		defer device.Close()
		const blkGetSize64 = 0x80081272
		var size uint64
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, device.Fd(), blkGetSize64,
			uintptr(unsafe.Pointer(&size))); errno != 0 {
			return errno
		}
		seen.DeviceBytes = int64(size)
	}
	return json.NewEncoder(os.Stdout).Encode(seen)
}
