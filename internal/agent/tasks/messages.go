package tasks

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/carrel-dev/carrel/internal/agent/turns"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// more is closed when there is more to read of the task.
func (c *conversation) more() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over { // since it was looked up among those that run
		return c.told
	}
	if c.changed == nil {
		c.changed = make(chan struct{})
	}
	return c.changed
}

// wake tells those who wait. c.mu is held.
func (c *conversation) wake() {
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}

// message takes a message to be stored. What is JSON already is a json.RawMessage.
func (c *conversation) message(kind string, body any) error {
	_, err := c.numbered(kind, body)
	return err
}

// numbered is message, and returns its number.
func (c *conversation) numbered(kind string, body any) (number int64, err error) {
	b, err := json.Marshal(body)
	if err != nil {
		return 0, fmt.Errorf("cannot store a message: %w", err)
	}
	if _, shown := body.(turns.Shown); !shown {
		b = c.tasks.cfg.Redact.JSON(b)
	}
	c.mu.Lock()
	c.last++
	number = c.last
	c.pending = append(c.pending, workspace.TaskMessage{Number: c.last, Time: time.Now(), Kind: kind, Body: b})
	c.pendingBytes += len(b)
	c.sizes = append(c.sizes, len(b))
	for c.bytes += len(b); len(c.sizes) > keepMessages || c.bytes > keepBytes && len(c.sizes) > 1; c.lost++ {
		c.bytes -= c.sizes[0]
		c.sizes = c.sizes[1:]
	}
	full := len(c.pending) >= batch || c.pendingBytes >= batchBytes
	c.mu.Unlock()
	if full {
		return number, c.flush()
	}
	return number, nil
}

// flush stores what is pending, a second time not before pace: then those who follow see it.
func (c *conversation) flush() error { return c.store(pace) }

// store stores what is pending, not before a pace after the last time.
func (c *conversation) store(pace time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pending) == 0 {
		return nil
	}
	time.Sleep(pace - time.Since(c.stored))
	err := c.tasks.cfg.Store.AddMessages(c.context(), c.task.ID, c.pending, c.lost)
	if err != nil {
		return fmt.Errorf("cannot go on with the task: %w", err)
	}
	c.pending, c.pendingBytes, c.stored = nil, 0, time.Now()
	c.wake()
	return nil
}

// drainErrors keeps the end of stderr.
func (c *conversation) drainErrors() {
	buf := make([]byte, 4<<10)
	for c.err != nil {
		n, err := c.err.Read(buf)
		c.mu.Lock()
		c.stderr = append(c.stderr, buf[:n]...)
		c.stderr = c.stderr[max(0, len(c.stderr)-tail):]
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// plain is a text on one line, without what a terminal takes for a command.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return ' '
		}
		return r
	}, s)
}

// clip bounds a reason.
func clip(s string) string {
	return cut(plain(s), 2<<10)
}

// cut is the beginning of a text that is longer.
func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
