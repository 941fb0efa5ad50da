package report_test

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/test/bench/report"
)

// A reach must be able to be missed: each limit is tried from both sides.
func TestEveryReachCanBeMissed(t *testing.T) {
	for _, x := range report.Reaches {
		for _, side := range []struct {
			value   float64
			reached bool
		}{{x.Limit, true}, {x.Limit * 1.001, x.Least}, {x.Limit * 0.999, !x.Least}, {0, false}} {
			row := report.Row{ID: x.ID, Peer: x.Peer}
			switch x.Of {
			case report.Ratio:
				row.Ratio = side.value
			case report.P50:
				row.Ours.P50 = side.value
			case report.P99:
				row.Ours.P99 = side.value
			case report.More:
				row.Ours.P50, row.Other = side.value, &report.Stat{}
			}
			var r report.Result
			r.Add(row)
			i := slices.IndexFunc(r.Rows[0].Judged, func(j report.Judged) bool { return j.Limit == x.Limit })
			if i < 0 || r.Rows[0].Judged[i].Reached != side.reached || r.Rows[0].Judged[i].Value != side.value {
				t.Errorf("%+v with %v: judged %+v, want reached %v", x, side.value, r.Rows[0].Judged, side.reached)
			}
		}
	}
}

func TestOwnValueIsJudgedOnce(t *testing.T) {
	var r report.Result
	r.Add(report.Row{ID: report.Start, Peer: report.CrunRun, Ours: report.Stat{P50: 9}, Ratio: 1})
	r.Add(report.Row{ID: report.Start, Peer: report.RuncRun, Ours: report.Stat{P50: 9}, Ratio: 1})
	if len(r.Rows[0].Judged) != 1 || len(r.Rows[1].Judged) != 0 {
		t.Errorf("judged %v and %v, want the first row alone", r.Rows[0].Judged, r.Rows[1].Judged)
	}
}

// What was not measured must not look reached.
func TestUnjudgedNamesWhatIsMissing(t *testing.T) {
	var r report.Result
	if got := r.Unjudged(nil); len(got) != len(report.Reaches) {
		t.Errorf("%d of %d reaches are missing in an empty result", len(got), len(report.Reaches))
	}
	r.Add(report.Row{ID: report.Exec, Peer: report.Fork, Ratio: 1})
	want := []string{
		"exec beside the same steps, bare ratio ≤ 1.2", "exec beside bwrap --unshare-all ratio ≤ 0.45", "exec beside runc exec ratio ≤ 0.1",
	}
	if got := r.Unjudged([]string{"exec"}); !slices.Equal(got, want) {
		t.Errorf("missing %q, want %q", got, want)
	}
	if got := r.Unjudged([]string{"stream"}); len(got) != 2 {
		t.Errorf("missing %q, want both of the stream's", got)
	}
}

func TestTableAndJSON(t *testing.T) {
	r := report.Result{Schema: report.Schema, Commit: "0123abc", Quick: true, Machine: report.Machine{Idle: 1}}
	r.Add(report.Row{
		ID: report.Exec, Peer: report.Fork, Unit: "ms", Ratio: 3,
		Ours: report.Stat{Name: "warm exec", N: 10, P50: 1.2, P99: 30.25}, Other: &report.Stat{Name: report.Fork, N: 9, P50: 0.4, P99: 123},
	})
	r.Add(report.Row{
		ID: report.Exec, Peer: report.Runc, Unit: "ms", Ratio: 0.08, Ours: report.Stat{Name: "warm exec", P50: 1.2},
		Other: &report.Stat{Name: report.Runc, P50: 15},
	})
	r.Add(report.Row{ID: report.MemSlope, Unit: "KiB", Ours: report.Stat{Name: "slope", P50: 0.00123}})
	r.Add(report.Row{
		ID: report.StreamPipe, Peer: report.Cat, Unit: "GB/s", Ours: report.Stat{Name: "stdout", P50: 1},
		Other: &report.Stat{Name: report.Cat, P50: 4}, Ratio: 0.25,
	})
	r.Miss("crun exec", errors.New("there is none"))
	r.Remark("twice")
	r.Remark("twice")
	var b bytes.Buffer
	if err := r.Table(&b); err != nil {
		t.Fatal(err)
	}
	var rows []string
	for line := range strings.Lines(b.String()) {
		if strings.Contains(line, "ratio ") || strings.Contains(line, "slope") {
			rows = append(rows, strings.Join(strings.Fields(line), " "))
		}
	}
	want := []string{
		"warm exec 1.20 30.2 ms os/exec 0.400 123 3.00 ratio ≤ 2 NO",
		"1.20 – ms runc exec 15.0 – 0.08 ratio ≤ 0.1 yes",
		"slope 0.00123 – KiB",
		"stdout 1.00 – GB/s | cat 4.00 – 0.25 ratio ≥ 0.5 NO",
	}
	if !slices.Equal(rows, want) {
		t.Errorf("the table is\n%s\nwith rows %q, want %q", b.String(), rows, want)
	}
	for _, s := range []string{"not measured: crun exec: there is none", "note: twice"} {
		if strings.Count(b.String(), s) != 1 {
			t.Errorf("the table does not say %q once:\n%s", s, b.String())
		}
	}
	// What was measured on a busy machine is not to be quoted.
	b.Reset()
	r.Machine.Idle = 0.8
	if err := r.Table(&b); err != nil || strings.Count(b.String(), "NO?") != 2 || strings.Count(b.String(), "yes?") != 1 {
		t.Errorf("the verdicts on a busy machine are not in doubt, %v:\n%s", err, b.String())
	}
	b.Reset()
	if err := r.Markdown(&b); err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{
		"\n| warm exec | 1.20 | 30.2 | ms | os/exec |", "\n|  | 1.20 | – | ms | runc exec |", `| \| cat |`, "\n- twice\n",
	} {
		if !strings.Contains(b.String(), s) {
			t.Errorf("the document has no %q:\n%s", s, b.String())
		}
	}
	b.Reset()
	if err := r.JSON(&b); err != nil {
		t.Fatal(err)
	}
	back, err := report.Read(&b)
	if err != nil || len(back.Rows) != 4 || back.Rows[0].Judged[0].Reached {
		t.Errorf("read back %+v, %v", back, err)
	}
	if _, err := report.Read(strings.NewReader(`{"schema": 2}`)); err == nil {
		t.Error("a result of another schema was read")
	}
}

func TestMachine(t *testing.T) {
	m, err := report.ThisMachine(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if m.CPUs < 1 || m.MemoryMiB < 1 || m.Kernel == "" || m.FileSystem == "" || m.Idle < 0 || m.Idle > 1 {
		t.Errorf("found %+v", m)
	}
	m.CPU, m.CPUs = "Intel(R) Xeon(R) CPU E5-2680 @ 2.40GHz", 2
	if got, want := m.Label(), "intel-xeon-cpu-e5-2680-2.40ghz-2cpu"; got != want {
		t.Errorf("the label is %q, want %q", got, want)
	}
}
