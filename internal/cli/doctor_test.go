package cli_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/probe"
	"github.com/carrel-dev/carrel/internal/cli"
	"github.com/carrel-dev/carrel/internal/linux/pidfd"
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

func TestDoctorText(t *testing.T) {
	long := strings.Repeat("word ", 40)
	checks := []probe.Result{
		{ID: "root", Required: true, State: probe.No, Found: "uid 1000", Needed: "x", Remedy: "sudo"},
		{ID: "seen", Required: true, Rootless: true, State: probe.Yes, Found: "found it"},
		{ID: "landlock", Required: true, Rootless: true, State: probe.No, Found: long, Needed: "y", Remedy: "reboot"},
		{ID: "optional", State: probe.Partly, Found: "\x1b[31m", Needed: "z", Remedy: "printf '" + long + "' > f"},
	}
	text := cli.DoctorText(checks, false)
	if !strings.Contains(text, "Do: printf '"+long+"' > f\n") {
		t.Errorf("a command cannot be pasted:\n%s", text)
	}
	for line := range strings.Lines(text) {
		if strings.Contains(line, "Do: printf") {
			continue
		}
		if n := len(strings.TrimSuffix(line, "\n")); n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	for _, want := range []string{
		"no        landlock\n", "needed for y\n", "Do: reboot", `\x1b[31m`, "1 of 4 checks met; -v shows them.",
		"With root (carrel up):      does not work here: landlock\n", "Without root (carrel run):  does not work here: landlock\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("it does not say %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "found it") {
		t.Errorf("it prints what is met:\n%s", text)
	}
	text = cli.DoctorText(checks[:2], true)
	// Whether the caller is root says nothing about the host.
	if !strings.Contains(text, "found it") || strings.Count(text, "works here\n") != 2 {
		t.Errorf("with -v:\n%s", text)
	}
	if text = cli.DoctorText(checks[1:2], false); !strings.HasPrefix(text, "1 of 1 check met") {
		t.Errorf("one check:\n%s", text)
	}
}

func TestDoctorOnTheBroker(t *testing.T) {
	runtime := t.TempDir()
	note := func(name string, pid int) {
		t.Helper()
		began, err := pidfd.StartTime(pid)
		if err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf(`{"pid":%d,"start_time":%d}`, pid, began)
		if err := os.WriteFile(filepath.Join(runtime, name+".pid"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if r, ok := cli.BrokerOf(t.Context(), runtime); ok {
		t.Errorf("nothing is up: %+v", r)
	}
	note("daemon", os.Getpid())
	if r, ok := cli.BrokerOf(t.Context(), runtime); !ok || r.State != probe.No || !strings.Contains(r.Remedy, "carrel up --detach --data") {
		t.Errorf("only the daemon runs: %+v", r)
	}
	note("broker", os.Getpid())
	if r, ok := cli.BrokerOf(t.Context(), runtime); !ok || r.State != probe.Yes {
		t.Errorf("both run: %+v", r)
	}
}

func TestDoctorOnTheVersion(t *testing.T) {
	r := probe.Result{State: probe.Yes, Found: "answers"}
	if got := cli.SameVersion(r, "v1.0.0", "v1.0.0"); got != r {
		t.Errorf("of the same version: %+v", got)
	}
	got := cli.SameVersion(r, "v1.0.0", "v1.1.0")
	if got.State != probe.Partly || got.Found != "answers; it is v1.0.0, and this program is v1.1.0" {
		t.Errorf("of another version: %+v", got)
	}
}

func TestLiveUnits(t *testing.T) {
	for answer, want := range map[string]string{
		"inactive\ninactive\ninactive\n":     "",
		"":                                   "",
		"active\nactive\nactive\n":           "carrel-broker.service carreld.socket carreld.service",
		"failed\nactive\nactivating\n":       "carreld.socket carreld.service",
		"deactivating\nunknown\ninactive\n":  "carrel-broker.service",
		"active\nactive\nactive\nactive\n\n": "carrel-broker.service carreld.socket carreld.service",
	} {
		if got := strings.Join(cli.LiveUnits(answer), " "); got != want {
			t.Errorf("%q: %q, want %q", answer, got, want)
		}
	}
}
