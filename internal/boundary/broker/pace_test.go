package broker_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/broker"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
)

// TestPaceOfCreation: create and destroy in a loop spend ids no faster than the settings say, and a
// new start of the broker changes nothing about that.
func TestPaceOfCreation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir, h := t.TempDir(), newHost()
		s := testSettings()
		s.CreateBurst, s.CreatePerHour = 5, 60
		open := func() *broker.Lifecycle { return lifecycleWith(t, dir, h, s) }
		l := open()
		n := 0
		loop := func() (made int, err error) {
			for {
				n++
				p := wanted(id.Workspace(fmt.Sprintf("cbt-%08x", n)), workspace.DefaultLimits)
				if _, err := l.Create(t.Context(), p, nil); err != nil {
					return made, err
				}
				made++
				if _, err := l.Create(t.Context(), p, nil); err != nil { // it is there: nothing is spent
					t.Fatal(err)
				}
				if _, err := l.Destroy(t.Context(), brokerapi.DestroyParams{Name: p.Name, Purge: true}); err != nil {
					t.Fatal(err)
				}
			}
		}
		expect := func(what string, want int, wait string) {
			t.Helper()
			h.reset()
			made, err := loop()
			if made != want || !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "try again in "+wait) ||
				!strings.Contains(err.Error(), "create_per_hour") {
				t.Errorf("%s: %d were made, then %v", what, made, err)
			}
		}
		expect("at first", 5, "1m0s")
		<-time.After(30 * time.Second)
		expect("half a minute later", 0, "30s")
		<-time.After(31 * time.Second)
		expect("a minute later", 1, "")
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		l = open()
		expect("after a new start", 0, "")
		h.set("AddUser", errPlanted) // what fails has spent ids too
		<-time.After(2 * time.Minute)
		for range 2 {
			n++
			if _, err := l.Create(t.Context(), wanted(id.Workspace(fmt.Sprintf("cbt-%08x", n)), workspace.DefaultLimits), nil); err == nil {
				t.Error("created")
			}
		}
		h.set("AddUser", nil)
		expect("after two that failed", 0, "")
		<-time.After(24 * time.Hour)
		expect("a day later", 5, "1m0s")
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		// The clock, or the burst, was another: at worst the bucket is empty.
		s.CreateBurst = 2
		l = open()
		expect("with a smaller burst", 0, "1m0s")
		<-time.After(time.Minute)
		expect("and a minute later", 1, "1m0s")
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		s.CreatePerHour = 0 // as for a user's own workspaces
		l = open()
		for range 20 {
			n++
			if _, err := l.Create(t.Context(), wanted(id.Workspace(fmt.Sprintf("cbt-%08x", n)), workspace.DefaultLimits), nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestPaceLeavesIDsForMonths is the arithmetic of the defaults.
func TestPaceLeavesIDsForMonths(t *testing.T) {
	s, err := broker.ParseSettings([]byte(`{"daemon_uid":65431}`))
	if err != nil {
		t.Fatal(err)
	}
	const month = 30 * 24
	if spent := 3 * (s.CreateBurst + month*s.CreatePerHour); spent > int(s.UIDCount)/7 {
		t.Errorf("a loop spends %d of %d ids in a month", spent, s.UIDCount)
	}
	if s.CreateBurst < s.MaxWorkspaces {
		t.Errorf("%d workspaces may live and only %d be restored at once", s.MaxWorkspaces, s.CreateBurst)
	}
}
