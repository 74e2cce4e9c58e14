// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"fmt"
	"sync"
	"time"
)

// gate is where the workers meet the one who kills. Paused, they stop between two operations; held,
// also in the middle of one whose call has failed, before they ask again.
type gate struct {
	mu                       sync.Mutex
	cond                     *sync.Cond
	total, idle, held        int
	paused, holding, stopped bool
}

func newGate(total int) *gate {
	g := &gate{total: total, paused: true}
	g.cond = sync.NewCond(&g.mu)
	return g
}

// passes waits between two operations; false: no more of them.
func (g *gate) passes() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.idle++
	g.cond.Broadcast()
	for g.paused && !g.stopped {
		g.cond.Wait()
	}
	g.idle--
	return !g.stopped
}

// retries waits after a failed call; false: not again.
func (g *gate) retries() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held++
	g.cond.Broadcast()
	for g.holding && !g.stopped {
		g.cond.Wait()
	}
	g.held--
	return !g.stopped
}

func (g *gate) set(paused, holding bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.paused, g.holding = paused, holding
	g.cond.Broadcast()
}

func (g *gate) stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stopped = true
	g.cond.Broadcast()
}

func (g *gate) isStopped() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stopped
}

// awaitQuiet waits until all of them stand; with heldToo in the middle of a call will do.
func (g *gate) awaitQuiet(heldToo bool, limit time.Duration) error {
	late := false
	timer := time.AfterFunc(limit, func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		late = true
		g.cond.Broadcast()
	})
	defer timer.Stop()
	g.mu.Lock()
	defer g.mu.Unlock()
	for !g.stopped && !late {
		standing := g.idle
		if heldToo {
			standing += g.held
		}
		if standing == g.total {
			return nil
		}
		g.cond.Wait()
	}
	if g.stopped {
		return errStopped
	}
	return fmt.Errorf("after %v %d of %d workers still wait for an answer", limit,
		g.total-g.idle, g.total)
}
