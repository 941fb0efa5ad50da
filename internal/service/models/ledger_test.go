package models_test

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/service/models"
	"github.com/carrel-dev/carrel/internal/spec/budget"
	"github.com/carrel-dev/carrel/internal/state/store"
)

// disk keeps sums in memory.
type disk struct {
	mu     sync.Mutex
	rows   map[string]json.RawMessage
	writes int
	fail   error
	slow   time.Duration
}

func (d *disk) KeepModelSums(_ context.Context, all []store.ModelSum) error {
	time.Sleep(d.slow) //nolint:forbidigo // a disk that takes long, in the time of synctest
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fail != nil {
		return d.fail
	}
	d.writes++
	for _, x := range all {
		d.rows[x.Subject] = x.Sums
	}
	return nil
}

func (d *disk) ModelSums(_ context.Context, subjects []string) (map[string]json.RawMessage, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := map[string]json.RawMessage{}
	for _, s := range subjects {
		if row, there := d.rows[s]; there {
			all[s] = row
		}
	}
	return all, nil
}

func (d *disk) ModelSubjects(context.Context, string) ([]string, error) { return nil, nil }
func (d *disk) PruneModelSums(context.Context) error                    { return nil }

// kept is what another daemon would take as counted.
func (d *disk) kept(t *testing.T) (requests, tokens int64) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	row := struct{ Requests, Tokens, Ahead int64 }{}
	if text, there := d.rows["day workspace w"]; there {
		if err := json.Unmarshal(text, &row); err != nil {
			t.Fatal(err)
		}
	}
	return row.Requests + row.Ahead, row.Tokens
}

// Whenever the process is killed, the disk has every request that was granted; one write is for all that wait, and for some
// that come. Tokens are there a second after they were told.
func TestLedger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{rows: map[string]json.RawMessage{}, slow: 10 * time.Millisecond}
		l := models.NewLedger(d, budget.Limits{Period: budget.Day, Requests: 1000})
		var granted int64
		var mu sync.Mutex
		var all sync.WaitGroup
		for range 1200 {
			all.Go(func() {
				spend, err := l.Reserve(t.Context())
				if err != nil {
					if !errdefs.IsResourceExhausted(err) {
						t.Error(err)
					}
					return
				}
				mu.Lock()
				granted++
				now := granted
				mu.Unlock()
				if kept, _ := d.kept(t); kept < now {
					t.Errorf("%d requests are granted, and the disk has %d", now, kept)
				}
				spend(5)
			})
		}
		all.Wait()
		if granted != 1000 || d.writes > 10 {
			t.Errorf("%d requests of 1000 were granted, by %d writes", granted, d.writes)
		}
		time.Sleep(time.Second + 2*d.slow) //nolint:forbidigo // the time of synctest
		synctest.Wait()
		if _, tokens := d.kept(t); tokens != 5000 {
			t.Errorf("after a second the disk has %d tokens", tokens)
		}
	})
}

// One after the other takes a write for a block each, and for each request near the limit.
func TestLedgerReservesBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{rows: map[string]json.RawMessage{}}
		l := models.NewLedger(d, budget.Limits{Period: budget.Day, Requests: 640})
		for range 320 {
			if _, err := l.Reserve(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if d.writes > 15 {
			t.Errorf("%d writes for 320 requests", d.writes)
		}
		before, _ := d.kept(t)
		if before < 320 || before > 320+32 {
			t.Errorf("a kill would count %d", before)
		}
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if after, _ := d.kept(t); after != 320 {
			t.Errorf("an orderly end counts %d", after)
		}
		synctest.Wait()
		time.Sleep(2 * time.Second) //nolint:forbidigo // the time of synctest: what is armed ends
	})
}

// What cannot be kept is not granted, and costs nothing once it can.
func TestLedgerWithoutADisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &disk{rows: map[string]json.RawMessage{}, fail: errors.New("the disk is full")}
		l := models.NewLedger(d, budget.Limits{Period: budget.Day, Requests: 3})
		for range 10 {
			if _, err := l.Reserve(t.Context()); !errdefs.IsUnavailable(err) {
				t.Fatal(err)
			}
		}
		d.mu.Lock()
		d.fail = nil
		d.mu.Unlock()
		for i := range 4 {
			if _, err := l.Reserve(t.Context()); (err == nil) != (i < 3) {
				t.Errorf("request %d: %v", i, err)
			}
		}
		time.Sleep(2 * time.Second) //nolint:forbidigo // the time of synctest: what is armed ends
		synctest.Wait()
	})
}
