package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/cli"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

var (
	root  = principal.Principal{Kind: principal.User, Admin: true}
	alice = principal.Principal{Kind: principal.User, UID: 1000, GID: 1000}
)

// serve serves a double as caller, names it in the environment, and makes "demo".
func serve(t *testing.T, caller principal.Principal) *apitest.Gate {
	t.Helper()
	g := &apitest.Gate{Verdict: api.AuditVerdict{OK: true, Bytes: 2048, Head: "abc"}}
	socket, _ := apitest.Serve(t, g, &caller, api.Options{Version: "v1.2.3"})
	t.Cleanup(g.Close)
	t.Setenv(carrel.HostEnv, "unix://"+socket)
	if r := run(t, "", "create", "demo"); r.code != 0 || r.out != "ws-2a97516c\n" {
		t.Fatalf("create: %+v", r)
	}
	return g
}

type result struct {
	code     int
	out, err string
}

// run runs a command line with stdin.
func run(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	dir := t.TempDir()
	open := func(name, content string) *os.File {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	s := cli.Streams{In: open("in", stdin), Out: open("out", ""), Err: open("err", "")}
	r := result{code: cli.Run(args, s)}
	for f, to := range map[*os.File]*string{s.Out: &r.out, s.Err: &r.err} {
		b, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		*to = string(b)
	}
	return r
}

func TestExec(t *testing.T) {
	g := serve(t, alice)
	t.Setenv("FROM_HERE", "here")
	for _, c := range []struct {
		args  string
		stdin string
		code  int
		out   string
		err   string
	}{
		{"exec demo echo hi", "", 0, "hi\n", ""},
		{"exec demo -- echo hi", "", 0, "hi\n", ""},
		{"exec ws-2a97516c -- echo -n x", "", 0, "x", ""},
		{"exec demo -- echo -- x", "", 0, "-- x\n", ""},
		{"exec demo cat", "unread", 0, "", ""},
		{"exec -i demo cat", "fed", 0, "fed", ""},
		{"exec -i demo true", "unread", 0, "", ""},
		{"exec demo sh -c 'exit 42'", "", 42, "", ""},
		{"exec demo sh -c 'echo no >&2; kill -9 $$'", "", 137, "", "^no\n$"},
		{"exec --env A=1=2 -e FROM_HERE -e NOT_SET_HERE demo sh -c 'echo $A $FROM_HERE ${NOT_SET_HERE-unset}'", "", 0, "1=2 here unset\n", ""},
		{"exec --cwd / demo pwd", "", 0, "/\n", ""},
		{"exec --timeout 20ms demo sleep 60", "", 137, "", "ended after its timeout of 20ms"},
		{"exec demo no-such-program", "", 127, "", `^carrel: cannot run "no-such-program": not found`},
		{"exec demo /etc/passwd", "", 126, "", `^carrel: cannot run "/etc/passwd"`},
		{"exec nope id", "", 125, "", `^carrel: cannot find workspace "nope"`},
		{"exec demo", "", 125, "", "COMMAND is missing\nRun \"carrel exec --help\""},
		{"exec demo --", "", 125, "", "COMMAND is missing"},
		{"exec", "", 125, "", "WORKSPACE is missing"},
		{"exec --frob demo id", "", 125, "", "cannot use --frob: carrel exec has no such flag"},
		{"exec --timeout -1s demo id", "", 125, "", "negative"},
		{"exec --timeout x demo id", "", 125, "", "cannot use --timeout \"x\": give a time with its unit"},
		{"exec -it demo id", "", 125, "", "stdin is not a terminal"},
		{"exec -i --detach demo id", "", 125, "", "cannot use -i with --detach"},
		{"exec -w / demo pwd", "", 0, "/\n", ""},
		{"exec -w / -- demo pwd", "", 0, "/\n", ""},
		{"exec -d -i demo id", "", 125, "", "cannot use -i with --detach"},
		{"exec --host tcp://x demo id", "", 125, "", "cannot use \"tcp://x\" as the host"},
		{"--host unix:///none exec demo id", "", 125, "", "cannot reach carrel at /none"},
		{"exec -t demo sh -c 'test -t 0 && test -t 1 && stty size'", "", 0, "24 80\r\n", ""},
	} {
		t.Run(c.args, func(t *testing.T) {
			r := run(t, c.stdin, words(c.args)...)
			if r.code != c.code || r.out != c.out || c.err == "" && r.err != "" || !regexp.MustCompile(c.err).MatchString(r.err) {
				t.Errorf("%+v, want code %d, out %q, err %q", r, c.code, c.out, c.err)
			}
		})
	}
	if g.Audited("unread") {
		t.Error("stdin is in the record")
	}
}

// words splits at spaces outside single quotes.
func words(s string) []string {
	var out []string
	for i, part := range strings.Split(s, "'") {
		if i%2 == 1 {
			out = append(out, part)
			continue
		}
		out = append(out, strings.Fields(part)...)
	}
	return out
}

func TestExecForwardsSignals(t *testing.T) {
	serve(t, alice)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		code := make(chan int, 1)
		go func() {
			// The trap shows that it is this signal; the word, that it is set.
			script := fmt.Sprintf("trap 'exit %d' %d; echo ready; while :; do sleep 0.01; done", 50+int(sig), int(sig))
			code <- cli.Run([]string{"exec", "demo", "sh", "-c", script}, cli.Streams{In: null, Out: w, Err: null})
			w.Close()
		}()
		if _, err := io.ReadFull(r, make([]byte, len("ready\n"))); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(os.Getpid(), sig); err != nil {
			t.Fatal(err)
		}
		if c := <-code; c != 50+int(sig) {
			t.Errorf("%v: exit code %d", sig, c)
		}
		r.Close()
		null.Close()
	}
}

// openTerminal returns both sides of a new terminal.
func openTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	m, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("skipped: no terminals here: %v", err)
	}
	master = os.NewFile(uintptr(m), "ptmx")
	t.Cleanup(func() { master.Close() })
	if err := unix.IoctlSetPointerInt(m, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(m, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slave.Close() })
	return master, slave
}

func TestExecOnATerminal(t *testing.T) {
	g := serve(t, alice)
	master, slave := openTerminal(t)
	fd := int(slave.Fd())
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 31, Col: 71}); err != nil {
		t.Fatal(err)
	}
	before, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	code := make(chan int, 1)
	go func() {
		code <- cli.Run(
			[]string{"exec", "-it", "demo", "sh", "-c", "stty size; read x; echo got $x; exit 9"}, cli.Streams{In: slave, Out: slave, Err: slave},
		)
	}()
	var seen bytes.Buffer
	until := func(text string) {
		t.Helper()
		buf := make([]byte, 1024)
		for !strings.Contains(seen.String(), text) {
			n, err := master.Read(buf)
			if err != nil {
				t.Fatalf("%v after %q", err, seen.String())
			}
			seen.Write(buf[:n])
		}
	}
	until("31 71\r\n")
	during, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil || during.Lflag&unix.ICANON != 0 {
		t.Errorf("the terminal is not raw: %+v, %v", during, err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 32, Col: 72}); err != nil {
		t.Fatal(err)
	}
	// The test is not in the terminal's foreground group, so it stands in for the kernel.
	if err := syscall.Kill(os.Getpid(), syscall.SIGWINCH); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := g.Await(ctx, func(_ execapi.ExecParams, r execapi.ResizeParams) bool { return r.Rows == 32 && r.Cols == 72 }); err != nil {
		t.Errorf("resized to %+v: %v", g.Resized(), err)
	}
	if _, err := master.WriteString("keys\r"); err != nil {
		t.Fatal(err)
	}
	until("got keys\r\n")
	if c := <-code; c != 9 {
		t.Errorf("exit code %d", c)
	}
	after, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil || *after != *before {
		t.Errorf("the terminal was not restored: %+v, was %+v (%v)", after, before, err)
	}
}

func TestDetachedCommands(t *testing.T) {
	serve(t, alice)
	r := run(t, "", "exec", "--detach", "demo", "--", "sh", "-c", "echo 'out put'; exit 6")
	cmd := strings.TrimSpace(r.out)
	if r.code != 0 || !regexp.MustCompile(`^c-[0-9a-f]{16}$`).MatchString(cmd) {
		t.Fatalf("exec --detach: %+v", r)
	}
	if r := run(t, "", "attach", "demo", cmd); r.code != 6 || r.out != "out put\n" {
		t.Errorf("attach: %+v", r)
	}
	if r := run(t, "", "logs", "demo", cmd); r.code != 0 || r.out != "out put\n" {
		t.Errorf("logs: %+v", r)
	}
	if r := run(t, "", "ps", "demo"); r.code != 0 || !strings.Contains(r.out, cmd) || !strings.Contains(r.out, "exit 6") ||
		!strings.Contains(r.out, `sh -c 'echo '\''out put`) {
		t.Errorf("ps: %+v", r)
	}
	r = run(t, "", "exec", "--detach", "-o", "json", "demo", "--", "sleep", "60")
	var started struct {
		CommandID string `json:"command_id"`
	}
	if err := json.Unmarshal([]byte(r.out), &started); err != nil || started.CommandID == "" {
		t.Fatalf("exec --detach -o json: %+v", r)
	}
	if r := run(t, "", "kill", "-s", "USR1", "demo", started.CommandID); r.code != 0 {
		t.Errorf("kill: %+v", r)
	}
	if r := run(t, "", "attach", "demo", started.CommandID); r.code != 138 {
		t.Errorf("attach to a killed command: %+v", r)
	}
	var list []map[string]any
	r = run(t, "", "ps", "-o", "json", "demo")
	if err := json.Unmarshal([]byte(r.out), &list); err != nil || len(list) != 2 || list[1]["status"].(map[string]any)["code"] != 138.0 {
		t.Errorf("ps -o json: %+v", r)
	}
	for _, c := range [][]string{
		{"kill", "-s", "NOPE", "demo", cmd}, {"kill", "demo"}, {"kill", "demo", "c-1"}, {"logs", "demo", "c-0000000000000000"},
	} {
		if r := run(t, "", c...); r.code != 1 || !strings.HasPrefix(r.err, "carrel: cannot ") {
			t.Errorf("%q: %+v", c, r)
		}
	}
}

func TestWorkspaceCommands(t *testing.T) {
	serve(t, alice)
	if r := run(t, "", "create", "demo"); r.code != 0 || r.out != "ws-2a97516c\n" {
		t.Errorf("create again: %+v", r)
	}
	if r := run(t, "", "ls"); r.code != 0 || !strings.Contains(r.out, "ws-2a97516c  demo  running  uid:1000  1 GiB") ||
		strings.Contains(r.out, "\x1b") {
		t.Errorf("ls: %+v", r)
	}
	if r := run(t, "", "ls", "-q"); r.out != "ws-2a97516c\n" {
		t.Errorf("ls -q: %+v", r)
	}
	var w map[string]any
	r := run(t, "", "inspect", "-o", "json", "demo")
	if err := json.Unmarshal([]byte(r.out), &w); err != nil {
		t.Fatalf("inspect: %+v: %v", r, err)
	}
	for _, k := range []string{"name", "key", "owner", "user", "uid", "home", "state", "root", "boundary", "limits", "controls"} {
		if _, ok := w[k]; !ok {
			t.Errorf("inspect -o json has no %q", k)
		}
	}
	control := w["controls"].([]any)[1].(map[string]any)
	for k, v := range map[string]any{
		"id": "disk", "requested": true, "state": "unavailable", "evidence": "no quota", "remedy": "mount with prjquota",
	} {
		if control[k] != v {
			t.Errorf("control %s is %v, want %v", k, control[k], v)
		}
	}
	if r := run(t, "", "inspect", "-v", "demo"); !strings.Contains(r.out, "\nverified  user_namespace\n        unshare: ENOSPC\n") {
		t.Errorf("inspect -v: %+v", r)
	}
	r = run(t, "", "inspect", "demo")
	if !strings.Contains(r.out, "1 verified, 1 unavailable; -v shows the evidence\n") || strings.Contains(r.out, "ENOSPC") ||
		!strings.HasSuffix(r.out, "\nunavailable  disk\n        no quota\n        Do: mount with prjquota\n") {
		t.Errorf("inspect: %+v", r)
	}
	if r := run(t, "", "create", "--memory", "256MiB", "--pids", "200", "--no-start", "other"); r.code != 0 {
		t.Errorf("create: %+v", r)
	}
	r = run(t, "", "inspect", "-o", "json", "other")
	if err := json.Unmarshal([]byte(r.out), &w); err != nil || w["limits"].(map[string]any)["memory_bytes"] != 268435456.0 ||
		w["state"] != "stopped" {
		t.Errorf("inspect other: %+v", r)
	}
	if r := run(t, "", "update", "--host", os.Getenv(carrel.HostEnv), "-o", "json", "other"); r.code != 1 ||
		!strings.Contains(r.err, "nothing is to change") {
		t.Errorf("update of nothing: %+v", r)
	}
	if r := run(t, "", "update", "--pids", "300", "other"); r.code != 0 {
		t.Errorf("update: %+v", r)
	}
	dir := t.TempDir()
	if err := os.Mkdir(dir+"/a:b", 0o700); err != nil {
		t.Fatal(err)
	}
	if r := run(t, "", "create", "-v", dir+":/workspace:rw", "--volume", dir+"/a:b:~/b:ro", "mounted"); r.code != 0 {
		t.Errorf("create -v: %+v", r)
	}
	r = run(t, "", "inspect", "-o", "json", "mounted")
	if err := json.Unmarshal([]byte(r.out), &w); err != nil || len(w["mounts"].([]any)) != 2 {
		t.Fatalf("inspect: %+v: %v", r, err)
	}
	for k, v := range map[string]any{"source": dir + "/a:b", "destination": "~/b", "read_only": true, "owner_uid": 0.0} {
		if got := w["mounts"].([]any)[1].(map[string]any)[k]; got != v {
			t.Errorf("%s of a mount is %v, want %v", k, got, v)
		}
	}
	if r := run(t, "", "inspect", "mounted"); !strings.Contains(r.out, dir+" at /workspace, read-write") ||
		!strings.Contains(r.out, "at ~/b, read-only") {
		t.Errorf("inspect: %+v", r)
	}
	for _, bad := range []string{"", ":", "a", "a:", ":/b", ":ro", "a:ro"} {
		if r := run(t, "", "create", "-v", bad, "no"); r.code == 0 || !strings.Contains(r.err, "write it SRC:DST") {
			t.Errorf("-v %q: %+v", bad, r)
		}
	}
	if r := run(t, "", "destroy", "--purge", "mounted"); r.code != 0 {
		t.Errorf("destroy: %+v", r)
	}
	if r := run(t, "", "create", "short"); r.code != 0 {
		t.Errorf("create: %+v", r)
	}
	if r := run(t, "", "rm", "--purge", "short"); r.code != 0 || r.out != "" {
		t.Errorf("rm: %+v", r)
	}
	if r := run(t, "", "inspect", "short"); r.code != 1 {
		t.Errorf("inspect after rm: %+v", r)
	}
	for _, c := range [][]string{{"stop", "demo"}, {"start", "demo", "other"}, {"stop", "-o", "json", "demo"}} {
		if r := run(t, "", c...); r.code != 0 {
			t.Errorf("%q: %+v", c, r)
		}
	}
	if r := run(t, "", "destroy", "demo"); r.code != 0 || r.out != "/var/lib/carrel/retained/ws-2a97516c\n" {
		t.Errorf("destroy: %+v", r)
	}
	if r := run(t, "", "destroy", "--purge", "other"); r.code != 0 || r.out != "" {
		t.Errorf("destroy --purge: %+v", r)
	}
	if r := run(t, "", "ls", "-o", "json"); strings.TrimSpace(r.out) != "[]" {
		t.Errorf("ls of none: %+v", r)
	}
}

func TestAudit(t *testing.T) {
	g := serve(t, root)
	if r := run(t, "", "audit", "verify"); r.code != 0 || !strings.HasPrefix(r.out, "ok: 1 record, 2 KiB") {
		t.Errorf("verify: %+v", r)
	}
	if r := run(t, "", "audit", "show"); r.code != 0 || !strings.Contains(r.out, "workspace.create") {
		t.Errorf("show: %+v", r)
	}
	g.Record(root, "x\x1b[31m")
	r := run(t, "", "audit", "show", "--last", "1", "-o", "json")
	if !json.Valid([]byte(r.out)) || !strings.Contains(r.out, `"seq":2`) {
		t.Errorf("show -o json: %+v", r)
	}
	g.Verdict = api.AuditVerdict{BadSeq: 2, BadLine: 2, Harm: "edited", Detail: "hash differs"}
	if r := run(t, "", "audit", "verify"); r.code != 1 || !strings.HasPrefix(r.out, "not ok: record 2 on line 2: edited: hash differs") {
		t.Errorf("verify of a bad log: %+v", r)
	}
	serve(t, alice)
	for _, c := range []string{"verify", "show", "tail"} {
		if r := run(t, "", "audit", c); r.code != 1 || !strings.Contains(r.err, "for root and the members of the carrel group") {
			t.Errorf("audit %s by a user: %+v", c, r)
		}
	}
}

func TestBadCommandLines(t *testing.T) {
	serve(t, alice)
	for args, text := range map[string]string{
		"frob":                     `there is no command "frob"`,
		"ls extra":                 `cannot use the argument "extra"`,
		"ls -o yaml":               `cannot use --output "yaml": it is not table, wide or json`,
		"inspect":                  "WORKSPACE is missing",
		"inspect a b":              `cannot use the argument "b"`,
		"create --memory lots x":   `cannot use --memory "lots": it is not a size; give`,
		"create --pids 1 x":        "pids",
		"audit show --last -1":     "negative",
		"audit frob":               `"frob"`,
		"create 'a\nb'":            "invisible character",
		"kill -s 99 demo c-x":      `cannot use "99" as a signal`,
		"--host /run/x.sock ls":    "cannot use \"/run/x.sock\" as the host",
		"destroy":                  "WORKSPACE is missing",
		"attach demo":              "demo has no detached one whose output is kept; start one with \"carrel exec -d demo -- COMMAND\"\n",
		"logs demo":                "demo has no detached one",
		"logs demo c-1 more":       "cannot use the argument \"more\"",
		"logs":                     "the argument WORKSPACE is missing",
		"rm":                       "WORKSPACE is missing",
		"create --memory -1 x":     "is not a size",
		"create --memory 99999T x": "memory_bytes",
	} {
		if r := run(t, "", words(args)...); r.code != 1 || !strings.HasPrefix(r.err, "carrel: ") || !strings.Contains(r.err, text) {
			t.Errorf("%q: %+v, want %q", args, r, text)
		}
	}
}

func TestCompletion(t *testing.T) {
	serve(t, alice)
	cmd := strings.TrimSpace(run(t, "", "exec", "--detach", "demo", "sleep", "60").out)
	for args, want := range map[string]string{
		"__complete inspect ''":      "demo\trunning\nws-2a97516c\tdemo\n",
		"__complete exec ''":         "demo\trunning\n",
		"__complete logs demo '":     cmd + "\tsleep 60\n",
		"__complete ls -o ''":        "table\nwide\njson\n",
		"__complete rm ''":           "demo\trunning\nws-2a97516c\tdemo\n",
		"__complete r":               "rm\tEnd a workspace's life",
		"__complete create -v /usr:": "/usr:/workspace\n/usr:~/usr\n",
		"completion bash":            "# bash completion",
	} {
		args := strings.Split(strings.ReplaceAll(args, "'", ""), " ")
		if r := run(t, "", args...); r.code != 0 || !strings.Contains(r.out, want) {
			t.Errorf("%q: %+v, want %q", args, r, want)
		}
	}
	if r := run(t, "", "__complete", "inspect", ""); r.code != 0 {
		t.Errorf("%+v", r)
	}
}

func TestEveryCommandHasHelpWithAnExample(t *testing.T) {
	r := run(t, "", "--help")
	for line := range strings.SplitSeq(r.out, "\n") {
		m := regexp.MustCompile(`^  ([a-z]+)  +[A-Z]`).FindStringSubmatch(line)
		if m == nil || m[1] == "help" || m[1] == "completion" || m[1] == "audit" {
			continue
		}
		if h := run(t, "", m[1], "--help"); h.code != 0 || !strings.Contains(h.out, "Examples:\n") {
			t.Errorf("%s has no example: %+v", m[1], h)
		}
	}
	if !strings.Contains(r.out, "exec") {
		t.Errorf("help: %+v", r)
	}
}
