package audit_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/carrel-dev/carrel/internal/state/audit"
)

// Several logs of one file, as in several processes, make one chain.
func TestShared(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit", "audit.jsonl")
	const writers, each = 8, 10
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			s := audit.OpenShared(path)
			for range each {
				seq, err := s.Append(t.Context(), audit.Record{Type: audit.Intent, Workspace: "run-01234567"})
				if err != nil {
					t.Error(err)
					return
				}
				if err := s.AppendAsync(audit.Record{Type: audit.Outcome, Intent: seq, Status: audit.StatusOK}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	v, err := audit.VerifyFile(t.Context(), path, audit.Head{})
	if err != nil || v.Bad != nil || v.Records != 2*writers*each {
		t.Errorf("%+v, %v", v, err)
	}
	s := audit.OpenShared(path)
	if open, err := s.Unfinished(t.Context()); err != nil || len(open) != 0 {
		t.Errorf("%v, %v", open, err)
	}
	if _, err := s.Append(t.Context(), audit.Record{Type: audit.Intent, Workspace: "run-89abcdef"}); err != nil {
		t.Fatal(err)
	}
	if open, err := s.Unfinished(t.Context()); err != nil || len(open) != 1 || open[0].Workspace != "run-89abcdef" {
		t.Errorf("%v, %v", open, err)
	}

	// A half-written line is cut off and recorded.
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteString(`{"hash":"torn`)
	f.Close()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Append(t.Context(), audit.Record{Type: audit.Intent}); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil || strings.Count(string(b), `"type":"repair"`) != 1 {
		t.Errorf("no repair is recorded: %v", err)
	}
	if v, err := audit.VerifyFile(t.Context(), path, audit.Head{}); err != nil || v.Bad != nil {
		t.Errorf("%+v, %v", v, err)
	}

	// A changed record stops every further append.
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(string(b), "run-89abcdef", "run-89abcdee")[:len(b)-2]+"x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Append(t.Context(), audit.Record{Type: audit.Intent}); err == nil {
		t.Error("a damaged chain goes on")
	}
	// So does a file that others may read.
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Append(t.Context(), audit.Record{Type: audit.Intent}); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a record that others may read: %v", err)
	}
}
