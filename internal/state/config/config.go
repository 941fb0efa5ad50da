// Package config reads carreld's configuration. Every setting is one row of a table. Its text
// comes from a flag, an environment variable, the file or the default, in this order, and is
// checked in the same way for all of them.
//
// It must not act on the settings, and no setting is secret.
package config

import (
	"cmp"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// How the daemon gets its broker: it runs as a service, or the daemon starts it by sudo.
const (
	ByService = "service"
	BySudo    = "sudo"
)

// DefaultFile is read if it exists and no other file is named.
const DefaultFile = "/etc/carrel/carreld.yaml"

// Config is the configuration in force.
type Config struct {
	// Broker is how the daemon gets its broker: ByService or BySudo.
	Broker string
	// BrokerPath is the program that sudo is to start.
	BrokerPath  string
	DataDir     string
	RuntimeDir  string
	SocketMode  fs.FileMode
	SocketGroup string // "" leaves the daemon's own group
	// Listen is the host:port at which the API is served over TLS, "" for none. TLSCert and
	// TLSKey are PEM files; without them the daemon makes its own.
	Listen          string
	TLSCert, TLSKey string
	// E2BListen is the host:port at which workspaces are served to programs of E2B, "" for none, and E2BDomain below which
	// sandboxes have hosts there.
	E2BListen, E2BDomain string
	NamePrefix           string
	// Limits apply to a workspace that requests none.
	Limits workspace.Limits
	// TerminalOrigins are origins with commas between.
	TerminalOrigins string
	// Allow is what workspaces may be made with, ChatAllow the same for the profile chat.
	Allow, ChatAllow []workspace.Opening
	// The most workspaces that may exist and run; 0 is no bound. Memory is in bytes.
	MaxWorkspaces            int
	MaxPerOwner              int
	MaxCreates               int
	MaxStreamsPerOwner       int
	MaxRunning               int
	MaxRunningMemory         int64
	MaxRunningMemoryPerOwner int64
	// IdleTimeout is how long a workspace may be idle; 0 is for ever.
	IdleTimeout time.Duration
	StopTimeout time.Duration
	// IdleExit is how long the daemon of an ordinary user stays if nothing runs and nobody is
	// connected; 0 is for ever.
	IdleExit time.Duration
	// ChatSkeleton is a directory with the initial files of workspaces of the profile chat, ""
	// for none; ChatGit: they begin as a git repository.
	ChatSkeleton string
	ChatGit      bool
	// The most archives that one owner may have, and bytes in them together; 0 is no bound.
	MaxArchivesPerOwner  int
	ArchiveBytesPerOwner int64
	// ArchiveRetention is how long archives are kept; 0 is for ever.
	ArchiveRetention time.Duration
	// HomeRetention is how long homes of destroyed workspaces are kept; 0 is for ever.
	HomeRetention time.Duration
	// Bounds of what an archive that was not made here may unpack to; 0 is the archiver's own bound.
	RestoreMaxBytes   int64
	RestoreMaxEntries int
	RestoreMaxRatio   int
	// PolicyPath is the file of rules, "" for only the built-in ones; PolicyBuiltin: the built-in
	// rules apply as well.
	PolicyPath    string
	PolicyBuiltin bool
	// ApprovalWait is how long an action waits for a person's answer unless it says so.
	ApprovalWait time.Duration
	// SeparateApprovals: nobody approves what they asked for themselves.
	SeparateApprovals bool
	// Traces is where spans go: off, file, console or otlp, then to TracesEndpoint.
	Traces         string
	TracesEndpoint string
	// WebhookURL is the address that new approvals are posted to, "" for none; WebhookSecretFile
	// has the secret that signs them.
	WebhookURL        string
	WebhookSecretFile string
	// RedactFiles are files of secrets that are masked in records and output.
	RedactFiles []string
	// SecretsKey is the file of the key that secrets are sealed with, "" for the one in the daemon's directory.
	SecretsKey string
	// StepMemory is what the processes of an agent's step on the host may take together, in bytes; 0 is half of the machine's.
	// StepProcesses is how many there may be; 0 is no bound.
	StepMemory    int64
	StepProcesses int
	// RunbooksDir has the administrator's runbooks.
	RunbooksDir string
	// EgressFile has what holds for the network of all workspaces.
	EgressFile string
	// AuditAnchor is a file that each countersigned checkpoint is appended to, "" for none;
	// AuditAnchorRequired: operations are refused while it cannot be written.
	AuditAnchor         string
	AuditAnchorRequired bool
	// The audit log is signed at this interval if it has new records, and after this many.
	AuditCheckpointEvery   time.Duration
	AuditCheckpointRecords int
	// A file of the log is full at this size in bytes or age; 0 is no bound.
	AuditMaxSize int64
	AuditMaxAge  time.Duration
	// Full files are removed at this age, and the oldest while their sum is larger than the
	// size; 0 is no bound.
	AuditRetention     time.Duration
	AuditRetentionSize int64
	// AuditOwnerRate and AuditOwnerDaily are what the record of one owner may grow by in a second
	// and in a day, in bytes; 0 is no bound.
	AuditOwnerRate, AuditOwnerDaily int64
	LogLevel                        slog.Level
	LogFormat                       string

	from map[string]string
}

// Key is one setting.
type Key struct {
	// Name is its name in the file; a dot is one level of nesting.
	Name string
	// Default is its text, as in the file.
	Default string
	// Usage is one line for a person, with the unit and the range.
	Usage string

	set func(*Config, string) error
	get func(*Config) string
}

// Env is the environment variable of the key.
func (k Key) Env() string {
	return "CARREL_" + strings.ToUpper(strings.ReplaceAll(k.Name, ".", "_"))
}

// Flag is the command-line flag of the key, without its hyphens.
func (k Key) Flag() string {
	return strings.NewReplacer(".", "-", "_", "-").Replace(k.Name)
}

// Keys returns every key, in the order in which they are printed.
func Keys() []Key { return slices.Clone(keys) }

// Setting is a key with its value in force and where that came from.
type Setting struct {
	Name, Value, From string
}

// Effective lists every setting in the order of Keys.
func (c *Config) Effective() []Setting {
	all := make([]Setting, 0, len(keys))
	for _, k := range keys {
		all = append(all, Setting{Name: k.Name, Value: k.get(c), From: c.from[k.Name]})
	}
	return all
}

// Chosen reports whether a setting was given anywhere.
func (c *Config) Chosen(name string) bool { return c.from[name] != "default" }

// RegisterFlags adds a flag for every key. After parsing, the map that it returns has the flags
// that were given.
func RegisterFlags(set *flag.FlagSet) map[string]string {
	given := make(map[string]string)
	for _, k := range keys {
		set.Func(k.Flag(), k.Usage+" ("+k.Env()+"; default "+cmp.Or(k.Default, "none")+")", func(v string) error {
			given[k.Flag()] = v
			return nil
		})
	}
	return given
}

// Sources are where Load looks, the strongest first.
type Sources struct {
	// Flags are those that were given, by name without hyphens.
	Flags map[string]string
	// Environ holds NAME=VALUE strings, as os.Environ gives them.
	Environ []string
	// File is the path of the file. If it is "", Default is read if it exists; a Default of ""
	// is DefaultFile.
	File    string
	Default string
}

// Load returns the configuration. An error is one line that says where the
// value came from (with line and column, for the file), what is wrong with it
// and what would be right; its kind is invalid_argument, or
// failed_precondition for a file that others may change.
func Load(s Sources) (*Config, error) {
	c := &Config{from: make(map[string]string, len(keys))}
	file, err := readFile(s.File, cmp.Or(s.Default, DefaultFile))
	if err != nil {
		return nil, err
	}
	env := make(map[string]string, len(s.Environ))
	for _, kv := range s.Environ {
		name, value, _ := strings.Cut(kv, "=")
		env[name] = value
	}
	for _, k := range keys {
		v := value{text: k.Default, from: "default"}
		if f, ok := file[k.Name]; ok {
			v = f
		}
		if text, ok := env[k.Env()]; ok {
			v = value{text: text, from: k.Env()}
		}
		if text, ok := s.Flags[k.Flag()]; ok {
			v = value{text: text, from: "--" + k.Flag()}
		}
		if err := k.set(c, v.text); err != nil {
			return nil, fmt.Errorf("%s: cannot use %q as %s: %w: %w", v.from, v.text, k.Name, err, errdefs.ErrInvalidArgument)
		}
		c.from[k.Name] = v.from
	}
	return c, nil
}

// value is the text of a setting and its source.
type value struct{ text, from string }

// nearest returns the name most like s, for "did you mean".
func nearest(s string, names []string) string {
	best, distance := "", 1+len(s)/2
	for _, n := range slices.Sorted(slices.Values(names)) {
		if d := edits(s, n); d < distance {
			best, distance = n, d
		}
	}
	return best
}

// edits counts the letters to change, add or remove to get from a to b.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}

// names returns the keys of the file at one level: "limits" for "limits.memory".
func names(level string) []string {
	found := make(map[string]bool)
	for _, k := range keys {
		if rest, ok := strings.CutPrefix(k.Name, level); ok {
			name, _, _ := strings.Cut(rest, ".")
			found[name] = true
		}
	}
	return slices.Collect(maps.Keys(found))
}
