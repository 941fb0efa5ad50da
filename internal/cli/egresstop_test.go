package cli_test

import (
	"testing"
	"time"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/cli"
)

// Rates are of what passes, whether a connection goes on, ends or begins between two measurements.
func TestHostsSeen(t *testing.T) {
	conn := func(number, sent, received int64) *carrelv1.Connection {
		return &carrelv1.Connection{Number: number, Host: "a.example", Port: 443, SentBytes: sent, ReceivedBytes: received, Count: 1}
	}
	take := cli.HostsSeen()
	now := time.Unix(1000, 0)
	type list = []*carrelv1.Connection
	refused := conn(6, 0, 0)
	refused.Refused, refused.Count = "no rule", 7
	for _, x := range []struct {
		what        string
		open, ended list
		want        string
	}{
		{"at first", list{conn(0, 100, 1000)}, list{conn(4, 10, 10)}, "open 1 ended 1 refused 0 sent 110 +0 received 1010 +0, newest 4"},
		{"while it goes on", list{conn(0, 300, 5000)}, nil, "open 1 ended 1 refused 0 sent 310 +100 received 5010 +2000, newest 4"},
		{"another", list{conn(0, 1, 1)}, list{conn(5, 400, 5000)}, "open 1 ended 2 refused 0 sent 411 +50.5 received 5011 +0.5, newest 5"},
		{"when that has ended untold", nil, nil, "open 0 ended 2 refused 0 sent 410 +0 received 5010 +0, newest 5"},
		{"after refusals", nil, list{refused}, "open 0 ended 2 refused 7 sent 410 +0 received 5010 +0, newest 6 no rule"},
	} {
		if got := take("a.example:443", &carrelv1.ListConnectionsResponse{Open: x.open, Ended: x.ended}, now); got != x.want {
			t.Errorf("%s: %s, want %s", x.what, got, x.want)
		}
		now = now.Add(2 * time.Second)
	}
}
