// SPDX-License-Identifier: Apache-2.0

package power

import (
	"ringvol.dev/tests/rig"
)

// state of something at a mark.
type state int

const (
	notYet state = iota
	underway
	done
)

// span is one call: the mark before it and the one after its answer.
type span struct {
	what       string
	begun, end int // 0: never
}

func (s *span) at(mark int) state {
	switch {
	case s.begun == 0 || mark < s.begun:
		return notYet
	case s.end == 0 || mark < s.end:
		return underway
	}
	return done
}

// content is what can be read in a volume; none: whatever mkfs made.
type content struct {
	size int64
	sum  string
}

type growth struct {
	span
	size int64
}

// limiting is a ControllerModifyVolume.
type limiting struct {
	span
	iops int
}

type filling struct {
	span
	content
	uuid string // of the file system
}

// object is a volume or a snapshot with all of its life.
type object struct {
	snapshot bool
	name     string
	kind     string // "ext4" or "block"
	size     int64  // at first
	params   map[string]string
	source   *object
	group    *group // of a snapshot; nil: of none. Its name is known with its id

	id      string
	context map[string]string
	copied  content // of the source, at the time

	born, died span
	grown      []*growth
	filled     []*filling
	limited    []*limiting

	up *rig.Volume // while recording: staged and published
}

// at says whether it has to be there: done, may be: underway, or must not: notYet.
func (o *object) at(mark int) state {
	switch {
	case o.born.at(mark) != done:
		return o.born.at(mark)
	case o.died.at(mark) == done:
		return notYet
	case o.died.at(mark) == underway:
		return underway
	}
	return done
}

// sizes it may have.
func (o *object) sizes(mark int) []int64 {
	sizes := []int64{o.size}
	for _, g := range o.grown {
		switch g.at(mark) {
		case underway:
			sizes = append(sizes, g.size)
		case done:
			sizes = []int64{g.size}
		}
	}
	return sizes
}

// limits it may have; 0: none.
func (o *object) limits(mark int) []int {
	limits := []int{0}
	for _, l := range o.limited {
		switch l.at(mark) {
		case underway:
			limits = append(limits, l.iops)
		case done:
			limits = []int{l.iops}
		}
	}
	return limits
}

// holds is what has to be readable. known is false while it is being written.
func (o *object) holds(mark int) (c content, known bool) {
	c, known = o.copied, true
	for _, f := range o.filled {
		switch f.at(mark) {
		case underway:
			known = false
		case done:
			c, known = f.content, true
		}
	}
	return c, known
}

// uuid of its file system, once it was mounted; "" before.
func (o *object) uuid(mark int) string {
	uuid := ""
	for _, f := range o.filled {
		if f.at(mark) == done {
			uuid = f.uuid
		}
	}
	return uuid
}

// latest is the last mark that says anything of the object.
func (o *object) latest(mark int) int {
	last := 0
	note := func(s *span) {
		for _, m := range []int{s.begun, s.end} {
			if m <= mark {
				last = max(last, m)
			}
		}
	}
	note(&o.born)
	note(&o.died)
	for _, g := range o.grown {
		note(&g.span)
	}
	for _, f := range o.filled {
		note(&f.span)
	}
	for _, l := range o.limited {
		note(&l.span)
	}
	return last
}

func (o *object) String() string {
	if o.snapshot {
		return "snapshot " + o.name
	}
	return "volume " + o.name
}

// volume is the object as a client of the driver has it: with what it asks for at first.
func (o *object) volume(d *rig.Driver) *rig.Volume {
	v := d.Volume(o.name, rig.CapFor(o.kind), o.size)
	v.Params, v.ID, v.Context = o.params, o.id, o.context
	switch {
	case o.source == nil:
	case o.source.snapshot:
		v.Source = rig.FromSnapshot(o.source.id)
	default:
		v.Source = rig.FromVolume(o.source.id)
	}
	return v
}
