package recorder_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carrel-dev/carrel/internal/egress/ways/recorder"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// log keeps records. A held one waits.
type log struct {
	hold sync.Mutex
	all  []audit.Record
	err  error
}

func (l *log) AppendAsync(r audit.Record) error {
	l.hold.Lock()
	defer l.hold.Unlock()
	l.all = append(l.all, r)
	return l.err
}

type data struct {
	Host          string `json:"host"`
	Count         int64  `json:"count"`
	ReceivedBytes int64  `json:"received_bytes"`
	Untold        *struct {
		Connections   int64 `json:"connections"`
		ReceivedBytes int64 `json:"received_bytes"`
	} `json:"untold"`
}

// sum returns how many records there are, and how many connections and bytes they stand for.
func (l *log) sum(t *testing.T) (records int, connections, received int64) {
	t.Helper()
	for _, r := range l.all {
		var d data
		if err := json.Unmarshal(r.Data, &d); err != nil {
			t.Fatal(err)
		}
		if r.Type != audit.Connection || r.Workspace != "ws-00000001" || r.Principal != "system" {
			t.Errorf("%+v", r)
		}
		connections += d.Count
		received += d.ReceivedBytes
		if d.Untold != nil {
			connections += d.Untold.Connections
			received += d.Untold.ReceivedBytes
		}
	}
	return len(l.all), connections, received
}

// However many connections there are, and however slow the disk is, the records are few, nobody waits, and every
// connection is counted.
func TestEveryConnectionIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &log{}
		r := recorder.New(recorder.Config{
			Log: l, Principal: "system", Workspace: "ws-00000001", Trouble: func(err error) { t.Error(err) },
		})
		const many = 5000
		l.hold.Lock()
		for range many {
			r.Connection(egressapi.Connection{Host: "a.example.org", Count: 1, ReceivedBytes: 3}) // would never return if it waited
		}
		l.hold.Unlock()
		synctest.Wait()
		if n, _, _ := l.sum(t); n < 250 || n > 400 {
			t.Errorf("%d records at once", n)
		}
		for i := range many {
			r.Connection(egressapi.Connection{Host: fmt.Sprintf("h%d.example.org", i%40), Port: 443, Refused: "no", Count: 2})
			synctest.Wait()
		}
		if n, _, _ := l.sum(t); n > 400 {
			t.Errorf("%d records", n)
		}
		time.Sleep(61 * time.Second) //nolint:forbidigo // the test's own time
		synctest.Wait()
		n, connections, received := l.sum(t)
		if n > 401 || connections != 3*many || received != 3*many {
			t.Errorf("%d records of %d connections and %d bytes", n, connections, received)
		}
		var d struct {
			Host   *string `json:"host"`
			Untold struct {
				Refused int64 `json:"refused"`
				Hosts   []struct {
					Host        string `json:"host"`
					Connections int64  `json:"connections"`
				} `json:"hosts"`
			} `json:"untold"`
		}
		last := l.all[len(l.all)-1]
		if err := json.Unmarshal(last.Data, &d); err != nil || d.Host != nil || d.Untold.Refused < 2*many-800 || len(d.Untold.Hosts) != 16 ||
			d.Untold.Hosts[0].Host != "a.example.org" || d.Untold.Hosts[0].Connections == 0 || last.Status != audit.StatusOK {
			t.Errorf("%s, %v", last.Data, err)
		}
		r.Close()
		if len(l.all) != n {
			t.Errorf("%d records after the end", len(l.all))
		}
	})
}

// A workspace that connects in a loop for a day writes little.
func TestLoopOfADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &log{}
		r := recorder.New(recorder.Config{
			Log: l, Principal: "system", Workspace: "ws-00000001", Trouble: func(err error) { t.Error(err) },
		})
		for range 24 * 60 * 60 {
			for range 5 {
				r.Connection(egressapi.Connection{Host: "a.example.org", Port: 443, Count: 1})
			}
			time.Sleep(time.Second) //nolint:forbidigo // the test's own time
		}
		r.Close()
		bytes := 0
		for _, one := range l.all {
			bytes += len(one.Data) + 700 // and what is around it
		}
		if _, connections, _ := l.sum(t); connections != 5*24*60*60 || bytes > 50<<20 {
			t.Errorf("%d connections are %d bytes of record", connections, bytes)
		}
	})
}

// The last connections are summed up at the end.
func TestRestIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &log{}
		r := recorder.New(recorder.Config{
			Log: l, Principal: "system", Workspace: "ws-00000001", Trouble: func(err error) { t.Error(err) },
		})
		for range 450 {
			r.Connection(egressapi.Connection{Host: "a.example.org", Count: 1, ReceivedBytes: 1})
			synctest.Wait()
		}
		r.Close()
		if n, connections, received := l.sum(t); n != 401 || connections != 450 || received != 450 {
			t.Errorf("%d records of %d connections and %d bytes", n, connections, received)
		}
	})
}

// A record that cannot be written is told.
func TestTrouble(t *testing.T) {
	var told []error
	l := &log{err: errors.New("no room")}
	r := recorder.New(recorder.Config{
		Log: l, Principal: "system", Workspace: "ws-00000001", Trouble: func(err error) { told = append(told, err) },
	})
	r.Connection(egressapi.Connection{Host: "a.example.org", Count: 1})
	r.Close()
	if len(told) != 1 || !errors.Is(told[0], l.err) {
		t.Errorf("%v", told)
	}
}
