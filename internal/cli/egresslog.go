package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
)

func (a *app) egressLogCommand() *cobra.Command {
	var l connectionLog
	c := &cobra.Command{
		Use:   "log [flags] [WORKSPACE]",
		Short: "Show what workspaces connected to",
		Long: `log shows the connections that ended or were refused, of one workspace or of all: the
records of type "connection" of the audit log. Only those who may read the audit log see
all: root, the members of the carrel group, and tokens with the role auditor. Others see
the newest 64 of a workspace that they may reach, as far as they came since the daemon was
started; "carrel egress top" shows what is open.

TIME is when a connection ended or was refused, in UTC. Equal refusals are counted in one
line. Connections that were too many to be recorded one by one are summed up in a line;
--refused shows it too, because some of them may have been refused. With -o json each
record is the line of the log as it stands, or a connection for those who may not read it.`,
		Example: `  sudo carrel egress log demo
  sudo carrel egress log -f --refused
  sudo carrel egress log -n 0 -o json demo | jq .data.host`,
		Args:              between(nil, "WORKSPACE"),
		ValidArgsFunction: onlyFirst(a.completeWorkspaces()),
	}
	c.Flags().Int64VarP(&l.newest, "lines", "n", 50, "show this many of the newest records; 0 is all")
	c.Flags().BoolVarP(&l.follow, "follow", "f", false, "go on with new records until it is interrupted")
	c.Flags().BoolVar(&l.refused, "refused", false, "only what was refused or cut")
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		if l.newest < 0 {
			return usage(c, "cannot use a negative number of records: give 0 for all")
		}
		if len(args) > 0 && args[0] == "" {
			return usage(c, "cannot show the connections of %q: name a workspace, or leave the argument out for all", args[0])
		}
		l.to, l.json, l.wide, l.all = a.Out, *out == asJSON, out.whole(a.Out), len(args) == 0
		err := a.logConnections(c, args, &l)
		switch {
		case !errdefs.IsPermissionDenied(err):
			return err
		case len(args) == 0:
			return fmt.Errorf("cannot show the connections of all workspaces: they are in the audit log, which only administrators and tokens "+
				"with the role auditor may read; name one of yours; the daemon says:\n  %w", err)
		}
		return a.newestConnections(c.Context(), args[0], &l)
	}
	return c
}

// logConnections shows what there is, and then what comes.
func (a *app) logConnections(c *cobra.Command, args []string, l *connectionLog) error {
	req := &carrelv1.ShowRequest{Filter: &carrelv1.Filter{Type: "connection"}}
	if len(args) > 0 {
		name, err := a.recordedName(c.Context(), args[0], "carrel egress log ")
		if err != nil {
			return err
		}
		req.Filter.Workspace = name
	}
	if !l.refused { // the daemon cannot tell refusals: the newest of them are found here
		req.Last = l.newest
	}
	take := func(m *carrelv1.ShowResponse) error { return l.take(m.GetLines()) }
	if err := receive(c.Context(), a, records.Show, req, take); err != nil {
		return err
	}
	if err := l.flush(); err != nil || !l.follow {
		return err
	}
	req.Last, req.Follow = 0, true
	if l.seq > 0 {
		req.FromSeq = l.seq + 1
	}
	return receive(c.Context(), a, records.Show, req, take)
}

// connectionLog prints records of connections. They come in order.
type connectionLog struct {
	newest          int64 // how many are shown of those that there are; 0 is all
	follow, refused bool
	json, wide      bool
	all             bool // of every workspace
	to              *os.File

	seq    int64    // of the last one that came
	held   [][]byte // the newest of those that there are, at most that many
	headed bool     // the head is printed
	direct bool     // what comes is printed at once
}

// connectionRecord is what is read of a record of type connection: docs/protocols/audit.md.
type connectionRecord struct {
	Seq       int64     `json:"seq"`
	Time      time.Time `json:"time"`
	Workspace string    `json:"workspace"`
	Status    string    `json:"status"`
	Error     string    `json:"error"`
	Data      struct {
		DurationMS    int64    `json:"duration_ms"`
		Way           string   `json:"way"`
		Host          string   `json:"host"`
		Port          uint16   `json:"port"`
		Rule          string   `json:"rule"`
		Refused       string   `json:"refused"`
		SentBytes     int64    `json:"sent_bytes"`
		ReceivedBytes int64    `json:"received_bytes"`
		Secrets       []string `json:"secrets"`
		Count         int64    `json:"count"`
		Untold        struct {
			Connections   int64 `json:"connections"`
			SentBytes     int64 `json:"sent_bytes"`
			ReceivedBytes int64 `json:"received_bytes"`
		} `json:"untold"`
	} `json:"data"`
}

// single reports whether the record has a connection of its own: the last of a run may have sums alone.
func (r *connectionRecord) single() bool { return r.Data.Count > 0 }

func (r *connectionRecord) denied() bool {
	return r.Status == "denied" || r.Data.Refused != ""
}

// take takes lines of the record. They are kept until flush, unless all are to be printed.
func (l *connectionLog) take(lines [][]byte) error {
	for _, line := range lines {
		var r connectionRecord
		if err := json.Unmarshal(line, &r); err == nil {
			l.seq = max(l.seq, r.Seq)
			if l.refused && !r.denied() && r.Data.Untold.Connections == 0 {
				continue
			}
		}
		if l.direct || l.newest == 0 {
			if err := l.print(line); err != nil {
				return err
			}
			continue
		}
		if l.held = append(l.held, line); int64(len(l.held)) > l.newest {
			l.held = slices.Delete(l.held, 0, 1)
		}
	}
	return nil
}

// flush prints what was kept. What comes later is printed at once.
func (l *connectionLog) flush() error {
	if err := l.head(); err != nil {
		return err
	}
	for _, line := range l.held {
		if err := l.print(line); err != nil {
			return err
		}
	}
	l.held, l.direct = nil, true
	return nil
}

// head prints the names of the columns, once.
func (l *connectionLog) head() error {
	if l.json || l.headed {
		return nil
	}
	l.headed = true
	return l.row("TIME", "WORKSPACE", "HOST:PORT", "WAY", "SENT", "RECEIVED", "DURATION", "RULE")
}

func (l *connectionLog) print(line []byte) error {
	if l.json {
		return emitJSON(l.to, append(line, '\n'))
	}
	var r connectionRecord
	if json.Unmarshal(line, &r) != nil {
		return say(l.to, "%s\n", printable(string(line)))
	}
	return l.printRecord(&r)
}

func (l *connectionLog) printRecord(r *connectionRecord) error {
	if err := l.head(); err != nil {
		return err
	}
	when := r.Time.UTC().Format(shortStamp)
	if l.wide {
		when = r.Time.UTC().Format(stamp)
	}
	if u := r.Data.Untold; u.Connections > 0 { // they were before this one
		text := fmt.Sprintf("%s, %s sent, %s received", counted(u.Connections, "further connection"), bytesText(u.SentBytes),
			bytesText(u.ReceivedBytes))
		if err := l.row(when, r.Workspace, text); err != nil {
			return err
		}
	}
	if !r.single() || l.refused && !r.denied() {
		return nil
	}
	d := &r.Data
	host := d.Host
	if d.Port != 0 {
		host = net.JoinHostPort(host, strconv.Itoa(int(d.Port)))
	}
	sent, received, took := "-", "-", "-"
	if !r.denied() || d.SentBytes+d.ReceivedBytes > 0 {
		sent, received = bytesText(d.SentBytes), bytesText(d.ReceivedBytes)
		took = (time.Duration(d.DurationMS) * time.Millisecond).String()
	}
	return l.row(when, r.Workspace, cmp.Or(host, "-"), d.Way, sent, received, took, r.verdict())
}

// verdict is the rule that allowed a connection or why it was refused, and which secrets the host got.
func (r *connectionRecord) verdict() string {
	text := r.Data.Rule
	if r.denied() {
		text = "refused"
		if r.Data.Count > 1 {
			text += fmt.Sprintf(" %d times", r.Data.Count)
		}
		text += ": " + cmp.Or(r.Error, r.Data.Refused)
	}
	if len(r.Data.Secrets) > 0 {
		text += "; secrets: " + strings.Join(r.Data.Secrets, ", ")
	}
	return text
}

// logColumn is a column of the log. Its rows are no rows of a table, because the widths of later records are not known.
type logColumn struct{ short, wide int }

var logColumns = []logColumn{
	{len(shortStamp), len(stamp)},
	{len("ws-00000000"), len("ws-00000000")},
	{20, 28},
	{0, len("transparent")},
	{0, len("1023.9 KiB")},
	{0, len("1023.9 KiB")},
	{0, 10},
}

// row prints cells: all with -o wide, otherwise those that fit lineWidth, with what that leaves of the last one.
func (l *connectionLog) row(cells ...string) error {
	var line strings.Builder
	for i, c := range cells[:len(cells)-1] {
		w := logColumns[i].short
		if l.wide {
			w = logColumns[i].wide
		}
		if i == 1 && !l.all || w == 0 {
			continue
		}
		fmt.Fprintf(&line, "%-*s  ", w, printable(c))
	}
	last := printable(cells[len(cells)-1])
	if !l.wide {
		last = cut(last, max(lineWidth-utf8.RuneCountInString(line.String()), leastText))
	}
	_, err := l.to.WriteString(line.String() + last + "\n")
	return err
}
