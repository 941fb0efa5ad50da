package acp_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carrel-dev/carrel/internal/surface/acp"
	"github.com/carrel-dev/carrel/internal/wire/linerpc"
)

// An editor that goes away ends the turn, and carrel with it.
func TestTheEditorGoes(t *testing.T) {
	begun, ended := make(chan struct{}), make(chan struct{})
	a := &agent{prompt: func(ctx context.Context, _ acp.Prompt, _ *acp.Turn) error {
		close(begun)
		<-ctx.Done()
		close(ended)
		return context.Cause(ctx)
	}}
	p := serve(t, a)
	p.send("session/prompt", prompt(p.begin(), "do it"))
	<-begun
	_ = p.in.Close()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("the turn goes on")
	}
	if err := <-p.end; err != nil {
		t.Error(err)
	}
}

// An editor that reads nothing holds up the end of carrel for five seconds, and no longer.
func TestAnEditorThatReadsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, feed := io.Pipe()
		out, w := io.Pipe()
		ctx, cancel := context.WithCancel(t.Context())
		a := &agent{prompt: func(_ context.Context, _ acp.Prompt, to *acp.Turn) error { return to.Words("well") }}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			id := func() string { return "s1" }
			_ = acp.Serve(ctx, "1.2.3", id, func(context.Context, string, string, bool) (acp.Session, error) { return a, nil }, in, w)
		}()
		p := &peer{t: t, in: feed}
		r := linerpc.NewReader(out)
		p.send("session/new", map[string]any{"cwd": "/project"})
		m, err := r.Read()
		var s struct {
			ID string `json:"sessionId"`
		}
		if err = errors.Join(err, json.Unmarshal(m.Result, &s)); err != nil {
			t.Fatal(err)
		}
		p.send("session/prompt", prompt(s.ID, "do it"))
		synctest.Wait() // it writes, and nobody reads
		begin := time.Now()
		cancel()
		<-ended
		if took := time.Since(begin); took != 5*time.Second {
			t.Errorf("it took %v", took)
		}
		_, _ = feed.Close(), out.Close()
		synctest.Wait()
	})
}
