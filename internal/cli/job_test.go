package cli_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// madeJob is a job as it is on the disk, which nobody supervises. end is "" if it has none.
func madeJob(t *testing.T, dir, id, more, end string) {
	t.Helper()
	at := filepath.Join(dir, id)
	if err := os.MkdirAll(at, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"lock": "", "end.json": end, "stdout.0": "out\x1b[2J\n", "stderr.0": "err\n",
		"job.json": fmt.Sprintf(`{"id":%q,"argv":["/bin/sh","-c","make %s"],"limit_ms":3600000,"began":%q%s}`, id, id[2:4],
			time.Now().Add(-2*time.Hour).Format(time.RFC3339), more),
	} {
		if text == "" && name != "lock" {
			continue
		}
		if err := os.WriteFile(filepath.Join(at, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// Jobs are listed, shown, read and removed by their directories, without a daemon.
func TestJobCommands(t *testing.T) {
	state := t.TempDir()
	t.Setenv("XDG_STATE_HOME", state)
	dir := filepath.Join(state, "carrel", "jobs")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	const ended, lost, away = "c-aa00000000000000", "c-bb00000000000000", "c-cc00000000000000"
	madeJob(t, dir, ended, "", `{"code":3,"at":"`+time.Now().Format(time.RFC3339)+`"}`)
	madeJob(t, dir, lost, "", "")
	madeJob(t, dir, away, `,"host":"web-1","inventory":"/nonexistent/hosts.yaml"`, "")
	r := run(t, "", "job", "ls")
	if r.code != 0 || !strings.Contains(r.out, ended+"  exited 3  host") || !strings.Contains(r.out, lost+"  lost") ||
		!strings.Contains(r.out, "unknown   remote web-1") || !strings.Contains(r.out, "2h") || !strings.Contains(r.out, "make aa") {
		t.Errorf("%+v", r)
	}
	var list []map[string]any
	if r := run(t, "", "job", "ls", "-o", "json"); r.code != 0 || json.Unmarshal([]byte(r.out), &list) != nil || len(list) != 3 {
		t.Errorf("%+v", r)
	}
	for id, want := range map[string]string{ended: "exited 3", lost: "was killed", away: "cannot be asked"} {
		if r := run(t, "", "job", "show", id); r.code != 0 || !strings.Contains(r.out, want) {
			t.Errorf("%s: %+v", id, r)
		}
		if r := run(t, "", "__complete", "job", "show", ""); !strings.Contains(r.out, id+"\t") {
			t.Errorf("%+v", r)
		}
	}
	if r := run(t, "", "job", "output", "--follow", ended); r.code != 0 || r.out != "out\x1b[2J\n" || r.err != "err\n" {
		t.Errorf("%+v", r)
	}
	for args, want := range map[string]string{
		"rm " + away: "cannot be asked", "stop " + away: "cannot be asked", "rm c-1": "the id of a job",
		"show c-dd00000000000000": "carrel job ls",
		"output " + away:          "cannot read the output", "again": "job has ls",
	} {
		if r := run(t, "", append([]string{"job"}, strings.Fields(args)...)...); r.code == 0 || !strings.Contains(r.err, want) {
			t.Errorf("%s: %+v", args, r)
		}
	}
	for _, id := range []string{ended, lost} {
		if r := run(t, "", "job", "rm", id); r.code != 0 {
			t.Errorf("%+v", r)
		}
	}
	if r := run(t, "", "job", "ls", "-o", "json"); strings.Count(r.out, `"id"`) != 1 {
		t.Errorf("%+v", r)
	}
}
