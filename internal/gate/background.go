package gate

import "time"

// Later runs f in a goroutine that Close waits for; once closed, right away.
func (g *Gate) Later(f func()) {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		f()
		return
	}
	g.background.Go(f)
	g.mu.Unlock()
}

// Settle returns when everything that Later runs has ended.
func (g *Gate) Settle() { g.background.Wait() }

// Closing has Later run everything at once from here on.
func (g *Gate) Closing() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
}

// now is the time that passages and refusals are measured by.
func now() time.Time { return time.Now() }
