// SPDX-License-Identifier: Apache-2.0

package power

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// What dm-log-writes leaves (Linux, drivers/md/dm-log-writes.c): a block with a magic number and the
// count of entries, then each entry as a block of its own with what was written behind it. A write
// that is in the disk's volatile cache is logged by the flush that made it durable; one with FUA and
// a mark are logged at once. So a prefix of the log is what was durable at an instant, no more.
const (
	logMagic = 0x6a736677736872

	flagFlush   = 1
	flagFUA     = 2
	flagDiscard = 4
	flagMark    = 8

	sector = 512
)

// entry is one request: a write, a discard, a flush (which has no data here) or a mark.
type entry struct {
	at, sectors int64
	flags       uint64
	data        int64 // where in the log
	mark        int
}

func (e *entry) writes() bool {
	return e.sectors > 0
}

// durable tells whether the request was on the disk when it ended.
func (e *entry) durable() bool {
	return e.flags&flagFUA != 0 || e.flags&flagMark != 0
}

func readLog(log io.ReaderAt) ([]entry, error) {
	head := make([]byte, sector)
	if _, err := log.ReadAt(head, 0); err != nil {
		return nil, err
	}
	word := func(i int) int64 { return int64(binary.LittleEndian.Uint64(head[8*i:])) }
	if word(0) != logMagic || word(1) != 1 || binary.LittleEndian.Uint32(head[24:]) != sector {
		return nil, errors.New("not a log of dm-log-writes with sectors of 512 bytes")
	}
	var entries []entry
	count, at := word(2), int64(sector)
	for range count {
		if _, err := log.ReadAt(head, at); err != nil {
			return nil, fmt.Errorf("entry %d of %d: %w", len(entries), count, err)
		}
		e := entry{at: word(0), sectors: word(1), flags: uint64(word(2)), data: at + sector}
		at = e.data
		switch {
		case e.flags&flagMark != 0:
			text := strings.TrimRight(string(head[32:32+min(word(3), sector-32)]), "\x00")
			e.mark, _ = strconv.Atoi(text) // the target has one of its own at the end
		case e.flags&flagDiscard == 0:
			at += e.sectors * sector
		}
		if e.flags&flagFlush != 0 && e.writes() { // the flush comes before its data
			entries = append(entries, entry{flags: flagFlush})
			e.flags &^= flagFlush
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// point is one state of the disk that a loss of power may leave: all of the log up to an entry and,
// where it is a loss, some of what the next flush made durable.
type point struct {
	upto  int  // entries
	flush int  // of a loss: the index of the flush that did not come; 0: no loss
	seen  int  // the last mark before the power went
	ack   bool // nothing but what an acknowledgement needed is there
	name  string
}

type counts struct {
	flushes, fua, acks, points, losses int
}

// findPoints lists a point for every flush, every write with FUA and every mark of an acknowledgement,
// unless the disk has not changed since the one before, which then takes the later mark: more has to
// be there. Between two flushes comes one where the disk's cache is lost.
func findPoints(entries []entry, isAck func(mark int) bool) ([]point, counts) {
	var points []point
	var n counts
	seen, begin, volatile, changed := 0, 0, false, true
	add := func(upto int, name string) {
		if !changed {
			points[len(points)-1].seen = seen
			points[len(points)-1].name += ", " + name
			return
		}
		points = append(points, point{upto: upto, seen: seen, name: name})
		changed = false
	}
	for i := range entries {
		e := &entries[i]
		switch {
		case e.flags&flagMark != 0:
			seen = e.mark
			if isAck(e.mark) {
				n.acks++
				add(i+1, fmt.Sprintf("mark %d", e.mark))
				points[len(points)-1].ack = true
			}
		case e.flags&flagFlush != 0:
			n.flushes++
			if volatile {
				points = append(points, point{upto: begin, flush: i, seen: seen,
					name: fmt.Sprintf("loss before flush %d", n.flushes)})
				n.losses++
				changed = true
			}
			add(i+1, fmt.Sprintf("flush %d", n.flushes))
			begin, volatile = i+1, false
		case e.writes():
			changed = true
			volatile = volatile || !e.durable()
			if e.flags&flagFUA != 0 {
				n.fua++
				add(i+1, fmt.Sprintf("write-through %d", n.fua))
			}
		}
	}
	n.points = len(points)
	return points, n
}

// piece is what of an entry reached the disk.
type piece struct {
	entry  *entry
	offset int64 // bytes from its beginning
	length int64
}

// surviving draws what reaches the disk when power fails before the flush: each write that waited in
// the cache did, or did not, or only some of its 4 KiB blocks did; those with FUA did.
func surviving(entries []entry, p point, random *rand.Rand) []piece {
	var pieces []piece
	const block = 4096
	keep := random.Float64()
	for i := p.upto; i < p.flush; i++ {
		e := &entries[i]
		if !e.writes() {
			continue
		}
		length := e.sectors * sector
		torn := !e.durable() && length > block && random.IntN(6) == 0
		switch {
		case torn:
			for at := int64(0); at < length; at += block {
				if random.IntN(2) == 0 {
					pieces = append(pieces, piece{e, at, min(block, length-at)})
				}
			}
		case e.durable() || random.Float64() < keep:
			pieces = append(pieces, piece{e, 0, length})
		}
	}
	return pieces
}

// logOf writes a log as the target does.
func logOf(entries ...entry) []byte {
	block := func(words ...uint64) []byte {
		b := make([]byte, sector)
		for i, word := range words {
			binary.LittleEndian.PutUint64(b[8*i:], word)
		}
		return b
	}
	log := block(logMagic, 1, uint64(len(entries)), sector)
	for _, e := range entries {
		text := ""
		if e.flags&flagMark != 0 {
			text = fmt.Sprint(e.mark)
		}
		head := block(uint64(e.at), uint64(e.sectors), e.flags, uint64(len(text)))
		copy(head[32:], text)
		log = append(log, head...)
		if e.flags&flagDiscard == 0 {
			log = append(log, bytes.Repeat([]byte{byte(e.at)}, int(e.sectors)*sector)...)
		}
	}
	return log
}

func TestLogAndPoints(t *testing.T) {
	log := logOf(
		entry{flags: flagMark, mark: 1},
		entry{at: 7, sectors: 1, flags: flagFUA},
		entry{flags: flagMark, mark: 2}, // an acknowledgement
		entry{at: 8, sectors: 32},
		entry{at: 40, sectors: 64, flags: flagDiscard},
		entry{flags: flagFlush},
		entry{flags: flagMark, mark: 3},
		entry{flags: flagFlush},
		entry{flags: flagMark, mark: 4}, // another
		entry{at: 9, sectors: 2, flags: flagFlush | flagFUA},
	)
	entries, err := readLog(bytes.NewReader(log))
	if err != nil {
		t.Fatal(err)
	}
	// The last one's flush has become an entry of its own.
	if len(entries) != 11 || entries[3].data != 6*sector || entries[10].data != 44*sector ||
		entries[9].writes() || entries[10].flags != flagFUA {
		t.Fatalf("%+v", entries)
	}
	points, n := findPoints(entries, func(mark int) bool { return mark%2 == 0 })
	var got []string
	for _, p := range points {
		got = append(got, fmt.Sprintf("%d-%d@%d", p.upto, p.flush, p.seen))
	}
	// Write-through 1 with mark 2, loss before flush 1, flushes 1 and 2 with mark 4, write-through 2.
	want := "2-0@2 0-5@2 6-0@4 11-0@4"
	if strings.Join(got, " ") != want || n.flushes != 3 || n.fua != 2 || n.acks != 2 || n.losses != 1 {
		t.Fatalf("%v, not %s; %+v", got, want, n)
	}
	lost := false
	for seed := range uint64(20) {
		pieces := surviving(entries, points[1], rand.New(rand.NewPCG(seed, 1)))
		if !slices.ContainsFunc(pieces, func(p piece) bool { return p.entry == &entries[1] && p.length == sector }) {
			t.Fatal("what went through the cache was lost")
		}
		lost = lost || !slices.ContainsFunc(pieces, func(p piece) bool { return p.entry == &entries[3] })
	}
	if !lost {
		t.Fatal("the cache is never lost")
	}
}
