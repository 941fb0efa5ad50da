package begin_test

import (
	"context"
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/wire/egressapi"
	"github.com/carrel-dev/carrel/internal/wire/egressapi/begin"
)

// What this package says by itself is what package egressapi has.
func TestMessages(t *testing.T) {
	if begin.ControlFD != egressapi.ControlFD || begin.ControlFD+1 != egressapi.SocketsFD {
		t.Errorf("the control socket is %d, not %d", begin.ControlFD, egressapi.ControlFD)
	}
	var s egressapi.Setup
	if err := json.Unmarshal([]byte(begin.Setup), &s); err != nil || s.Check() != nil || len(s.Rules) != 0 {
		t.Errorf("%+v, %v, %v", s, err, s.Check())
	}
	b, err := json.Marshal(egressapi.Report{Ready: true})
	if err != nil || string(b)+"\n" != begin.Ready {
		t.Errorf("%s, %v", b, err)
	}
}

// A program that ends, or says nothing, is an error for who starts it and nothing worse: that is the broker.
func TestAProgramThatDoesNotServe(t *testing.T) {
	for _, path := range []string{"/bin/true", "/bin/cat"} {
		program, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer program.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		p, err := begin.Start(ctx, begin.Config{Program: program, Workspace: "ws-00000001"})
		if err == nil {
			p.Kill()
			t.Errorf("%s serves", path)
		}
	}
	program, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	if _, err := begin.Start(t.Context(), begin.Config{Program: program, Workspace: "ws-00000001"}); err == nil {
		t.Error("what is no program is started")
	}
}
