package cli

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
)

func (a *app) auditCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "audit",
		Short: "Read and verify the record of every action (administrators)",
		Args:  exactly(),
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(a.auditVerifyCommand(), a.auditShowCommand(), a.auditTailCommand())
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
}

func (a *app) auditVerifyCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "verify",
		Short: "Walk the whole chain and name the first bad record",
		Long: `Walk the whole chain of records. The exit code is 1 if a record was changed, removed,
inserted or reordered, and the first such record is named.`,
		Example: "  sudo carrel audit verify",
		Args:    exactly(),
	}
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		client, err := a.client()
		if err != nil {
			return err
		}
		res, err := client.Audit().Verify(c.Context(), connect.NewRequest(&carrelv1.VerifyRequest{}))
		if err != nil {
			return err
		}
		m := res.Msg
		v := verdictView{m.GetOk(), m.GetRecords(), m.GetBytes(), m.GetHead(), m.GetBadSeq(), m.GetBadLine(), m.GetHarm(), m.GetDetail()}
		if !v.OK {
			a.code = exitFailure
		}
		switch {
		case *out == asJSON:
			err = a.printJSON(v)
		case v.OK:
			_, err = fmt.Fprintf(a.Out, "ok: %d records, %s, head %s\n", v.Records, bytesText(v.Bytes), v.Head)
		default:
			_, err = fmt.Fprintf(a.Out, "not ok: record %d on line %d: %s: %s\n%d records before it are as they were written.\n", v.BadSeq, v.BadLine, v.Harm, printable(v.Detail), max(v.BadLine-1, 0))
		}
		return err
	}
	return c
}

func (a *app) auditShowCommand() *cobra.Command {
	var from, last int64
	c := &cobra.Command{
		Use:   "show [flags]",
		Short: "Print records",
		Long:  "Print records. With -o json each is the line of the log as it stands, hash included.",
		Example: `  sudo carrel audit show --last 20
  sudo carrel audit show --from 100 -o json | jq .action`,
		Args: exactly(),
	}
	c.Flags().Int64Var(&from, "from", 0, "the first sequence number wanted")
	c.Flags().Int64Var(&last, "last", 0, "at most so many of the newest")
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		return a.showAudit(c, &carrelv1.ShowRequest{FromSeq: from, Last: last}, *out)
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
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		return a.showAudit(c, &carrelv1.ShowRequest{Last: last, Follow: true}, *out)
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
		Action    struct {
			Kind string   `json:"kind"`
			Argv []string `json:"argv"`
		} `json:"action"`
		Data struct {
			Event   string `json:"event"`
			Version string `json:"version"`
		} `json:"data"`
	}
	if err := json.Unmarshal(line, &r); err != nil {
		return printable(string(line))
	}
	s := fmt.Sprintf("%6d  %s  %-9s  %-9s  %-12s  %s", r.Seq, r.Time.UTC().Format("2006-01-02 15:04:05.000"), r.Type, r.Principal, r.Workspace, r.Action.Kind)
	if len(r.Action.Argv) > 0 {
		s += " " + cut(shellQuote(r.Action.Argv), 80)
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
