package begin_test

import (
	"encoding/json"
	"testing"

	"github.com/carrel-dev/carrel/internal/egressapi"
	"github.com/carrel-dev/carrel/internal/egressapi/begin"
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
