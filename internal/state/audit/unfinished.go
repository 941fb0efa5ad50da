package audit

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/containerd/errdefs"
)

// Mark is a point up to which the log is known. It is kept elsewhere, so that Open need
// not read what is before it and notices if the log ends before it.
type Mark struct {
	Head Head `json:"head"`
	// Open lists the intents up to Head that had no outcome, in order.
	Open []int64 `json:"open,omitempty"`
	// Ended: Head is the last record, as after a clean stop.
	Ended bool `json:"ended,omitempty"`
	// Sealed: the log took no record behind Head from then on; see Log.End. Without it, Head was the last when the mark
	// was taken, and the daemon may have written a little more: see Late.
	Sealed bool `json:"sealed,omitempty"`
	// Late were taken over behind an end without a seal, up to Head, and no record says so yet.
	Late *Late `json:"late,omitempty"`
}

// Mark waits until every queued record is on disk, and returns the mark of that moment.
func (l *Log) Mark() (Mark, error) {
	l.mu.Lock()
	m := Mark{Head: l.queued(), Open: slices.Sorted(maps.Keys(l.open))}
	return m, l.settle()
}

// End queues r as the last record that the log takes from this process: every later one is refused, as
// unavailable, so that nothing follows the mark that End returns. It returns once r is on disk, with the errors of
// Append. After an error there is no mark, but the log takes no more records all the same.
func (l *Log) End(ctx context.Context, r Record) (Mark, error) {
	if err := ctx.Err(); err != nil {
		return Mark{}, fmt.Errorf("cannot end the audit log: %w", err)
	}
	if err := r.check(); err != nil {
		return Mark{}, err
	}
	rest := r.appendRest(nil)
	l.mu.Lock()
	_ = l.unstall() // on a disk that is full still, the last lines wait with the others
	_, err := l.queue(&r, rest)
	l.ended = true
	if err != nil {
		l.mu.Unlock()
		return Mark{}, err
	}
	m := Mark{Head: l.queued(), Open: slices.Sorted(maps.Keys(l.open)), Ended: true, Sealed: true}
	if err := l.settle(); err != nil {
		return Mark{}, err
	}
	return m, nil
}

// Unfinished returns the intents without an outcome, in order. Right after Open
// these are the actions that a crash interrupted.
func (l *Log) Unfinished() ([]Record, error) {
	l.mu.Lock()
	seqs := slices.Sorted(maps.Keys(l.open))
	l.mu.Unlock()
	records := make([]Record, 0, len(seqs))
	for _, seq := range seqs {
		line, err := l.line(seq)
		if err != nil {
			return nil, err
		}
		r, err := Decode(line)
		if err != nil {
			return nil, err
		}
		if r.Seq != seq || r.Type != Intent {
			return nil, fmt.Errorf("cannot find intent %d in the audit log: run \"carrel audit verify\": %w", seq, errdefs.ErrDataLoss)
		}
		records = append(records, r)
	}
	return records, nil
}

// track keeps the set of open intents. l.mu is held.
func (l *Log) track(t Type, seq, intent int64) {
	switch t {
	case Intent:
		l.open[seq] = struct{}{}
	case Outcome:
		delete(l.open, intent)
	default: // belongs to no intent
	}
}

// catchUp fills the set of open intents from the records since the mark.
func (l *Log) catchUp(ctx context.Context, since Mark) error {
	for _, seq := range since.Open {
		l.open[seq] = struct{}{}
	}
	return l.Read(ctx, since.Head.Seq+1, 0, false, func(lines [][]byte) error {
		for _, line := range lines {
			r, err := Decode(line)
			if err != nil {
				return err
			}
			l.track(r.Type, r.Seq, r.Intent)
		}
		return nil
	})
}
