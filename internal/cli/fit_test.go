package cli_test

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/cli"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// ordinary are what a daemon answers when its workspaces, people and hosts have names of usual length.
func ordinary() map[string]proto.Message {
	now := time.Now().UnixMilli()
	ago := func(d time.Duration) int64 { return now - d.Milliseconds() }
	limits := &carrelv1.Limits{MemoryBytes: 1 << 30, Pids: 512, CpuWeight: 100, OpenFiles: 65536, DiskBytes: 10 << 30}
	words := []string{"/bin/bash", "-c", "cd ~/src && make test && git push origin feature/tables"}
	demo := &carrelv1.Workspace{
		Name: "ws-2a97516c", Key: "telegram:12345678", Owner: "uid:1000", User: "carrel-2a97516c", Uid: 1879048193,
		Home:  "/var/lib/carrel/homes/ws-2a97516c",
		State: "running", Root: "system", Boundary: "namespace", Limits: limits, CreatedUnixMs: ago(50 * time.Hour), ExecutorUid: 1879048192,
		AgentUid: 1879048194, ExecutorPid: 1234567, InsideHome: "/home/work",
		Controls: []*carrelv1.Control{
			{Id: "seccomp", State: "verified", Requested: true, Required: true, Evidence: "uname26 fails with ENOSYS, as the filter has it"},
			{
				Id: "disk", State: "unavailable", Requested: true, Evidence: "the file system has no quotas and images were not asked for",
				Remedy: "set disk_images: true in the settings of the daemon",
			},
		},
		ReachAllow: []string{"api.anthropic.com", "GET api.example.org/v1/*"},
	}
	budget := &carrelv1.ModelBudget{Requests: 1000, Tokens: 2000000, Per: "day"}
	sums := &carrelv1.ModelSums{Requests: 123, Tokens: 1234567, Money: "12.34", ByModel: []*carrelv1.ModelSum{
		{Model: "claude-sonnet-4-5-20250929", Requests: 100, Tokens: 1234000, Money: "12.00"},
	}}
	commands := &carrelv1.ListCommandsResponse{Commands: []*carrelv1.CommandInfo{
		{CommandId: "c-0123456789abcdef", Pid: 12345, Argv: words, StartedUnixNs: ago(3*time.Hour) * 1e6, Processes: 12},
		{
			CommandId: "c-1123456789abcdef", Pid: 12346, Argv: words, StartedUnixNs: ago(30*time.Hour) * 1e6, Processes: 12, Detached: true,
			Status: &carrelv1.Status{Code: 137}, Session: "main", Clients: 2,
		},
		{
			CommandId: "c-2123456789abcdef", Pid: 12347, Argv: words, StartedUnixNs: ago(30*time.Hour) * 1e6, Session: "deploy", Clients: 2,
			Size: &carrelv1.WindowSize{Rows: 50, Cols: 180}, Terminal: true, Detached: true, Recorded: true,
		},
	}}
	record := func(text string) []byte {
		return []byte(`{"seq":123456,"time":"2026-11-27T10:11:12.345678Z","principal":"uid:1000","workspace":"ws-2a97516c",` + text + `}`)
	}
	all := map[string]proto.Message{
		"WorkspaceService/List": &carrelv1.ListResponse{
			Workspaces: []*carrelv1.Workspace{demo},
			Retained: []*carrelv1.RetainedHome{{
				Workspace: "ws-2a97516c", Key: "telegram:12345678", Owner: "uid:1000", Home: "/var/lib/carrel/retained/ws-2a97516c",
				DestroyedUnixMs: now, ExpiresUnixMs: now,
			}},
		},
		"WorkspaceService/Get": &carrelv1.GetResponse{Workspace: demo},
		"WorkspaceService/Stats": &carrelv1.StatsResponse{Usage: []*carrelv1.Usage{{
			Name: "ws-2a97516c", Key: "telegram:12345678", State: "running", Limits: limits, MemoryBytes: 1023900000, Pids: 123, CpuUs: 1e9,
			OomKills: 1, ReadBytes: 1023900000, WrittenBytes: 1023900000, DiskBytes: 1023900000,
		}}},
		"WorkspaceService/ExplainReach": &carrelv1.ExplainReachResponse{Verdicts: []*carrelv1.ReachVerdict{
			{Host: "api.anthropic.com:443", Action: "allow", Rule: "allow api.anthropic.com", Secrets: []string{"ANTHROPIC_KEY"}},
			{Host: "api.example.org:443", Action: "deny", Reason: "no rule allows it"},
		}},
		"WorkspaceService/ListConnections": &carrelv1.ListConnectionsResponse{
			Open: []*carrelv1.Connection{{
				Number: 1, Host: "api.anthropic.com", Port: 443, Way: "transparent", SentBytes: 1023900000, ReceivedBytes: 1023900000, Count: 1,
			}},
			Ended: []*carrelv1.Connection{{Number: 2, Host: "api.anthropic.com", Port: 443, Refused: "no rule allows it", Count: 3}},
		},
		"CommandService/ListCommands": commands,
		"ArchiveService/ListArchives": &carrelv1.ListArchivesResponse{Archives: []*carrelv1.Archive{{
			Id: "ar-0123456789abcdef", Key: "telegram:12345678", Owner: "uid:1000", Size: 1023900000, Entries: 123456, Bytes: 1023900000,
			CreatedUnixMs: ago(30 * time.Hour), ExpiresUnixMs: now,
		}}},
		"SecretService/ListSecrets": &carrelv1.ListSecretsResponse{Secrets: []*carrelv1.Secret{
			{
				Owner: "uid:1000", Name: "GITHUB_TOKEN", Hosts: []string{"api.github.com", "github.com"}, Headers: []string{"authorization"},
				CreatedUnixMs: ago(90 * time.Hour), RotatedUnixMs: ago(30 * time.Hour),
			},
			{Owner: "uid:1000", Name: "ANTHROPIC_KEY", Hosts: []string{"api.anthropic.com"}, Inject: "header:x-api-key", Methods: []string{"POST"}},
		}},
		"ModelService/ListModels": &carrelv1.ListModelsResponse{Models: []*carrelv1.Model{{
			Name: "anthropic", Api: "anthropic", Url: "https://api.anthropic.com/v1", Key: "own", Secret: "ANTHROPIC_KEY",
			Budget: budget, Used: sums,
		}}},
		"ModelService/ModelUsage": &carrelv1.ModelUsageResponse{Usage: []*carrelv1.ModelUsage{
			{Workspace: "ws-2a97516c", Key: "telegram:12345678", Owner: "uid:1000", Budget: budget, Today: sums, Whole: sums},
			{Today: sums, Whole: sums},
		}},
		"TaskService/ListTasks": &carrelv1.ListTasksResponse{Tasks: []*carrelv1.Task{{
			Id: "c-0123456789abcdef", Argv: []string{"claude-code-acp", "--model", "sonnet"}, State: "completed", BeganUnixMs: now, Last: 123,
		}}},
		"TokenService/ListTokens": &carrelv1.ListTokensResponse{Tokens: []*carrelv1.Token{{
			Id: "0123456789ab", Name: "ci runner", Owner: "uid:1000", Roles: []string{"operator"}, Workspaces: []string{"demo", "build"},
			ExpiresUnixMs: now, LastUsedUnixMs: ago(time.Hour), State: "good",
		}}},
		"ApprovalService/ListApprovals": &carrelv1.ListApprovalsResponse{Approvals: []*carrelv1.Approval{{
			Id: "ap-0123456789abcdef", State: "pending", Requester: "token:0123456789ab", Workspace: "ws-2a97516c", Key: "telegram:12345678",
			Kind: "command.exec", Argv: words, Source: "llm", RiskScore: 60, UntilUnixMs: now,
		}}},
		"ApprovalService/ListPermissions": &carrelv1.ListPermissionsResponse{Permissions: []*carrelv1.Permission{
			{
				Id: "ap-0123456789abcdef", Text: "Bash(git push origin feature/tables)", Requester: "uid:1000", Workspace: "ws-2a97516c",
				Thread: "chat-0123", By: "uid:1000", UnixMs: ago(30 * time.Hour),
			},
			{
				Id: "al-0123456789abcdef", Text: "git push origin 'feature/*'", Workspace: "ws-2a97516c", By: "uid:1000", UnixMs: now, Rule: true,
				Owner: "uid:1000", Capabilities: []string{"network.out", "git.mutate"},
			},
		}},
	}
	all["SystemService/Version"], all["AuditService/Checkpoint"] = &carrelv1.VersionResponse{}, &carrelv1.CheckpointResponse{}
	all["AuditService/Verify"] = &carrelv1.VerifyResponse{Ok: true}
	all["AuditService/Show"] = &carrelv1.ShowResponse{Lines: [][]byte{
		record(`"type":"intent","approval":"ap-0123456789abcdef",` +
			`"action":{"kind":"command.exec","argv":["/bin/bash","-c","cd ~/src && make test && git push"]}`),
		record(`"type":"outcome","intent":123455,"status":"failed","error":"the command was ended after its timeout of 30m0s"`),
		record(`"type":"approval","approval":"ap-0123456789abcdef","data":{"kind":"once"}`),
		record(`"type":"connection","status":"ok","data":{"way":"transparent","host":"api.anthropic.com","port":443,` +
			`"rule":"allow api.anthropic.com","sent_bytes":1023900000,"received_bytes":1023900000,"duration_ms":123456,"count":1,` +
			`"secrets":["ANTHROPIC_KEY"]}`),
		record(`"type":"connection","status":"denied","error":"no rule allows it",` +
			`"data":{"way":"dns","host":"objects.githubusercontent.com","count":3}`),
	}}
	return all
}

// answers serves messages by procedure, as Connect's protocol has them, on a socket that it names in the environment.
func answers(t *testing.T, all map[string]proto.Message) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m, ok := all[strings.TrimPrefix(r.URL.Path, "/carrel.v1.")]
		if !ok {
			t.Errorf("nothing answers %s", r.URL.Path)
			w.WriteHeader(http.StatusNotFound)
			return
		}
		b, err := proto.Marshal(m)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", r.Header.Get("Content-Type"))
		if strings.HasPrefix(r.Header.Get("Content-Type"), "application/connect+") {
			end := "\x02\x00\x00\x00\x02{}"
			b = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(b))), append(b, end...)...)
		}
		_, _ = w.Write(b)
	})}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { s.Close() })
	t.Setenv(carrel.HostEnv, "unix://"+path)
}

// tables are the command lines whose output has rows, each with a word that it must print.
var tables = map[string]string{
	"ls":                          "running",
	"ls --retained":               "DESTROYED",
	"ps demo":                     "attached",
	"top --once --interval 100ms": "DISK",
	"inspect demo":                "disk",
	"inspect -v demo":             "seccomp",
	"approvals list":              "pending",
	"approvals permissions":       "MAY RUN",
	"audit show":                  "command.exec",
	"audit tail":                  "intent",
	"token ls":                    "operator",
	"archive ls":                  "ar-0123456789abcdef",
	"egress log":                  "api.anthropic.com:443",
	"egress log ws-2a97516c":      "RULE",
	"egress rules demo":           "allow",
	"egress test demo api.anthropic.com api.example.org": "refused",
	"egress top --once --interval 100ms demo":            "REFUSED",
	"secret ls":        "GITHUB_TOKEN",
	"model ls":         "anthropic",
	"model usage":      "(all)",
	"model usage demo": "claude-sonnet",
	"task ls demo":     "completed",
	"shell --ls demo":  "deploy",
	"policy rules":     "feature",
	"policy explain 'sudo systemctl restart nginx && curl -fsS https://api.example.org/health'": "CONFIRM",
	"runbook ls": "disk",
	"context ls": "prod",
	"job ls":     "make",
	"undo":       "CHANGE",
	"changes":    ".npmrc",

	"agent memory ls": "backups",
	"doctor":          "met",
	"doctor -v":       "met",
}

// noTables are the commands with -o that print no rows, or rows that are as wide as a name that they are given.
var noTables = strings.Fields(`
	create start stop restart revive pause resume update egress.allow egress.ask egress.deny egress.rm secret.set secret.rotate
	destroy archive.create restore cp files.ls files.stat files.write files.search files.watch events exec port wait task.run task.show
	task.stop task.follow ask job.show job.stop apply discard checkpoint agent.check agent.import.linuxagent agent.memory.add agent.recommend
	runbook.show runbook.check approvals.show approvals.approve
	approvals.deny approvals.watch up audit.verify audit.checkpoint audit.check-proof policy.reload policy.allow token.create
	token.show whoami context.show version`)

// Every command that prints rows prints ordinary ones within 80 columns on a terminal, and all of them elsewhere.
func TestTablesFit(t *testing.T) {
	state := t.TempDir()
	for _, name := range []string{"HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"} {
		t.Setenv(name, state)
	}
	jobs := filepath.Join(state, "carrel", "jobs")
	if err := os.MkdirAll(jobs, 0o700); err != nil {
		t.Fatal(err)
	}
	back := filepath.Join(state, "carrel", "back", "run-1a2b3c4d")
	held := `{"run":"run-1a2b3c4d","moved":[{"source":"/home/alice/project","path":".npmrc","reader":"npm, pnpm","trigger":"npm install"}]}`
	if err := errors.Join(
		os.MkdirAll(back, 0o700), os.WriteFile(filepath.Join(back, "back.json"), []byte(held), 0o600),
		os.WriteFile(filepath.Join(back, "0.kept"), nil, 0o600),
	); err != nil {
		t.Fatal(err)
	}
	end := `{"code":143,"at":"` + time.Now().Format(time.RFC3339) + `"}`
	madeJob(t, jobs, "c-aa00000000000000", `,"host":"web-1","inventory":"/nonexistent/hosts.yaml"`, end)
	contexts := "contexts:\n  prod:\n    host: https://192.0.2.1:7443\n    token_file: /home/alice/.carrel-token\ncurrent: prod\n"
	if err := os.WriteFile(filepath.Join(state, "carrel", "contexts.yaml"), []byte(contexts), 0o600); err != nil {
		t.Fatal(err)
	}
	note := `{"last":12,"notes":[{"number":12,"text":"backups run` + strings.Repeat(" at three", 50) + `"}]}`
	if err := os.WriteFile(filepath.Join(state, "carrel", "memory.json"), []byte(note), 0o600); err != nil {
		t.Fatal(err)
	}
	answers(t, ordinary())
	for line, word := range tables {
		args := words(line)
		screen := onTerminal(t, args)
		if !strings.Contains(screen, word) {
			t.Errorf("%s prints\n%s", line, screen)
		}
		for row := range strings.Lines(screen) {
			if strings.HasPrefix(row, "        Do: ") {
				continue // a command to be pasted
			}
			if n := utf8.RuneCountInString(strings.TrimRight(row, "\r\n")); n > 80 {
				t.Errorf("%s: %d columns: %s", line, n, row)
			}
		}
	}
	for line, want := range map[string]string{
		"token ls": "OWNER", "approvals list": "feature/tables", "audit show": "2026-11-27 10:11:12.345", "egress log": "transparent",
		"top --once --interval 100ms": "WRITTEN",
	} {
		if out := run(t, "", words(line)...).out; !strings.Contains(out, want) {
			t.Errorf("%s to a file has no %s:\n%s", line, want, out)
		}
		if out := onTerminal(t, append(words(line), "-o", "wide")); !strings.Contains(out, want) {
			t.Errorf("%s -o wide has no %s:\n%s", line, want, out)
		}
	}
}

// A command that takes -o is among those whose rows are measured, or among those that have none.
func TestEveryTableIsMeasured(t *testing.T) {
	named := map[string]bool{}
	for line := range tables {
		named[line] = true
	}
	for _, name := range noTables {
		named[strings.ReplaceAll(name, ".", " ")] = true
	}
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		if path := strings.TrimPrefix(c.CommandPath(), "carrel "); c.Flags().Lookup("output") != nil {
			found := false
			for name := range named {
				found = found || name == path || strings.HasPrefix(name, path+" ")
			}
			if !found {
				t.Errorf("%s prints data and is neither in tables nor in noTables", path)
			}
		}
		for _, child := range c.Commands() {
			walk(child)
		}
	}
	walk(cli.Command())
}

// onTerminal runs a command line on a terminal of 80 columns and returns what is on it.
func onTerminal(t *testing.T, args []string) string {
	t.Helper()
	master, slave := openTerminal(t)
	if err := unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}); err != nil {
		t.Fatal(err)
	}
	t.Setenv("NO_COLOR", "1")
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	got := make(chan string, 1)
	go func() {
		b, _ := io.ReadAll(master) // it ends with EIO when the other side is closed
		got <- string(b)
	}()
	cli.Run(args, cli.Streams{In: null, Out: slave, Err: null})
	slave.Close()
	return <-got
}
