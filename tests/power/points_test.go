// SPDX-License-Identifier: Apache-2.0

package power

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

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
