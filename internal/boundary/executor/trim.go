package executor

import (
	"time"

	"github.com/carrel-dev/carrel/internal/linux/memrelease"
)

// idleAfter is how long nothing must have run before memory is given back.
const idleAfter = 3 * time.Second

// rest gives memory back once the workspace is idle. It is called at the end of a command.
func (e *Executor) rest() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.idle == nil {
		e.idle = time.AfterFunc(idleAfter, e.trim)
		return
	}
	e.idle.Reset(idleAfter)
}

func (e *Executor) trim() {
	e.mu.Lock()
	busy := false
	for _, c := range e.commands {
		select {
		case <-c.done:
		default:
			busy = true
		}
	}
	e.mu.Unlock()
	if !busy {
		memrelease.GiveBack()
	}
}
