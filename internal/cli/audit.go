package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/rootless"
)

func (a *app) auditCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "audit",
		Short: "Read and verify the record of every action (administrators)",
		Args:  exactly(),
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(a.auditVerifyCommand(), a.auditShowCommand(), a.auditTailCommand(), a.auditCheckpointCommand(), a.auditProveCommand(), a.auditExportCommand(), a.auditCheckProofCommand())
	return c
}

// verdictView is the JSON of audit verify.
type verdictView struct {
	OK      bool   `json:"ok"`
	Records int64  `json:"records"`
	Bytes   int64  `json:"bytes"`
	Head    string `json:"head"`
	BadSeq  int64  `json:"bad_seq"`
	BadLine int64  `json:"bad_line"`
	Harm    string `json:"harm"`
	Detail  string `json:"detail"`
	File    string `json:"file"`
	// How many checkpoints hold, and the last records that are vouched for.
	Checkpoints   int64  `json:"checkpoints"`
	Signed        int64  `json:"signed"`
	Countersigned int64  `json:"countersigned"`
	Anchored      int64  `json:"anchored"`
	LogKey        string `json:"log_key"`
	BrokerKey     string `json:"broker_key"`
	Note          string `json:"note"`
}

// text is the verdict for a person.
func (v verdictView) text() string {
	var b strings.Builder
	if v.OK {
		fmt.Fprintf(&b, "ok: %d records, %s, head %s\n", v.Records, bytesText(v.Bytes), v.Head)
	} else {
		fmt.Fprintf(&b, "not ok: record %d on line %d%s: %s: %s\n%d records before it are as they were written.\n",
			v.BadSeq, v.BadLine, inFile(v.File), v.Harm, printable(v.Detail), max(v.Records, 0))
	}
	if v.Checkpoints > 0 {
		fmt.Fprintf(&b, "%d checkpoints hold: signed to record %d, countersigned to %d, anchored to %d.\n", v.Checkpoints, v.Signed, v.Countersigned, v.Anchored)
	}
	if v.LogKey != "" {
		fmt.Fprintf(&b, "log key     %s\nbroker key  %s\n", v.LogKey, cmp.Or(v.BrokerKey, "none"))
	}
	if v.Note != "" {
		fmt.Fprintln(&b, "note:", printable(v.Note))
	}
	return b.String()
}

func inFile(name string) string {
	if name == "" {
		return ""
	}
	return " of " + name
}

func (a *app) auditVerifyCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "verify",
		Short: "Walk the whole chain and name the first bad record",
		Long: `Sign what is there, and walk the whole chain of records: against every checkpoint, what
the broker signed last, and the anchor. The exit code is 1 if a record was changed,
removed, inserted, reordered or replayed, and the first such record is named.
"carreld --verify-audit" does the same without asking a daemon.`,
		Example: "  sudo carrel audit verify\n  carrel audit verify --own",
		Args:    exactly(),
	}
	own := c.Flags().Bool("own", false, "verify the record of your own \"carrel run\" instead, which nobody signs")
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if *own {
			return a.verifyOwn(c, *out)
		}
		client, err := a.client()
		if err != nil {
			return err
		}
		res, err := client.Audit().Verify(c.Context(), connect.NewRequest(&carrelv1.VerifyRequest{}))
		if err != nil {
			return err
		}
		m := res.Msg
		return a.printVerdict(verdictView{
			m.GetOk(), m.GetRecords(), m.GetBytes(), m.GetHead(), m.GetBadSeq(), m.GetBadLine(), m.GetHarm(), m.GetDetail(), m.GetFile(),
			m.GetCheckpoints(), m.GetSigned(), m.GetCountersigned(), m.GetAnchored(), m.GetLogKey(), m.GetBrokerKey(), m.GetNote(),
		}, *out)
	}
	return c
}

func (a *app) printVerdict(v verdictView, out format) error {
	if !v.OK {
		a.code = exitFailure
	}
	if out == asJSON {
		return a.printJSON(v)
	}
	_, err := io.WriteString(a.Out, v.text())
	return err
}

func (a *app) verifyOwn(c *cobra.Command, out format) error {
	f, err := rootless.VerifyRecord(c.Context())
	if err != nil {
		return err
	}
	return a.printVerdict(verdictView{
		OK: f.OK, Records: f.Records, Bytes: f.Bytes, Head: f.Head, BadSeq: f.BadSeq, BadLine: f.BadLine, Harm: f.Harm, Detail: f.Detail, File: f.File,
		Note: f.Note,
	}, out)
}

// checkpointView is the JSON of audit checkpoint.
type checkpointView struct {
	Signed         int64  `json:"signed"`
	Countersigned  int64  `json:"countersigned"`
	Anchored       int64  `json:"anchored"`
	LogKey         string `json:"log_key"`
	BrokerKey      string `json:"broker_key"`
	Anchor         string `json:"anchor"`
	AnchorRequired bool   `json:"anchor_required"`
	Error          string `json:"error"`
	AnchorError    string `json:"anchor_error"`
}

func (a *app) auditCheckpointCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "checkpoint",
		Short:   "Sign the log as it is now",
		Long:    "Sign the log as it is now, have the broker countersign it, and append that to the anchor.",
		Example: "  sudo carrel audit checkpoint",
		Args:    exactly(),
	}
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		client, err := a.client()
		if err != nil {
			return err
		}
		res, err := client.Audit().Checkpoint(c.Context(), connect.NewRequest(&carrelv1.CheckpointRequest{Sign: true}))
		if err != nil {
			return err
		}
		m := res.Msg
		v := checkpointView{
			m.GetSigned(), m.GetCountersigned(), m.GetAnchored(), m.GetLogKey(), m.GetBrokerKey(), m.GetAnchor(), m.GetAnchorRequired(),
			m.GetError(), m.GetAnchorError(),
		}
		if *out == asJSON {
			return a.printJSON(v)
		}
		_, err = fmt.Fprintf(a.Out, "signed to record %d, countersigned to %d, anchored to %d\nlog key     %s\nbroker key  %s\n",
			v.Signed, v.Countersigned, v.Anchored, v.LogKey, cmp.Or(v.BrokerKey, "none"))
		return err
	}
	return c
}

// filterFlags adds the flags that name records. What it returns reads them.
func filterFlags(c *cobra.Command) func(*cobra.Command) (*carrelv1.Filter, error) {
	var f carrelv1.Filter
	var since, until string
	for _, x := range []struct {
		to          *string
		name, usage string
	}{
		{&f.Workspace, "workspace", "only of this workspace, by its derived name"},
		{&f.Principal, "principal", "only of this principal, as uid:1000"},
		{&f.Level, "level", "only what was judged so: SAFE, CONFIRM or BLOCK"},
		{&f.Capability, "capability", "only what was found to have this capability"},
		{&f.Trace, "trace", "only of this request"},
		{&f.Type, "type", "only records of this type, as intent or denial"},
		{&since, "since", "only from this time on: RFC 3339, or so long ago, as 1h"},
		{&until, "until", "only before this time"},
	} {
		c.Flags().StringVar(x.to, x.name, "", x.usage)
	}
	return func(c *cobra.Command) (*carrelv1.Filter, error) {
		for _, t := range []struct {
			name, text string
			to         *int64
		}{{"since", since, &f.Since}, {"until", until, &f.Until}} {
			if t.text == "" {
				continue
			}
			at, err := time.Parse(time.RFC3339, t.text)
			if d, derr := time.ParseDuration(t.text); derr == nil && d >= 0 {
				at, err = time.Now().Add(-d), nil
			}
			if err != nil || at.Unix() < 0 {
				return nil, usage(c, "cannot use --%s %q: give a time as 2026-11-22T10:00:00Z, or how long ago as 90m", t.name, t.text)
			}
			*t.to = at.UnixNano()
		}
		return &f, nil
	}
}

func (a *app) auditShowCommand() *cobra.Command {
	var from, last int64
	c := &cobra.Command{
		Use:   "show [flags]",
		Short: "Print records",
		Long:  "Print records. With -o json each is the line of the log as it stands, hash included.",
		Example: `  sudo carrel audit show --last 20
  sudo carrel audit show --from 100 -o json | jq .action
  sudo carrel audit show --type denial --since 24h`,
		Args: exactly(),
	}
	c.Flags().Int64Var(&from, "from", 0, "the first sequence number wanted")
	c.Flags().Int64Var(&last, "last", 0, "at most so many of the newest")
	filter := filterFlags(c)
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		f, err := filter(c)
		if err != nil {
			return err
		}
		return a.showAudit(c, &carrelv1.ShowRequest{FromSeq: from, Last: last, Filter: f}, *out)
	}
	return c
}

func (a *app) auditTailCommand() *cobra.Command {
	var last int64
	c := &cobra.Command{
		Use:     "tail [flags]",
		Short:   "Print the newest records and those that come",
		Example: "  sudo carrel audit tail",
		Args:    exactly(),
	}
	c.Flags().Int64VarP(&last, "lines", "n", 10, "so many of the newest first")
	filter := filterFlags(c)
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		f, err := filter(c)
		if err != nil {
			return err
		}
		return a.showAudit(c, &carrelv1.ShowRequest{Last: last, Follow: true, Filter: f}, *out)
	}
	return c
}

func (a *app) showAudit(c *cobra.Command, req *carrelv1.ShowRequest, out format) error {
	if req.GetFromSeq() < 0 || req.GetLast() < 0 {
		return usage(c, "cannot use a negative number of records: give 0 for all")
	}
	client, err := a.client()
	if err != nil {
		return err
	}
	s, err := client.Audit().Show(c.Context(), connect.NewRequest(req))
	if err != nil {
		return err
	}
	defer s.Close()
	for s.Receive() {
		for _, line := range s.Msg().GetLines() {
			if out == asTable {
				line = []byte(auditLine(line))
			}
			if _, err := a.Out.Write(append(line, '\n')); err != nil {
				return err
			}
		}
	}
	return s.Err()
}

// auditLine is a record for a person: what is there of it, in one line. It is not a
// table in the strict sense, because the widths of what is to come are not known.
func auditLine(line []byte) string {
	var r struct {
		Seq       int64     `json:"seq"`
		Time      time.Time `json:"time"`
		Type      string    `json:"type"`
		Principal string    `json:"principal"`
		Workspace string    `json:"workspace"`
		Intent    int64     `json:"intent"`
		Status    string    `json:"status"`
		Error     string    `json:"error"`
		Approval  string    `json:"approval"`
		Action    struct {
			Kind string   `json:"kind"`
			Argv []string `json:"argv"`
		} `json:"action"`
		Data struct {
			Event   string `json:"event"`
			Version string `json:"version"`
			// Of an answer.
			Kind       string `json:"kind"`
			Reason     string `json:"reason"`
			Permission string `json:"permission"`
		} `json:"data"`
	}
	if err := json.Unmarshal(line, &r); err != nil {
		return printable(string(line))
	}
	s := fmt.Sprintf("%6d  %s  %-9s  %-9s  %-12s  %s", r.Seq, r.Time.UTC().Format("2006-01-02 15:04:05.000"), r.Type, r.Principal, r.Workspace, r.Action.Kind)
	if len(r.Action.Argv) > 0 {
		s += " " + cut(shellQuote(r.Action.Argv), 80)
	}
	switch {
	case r.Approval == "" || r.Approval == "none":
	case r.Type == "approval":
		s += printable(strings.TrimRight(r.Approval+" "+r.Data.Kind+" "+r.Data.Permission, " "))
		r.Error = r.Data.Reason
	case r.Type == "request":
		s += ", asked as " + printable(r.Approval)
	default:
		s += ", by " + printable(r.Approval)
	}
	if r.Data.Event != "" {
		s += strings.TrimRight(printable(r.Data.Event+" "+r.Data.Version), " ")
	}
	if r.Intent != 0 {
		s += " of " + strconv.FormatInt(r.Intent, 10)
	}
	if r.Status != "" {
		s += " " + r.Status
	}
	if r.Error != "" {
		s += ": " + printable(r.Error)
	}
	return s
}
