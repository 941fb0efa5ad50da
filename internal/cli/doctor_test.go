package cli_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/cli"
	"github.com/carrel-dev/carrel/internal/sandbox/probe"
)

func TestIDsLeft(t *testing.T) {
	const first, count = 1000, 300
	workspace := func(agent int) string {
		return fmt.Sprintf(`{"pace_ms":1,"workspace":{"name":"ws-00000000","ids":{"executor":%d,"work":%d,"agent":%d}}}`+"\n",
			agent-2, agent-1, agent)
	}
	for _, c := range []struct {
		ledger, found string
		state         probe.State
	}{
		{"", "300 of 300", probe.Yes},
		{workspace(1002), "297 of 300", probe.Yes},
		{workspace(1269) + workspace(1005), "30 of 300", probe.Yes},
		{workspace(1272), "27 of 300", probe.Partly},
		{`{"next_uid":1290}` + "\n" + workspace(1005) + `{"workspace":{"na`, "10 of 300", probe.Partly},
		{workspace(1299), "0 of 300", probe.No},
		{workspace(5000), "0 of 300", probe.No}, // the range was another
	} {
		data := t.TempDir()
		if err := os.Mkdir(filepath.Join(data, "broker"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(data, "broker", "ledger.jsonl"), []byte(c.ledger), 0o600); err != nil {
			t.Fatal(err)
		}
		r, ok := cli.IDsLeft(data, first, count)
		if !ok || r.State != c.state || !strings.HasPrefix(r.Found, c.found) || (r.State == probe.Yes) != (r.Remedy == "") ||
			r.Remedy != "" && !strings.Contains(r.Remedy, "uid_count in "+data+"/broker.json") {
			t.Errorf("%q: %+v", c.ledger, r)
		}
	}
	if r, ok := cli.IDsLeft(t.TempDir(), first, count); ok {
		t.Errorf("without a ledger: %+v", r)
	}
}
