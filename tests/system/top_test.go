// SPDX-License-Identifier: Apache-2.0

package system

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"ringvol.dev/tests/rig"

	"golang.org/x/sys/unix"
)

// load writes to a mounted volume, durably, until the test ends.
func (b *bed) load(v *rig.Volume) (stop func()) {
	end := make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() {
		file, err := os.Create(filepath.Join(v.Target, "load"))
		if err != nil {
			b.t.Error(err)
			return
		}
		defer file.Close()
		block := bytes.Repeat([]byte{7}, 4096)
		for i := int64(0); ; i++ {
			select {
			case <-end:
				return
			default:
			}
			if _, err := file.WriteAt(block, i%1024*4096); err != nil {
				b.t.Error(err)
				return
			}
			if err := file.Sync(); err != nil {
				b.t.Error(err)
				return
			}
		}
	})
	return sync.OnceFunc(func() {
		close(end)
		wait.Wait()
	})
}

type topOp struct {
	IOPS     float64
	Bytes    float64  `json:"bytes_per_second"`
	P50      *float64 `json:"p50_ns"`
	P99      *float64 `json:"p99_ns"`
	InFlight int      `json:"in_flight"`
	Errors   uint64
	Total    uint64 `json:"errors_total"`
}

type topSample struct {
	Time    string
	Node    string `json:"node_id"`
	Volumes []struct {
		topOp
		ID, Name, Pool, Device string
		Exact, Abnormal        bool
		Seconds                float64
		Read, Write            topOp
		Flush, Discard         topOp
	}
}

func TestTopOnce(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	busy, idle, detached := b.volume("busy", "ext4"), b.volume("idle", "block"), b.volume("detached", "block")
	b.must(busy.Up())
	b.must(idle.Up())
	b.must(detached.Create())
	stop := b.load(busy)
	b.probesSettled() // or counting may begin anew between the two looks

	r := tool(t, nil, "top", "--json", "--once", "--interval", "1", "--endpoint", b.endpoint())
	var s topSample
	if err := json.Unmarshal([]byte(r.out), &s); err != nil || r.code != 0 {
		t.Fatalf("%v: %+v", err, r)
	}
	if len(s.Volumes) != 2 || s.Volumes[0].Name != "busy" || s.Node != b.d.Node {
		t.Fatalf("%+v", s)
	}
	v, w := s.Volumes[0], s.Volumes[1]
	if v.IOPS <= 0 || v.Write.IOPS <= 0 || v.Write.Bytes < 4096*v.Write.IOPS/2 || v.Seconds < 0.2 || v.ID != busy.ID ||
		v.Errors+v.Total != 0 || v.Device == "" {
		t.Errorf("busy: %+v", v)
	}
	if v.Exact && (v.P50 == nil || v.P99 == nil || *v.P50 <= 0 || *v.P99 < *v.P50) {
		t.Errorf("busy: p50 %v, p99 %v", v.P50, v.P99)
	}
	if w.IOPS != 0 || w.P99 != nil || w.Abnormal {
		t.Errorf("idle: %+v", w)
	}

	// Sorted by name, the same in lines.
	r = tool(t, nil, "top", "--once", "--interval", "0.2", "--sort", "name", "--endpoint", b.endpoint())
	lines := strings.Split(strings.TrimSpace(r.out), "\n")
	if r.code != 0 || len(lines) != 4 || !strings.HasPrefix(lines[1], "VOLUME") || !strings.HasPrefix(lines[2], "busy") ||
		!strings.HasPrefix(lines[3], "idle") || strings.Contains(r.out, "\x1b") {
		t.Errorf("lines: %+v", r)
	}
	r = tool(t, nil, "top", "--once", "--endpoint", "unix://"+b.Path("nobody.sock"))
	if r.code != 1 || !strings.Contains(r.err, "no driver listens") || r.out != "" {
		t.Errorf("without a driver: %+v", r)
	}
	stop()
	b.must(detached.Delete())
	b.must(idle.Gone())
	b.must(busy.Gone())
}

// A pipe gets an object a line, through a restart of the driver, and top ends when nobody reads.
func TestTopPiped(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	v := b.volume("v", "ext4")
	b.must(v.Up())
	stop := b.load(v)
	cmd := toolCommand(context.Background(), nil, "top", "--json", "--interval", "0.1", "--endpoint", b.endpoint())
	pipe, err := cmd.StdoutPipe()
	b.must(err)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	b.must(cmd.Start())
	lines := bufio.NewScanner(pipe)
	next := func() (s topSample) {
		t.Helper()
		if !lines.Scan() {
			t.Fatalf("the end: %v, %s", lines.Err(), errs.String())
		}
		b.must(json.Unmarshal(lines.Bytes(), &s))
		return s
	}
	until := func(what string, want func(s topSample) bool) {
		t.Helper()
		for range 300 {
			if want(next()) {
				return
			}
		}
		t.Fatalf("never %s", what)
	}
	works := func(s topSample) bool { return len(s.Volumes) == 1 && s.Volumes[0].Write.IOPS > 0 }
	until("busy", works)
	b.must(b.d.Term())
	b.d.PoolOptions = ""
	b.start()
	until("busy after a restart", works)
	stop()
	b.must(v.Down())
	until("without volumes", func(s topSample) bool { return len(s.Volumes) == 0 })
	b.must(v.Up())
	until("with it again", func(s topSample) bool { return len(s.Volumes) == 1 })
	pipe.Close()
	b.must(ended(cmd))
	if n := strings.Count(errs.String(), "asking again"); n != 1 {
		t.Errorf("said %d times that the driver is gone: %s", n, errs.String())
	}
	b.must(v.Gone())
}

// ended waits for a process and does not ask how it ended.
func ended(cmd *exec.Cmd) error {
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case err := <-done:
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			return err
		}
		return nil
	case <-time.After(30 * time.Second):
		_ = cmd.Process.Kill()
		return errors.New("it does not end")
	}
}

// screen is a pseudo-terminal with a tool on it.
type screen struct {
	t      *testing.T
	master *os.File
	slave  *os.File
	cmd    *exec.Cmd
	before unix.Termios
	mu     sync.Mutex
	all    bytes.Buffer
}

func newScreen(t *testing.T, columns, lines uint16, env []string, args ...string) *screen {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	s := &screen{t: t}
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	must(err)
	s.master = os.NewFile(uintptr(fd), "ptmx")
	must(unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	must(err)
	s.slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	must(err)
	s.resize(columns, lines)
	before, err := unix.IoctlGetTermios(int(s.slave.Fd()), unix.TCGETS)
	must(err)
	s.before = *before
	s.cmd = toolCommand(context.Background(), append([]string{"TERM=xterm-256color"}, env...), args...)
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = s.slave, s.slave, s.slave
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	must(s.cmd.Start())
	go func() {
		chunk := make([]byte, 4096)
		for {
			n, err := s.master.Read(chunk)
			s.mu.Lock()
			s.all.Write(chunk[:n])
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		s.slave.Close()
		s.master.Close()
	})
	return s
}

func (s *screen) resize(columns, lines uint16) {
	s.t.Helper()
	if err := unix.IoctlSetWinsize(int(s.master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: lines}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *screen) keys(keys string) {
	s.t.Helper()
	if _, err := s.master.WriteString(keys); err != nil {
		s.t.Fatal(err)
	}
}

func (s *screen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all.String()
}

// drained is nil when all that was written has been read: what is written now comes back next.
func (s *screen) drained() error {
	const mark = "\x00end"
	if !strings.HasSuffix(s.text(), mark) {
		if _, err := s.slave.WriteString(mark); err != nil {
			return err
		}
		return errors.New("there is more")
	}
	return nil
}

func (s *screen) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all.Reset()
}

var colours = regexp.MustCompile("\x1b\\[[0-9;]*m")

// frames are the pictures drawn so far, each a list of lines without colours.
func (s *screen) frames() (frames [][]string) {
	parts := strings.Split(s.text(), "\x1b[H")
	for _, part := range parts[1:] {
		body, _, whole := strings.Cut(part, "\x1b[J")
		if whole && !strings.HasPrefix(body, "\x1b[2J") {
			body = strings.ReplaceAll(colours.ReplaceAllString(body, ""), "\x1b[K", "")
			// The terminal adds a carriage return of its own.
			frames = append(frames, strings.Split(body, "\r\r\n"))
		}
	}
	return frames
}

// await waits for a frame that has it.
func (s *screen) await(what string, want func(lines []string) bool) []string {
	s.t.Helper()
	var found []string
	err := rig.Eventually(30*time.Second, func() error {
		for _, frame := range s.frames() {
			if want(frame) {
				found = frame
				return nil
			}
		}
		return fmt.Errorf("no frame with %s in %q", what, s.text())
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return found
}

// fits checks every frame against the terminal's size.
func (s *screen) fits(columns, lines int) {
	s.t.Helper()
	for _, frame := range s.frames() {
		if len(frame) > lines {
			s.t.Errorf("%d lines on a terminal of %d: %q", len(frame), lines, frame)
		}
		for _, line := range frame {
			if n := utf8.RuneCountInString(line); n > columns {
				s.t.Errorf("%d columns on a terminal of %d: %q", n, columns, line)
			}
			if strings.ContainsFunc(line, func(r rune) bool { return r < ' ' || r == 0x7f }) {
				s.t.Errorf("a control character: %q", line)
			}
		}
	}
}

// putBack checks that the terminal is as it was.
func (s *screen) putBack() {
	s.t.Helper()
	// A program that stops, rather than ends, may still be about to put them back.
	if err := rig.Eventually(10*time.Second, func() error {
		after, err := unix.IoctlGetTermios(int(s.slave.Fd()), unix.TCGETS)
		if err == nil && *after != s.before {
			err = fmt.Errorf("the terminal's settings were %+v, are %+v", s.before, *after)
		}
		return err
	}); err != nil {
		s.t.Error(err)
	}
	if err := rig.Eventually(10*time.Second, func() error {
		if text := s.text(); !strings.HasSuffix(text, "\x1b[0m\x1b[?25h\x1b[?1049l") {
			return fmt.Errorf("it ends with %q", text[max(0, len(text)-60):])
		}
		return nil
	}); err != nil {
		s.t.Error(err)
	}
}

func TestTopScreen(t *testing.T) {
	b := open(t, "xfs", 1<<30)
	busy := b.volume("busy with a rather long name "+strings.Repeat("x", 60), "ext4")
	evil := b.volume("evil \x1b]0;owned\a \u202e name", "block")
	b.must(busy.Up())
	b.must(evil.Up())
	stop := b.load(busy)
	b.probesSettled()
	args := []string{"top", "--interval", "0.1", "--endpoint", b.endpoint()}
	drawn := func(lines []string) bool {
		return len(lines) > 3 && slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, "bus") })
	}
	// A number stands below the title: two answers were compared.
	rated := func(lines []string) bool {
		for at, title := range lines {
			end := strings.Index(title, "IOPS")
			for _, line := range lines[at+1:] {
				runes := []rune(line)
				if end > 0 && drawn(lines) && strings.HasPrefix(line, "bus") && len(runes) > end+3 && runes[end+3] != '-' {
					return true
				}
			}
		}
		return false
	}

	for _, size := range []struct{ columns, lines uint16 }{{200, 50}, {80, 24}, {20, 10}, {20, 3}, {7, 4}, {1, 1}} {
		s := newScreen(t, size.columns, size.lines, nil, args...)
		if size.lines >= 10 {
			s.await("rates", rated)
		} else {
			s.await("anything", func(lines []string) bool { return len(lines) > 0 })
		}
		s.keys("><rjk \x1b[A\x1b[B\x1b[5~\x1b[6~\x1b[H\x1bx?")
		seen := len(s.frames())
		s.await("more", func([]string) bool { return len(s.frames()) > seen+14 })
		s.fits(int(size.columns), int(size.lines))
		s.keys("q")
		b.must(ended(s.cmd))
		if code := s.cmd.ProcessState.ExitCode(); code != 0 {
			t.Errorf("status %d after q", code)
		}
		s.putBack()
		if testing.Verbose() {
			frames := s.frames()
			t.Log("\n" + strings.TrimSpace(strings.Join(frames[len(frames)-1], "\n")))
		}
		if size.columns == 200 {
			frame := strings.Join(s.await("rates", rated), "\n")
			for _, want := range []string{"ringvol top", b.d.Node, "2 attached", "IOPS", "P99 HISTORY", "/dev/loop", `evil \x1b]0`} {
				if !strings.Contains(frame, want) {
					t.Errorf("no %q in\n%s", want, frame)
				}
			}
		}
	}

	t.Run("resized", func(t *testing.T) {
		s := newScreen(t, 120, 30, nil, "top", "--interval", "3600", "--endpoint", b.endpoint())
		s.await("volumes", drawn)
		s.await("rates", rated)
		s.forget()
		s.resize(20, 10) // draws at once, the interval is an hour
		s.await("volumes", func(lines []string) bool { return len(lines) == 10 })
		s.fits(20, 10)
		s.keys("q")
		b.must(ended(s.cmd))
	})
	t.Run("sorted", func(t *testing.T) {
		s := newScreen(t, 120, 30, nil, append(args, "--sort", "name")...)
		order := func(first, second string) func(lines []string) bool {
			return func(lines []string) bool {
				at := func(name string) int {
					return slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, name) })
				}
				return at(first) > 0 && at(first) < at(second)
			}
		}
		s.await("busy first", order("busy", "evil"))
		s.keys("r")
		s.await("evil first", order("evil", "busy"))
		s.keys("q")
		b.must(ended(s.cmd))
	})
	t.Run("colour", func(t *testing.T) {
		s := newScreen(t, 120, 30, []string{"NO_COLOR=1"}, args...)
		s.await("volumes", drawn)
		s.keys("q")
		b.must(ended(s.cmd))
		if text := strings.TrimSuffix(s.text(), "\x1b[0m\x1b[?25h\x1b[?1049l"); colours.MatchString(text) {
			t.Errorf("colours with NO_COLOR: %q", text)
		}
		s = newScreen(t, 120, 30, nil, args...)
		s.await("volumes", drawn)
		if !colours.MatchString(s.text()) {
			t.Errorf("no colours: %q", s.text())
		}
		s.keys("q")
		b.must(ended(s.cmd))
	})
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGSEGV, syscall.SIGABRT} {
		t.Run(sig.String(), func(t *testing.T) {
			if strings.Contains(rig.Binary(), "asan") && (sig == syscall.SIGSEGV || sig == syscall.SIGABRT) {
				t.Skip("the sanitizer has this signal")
			}
			s := newScreen(t, 120, 30, nil, args...)
			s.await("volumes", drawn)
			b.must(s.cmd.Process.Signal(sig))
			b.must(ended(s.cmd))
			if status := s.cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != sig {
				t.Errorf("%v ended it with %v", sig, status)
			}
			s.putBack()
		})
	}
	t.Run("stopped", func(t *testing.T) {
		s := newScreen(t, 120, 30, nil, args...)
		s.await("volumes", drawn)
		b.must(s.cmd.Process.Signal(syscall.SIGTSTP))
		b.eventually(func() error {
			if text := s.text(); !strings.HasSuffix(text, "\x1b[?1049l") {
				return fmt.Errorf("it ends with %q", text[max(0, len(text)-60):])
			}
			return nil
		})
		s.putBack()
		s.forget()
		b.must(s.cmd.Process.Signal(syscall.SIGCONT))
		s.await("volumes again", drawn)
		s.keys("q")
		b.must(ended(s.cmd))
		s.putBack()
	})
	t.Run("without the driver", func(t *testing.T) {
		s := newScreen(t, 120, 30, nil, args...)
		s.await("volumes", drawn)
		stop()
		b.must(b.d.Term())
		s.await("the reason", func(lines []string) bool {
			return strings.Contains(strings.Join(lines, "\n"), "asking again")
		})
		b.d.PoolOptions = ""
		b.start()
		s.forget()
		s.await("volumes again", drawn)
		s.keys("q")
		b.must(ended(s.cmd))
		s.putBack()
	})
	stop()
	b.must(busy.Gone())
	b.must(evil.Gone())
}
