package audit_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/state/audit"
)

func TestRefusals(t *testing.T) {
	path := logPath(t)
	l := open(t, audit.Options{Path: path})
	for name, r := range map[string]audit.Record{
		"too long":  {Type: audit.Intent, Error: strings.Repeat("x", audit.MaxRecord)},
		"no type":   {},
		"bad JSON":  {Type: audit.Intent, Action: json.RawMessage(`{`)},
		"two lines": {Type: audit.Intent, Data: json.RawMessage("{\n}")},
	} {
		if _, err := l.Append(t.Context(), r); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: append gave %v", name, err)
		}
		if err := l.AppendAsync(r); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: async append gave %v", name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.Append(ctx, intent(0)); !errors.Is(err, context.Canceled) {
		t.Errorf("ended context: %v", err)
	}
	longest := audit.Record{Type: audit.Intent}
	longest.Error = strings.Repeat("x", audit.MaxRecord-400)
	mustAppend(t, l, longest)
	if l.Head().Seq != 1 {
		t.Errorf("a refused record took a number: %v", l.Head())
	}
	if _, err := audit.Open(t.Context(), audit.Options{Path: path}); !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), "another process") {
		t.Errorf("second opener: %v", err)
	}
	l.Close()
	if _, err := l.Append(t.Context(), intent(0)); !errdefs.IsUnavailable(err) {
		t.Errorf("append after close: %v", err)
	}
	mustHold(t, path, 1)
}

func TestOpenRefusesWidePermissions(t *testing.T) {
	for name, spoil := range map[string]func(path string) error{
		"directory": func(path string) error { return os.Chmod(filepath.Dir(path), 0o750) },
		"file":      func(path string) error { return os.Chmod(path, 0o640) },
		"symlink": func(path string) error {
			return errors.Join(os.Rename(path, path+".real"), os.Symlink(path+".real", path))
		},
		"fifo": func(path string) error { return errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600)) },
	} {
		t.Run(name, func(t *testing.T) {
			path := logPath(t)
			open(t, audit.Options{Path: path}).Close()
			if err := spoil(path); err != nil {
				t.Fatal(err)
			}
			if l, err := audit.Open(t.Context(), audit.Options{Path: path}); err == nil {
				l.Close()
				t.Error("opened")
			}
		})
	}
	if _, err := audit.Open(t.Context(), audit.Options{Path: "relative"}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("relative path: %v", err)
	}
}

func TestTornTailIsRepaired(t *testing.T) {
	whole := audit.Line(intent(0), strings.Repeat("0", 64), 1, time.Now())
	for name, tail := range map[string][]byte{
		"half a line":        whole[:len(whole)/2],
		"line less newline":  whole[:len(whole)-1],
		"zeros without end":  make([]byte, 3<<20),
		"behind a page":      append(make([]byte, 4096), "the rest of a line\n"...),
		"longer than a line": bytes.Repeat([]byte("x"), 3*audit.MaxRecord),
	} {
		for _, records := range []int{0, 1, 3} {
			t.Run(fmt.Sprintf("%s after %d", name, records), func(t *testing.T) {
				path := logPath(t)
				l := open(t, audit.Options{Path: path})
				for i := range records {
					mustAppend(t, l, intent(i))
				}
				l.Close()
				f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
				if err != nil {
					t.Fatal(err)
				}
				f.Write(tail)
				f.Close()
				if v, _ := audit.VerifyFile(t.Context(), path, audit.Head{}); v.Bad == nil {
					t.Error("verify did not see the torn tail")
				}
				l = open(t, audit.Options{Path: path, Room: 1 << 20})
				mustHold(t, path, int64(records+1))
				r, _ := audit.Decode(lines(t, path)[records])
				var m audit.Mended
				if err := json.Unmarshal(r.Data, &m); err != nil || r.Type != audit.Repair || m.CutBytes != int64(len(tail)) || len(m.CutSHA256) != 64 {
					t.Errorf("repair record %+v, %+v, %v", r, m, err)
				}
				mustAppend(t, l, intent(9))
				mustHold(t, path, int64(records+2))
			})
		}
	}
}

func TestDamageIsRefusedAndKeptAside(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(b []byte) []byte
	}{
		"last record edited": {func(b []byte) []byte {
			i := bytes.LastIndex(b, []byte("uid:1000"))
			b[i+4] = '9'
			return b
		}},
		"end cut off": {func(b []byte) []byte { return b[:bytes.LastIndexByte(b[:len(b)-1], '\n')+1] }},
		"emptied":     {func([]byte) []byte { return nil }},
		"replaced": {func([]byte) []byte {
			var out []byte
			prev := strings.Repeat("0", 64)
			for i := range 5 {
				line := audit.Line(intent(i+100), prev, int64(i+1), time.Now())
				prev = string(line[9:73])
				out = append(out, line...)
			}
			return out
		}},
		"torn behind an edit": {func(b []byte) []byte {
			i := bytes.LastIndex(b, []byte("uid:1000"))
			b[i+4] = '9'
			return append(b, "torn"...)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			path := logPath(t)
			l := open(t, audit.Options{Path: path})
			for i := range 5 {
				mustAppend(t, l, intent(i))
			}
			mark, err := l.Mark()
			if err != nil {
				t.Fatal(err)
			}
			l.Close()
			b, _ := os.ReadFile(path)
			spoiled := c.spoil(b)
			if err := os.WriteFile(path, spoiled, 0o600); err != nil {
				t.Fatal(err)
			}
			o := audit.Options{Path: path, Since: mark}
			_, err = audit.Open(t.Context(), o)
			if !errors.Is(err, audit.ErrDamaged) || !errdefs.IsDataLoss(err) || !strings.Contains(err.Error(), "audit verify") {
				t.Fatalf("open of a damaged log: %v", err)
			}
			if now, _ := os.ReadFile(path); !bytes.Equal(now, spoiled) {
				t.Fatal("a refused log was changed")
			}
			o.AcceptDamage = true
			l = open(t, o)
			mustAppend(t, l, intent(0))
			mustHold(t, path, 2)
			kept, _ := filepath.Glob(path + ".damaged-*")
			if len(kept) != 1 {
				t.Fatalf("kept aside: %v", kept)
			}
			if now, _ := os.ReadFile(kept[0]); !bytes.Equal(now, spoiled) {
				t.Error("the log kept aside was changed")
			}
			r, _ := audit.Decode(lines(t, path)[0])
			var m audit.Mended
			if err := json.Unmarshal(r.Data, &m); err != nil || r.Type != audit.Repair || m.SetAside != kept[0] || m.Damage == "" {
				t.Errorf("repair record %+v", r)
			}
		})
	}
}
