package config

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/url"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// DefaultRuntimeDir is where the system's daemon has its socket.
const DefaultRuntimeDir = "/run/carrel"

// maxRuntimeDir leaves room for "/x/<workspace>.sock" in the 107 bytes that the
// path of a Unix socket may have (unix(7)).
const maxRuntimeDir = 107 - len("/x/") - 31 - len(".sock")

// Bounds of steps, as internal/boundary/hostrun has them.
const (
	minStepMemory    = 256 << 20
	minStepProcesses = 64
	maxStepProcesses = 1 << 20
)

// maxRedactFiles bounds redact.files.
const maxRedactFiles = 16

var keys = []Key{
	text("broker", ByService,
		"how the broker is reached: service, which \"carrel up\" or systemd starts, or sudo, by which the daemon starts it",
		func(c *Config) *string { return &c.Broker }, pattern("^(service|sudo)$", "it must be service or sudo")),
	text("broker_path", "/usr/libexec/carrel/carrel-broker", "the program that sudo starts; absolute",
		func(c *Config) *string { return &c.BrokerPath }, absolute(4096)),
	text("data_dir", "/var/lib/carrel", "directory for what must survive a restart; absolute",
		func(c *Config) *string { return &c.DataDir }, absolute(4096)),
	text("runtime_dir", DefaultRuntimeDir, fmt.Sprintf("directory for sockets; absolute, at most %d bytes long", maxRuntimeDir),
		func(c *Config) *string { return &c.RuntimeDir }, absolute(maxRuntimeDir)),
	{
		Name: "socket_mode", Default: "0660", Usage: "mode of carrel.sock, octal",
		set: func(c *Config, v string) error {
			mode, err := strconv.ParseUint(v, 8, 32)
			if err != nil || mode > 0o777 || mode&0o600 != 0o600 || mode&0o111 != 0 {
				return errors.New(`it must be an octal mode that lets the owner read and write and nobody execute, for example "0660"`)
			}
			c.SocketMode = fs.FileMode(mode)
			return nil
		},
		get: func(c *Config) string { return fmt.Sprintf("%04o", c.SocketMode) },
	},
	text("socket_group", "carrel", "group of carrel.sock, whose members reach every workspace; empty for the daemon's own",
		func(c *Config) *string { return &c.SocketGroup }, pattern(`^([a-z_][a-z0-9_-]{0,31})?$`, "it must be a group name")),
	text("listen", "", "where the API is served over TLS too, host:port, as 192.0.2.1:7443 or :7443; empty for nowhere",
		func(c *Config) *string { return &c.Listen }, hostPort),
	text("tls_cert", "", "PEM file of the certificate for that, and of those that signed it; empty for the daemon's own; absolute",
		func(c *Config) *string { return &c.TLSCert }, optional(absolute(4096))),
	text("tls_key", "", "PEM file of its key; absolute",
		func(c *Config) *string { return &c.TLSKey }, optional(absolute(4096))),
	text("e2b_listen", "", "where workspaces are served to programs that were written for E2B, host:port, as 127.0.0.1:7300; with TLS "+
		"unless it is a loopback address; empty for nowhere", func(c *Config) *string { return &c.E2BListen }, hostPort),
	text("e2b_domain", "", "domain below which sandboxes have hosts there, {port}-{id}.DOMAIN; empty for none",
		func(c *Config) *string { return &c.E2BDomain }, pattern(`^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*)?$`,
			"it must be a domain in lower case")),
	{
		Name: "name_prefix", Default: id.DefaultPrefix, Usage: "what derived workspace names begin with",
		set: func(c *Config, v string) error {
			prefix, err := id.ParsePrefix(v)
			if err != nil {
				return errors.New("it must be 1 to 12 lower-case letters or digits and start with a letter")
			}
			c.NamePrefix = prefix
			return nil
		},
		get: func(c *Config) string { return c.NamePrefix },
	},
	limit("memory", "memory of a workspace's commands together, as 1GiB", workspace.ParseSize, formatBytes,
		workspace.MinMemoryBytes, workspace.MaxMemoryBytes, func(l *workspace.Limits) *int64 { return &l.MemoryBytes }),
	limit("swap", "swap beyond that, as 0 or 512MiB", workspace.ParseSize, formatBytes,
		0, workspace.MaxSwapBytes, func(l *workspace.Limits) *int64 { return &l.SwapBytes }),
	limit("pids", "processes and threads alive at once", parseCount, formatCount,
		workspace.MinPids, workspace.MaxPids, func(l *workspace.Limits) *int64 { return &l.Pids }),
	limit("cpu_weight", "share of processor time under contention", parseCount, formatCount,
		workspace.MinCPUWeight, workspace.MaxCPUWeight, func(l *workspace.Limits) *int64 { return &l.CPUWeight }),
	limit("open_files", "open files of each process", parseCount, formatCount,
		workspace.MinOpenFiles, workspace.MaxOpenFiles, func(l *workspace.Limits) *int64 { return &l.OpenFiles }),
	disk(),
	openings("allow", "userns,mounts,io_uring", "what a workspace may be made with (--allow), with commas between; empty for nothing",
		func(c *Config) *[]workspace.Opening { return &c.Allow }),
	openings("chat.allow", "", "the same for the profile chat", func(c *Config) *[]workspace.Opening { return &c.ChatAllow }),
	number("max_workspaces", "2000", "most workspaces at once", 1, 100_000, func(c *Config) *int { return &c.MaxWorkspaces }),
	number("max_workspaces_per_owner", "200", "most workspaces of one owner, administrators excepted; 0 for no bound", 0, 100_000,
		func(c *Config) *int { return &c.MaxPerOwner }),
	number("max_creates_per_hour", "30", "workspaces that one owner may create an hour once max_workspaces_per_owner were created at once, "+
		"administrators excepted; 0 for no bound", 0, 1_000_000, func(c *Config) *int { return &c.MaxCreates }),
	number("max_streams_per_owner", "256",
		"most watches, logs, waits and attached streams that one owner, tokens included, may have open at once", 16, 4096,
		func(c *Config) *int { return &c.MaxStreamsPerOwner }),
	text("terminal_origins", "",
		"origins whose pages may open terminals over TLS beside those of the daemon's own host, as https://panel.example, with commas between",
		func(c *Config) *string { return &c.TerminalOrigins },
		pattern(`^(https://[a-z0-9.-]+(:[0-9]{1,5})?(,https://[a-z0-9.-]+(:[0-9]{1,5})?)*)?$`,
			"it must be origins as https://panel.example or https://panel.example:8443, in lower case, with commas between")),
	number("max_running", "0", "most workspaces that run at once; 0 for no bound", 0, 100_000, func(c *Config) *int { return &c.MaxRunning }),
	size("max_running_memory", "0", "most that the memory limits of those that run may add up to; 0 for no bound",
		func(c *Config) *int64 { return &c.MaxRunningMemory }),
	size("max_running_memory_per_owner", "0", "the same of one owner's; 0 for no bound",
		func(c *Config) *int64 { return &c.MaxRunningMemoryPerOwner }),
	span("idle_timeout", "60s", "how long a workspace may be idle before it is stopped, 0s for ever", 366*24*time.Hour,
		func(c *Config) *time.Duration { return &c.IdleTimeout }),
	number("max_archives_per_owner", "100", "most archives of one owner that are kept, administrators excepted; 0 for no bound", 0, 1_000_000,
		func(c *Config) *int { return &c.MaxArchivesPerOwner }),
	size("archive_bytes_per_owner", "64GiB", "bytes that the archives of one owner may have together, administrators excepted; 0 for no bound",
		func(c *Config) *int64 { return &c.ArchiveBytesPerOwner }),
	span("archive_retention", "4320h", "how long archives are kept, 0s for ever", 100*366*24*time.Hour,
		func(c *Config) *time.Duration { return &c.ArchiveRetention }),
	span("home_retention", "720h", "how long homes of destroyed workspaces are kept, 0s for ever", 100*366*24*time.Hour,
		func(c *Config) *time.Duration { return &c.HomeRetention }),
	size("restore.max_bytes", "16GiB", "data of all files that an archive from outside may unpack to; 0 for 64GiB",
		func(c *Config) *int64 { return &c.RestoreMaxBytes }),
	number("restore.max_entries", "2000000", "files, directories and links that an archive from outside may have", 1, 4<<20,
		func(c *Config) *int { return &c.RestoreMaxEntries }),
	number("restore.max_ratio", "1000", "bytes that one byte of an archive from outside may become, after the first 64MiB; 0 for no bound",
		0, 1<<20, func(c *Config) *int { return &c.RestoreMaxRatio }),
	optionalPath("chat.skeleton", "directory with the initial files of a workspace of the profile chat; empty for none",
		func(c *Config) *string { return &c.ChatSkeleton }),
	optionalPath("policy.path",
		"file of rules that judge every action; owned by root or the daemon; empty for only the built-in ones",
		func(c *Config) *string { return &c.PolicyPath }),
	truth("policy.include_builtin", "true",
		"whether the built-in rules apply beside those of policy.path; a rule there replaces the built-in one with its id",
		func(c *Config) *bool { return &c.PolicyBuiltin }),
	spanFrom("approval.wait", approval.DefaultWait.String(), "how long a command waits for a person's answer if one is needed",
		time.Second, approval.MaxWait, func(c *Config) *time.Duration { return &c.ApprovalWait }),
	truth("approvals.separate", "false",
		"for teams: whether administrators may not approve what they, or their tokens, asked for themselves",
		func(c *Config) *bool { return &c.SeparateApprovals }),
	text("telemetry.traces", "file",
		"where spans go: off, file (below the data directory), console (stderr) or otlp (telemetry.endpoint)",
		func(c *Config) *string { return &c.Traces }, pattern("^(off|file|console|otlp)$", "it must be off, file, console or otlp")),
	text("telemetry.endpoint", "", "where otlp sends spans, as http://127.0.0.1:4318/v1/traces",
		func(c *Config) *string { return &c.TracesEndpoint }, address("http://127.0.0.1:4318/v1/traces")),
	text("approval.webhook", "", "address that new approvals are posted to, signed as in Standard Webhooks; empty for none",
		func(c *Config) *string { return &c.WebhookURL }, address("https://hooks.example/carrel")),
	optionalPath("approval.webhook_secret_file",
		`file with the secret that signs them, "whsec_" and base64 of 24 to 64 bytes; only the daemon's user and root may read it`,
		func(c *Config) *string { return &c.WebhookSecretFile }),
	{
		Name: "redact.files", Usage: "files of secrets to be kept out of records, logs and questions, one a line or NAME=VALUE, with commas " +
			"between; absolute; only root and the daemon may read them",
		set: func(c *Config, v string) error {
			c.RedactFiles = nil
			for path := range strings.SplitSeq(v, ",") {
				if path = strings.TrimSpace(path); path == "" && strings.TrimSpace(v) == "" {
					return nil
				}
				if err := absolute(4096)(path); err != nil {
					return err
				}
				c.RedactFiles = append(c.RedactFiles, path)
			}
			if len(c.RedactFiles) > maxRedactFiles {
				return fmt.Errorf("they are %d files, at most %d are taken", len(c.RedactFiles), maxRedactFiles)
			}
			return nil
		},
		get: func(c *Config) string { return strings.Join(c.RedactFiles, ",") },
	},
	{
		Name: "steps.memory", Default: "0", Usage: "memory of an agent's step on the host, of all its processes together; at least 256MiB, " +
			"and 0 for half of the machine's",
		set: func(c *Config, v string) error {
			n, err := workspace.ParseSize(v)
			if err == nil && n != 0 && n < minStepMemory {
				err = errors.New("it must be 0 or at least 256MiB")
			}
			c.StepMemory = n
			return err
		},
		get: func(c *Config) string { return formatBytes(c.StepMemory) },
	},
	{
		Name: "steps.processes", Default: "1024", Usage: "processes and threads of such a step at once, 64 to 1048576; 0 for no bound",
		set: func(c *Config, v string) error {
			n, err := strconv.Atoi(v)
			if err != nil || n != 0 && (n < minStepProcesses || n > maxStepProcesses) {
				return errors.New("it must be 0 or a number between 64 and 1048576")
			}
			c.StepProcesses = n
			return nil
		},
		get: func(c *Config) string { return strconv.Itoa(c.StepProcesses) },
	},
	text("runbooks.dir", "/etc/carrel/runbooks",
		"directory of runbooks, *.yaml, for models of \"carrel ask\"; owned by root or the daemon; one that is not there has none",
		func(c *Config) *string { return &c.RunbooksDir }, absolute(4096)),
	text("egress.file", "/etc/carrel/egress.yaml",
		"rules, sets and name server for the network of all workspaces; one that is not there says nothing",
		func(c *Config) *string { return &c.EgressFile }, absolute(4096)),
	optionalPath("secrets.key",
		"file of the key that secrets are sealed with, made if there is none; only the daemon's user may have access; empty for the daemon's own",
		func(c *Config) *string { return &c.SecretsKey }),
	truth("chat.git", "true", "whether it begins as a git repository with a first commit",
		func(c *Config) *bool { return &c.ChatGit }),
	optionalPath("audit.anchor",
		"file that each countersigned checkpoint of the audit log is appended to, best on another mount; empty for none",
		func(c *Config) *string { return &c.AuditAnchor }),
	truth("audit.anchor_required", "false", "whether actions are refused while the anchor cannot be written",
		func(c *Config) *bool { return &c.AuditAnchorRequired }),
	spanFrom("audit.checkpoint_every", "1m0s", "how often the audit log is signed if there is something new", time.Second, 24*time.Hour,
		func(c *Config) *time.Duration { return &c.AuditCheckpointEvery }),
	number("audit.checkpoint_records", "4096", "new records after which the audit log is signed at once", 1, 1<<20,
		func(c *Config) *int { return &c.AuditCheckpointRecords }),
	size("audit.owner_rate", "256KiB", "bytes a second that one owner may have recorded, administrators excepted; 0 for no bound",
		func(c *Config) *int64 { return &c.AuditOwnerRate }),
	size("audit.owner_daily", "4GiB", "bytes a day that one owner may have recorded, administrators excepted; 0 for no bound",
		func(c *Config) *int64 { return &c.AuditOwnerDaily }),
	size("audit.max_size", "256MiB", "size at which a file of the audit log is full and another begun, 0 for none",
		func(c *Config) *int64 { return &c.AuditMaxSize }),
	span("audit.max_age", "0s", "age at which a file of the audit log is full, 0s for none", 10*366*24*time.Hour,
		func(c *Config) *time.Duration { return &c.AuditMaxAge }),
	span("audit.retention", "0s", "how long full files of the audit log are kept once they are countersigned, 0s for ever",
		100*366*24*time.Hour,
		func(c *Config) *time.Duration { return &c.AuditRetention }),
	size("audit.retention_size", "0",
		"size of all files of the audit log together from which the oldest are removed once they are countersigned, 0 for none",
		func(c *Config) *int64 { return &c.AuditRetentionSize }),
	span("stop_timeout", "10s", "how long a stop waits for running requests", 5*time.Minute,
		func(c *Config) *time.Duration { return &c.StopTimeout }),
	span("idle_exit", "30s", "how long a daemon without root stays if nothing runs and nobody is connected, 0s for ever", 366*24*time.Hour,
		func(c *Config) *time.Duration { return &c.IdleExit }),
	{
		Name: "log_level", Default: "info", Usage: "lowest level that is logged: debug, info, warn or error",
		set: func(c *Config, v string) error {
			level, ok := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}[v]
			if !ok {
				return errors.New("it must be debug, info, warn or error")
			}
			c.LogLevel = level
			return nil
		},
		get: func(c *Config) string { return strings.ToLower(c.LogLevel.String()) },
	},
	text("log_format", "text", "format of the log: text or json",
		func(c *Config) *string { return &c.LogFormat }, pattern("^(text|json)$", "it must be text or json")),
}

func text(name, def, usage string, field func(*Config) *string, check func(string) error) Key {
	return Key{
		Name: name, Default: def, Usage: usage,
		set: func(c *Config, v string) error {
			*field(c) = v
			return check(v)
		},
		get: func(c *Config) string { return *field(c) },
	}
}

func openings(name, def, usage string, field func(*Config) *[]workspace.Opening) Key {
	return Key{
		Name: name, Default: def, Usage: usage,
		set: func(c *Config, v string) error {
			names := strings.FieldsFunc(v, func(r rune) bool { return r == ',' || r == ' ' })
			set, err := workspace.ParseOpenings(names)
			*field(c) = set
			return err
		},
		get: func(c *Config) string { return workspace.JoinOpenings(*field(c)) },
	}
}

// optionalPath is absolute, or empty for none.
func optionalPath(name, usage string, field func(*Config) *string) Key {
	return text(name, "", usage, field, func(v string) error {
		if v == "" {
			return nil
		}
		return absolute(4096)(v)
	})
}

func truth(name, def, usage string, field func(*Config) *bool) Key {
	return Key{
		Name: name, Default: def, Usage: usage + ": true or false",
		set: func(c *Config, v string) error {
			if v != "true" && v != "false" {
				return errors.New("it must be true or false")
			}
			*field(c) = v == "true"
			return nil
		},
		get: func(c *Config) string { return strconv.FormatBool(*field(c)) },
	}
}

func number(name, def, usage string, least, most int, field func(*Config) *int) Key {
	return Key{
		Name: name, Default: def, Usage: fmt.Sprintf("%s, %d to %d", usage, least, most),
		set: func(c *Config, v string) error {
			n, err := strconv.Atoi(v)
			if err != nil || n < least || n > most {
				return fmt.Errorf("it must be a number between %d and %d", least, most)
			}
			*field(c) = n
			return nil
		},
		get: func(c *Config) string { return strconv.Itoa(*field(c)) },
	}
}

func size(name, def, usage string, field func(*Config) *int64) Key {
	return Key{
		Name: name, Default: def, Usage: usage,
		set: func(c *Config, v string) (err error) {
			*field(c), err = workspace.ParseSize(v)
			return err
		},
		get: func(c *Config) string { return formatBytes(*field(c)) },
	}
}

func span(name, def, usage string, most time.Duration, field func(*Config) *time.Duration) Key {
	return spanFrom(name, def, usage, 0, most, field)
}

func spanFrom(name, def, usage string, least, most time.Duration, field func(*Config) *time.Duration) Key {
	return Key{
		Name: name, Default: def, Usage: fmt.Sprintf("%s, %v to %v", usage, least, most),
		set: func(c *Config, v string) error {
			d, err := time.ParseDuration(v)
			if err != nil || d < least || d > most {
				return fmt.Errorf("it must be a duration between %v and %v, for example %q", least, most, def)
			}
			*field(c) = d
			return nil
		},
		get: func(c *Config) string { return (*field(c)).String() },
	}
}

// limit is one of limits.*, with the default and the bounds of package workspace.
func limit(name, usage string, parse func(string) (int64, error), format func(int64) string,
	least, most int64, field func(*workspace.Limits) *int64,
) Key {
	def := workspace.DefaultLimits
	return Key{
		Name: "limits." + name, Default: format(*field(&def)),
		Usage: fmt.Sprintf("%s; %s to %s", usage, format(least), format(most)),
		set: func(c *Config, v string) error {
			n, err := parse(v)
			if err != nil {
				return err
			}
			if n < least || n > most {
				return fmt.Errorf("it must be between %s and %s", format(least), format(most))
			}
			*field(&c.Limits) = n
			return nil
		},
		get: func(c *Config) string { return format(*field(&c.Limits)) },
	}
}

// disk is the only limit that may be absent.
func disk() Key {
	k := limit("disk", "what home and temporary directories hold together, or 0 for no limit", workspace.ParseSize, formatBytes,
		workspace.MinDiskBytes, workspace.MaxDiskBytes, func(l *workspace.Limits) *int64 { return &l.DiskBytes })
	set := k.set
	k.set = func(c *Config, v string) error {
		if n, err := workspace.ParseSize(v); err == nil && n == 0 {
			c.Limits.DiskBytes = 0
			return nil
		}
		return set(c, v)
	}
	return k
}

func absolute(limit int) func(string) error {
	return func(v string) error {
		switch {
		case !filepath.IsAbs(v) || filepath.Clean(v) != v || v == "/" || strings.ContainsRune(v, 0):
			return errors.New(`it must be an absolute path without "." or ".." and without a slash at its end`)
		case len(v) > limit:
			return fmt.Errorf("it is %d bytes long and at most %d are allowed", len(v), limit)
		}
		return nil
	}
}

func optional(check func(string) error) func(string) error {
	return func(v string) error {
		if v == "" {
			return nil
		}
		return check(v)
	}
}

// hostPort takes "" and HOST:PORT with a port that is a number.
func hostPort(v string) error {
	if v == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(v)
	n, perr := strconv.ParseUint(port, 10, 16)
	if err != nil || perr != nil || strconv.FormatUint(n, 10) != port || strings.ContainsAny(host, " /@%") {
		return errors.New(`it must be host:port, for example "192.0.2.1:7443", "[::1]:7443" or ":7443"`)
	}
	return nil
}

func pattern(expr, why string) func(string) error {
	return func(v string) error {
		// Compiled when used: init must stay cheap.
		if !regexp.MustCompile(expr).MatchString(v) {
			return errors.New(why)
		}
		return nil
	}
}

// units are the binary prefixes of IEC 80000-13, the largest first.
var units = []struct {
	suffix string
	bytes  int64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}

func formatBytes(n int64) string {
	for _, u := range units {
		if n != 0 && n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.suffix
		}
	}
	return strconv.FormatInt(n, 10)
}

func parseCount(v string) (int64, error) {
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil {
		return 0, errors.New("it must be a number")
	}
	return n, nil
}

func formatCount(n int64) string { return strconv.FormatInt(n, 10) }

// address takes "" and the address of an HTTP server, without credentials.
func address(example string) func(string) error {
	return func(v string) error {
		u, err := url.Parse(v)
		if v == "" || err == nil && u.Host != "" && u.User == nil && (u.Scheme == "https" || u.Scheme == "http") {
			return nil
		}
		return fmt.Errorf("it must be an address like %s, without a name or password in it", example)
	}
}
