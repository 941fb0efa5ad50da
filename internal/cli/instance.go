package cli

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/probe"
)

// The default directories of an instance, the user of its daemon and the group of its workspaces.
const (
	defaultDataDir    = "/var/lib/carrel"
	defaultRuntimeDir = "/run/carrel"
	daemonUser        = "carrel"
	workspaceGroup    = "carrel-workspaces"
)

// instance is one carrel of this host: a broker and a daemon with their directories.
//
//	<data>/            0711 root
//	  up.json          0600 root    what up made, for down to remove
//	  broker.json      0600 root    the broker's settings
//	  log/             0700 root    broker.log, daemon.log, and what they were before, with .1
//	  daemon/          0700 carrel  database and audit log
//	  broker/, homes/, tmp/, retained/   the broker's
//	<runtime>/         0755 root
//	  broker.pid, daemon.pid        pid and start time
//	  carrel.sock                   the daemon's
//	  broker.sock, x/               the broker's
type instance struct {
	data, runtime string
	config        string // the daemon's configuration file, "" for its default
	prefix        string
}

// instanceFlags adds the flags that say which instance is meant.
func instanceFlags(c *cobra.Command) *instance {
	i := &instance{}
	c.Flags().StringVar(&i.data, "data", defaultDataDir, "directory of what must survive a restart")
	c.Flags().StringVar(&i.runtime, "runtime-dir", defaultRuntimeDir, "directory of sockets")
	_ = c.MarkFlagDirname("data") // the flags are there
	_ = c.MarkFlagDirname("runtime-dir")
	return i
}

// absolute makes the directories absolute and refuses what no instance can use.
func (i *instance) absolute() error {
	for _, p := range []*string{&i.data, &i.runtime} {
		abs, err := filepath.Abs(*p)
		if err != nil {
			return fmt.Errorf("cannot use the directory %q: %w", *p, err)
		}
		if abs == "/" || strings.ContainsAny(abs, ":\n\x00") {
			return fmt.Errorf("cannot use the directory %q: it must be a directory of its own, without colons in its path: %w",
				*p, errdefs.ErrInvalidArgument)
		}
		*p = abs
	}
	if i.config != "" {
		abs, err := filepath.Abs(i.config)
		if err != nil {
			return fmt.Errorf("cannot use the file %q: %w", i.config, err)
		}
		i.config = abs
	}
	if i.data == i.runtime || strings.HasPrefix(i.runtime, i.data+"/") || strings.HasPrefix(i.data, i.runtime+"/") {
		return fmt.Errorf("cannot use %s and %s: one must not hold the other; choose two directories: %w",
			i.data, i.runtime, errdefs.ErrInvalidArgument)
	}
	return nil
}

func (i *instance) socket() string    { return filepath.Join(i.runtime, "carrel.sock") }
func (i *instance) host() string      { return "unix://" + i.socket() }
func (i *instance) settings() string  { return filepath.Join(i.data, "broker.json") }
func (i *instance) ledger() string    { return filepath.Join(i.data, "broker", "ledger.jsonl") }
func (i *instance) stateFile() string { return filepath.Join(i.data, "up.json") }
func (i *instance) logDir() string    { return filepath.Join(i.data, "log") }
func (i *instance) daemonDir() string { return filepath.Join(i.data, "daemon") }
func (i *instance) isDefault() bool {
	return i.data == defaultDataDir && i.runtime == defaultRuntimeDir
}
func (i *instance) socketsDir() string { return filepath.Join(i.runtime, "x") }

// flags are the flags that name the instance.
func (i *instance) flags() string {
	s := ""
	if i.data != defaultDataDir {
		s += " --data " + shellQuote([]string{i.data})
	}
	if i.runtime != defaultRuntimeDir {
		s += " --runtime-dir " + shellQuote([]string{i.runtime})
	}
	return s
}

// cgroupName is the instance's group in every hierarchy. Each data directory has one.
func (i *instance) cgroupName() string {
	if i.data == defaultDataDir {
		return "carrel"
	}
	sum := sha256.Sum256([]byte(i.data))
	return "carrel-" + hex.EncodeToString(sum[:4])
}

// firstID is the first of the probe.DefaultIDs ids for the instance's workspaces. Each instance
// has its own range, because each keeps its own record of the ids that were used.
func (i *instance) firstID() uint32 {
	if i.data == defaultDataDir {
		return probe.DefaultFirstID
	}
	// All ranges together end at 1<<31, beyond which some programs read an id as negative.
	const others = (1<<31-probe.DefaultFirstID)/probe.DefaultIDs - 1
	sum := sha256.Sum256([]byte(i.data))
	slot := 1 + binary.BigEndian.Uint32(sum[4:])%others
	return probe.DefaultFirstID + slot*probe.DefaultIDs
}

// made is what up made on this host, for down to remove, and the flags of the last up, for the
// next one. The account is marked elsewhere, because several instances can share it.
type made struct {
	// Dirs in the order they were made.
	Dirs []string `json:"dirs"`
	// Config and Prefix are the values of these flags, "" if they were not given.
	Config string `json:"config,omitempty"`
	Prefix string `json:"prefix,omitempty"`
}

// recall takes over the flags of the last up that were not given again.
func (i *instance) recall(m made) {
	i.config = cmp.Or(i.config, m.Config)
	i.prefix = cmp.Or(i.prefix, m.Prefix)
}

// remember stores the flags of this up for the next one, once carrel runs.
func (i *instance) remember() error {
	m, err := i.readMade()
	if err != nil || m.Config == i.config && m.Prefix == i.prefix {
		return err
	}
	m.Config, m.Prefix = i.config, i.prefix
	return i.writeMade(m)
}

func (i *instance) readMade() (made, error) {
	var m made
	b, err := os.ReadFile(i.stateFile())
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	if err != nil {
		return m, fmt.Errorf("cannot read what was made for this instance: %w", err)
	}
	return m, nil
}

func (i *instance) writeMade(m made) error { return writeJSON(i.stateFile(), m) }

// brokerSettings are the settings of the broker that up writes. Others in the file are the
// administrator's and stay.
func (i *instance) brokerSettings(who account, executor, egress string) object {
	return object{
		{"data_dir", i.data},
		{"runtime_dir", i.runtime},
		{"daemon_uid", who.uid},
		{"daemon_gid", who.gid},
		{"uid_first", i.firstID()},
		{"uid_count", probe.DefaultIDs},
		{"cgroup_name", i.cgroupName()},
		{"executor_path", executor},
		{"egress_path", egress},
		{"workspace_group", workspaceGroup}, // the group of the users of all workspaces
	}
}

// kept are the settings that up writes only once: the administrator may change them.
var kept = []string{"uid_first", "uid_count", "workspace_group"}

// mergeSettings lays ours over what the file holds.
func mergeSettings(old []byte, ours object) (map[string]any, error) {
	all := map[string]any{}
	if len(old) > 0 {
		if err := json.Unmarshal(old, &all); err != nil {
			return nil, fmt.Errorf("it is not JSON: %w: %w", err, errdefs.ErrInvalidArgument)
		}
	}
	for _, m := range ours {
		if _, ok := all[m.name]; !ok || !slices.Contains(kept, m.name) {
			all[m.name] = m.value
		}
	}
	return all, nil
}

func (i *instance) writeSettings(ours object) error {
	old, err := os.ReadFile(i.settings())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot read the broker's settings: %w", err)
	}
	all, err := mergeSettings(old, ours)
	if err != nil {
		return fmt.Errorf("cannot use the broker's settings %s: %w", i.settings(), err)
	}
	return writeJSON(i.settings(), all)
}

// writeJSON replaces a file with v as JSON. One that has it already stays: there may be no room on the disk
// for another.
func writeJSON(path string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	if old, err := os.ReadFile(path); err == nil && string(old) == string(b)+"\n" {
		return nil
	}
	err = replaceFile(path, ".new-", func(w io.Writer) error {
		_, err := w.Write(append(b, '\n'))
		return err
	}, func() { crashpoint.Here("cli.file.written") })
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	return nil
}

// checkDir refuses a directory that another user could replace: root must own it and every
// directory above it, and others may write only to a directory above that has the sticky bit.
func checkDir(path string) error {
	for p := path; ; p = filepath.Dir(p) {
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return fmt.Errorf("cannot look at %s: %w", p, err)
		}
		var why string
		switch {
		case st.Mode&unix.S_IFMT == unix.S_IFLNK:
			why = "is a symbolic link; name the directory that it points to"
		case st.Mode&unix.S_IFMT != unix.S_IFDIR:
			why = "is not a directory"
		case st.Uid != 0:
			why = fmt.Sprintf("belongs to uid %d, who could put another in its place; chown root it, or use a directory below /var/lib", st.Uid)
		case st.Mode&0o022 != 0 && (p == path || st.Mode&unix.S_ISVTX == 0):
			why = fmt.Sprintf("can be written by others (mode %04o); chmod go-w it, or use a directory of its own", st.Mode&0o7777)
		}
		if why != "" {
			return fmt.Errorf("cannot use %s: %s %s: %w", path, p, why, errdefs.ErrFailedPrecondition)
		}
		if p == "/" {
			return nil
		}
	}
}

// enterable refuses a path that the user with these ids, and no other groups, could not reach.
// It checks only the directories above path.
func enterable(path string, uid, gid uint32) error {
	for p := filepath.Dir(path); ; p = filepath.Dir(p) {
		var st unix.Stat_t
		if err := unix.Stat(p, &st); err != nil {
			return fmt.Errorf("cannot look at %s: %w", p, err)
		}
		bit := uint32(0o001)
		switch {
		case st.Uid == uid:
			bit = 0o100
		case st.Gid == gid:
			bit = 0o010
		}
		if st.Mode&bit == 0 {
			return fmt.Errorf("cannot use %s: the user %s may not enter %s (mode %04o); use a directory below /var/lib, or: chmod o+x %s: %w",
				path, daemonUser, p, st.Mode&0o7777, shellQuote([]string{p}), errdefs.ErrFailedPrecondition)
		}
		if p == "/" {
			return nil
		}
	}
}
