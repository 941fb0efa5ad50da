package config_test

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/config"
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "carreld.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

const empty = "# nothing\n"

func TestDefaults(t *testing.T) {
	c, err := config.Load(config.Sources{File: write(t, empty)})
	if err != nil {
		t.Fatal(err)
	}
	want := &config.Config{
		DataDir: "/var/lib/carrel", RuntimeDir: "/run/carrel", SocketMode: 0o660, SocketGroup: "carrel", NamePrefix: "ws",
		Broker: "service", BrokerPath: "/usr/libexec/carrel/carrel-broker", Limits: workspace.DefaultLimits, Allow: workspace.Openings,
		MaxWorkspaces: 2000, MaxPerOwner: 200, MaxCreates: 30, MaxStreamsPerOwner: 256, AuditOwnerRate: 256 << 10, AuditOwnerDaily: 4 << 30,
		IdleTimeout: time.Minute, ChatGit: true, HomeRetention: 720 * time.Hour, RestoreMaxBytes: 16 << 30,
		MaxArchivesPerOwner: 100, ArchiveBytesPerOwner: 64 << 30, ArchiveRetention: 4320 * time.Hour,
		RestoreMaxEntries: 2_000_000, RestoreMaxRatio: 1000, AuditCheckpointEvery: time.Minute, AuditCheckpointRecords: 4096,
		AuditMaxSize: 256 << 20, StopTimeout: 10 * time.Second, IdleExit: 30 * time.Second, PolicyBuiltin: true, ApprovalWait: 15 * time.Minute,
		Traces: "file", EgressFile: "/etc/carrel/egress.yaml", RunbooksDir: "/etc/carrel/runbooks", StepProcesses: 1024,
		LogLevel: slog.LevelInfo, LogFormat: "text",
	}
	if d := cmp.Diff(want, c, cmpopts.IgnoreUnexported(config.Config{})); d != "" {
		t.Errorf("defaults (-want +got):\n%s", d)
	}
	for _, s := range c.Effective() {
		if s.From != "default" {
			t.Errorf("%s comes from %s", s.Name, s.From)
		}
	}
}

// Sizes are those that the command line takes.
func TestSizes(t *testing.T) {
	for text, want := range map[string]int64{"512M": 512 << 20, "1GB": 1 << 30, "1GiB": 1 << 30, "1 gib": 1 << 30, "67108864": 64 << 20} {
		c, err := config.Load(config.Sources{File: write(t, "limits: {memory: "+text+"}\n")})
		if err != nil || c.Limits.MemoryBytes != want {
			t.Errorf("%s: %+v, %v", text, c, err)
		}
	}
}

// Each source beats the next, and the one that won is named.
func TestPrecedence(t *testing.T) {
	path := write(t, "name_prefix: file\nsocket_mode: 0600\nlimits:\n  memory: 256MiB\n  pids: 200\nstop_timeout: 3s\n")
	flags := flag.NewFlagSet("carreld", flag.ContinueOnError)
	given := config.RegisterFlags(flags)
	if err := flags.Parse([]string{"--name-prefix", "flag", "--limits-pids=300", "-log-level", "debug"}); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(config.Sources{
		File: path, Flags: given,
		Environ: []string{"CARREL_NAME_PREFIX=env", "CARREL_SOCKET_GROUP=", "CARREL_LIMITS_MEMORY=128MiB", "CARREL_HOST=unix:///x", "PATH=/bin"},
	})
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]string)
	for _, s := range c.Effective() {
		if s.From != "default" {
			got[s.Name] = s.Value + " < " + strings.TrimPrefix(s.From, filepath.Dir(path)+"/")
		}
	}
	want := map[string]string{
		"name_prefix":   "flag < --name-prefix",
		"socket_mode":   "0600 < carreld.yaml:2:14",
		"socket_group":  " < CARREL_SOCKET_GROUP",
		"limits.memory": "128MiB < CARREL_LIMITS_MEMORY",
		"limits.pids":   "300 < --limits-pids",
		"stop_timeout":  "3s < carreld.yaml:6:15",
		"log_level":     "debug < --log-level",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("effective (-want +got):\n%s", d)
	}
}

func TestFileErrors(t *testing.T) {
	for _, c := range []struct{ text, place, says string }{
		{"nmae_prefix: x\n", ":1:1", `there is no setting "nmae_prefix"; did you mean "name_prefix"?`},
		{"limits:\n  memroy: 1GiB\n", ":2:3", `did you mean "limits.memory"?`},
		{"limits.memory: 1GiB\n", ":1:1", `there is no setting "limits.memory"`},
		{"qqqqqqqqqqqq: 1\n", ":1:1", `there is no setting "qqqqqqqqqqqq"`},
		{"log_level: info\nname_prefix: a\nlog_level: warn\n", ":3:1", "log_level"},
		{"limits: 5\n", ":1:9", "settings"},
		{"allow: userns, root\n", ":1:8", "no such opening"},
		{"limits:\n  pids: [1, 2]\n", ":2:9", "limits.pids must be one plain value"},
		{"data_dir: {a: b}\n", "", "data_dir must be one plain value"},
		{"data_dir: null\n", ":1:11", "must be one plain value"},
		{"data_dir: &a /x\nruntime_dir: *a\n", "", "must be one plain value"},
		{"data_dir: !!str /x\n", "", "must be one plain value"},
		{"- a\n", ":1:1", "here must be settings"},
		{"5: x\n", ":1:1", "no name of a setting"},
		{"log_level: info\n---\nlog_level: warn\n", ":3", "second document"},
		{"log_level: \"info\n", ":1:", "cannot read"},
		{"log_level: info\n\tx: y\n", ":2:", "cannot read"},
		{"log_level: loud\n", ":1:12", `cannot use "loud" as log_level: it must be debug, info, warn or error`},
		{"log_format: xml\n", ":1:13", "text or json"},
		{"socket_mode: 0999\n", ":1:14", "octal"},
		{"socket_mode: 0060\n", ":1:14", "octal"},
		{"socket_mode: 0755\n", ":1:14", "octal"},
		{"socket_group: a b\n", ":1:15", "group name"},
		{"data_dir: relative\n", ":1:11", "absolute"},
		{"data_dir: /a/../b\n", ":1:11", "absolute"},
		{"data_dir: /\n", ":1:11", "absolute"},
		{"runtime_dir: /" + strings.Repeat("r", 80) + "\n", ":1:14", "81 bytes long and at most"},
		{"name_prefix: Ab\n", ":1:14", "lower-case"},
		{"limits:\n  memory: 1PB\n", ":2:11", "512M, 1GB or 1GiB"},
		{"limits:\n  memory: +1GB\n", ":2:11", "512M, 1GB or 1GiB"},
		{"limits:\n  memory: 1MiB\n", ":2:11", "between 16MiB and 16TiB"},
		{"limits:\n  memory: 99999999999TiB\n", ":2:11", "not a size"},
		{"limits:\n  memory: -1\n", ":2:11", "not a size"},
		{"limits:\n  pids: many\n", ":2:9", "a number"},
		{"limits:\n  cpu_weight: 0\n", ":2:15", "between 1 and 10000"},
		{"max_workspaces: 0\n", ":1:17", "between 1 and 100000"},
		{"policy:\n  path: rules.yaml\n", ":2:9", "absolute"},
		{"policy:\n  include_builtin: yes\n", ":2:20", "true or false"},
		{"approval:\n  wait: 0s\n", ":2:9", "between 1s and"},
		{"approval:\n  wait: 200h\n", ":2:9", "between 1s and"},
		{"steps:\n  memory: 1MiB\n", ":2:11", "0 or at least 256MiB"},
		{"steps:\n  processes: 5\n", ":2:14", "0 or a number between 64 and 1048576"},
		{"stop_timeout: 6m\n", ":1:15", "between 0s and 5m"},
		{strings.Repeat("# long\n", 20_000), "", "longer than"},
	} {
		path := write(t, c.text)
		_, err := config.Load(config.Sources{File: path})
		if !errdefs.IsInvalidArgument(err) {
			t.Errorf("%.40q gave %v", c.text, err)
			continue
		}
		if msg := err.Error(); !strings.HasPrefix(msg, path+c.place) || !strings.Contains(msg, c.says) || strings.Contains(msg, "\n") {
			t.Errorf("%.40q gave\n  %s\nwant %s and %q", c.text, msg, c.place, c.says)
		}
	}
}

func TestFlagAndEnvErrors(t *testing.T) {
	path := write(t, empty)
	_, err := config.Load(config.Sources{File: path, Flags: map[string]string{"log-level": "loud"}})
	if !errdefs.IsInvalidArgument(err) || !strings.HasPrefix(err.Error(), `--log-level: cannot use "loud"`) {
		t.Error(err)
	}
	_, err = config.Load(config.Sources{File: path, Environ: []string{"CARREL_MAX_WORKSPACES=x"}})
	if !errdefs.IsInvalidArgument(err) || !strings.HasPrefix(err.Error(), `CARREL_MAX_WORKSPACES: cannot use "x"`) {
		t.Error(err)
	}
}

func TestFileMustBeTrusted(t *testing.T) {
	path := write(t, empty)
	for _, mode := range []os.FileMode{0o620, 0o602, 0o666} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := config.Load(config.Sources{File: path}); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "chmod go-w") {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := config.Load(config.Sources{File: path}); err != nil {
		t.Errorf("mode 644: %v", err)
	}
	if _, err := config.Load(config.Sources{File: filepath.Dir(path)}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a directory: %v", err)
	}
	if _, err := config.Load(config.Sources{File: path + ".missing"}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a file that is named and missing: %v", err)
	}
	if os.Geteuid() != 0 {
		t.Skip("skipped the ownership case: needs root to give a file away")
	}
	if err := os.Chown(path, 12345, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := config.Load(config.Sources{File: path}); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "uid 12345") {
		t.Errorf("a stranger's file: %v", err)
	}
}

// A file of rules is read only if nobody else may change or replace it.
func TestReadTrusted(t *testing.T) {
	path := write(t, "rules: []")
	for _, c := range []struct {
		what    string
		harm    func() error
		undo    func() error
		says    string
		refused func(error) bool
	}{
		{
			"others may write it", func() error { return os.Chmod(path, 0o606) },
			func() error { return os.Chmod(path, 0o600) }, "chmod go-w", errdefs.IsFailedPrecondition,
		},
		{
			"others may replace it", func() error { return os.Chmod(filepath.Dir(path), 0o777) },
			func() error { return os.Chmod(filepath.Dir(path), 0o700) }, "chmod go-w", errdefs.IsFailedPrecondition,
		},
		{
			"it is a pipe", func() error { return errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o600)) },
			func() error { return os.Remove(path) }, "not a regular file", errdefs.IsInvalidArgument,
		},
		{"it is gone", func() error { return nil }, func() error { return nil }, "no such file", errdefs.IsInvalidArgument},
	} {
		if err := c.harm(); err != nil {
			t.Fatal(err)
		}
		if _, err := config.ReadTrusted(path, "policy", 100); !c.refused(err) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.what, err)
		}
		if err := c.undo(); err != nil {
			t.Fatal(err)
		}
	}
	path = write(t, "rules: []")
	if b, err := config.ReadTrusted(path, "policy", 4); err != nil || string(b) != "rules" {
		t.Errorf("%q %v", b, err)
	}
	loose := t.TempDir()
	link := filepath.Join(loose, "link")
	if err := errors.Join(os.Symlink(path, link), os.Chmod(loose, 0o777)); err != nil {
		t.Fatal(err)
	}
	if _, err := config.ReadTrusted(link, "policy", 100); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a link that others may replace: %v", err)
	}
}

func TestRedactFiles(t *testing.T) {
	c, err := config.Load(config.Sources{File: write(t, "redact:\n  files: /etc/carrel/a, /etc/carrel/b\n")})
	if err != nil || !slices.Equal(c.RedactFiles, []string{"/etc/carrel/a", "/etc/carrel/b"}) {
		t.Errorf("%q %v", c.RedactFiles, err)
	}
	for _, bad := range []string{"a", "/etc/a,", ",", "/etc/a,../b", strings.Repeat("/a,", 16) + "/a"} {
		_, err := config.Load(config.Sources{File: write(t, empty), Flags: map[string]string{"redact-files": bad}})
		if !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// The table holds together: names, flags and variables are unique, every
// default passes its own check, and what is shown can be read back.
func TestTable(t *testing.T) {
	seen := make(map[string]bool)
	for _, k := range config.Keys() {
		for _, n := range []string{k.Name, k.Env(), "--" + k.Flag()} {
			if seen[n] {
				t.Errorf("%s stands for two keys", n)
			}
			seen[n] = true
		}
		if k.Usage == "" || strings.Contains(k.Usage, "\n") {
			t.Errorf("%s has no one-line usage", k.Name)
		}
	}
	set := flag.NewFlagSet("x", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	config.RegisterFlags(set)
	n := 0
	set.VisitAll(func(*flag.Flag) { n++ })
	if n != len(config.Keys()) {
		t.Errorf("%d flags for %d keys", n, len(config.Keys()))
	}
}

// render writes settings as a file.
func render(texts map[string]string) string {
	var b strings.Builder
	nested := map[string][]string{}
	for _, k := range config.Keys() {
		v, ok := texts[k.Name]
		if !ok {
			continue
		}
		if level, rest, ok := strings.Cut(k.Name, "."); ok {
			nested[level] = append(nested[level], fmt.Sprintf("  %s: %s\n", rest, strconv.Quote(v)))
			continue
		}
		fmt.Fprintf(&b, "%s: %s\n", k.Name, strconv.Quote(v))
	}
	for level, lines := range nested {
		b.WriteString(level + ":\n" + strings.Join(lines, ""))
	}
	return b.String()
}

func FuzzFile(f *testing.F) {
	f.Add([]byte("name_prefix: ws\nlimits:\n  memory: 1GiB\n"))
	f.Add([]byte("a: &a [*a]\n"))
	f.Add([]byte("? {limits: x}\n: y\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		texts, err := config.ParseText("f", b)
		if err != nil {
			if !errdefs.IsInvalidArgument(err) || strings.Contains(err.Error(), "\n") || !strings.HasPrefix(err.Error(), "f:") {
				t.Fatalf("error is not one line with a place: %q", err)
			}
			return
		}
		known := make([]string, 0, 16)
		for _, k := range config.Keys() {
			known = append(known, k.Name)
		}
		for name, text := range texts {
			if !slices.Contains(known, name) {
				t.Fatalf("accepted %q", name)
			}
			if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) {
				return // quoted otherwise in YAML than in Go
			}
		}
		again, err := config.ParseText("f", []byte(render(texts)))
		if err != nil || !cmp.Equal(texts, again, cmpopts.EquateEmpty()) {
			t.Fatalf("read back %v as %v (%v)", texts, again, err)
		}
	})
}

// An address that something is sent to is one of http, without a password in it.
func TestAddresses(t *testing.T) {
	for _, key := range []string{"approval:\n  webhook", "telemetry:\n  endpoint"} {
		for value, ok := range map[string]bool{
			"https://hooks.example/x": true, "http://127.0.0.1:4318/v1/traces": true, `""`: true,
			"hooks.example": false, "ftp://hooks.example/": false, "https://u:p@hooks.example/": false, "https:///x": false,
		} {
			if _, err := config.Load(config.Sources{File: write(t, key+": "+value+"\n")}); (err == nil) != ok {
				t.Errorf("%s: %s: %v", key, value, err)
			}
		}
	}
}
