// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
)

// Seen is what 'stat' prints.
type Seen struct {
	UID, GID, Mode uint32
	FSType         int64
	FSBytes        int64
	DeviceBytes    int64
	ReadOnly       bool
}

// Done is what 'status' prints.
type Done struct {
	Writes, Reads uint64
	Error         string
}

const (
	blockBytes = 64 << 10
	// statusSocket is a name without a file, of the pod's network namespace: the volume may be read-only,
	// the image is.
	statusSocket = "@workload"
)

// busy writes blocks of a file or device past the page cache, syncs, and reads others back: each must be what was
// written there last.
type busy struct {
	file          *os.File
	block         []byte
	generation    []uint64 // of each block, as written last; 0: never
	writes, reads atomic.Uint64
	failure       atomic.Pointer[string]
}

func keepBusy(path, blocks string) error {
	count, err := strconv.Atoi(blocks)
	if err != nil || count < 1 {
		return errors.New(usage)
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_DIRECT, 0o644)
	if err != nil {
		return err
	}
	// Direct I/O wants aligned memory.
	block, err := syscall.Mmap(-1, 0, blockBytes, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return err
	}
	b := &busy{file: file, block: block, generation: make([]uint64, count)}
	listener, err := net.Listen("unix", statusSocket)
	if err != nil {
		return err
	}
	go b.answer(listener)
	for generation := uint64(1); ; generation++ {
		if err := b.round(generation); err != nil {
			text := err.Error()
			b.failure.Store(&text)
			fmt.Fprintln(os.Stderr, "workload: io:", text)
			return pause() // the failure stays to be asked for
		}
	}
}

func (b *busy) round(generation uint64) error {
	index := rand.IntN(len(b.generation))
	b.fill(index, generation)
	if _, err := b.file.WriteAt(b.block, int64(index)*blockBytes); err != nil {
		return err
	}
	if err := b.file.Sync(); err != nil {
		return err
	}
	b.generation[index] = generation
	b.writes.Add(1)
	index = rand.IntN(len(b.generation))
	if b.generation[index] == 0 {
		return nil
	}
	if _, err := b.file.ReadAt(b.block, int64(index)*blockBytes); err != nil {
		return err
	}
	b.reads.Add(1)
	return b.verify(index)
}

// A block is its sum, its place, its generation, and bytes that follow from them.
func (b *busy) fill(index int, generation uint64) {
	body := b.block[8:]
	binary.LittleEndian.PutUint64(body[0:], uint64(index))
	binary.LittleEndian.PutUint64(body[8:], generation)
	source := rand.NewPCG(uint64(index), generation)
	for at := 16; at < len(body); at += 8 {
		binary.LittleEndian.PutUint64(body[at:], source.Uint64())
	}
	binary.LittleEndian.PutUint64(b.block, uint64(crc32.ChecksumIEEE(body)))
}

func (b *busy) verify(index int) error {
	body := b.block[8:]
	place, generation := binary.LittleEndian.Uint64(body[0:]), binary.LittleEndian.Uint64(body[8:])
	if uint64(crc32.ChecksumIEEE(body)) != binary.LittleEndian.Uint64(b.block) {
		return fmt.Errorf("block %d: damaged", index)
	}
	if place != uint64(index) || generation != b.generation[index] {
		return fmt.Errorf("block %d: is block %d of generation %d, written was %d", index, place, generation,
			b.generation[index])
	}
	return nil
}

func (b *busy) answer(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		done := Done{Writes: b.writes.Load(), Reads: b.reads.Load()}
		if failure := b.failure.Load(); failure != nil {
			done.Error = *failure
		}
		_ = json.NewEncoder(conn).Encode(done)
		conn.Close()
	}
}

func status() error {
	conn, err := net.Dial("unix", statusSocket)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = io.Copy(os.Stdout, conn)
	return err
}
