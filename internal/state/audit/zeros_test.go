package audit_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/state/audit"
)

// spread makes a log that has zeros behind its lines.
func spread(t *testing.T) audit.Options {
	t.Helper()
	path := logPath(t)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if !audit.Overwritten(d) {
		t.Skip("skipped: this file system does not overwrite blocks in place")
	}
	return audit.Options{Path: path, Room: 1 << 20}
}

func sizeOf(t *testing.T, path string) int64 {
	t.Helper()
	fi, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return fi.Size()
}

// A line takes the place of zeros: the file keeps its size and its blocks but for one append in a thousand.
func TestLinesTakeThePlaceOfZeros(t *testing.T) {
	o := spread(t)
	l := open(t, o)
	mustAppend(t, l, intent(0))
	each := int64(len(lines(t, o.Path)[0]))
	last, grew, appends := sizeOf(t, o.Path), 0, 0
	for n := int64(0); n < 2*audit.ZeroStep; n += each {
		mustAppend(t, l, intent(1))
		appends++
		if size := sizeOf(t, o.Path); size != last {
			grew++
			last = size
		}
	}
	if grew < 1 || grew > 3 {
		t.Errorf("the file grew with %d of %d appends", grew, appends)
	}
	mustHold(t, o.Path, int64(appends+1))
	l.Close()
	l = open(t, o)
	mustAppend(t, l, intent(2))
	if size := sizeOf(t, o.Path); size != last {
		t.Errorf("after a restart the file has %d bytes instead of %d", size, last)
	}
	mustHold(t, o.Path, int64(appends+2))
}

// zeroed is the log's file; it tells when zeros are written.
type zeroed struct {
	audit.File
	wrote chan<- struct{}
}

func (z zeroed) WriteAt(b []byte, at int64) (int, error) {
	n, err := z.File.WriteAt(b, at)
	if len(b) > 0 && b[0] == 0 {
		z.wrote <- struct{}{}
	}
	return n, err
}

// Zeros are written when nobody waits, before the last are used up.
func TestZerosAreWrittenAhead(t *testing.T) {
	wrote := make(chan struct{}, 100)
	o := spread(t).Wrap(func(f audit.File) audit.File { return zeroed{f, wrote} })
	l := open(t, o)
	mustAppend(t, l, intent(0))
	for len(wrote) > 0 { // with the first append
		<-wrote
	}
	each, size := len(lines(t, o.Path)[0]), sizeOf(t, o.Path)
	for n := 0; n < audit.ZeroStep*2/3; n += each {
		if err := l.AppendAsync(intent(1)); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-wrote:
	case <-time.After(10 * time.Second):
		t.Fatal("no zeros were written while nobody waited")
	}
	if now := sizeOf(t, o.Path); now <= size {
		t.Errorf("the file has %d bytes, and had %d", now, size)
	}
	mustHold(t, o.Path, -1)
}

// After a power cut any pages of a group that was not acknowledged may be missing. What was acknowledged is there,
// and what follows the first missing page is cut off and told.
func TestPagesThatDidNotReachTheDisk(t *testing.T) {
	const page = 4096
	o := spread(t)
	l := open(t, o)
	for i := range 20 {
		mustAppend(t, l, intent(i))
	}
	mark, err := l.Mark()
	if err != nil {
		t.Fatal(err)
	}
	acked := len(bytes.Join(lines(t, o.Path), nil)) + 1
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(o.Path)
	if err != nil {
		t.Fatal(err)
	}
	var group []byte
	prev := mark.Head.Hash
	for i := range 60 {
		line := audit.Line(intent(i), prev, mark.Head.Seq+1+int64(i), time.Now())
		prev = string(line[9:73])
		group = append(group, line...)
	}
	whole := bytes.Clone(before)
	copy(whole[acked:], group)
	end := acked + len(group)
	dice := rand.New(rand.NewPCG(7, uint64(time.Now().UnixNano())))
	for round := range 30 {
		cut := bytes.Clone(whole)
		missing := end
		for at := acked / page * page; at < end; at += page {
			if dice.IntN(4) > 0 && round > 0 {
				continue
			}
			from, to := max(at, acked), min(at+page, end)
			clear(cut[from:to])
			missing = min(missing, from)
		}
		if err := os.WriteFile(o.Path, cut, 0o600); err != nil {
			t.Fatal(err)
		}
		// A mark from before the group, as the store has it.
		since := o
		since.Since = mark
		l, err := audit.Open(t.Context(), since)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		kept := mark.Head.Seq + int64(bytes.Count(whole[acked:missing], []byte("\n")))
		mustAppend(t, l, intent(99))
		all := lines(t, o.Path)
		end := len(bytes.TrimRight(cut, "\x00"))
		torn := end - acked - (bytes.LastIndexByte(whole[acked:missing], '\n') + 1)
		want := kept + 1
		if torn > 0 {
			want++
			r, err := audit.Decode(bytes.TrimSuffix(all[kept], []byte("\n")))
			if err != nil || r.Type != audit.Repair {
				t.Errorf("round %d: %d bytes were cut off and the record says %+v %v", round, torn, r, err)
			}
		}
		mustHold(t, o.Path, want)
		l.Close()
	}
}

// A page of zeros over what was written is no end of the log.
func TestZerosOverWhatWasWritten(t *testing.T) {
	o := spread(t)
	l := open(t, o)
	for i := range 50 {
		mustAppend(t, l, intent(i))
	}
	mark, err := l.Mark()
	if err != nil {
		t.Fatal(err)
	}
	all := lines(t, o.Path)
	f, err := os.OpenFile(o.Path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	at := int64(len(bytes.Join(all[:30], nil)))
	if _, err := f.WriteAt(make([]byte, 2000), at); err != nil {
		t.Fatal(err)
	}
	if v, err := l.Verify(t.Context()); err != nil || v.Bad == nil || v.Bad.Harm != audit.NotJSON || v.Bad.Seq != 31 {
		t.Errorf("by the daemon: %+v %v", v.Bad, err)
	}
	l.Close()
	v, err := audit.VerifyFile(t.Context(), o.Path, mark.Head)
	if err != nil || v.Bad == nil || v.Bad.Harm != audit.NotJSON || v.Bad.Seq != 31 {
		t.Errorf("by its file: %+v %v", v.Bad, err)
	}
	now, err := os.ReadFile(o.Path)
	if err != nil {
		t.Fatal(err)
	}
	o.Since = mark
	if _, err := audit.Open(t.Context(), o); !errors.Is(err, audit.ErrDamaged) || !strings.Contains(err.Error(), "its end was cut off") {
		t.Errorf("the next start: %v", err)
	}
	if is, err := os.ReadFile(o.Path); err != nil || !bytes.Equal(is, now) {
		t.Errorf("a refused log was changed: %v", err)
	}
}

// What AppendAsync took is in the file when it returns, whether or not another group is being synced: who reads the file
// sees what the next start would find if this process were killed now.
func TestAsyncIsWrittenAtOnce(t *testing.T) {
	path := logPath(t)
	began := make(chan struct{})
	d := &heldDisk{began: began, ends: make(chan error)}
	l := open(t, audit.Options{Path: path, Room: 1 << 20}.Wrap(func(f audit.File) audit.File { d.File = f; return d }))
	first := make(chan error)
	go func() {
		_, err := l.Append(t.Context(), intent(0))
		first <- err
	}()
	<-began // the first group is written and not synced; zeros may be
	if err := l.AppendAsync(intent(1)); err != nil {
		t.Fatal(err)
	}
	d.ends <- nil
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		if err := l.AppendAsync(intent(2 + i)); err != nil {
			t.Fatal(err)
		}
		if n := len(lines(t, path)); n != 3+i {
			t.Fatalf("%d lines are in the file after %d", n, 3+i)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	mustHold(t, path, 22)
}

// Early writes, groups, zeros and rotations at the same time: nothing takes the place of anything.
func TestEverythingHasItsPlace(t *testing.T) {
	o := spread(t)
	o.MaxSize = 3 << 20
	l := open(t, o)
	var wg sync.WaitGroup
	const each = 1200
	for w := range 8 {
		wg.Go(func() {
			for i := range each {
				var err error
				if w%2 == 0 || i%50 == 0 {
					_, err = l.Append(t.Context(), intent(i))
				} else {
					err = l.AppendAsync(intent(i))
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	seq := l.Head().Seq
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if v := mustHold(t, o.Path, -1); v.Head.Seq < 8*each || v.Head.Seq < seq {
		t.Errorf("the log ends at %d, %d records were taken", v.Head.Seq, 8*each)
	}
}

// heldZeros is the log's file whose next zeros wait.
type heldZeros struct {
	audit.File
	began, leave chan struct{}
}

func (z *heldZeros) WriteAt(b []byte, at int64) (int, error) {
	if len(b) > 0 && b[0] == 0 && z.began != nil {
		close(z.began)
		z.began = nil
		<-z.leave
	}
	return z.File.WriteAt(b, at)
}

// A record that is queued while zeros are being written is not overwritten by them.
func TestZerosTakeNoLinesPlace(t *testing.T) {
	began := make(chan struct{})
	d := &heldZeros{began: began, leave: make(chan struct{})}
	o := spread(t).Wrap(func(f audit.File) audit.File { d.File = f; return d })
	l := open(t, o)
	first := make(chan error)
	go func() {
		_, err := l.Append(t.Context(), intent(0))
		first <- err
	}()
	<-began
	if err := l.AppendAsync(intent(1)); err != nil {
		t.Fatal(err)
	}
	close(d.leave)
	if err := <-first; err != nil {
		t.Fatal(err)
	}
	mustAppend(t, l, intent(2))
	mustHold(t, o.Path, 3)
}
