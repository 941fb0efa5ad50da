package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/cli/timearg"
	"github.com/carrel-dev/carrel/internal/rootless"
	"github.com/carrel-dev/carrel/internal/spec/operation"
)

func (a *app) auditCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "audit",
		Short: "Read and verify the record of every action (administrators)",
	}, a.auditVerifyCommand(), a.auditShowCommand(), a.auditTailCommand(), a.auditCheckpointCommand(),
		a.auditProveCommand(), a.auditExportCommand(), a.auditCheckProofCommand())
}

// verdictText is a verdict for people.
func verdictText(v *carrelv1.VerifyResponse) text {
	var b strings.Builder
	if v.GetOk() {
		fmt.Fprintf(&b, "ok: %s, %s, head %s\n", counted(v.GetRecords(), "record"), bytesText(v.GetBytes()), v.GetHead())
	} else {
		file := ""
		if v.GetFile() != "" {
			file = " of " + v.GetFile()
		}
		fmt.Fprintf(&b, "not ok: record %d on line %d%s: %s: %s\nAs they were written: %s before it.\n",
			v.GetBadSeq(), v.GetBadLine(), file, v.GetHarm(), printable(v.GetDetail()), counted(max(v.GetRecords(), 0), "record"))
	}
	if v.GetCheckpoints() > 0 {
		fmt.Fprintf(&b, "%s verified: signed to record %d, countersigned to %d, %s.\n",
			counted(v.GetCheckpoints(), "checkpoint"), v.GetSigned(), v.GetCountersigned(), anchoredText(v.GetAnchored()))
	}
	if v.GetLogKey() != "" {
		b.WriteString(keysText(v.GetLogKey(), v.GetBrokerKey()))
	}
	if v.GetNote() != "" {
		fmt.Fprintln(&b, "note:", printable(v.GetNote()))
	}
	return text(b.String())
}

// anchoredText is up to which record the anchor has the log; 0 is none.
func anchoredText(n int64) string {
	if n == 0 {
		return "not anchored"
	}
	return fmt.Sprintf("anchored to %d", n)
}

func keysText(log, broker string) string {
	return fmt.Sprintf("log key     %s\nbroker key  %s\n", log, cmp.Or(broker, "none"))
}

func (a *app) auditVerifyCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "verify",
		Short: "Verify the whole chain and name the first bad record",
		Long: `Sign what is there, and verify the whole chain of records: against every checkpoint, what
the broker signed last, and the anchor. The exit code is 1 if a record was changed,
removed, inserted, reordered or replayed, and the first such record is named.
"carreld --verify-audit" does the same without asking a daemon.`,
		Example: "  sudo carrel audit verify\n  carrel audit verify --own",
		Args:    exactly(),
	}
	own := c.Flags().Bool("own", false, "verify the record of your own \"carrel run\" instead, which nobody signs")
	return a.prints(c, func(c *cobra.Command, _ []string) (any, printer, error) {
		var v *carrelv1.VerifyResponse
		var err error
		if *own {
			f, verr := rootless.VerifyRecord(c.Context())
			err, v = verr, &carrelv1.VerifyResponse{
				Ok: f.OK, Records: f.Records, Bytes: f.Bytes, Head: f.Head, BadSeq: f.BadSeq, BadLine: f.BadLine,
				Harm: f.Harm, Detail: f.Detail, File: f.File, Note: f.Note,
			}
		} else {
			v, err = ask(c.Context(), a, records.Verify, &carrelv1.VerifyRequest{})
		}
		if err != nil {
			return nil, nil, err
		}
		if !v.GetOk() {
			a.code = exitFailure
		}
		return objectOf(v), verdictText(v), nil
	})
}

func (a *app) auditCheckpointCommand() *cobra.Command {
	return a.prints(&cobra.Command{
		Use:     "checkpoint",
		Short:   "Sign the log as it is now",
		Long:    "Sign the log as it is now, have the broker countersign it, and append that to the anchor.",
		Example: "  sudo carrel audit checkpoint",
		Args:    exactly(),
	}, func(c *cobra.Command, _ []string) (any, printer, error) {
		m, err := ask(c.Context(), a, records.Checkpoint, &carrelv1.CheckpointRequest{Sign: true})
		if err != nil {
			return nil, nil, err
		}
		return objectOf(m), textf("signed to record %d, countersigned to %d, %s\n%s",
			m.GetSigned(), m.GetCountersigned(), anchoredText(m.GetAnchored()), keysText(m.GetLogKey(), m.GetBrokerKey())), nil
	})
}

// filterFlags adds the flags that select records. The function that it returns reads them.
func (a *app) filterFlags(c *cobra.Command) func(*cobra.Command) (*carrelv1.Filter, error) {
	var f carrelv1.Filter
	var since, until string
	for _, x := range []struct {
		to          *string
		name, usage string
	}{
		{&f.Workspace, "workspace", "only of this workspace, by its derived name or a key that it has or had"},
		{&f.Principal, "principal", "only of this principal, as uid:1000"},
		{&f.Level, "level", "only with this verdict: SAFE, CONFIRM or BLOCK"},
		{&f.Capability, "capability", "only with this capability"},
		{&f.Trace, "trace", "only of this request"},
		{&f.Type, "type", "only records of this type, as intent or denial"},
		{&since, "since", "only from this time on: as of RFC 3339, a date, yesterday, or how long ago, as 1h or 7d"},
		{&until, "until", "only before this time"},
	} {
		c.Flags().StringVar(x.to, x.name, "", x.usage)
	}
	_ = c.RegisterFlagCompletionFunc("workspace", a.completeWorkspaces()) // the flags are there
	completeFrom(c, "level", "SAFE", "CONFIRM", "BLOCK")
	completeFrom(c, "type", "request", "approval", "intent", "outcome", "read", "observed", "denial", "login", "policy", "lifecycle",
		"connection", "usage", "rotation", "removed", "repair")
	return func(c *cobra.Command) (*carrelv1.Filter, error) {
		for _, t := range []struct {
			name, text string
			to         *int64
		}{{"since", since, &f.Since}, {"until", until, &f.Until}} {
			if t.text == "" {
				continue
			}
			at, err := timearg.Parse(t.text, time.Now())
			if err != nil {
				return nil, usage(c, "cannot use --%s %q: %w", t.name, t.text, err)
			}
			*t.to = at.UnixNano()
		}
		name, err := a.recordedName(c.Context(), f.Workspace, "--workspace ")
		if err != nil {
			return nil, err
		}
		f.Workspace = name
		return &f, nil
	}
}

func (a *app) auditShowCommand() *cobra.Command {
	return a.recordsCommand(&cobra.Command{
		Use:   "show [flags]",
		Short: help(operation.ReadAudit),
		Long: `Print records. With -o json each is the line of the log as it stands, hash included. With
--trace the records of one request are told as what happened, such as a turn of the agent:
its plans with their verdicts, who approved them, what was run where and how it ended, and the
beginning of the SHA-256 of what each call of a model sent and got; -o json has it whole.`,
		Example: `  sudo carrel audit show --last 20
  sudo carrel audit show --from 100 -o json | jq .action
  sudo carrel audit show --workspace demo --type denial --since 24h
  sudo carrel audit show --trace 0fc1d3e21b50084701c30376f75a1956`,
	}, false)
}

func (a *app) auditTailCommand() *cobra.Command {
	return a.recordsCommand(&cobra.Command{
		Use:     "tail [flags]",
		Short:   "Print the newest records, and with -f new ones as they are written",
		Example: "  sudo carrel audit tail\n  sudo carrel audit tail -f --workspace demo",
	}, true)
}

func (a *app) recordsCommand(c *cobra.Command, tail bool) *cobra.Command {
	c.Args = exactly()
	req := &carrelv1.ShowRequest{}
	if tail {
		c.Flags().Int64VarP(&req.Last, "lines", "n", 10, "print this many of the newest; 0 is all")
		c.Flags().BoolVarP(&req.Follow, "follow", "f", false, "go on with new records until it is interrupted")
	} else {
		c.Flags().Int64Var(&req.FromSeq, "from", 0, "the first sequence number wanted")
		c.Flags().Int64Var(&req.Last, "last", 0, "at most this many of the newest")
	}
	filter := a.filterFlags(c)
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) (err error) {
		if req.Filter, err = filter(c); err != nil {
			return err
		}
		if req.GetFromSeq() < 0 || req.GetLast() < 0 {
			return usage(c, "cannot use a negative number of records: give 0 for all")
		}
		var told story
		tells := *out != asJSON && req.GetFilter().GetTrace() != "" && !req.GetFollow()
		err = receive(c.Context(), a, records.Show, req, func(m *carrelv1.ShowResponse) error {
			for _, line := range m.GetLines() {
				if tells {
					if err := told.add(line); err != nil {
						return err
					}
					continue
				}
				if *out != asJSON {
					line = []byte(printable(auditLine(line, out.whole(a.Out))))
				}
				if err := emitJSON(a.Out, append(line, '\n')); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil || !tells {
			return err
		}
		return say(a.Out, "%s", told.text())
	}
	return c
}

// shortStamp is stamp without what -o wide adds.
const shortStamp = "01-02 15:04:05Z"

// auditLine is a record in one line, for people: all of it if wide, otherwise what fits lineWidth. It is not a row of a
// table, because the widths of later records are not known.
func auditLine(line []byte, wide bool) string {
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
			// The rest is in the record of an answer.
			Kind       string `json:"kind"`
			Reason     string `json:"reason"`
			Permission string `json:"permission"`
		} `json:"data"`
	}
	if err := json.Unmarshal(line, &r); err != nil {
		return printable(string(line))
	}
	form, when := "%6d  %s  %-8s  %-8s  %-11s  %s", shortStamp
	if wide {
		form, when = "%6d  %s  %-9s  %-9s  %-12s  %s", stamp
	}
	s := fmt.Sprintf(form, r.Seq, r.Time.UTC().Format(when), r.Type, r.Principal, r.Workspace, r.Action.Kind)
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
	if !wide {
		s = cut(s, lineWidth)
	}
	return s
}
