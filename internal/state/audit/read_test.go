package audit_test

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"github.com/carrel-dev/carrel/internal/state/audit"
)

func TestUnfinished(t *testing.T) {
	path := logPath(t)
	l := open(t, audit.Options{Path: path})
	mustAppend(t, l, intent(0)) // 1 stays open, behind the mark
	mustAppend(t, l, intent(1)) // 2 ends behind the mark
	mustAppend(t, l, intent(2)) // 3 ends after the mark
	if err := l.AppendAsync(audit.Record{Type: audit.Outcome, Intent: 2}); err != nil {
		t.Fatal(err)
	}
	mark, err := l.Mark()
	if err != nil {
		t.Fatal(err)
	}
	if want := []int64{1, 3}; !cmp.Equal(mark.Open, want) || mark.Head.Seq != 4 || l.Head() != mark.Head {
		t.Fatalf("mark %+v, durable %v", mark, l.Head())
	}
	if err := l.AppendAsync(audit.Record{Type: audit.Outcome, Intent: 3}); err != nil {
		t.Fatal(err)
	}
	mustAppend(t, l, intent(5)) // 6 stays open, after the mark
	l.Close()
	for name, since := range map[string]audit.Mark{"from a mark": mark, "from the beginning": {}} {
		l := open(t, audit.Options{Path: path, Since: since})
		left, err := l.Unfinished()
		if err != nil {
			t.Fatal(err)
		}
		var seqs []int64
		for _, r := range left {
			seqs = append(seqs, r.Seq)
		}
		if want := []int64{1, 6}; !cmp.Equal(seqs, want) {
			t.Errorf("%s: unfinished %v, want %v", name, seqs, want)
		}
		l.Close()
	}
}

func TestReadFindsItsPlace(t *testing.T) {
	const n = 3000
	path := logPath(t)
	l := open(t, audit.Options{Path: path})
	for i := range n {
		r := intent(i)
		r.Error = strings.Repeat("e", (i*37)%3000)
		if err := l.AppendAsync(r); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Mark(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ from, last, first, count int64 }{
		{0, 0, 1, n},
		{1, 0, 1, n},
		{2, 0, 2, n - 1},
		{1500, 0, 1500, n - 1499},
		{n, 0, n, 1},
		{n + 1, 0, 0, 0},
		{0, 1, n, 1},
		{0, 10, n - 9, 10},
		{0, n + 5, 1, n},
		{n - 2, 10, n - 2, 3},
	} {
		var first, count int64
		err := l.Read(t.Context(), c.from, c.last, false, func(ls [][]byte) error {
			for _, line := range ls {
				r, err := audit.Decode(line)
				if err != nil {
					return err
				}
				if count == 0 {
					first = r.Seq
				} else if r.Seq != first+count {
					t.Errorf("record %d out of order", r.Seq)
				}
				count++
			}
			return nil
		})
		if err != nil || first != c.first || count != c.count {
			t.Errorf("from %d, last %d: %d records from %d (%v), want %d from %d", c.from, c.last, count, first, err, c.count, c.first)
		}
	}
}

func TestFollow(t *testing.T) {
	l := open(t, audit.Options{Path: logPath(t)})
	mustAppend(t, l, intent(0))
	ctx, cancel := context.WithCancel(t.Context())
	got, ended := make(chan int64), make(chan error)
	go func() {
		ended <- l.Read(ctx, 1, 0, true, func(ls [][]byte) error {
			for _, line := range ls {
				r, err := audit.Decode(line)
				if err != nil {
					return err
				}
				got <- r.Seq
			}
			return nil
		})
	}()
	for i := range int64(20) {
		if seq := <-got; seq != i+1 {
			t.Fatalf("follower saw %d, want %d", seq, i+1)
		}
		mustAppend(t, l, intent(int(i)))
	}
	<-got
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	go func() { ended <- l.Read(t.Context(), 100, 0, true, func([][]byte) error { return nil }) }()
	l.Close()
	if err := <-ended; !errdefs.IsUnavailable(err) && !errors.Is(err, fs.ErrClosed) {
		t.Errorf("follower of a closed log: %v", err)
	}
}
