package cli

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/base/checkpoint"
	"github.com/carrel-dev/carrel/internal/base/errtext"
	"github.com/carrel-dev/carrel/internal/linux/treefile"
)

// An export is JSON lines: first the checkpoint that proves all records, then the records, each
// with its text in the log, its index and its proof.
type (
	exportHead struct {
		Checkpoint string `json:"checkpoint"`
	}
	exportLine struct {
		Index  int64    `json:"index"`
		Line   string   `json:"line"`
		Hashes []string `json:"hashes"`
	}
)

// maxExportLine bounds a line of an export: a record escaped as JSON, and its hashes.
const maxExportLine = 1 << 20

func (a *app) auditProveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "prove NUMBER",
		Short: "Write a proof that a record is in the log",
		Long: `Write a proof for somebody who has the log's public keys and not the log: the record, its
place in the hash tree, and a signed checkpoint of that tree.
"carrel audit check-proof" reads it.`,
		Example: "  sudo carrel audit prove 42 > record-42.proof",
		Args:    exactly("NUMBER"),
		RunE: func(c *cobra.Command, args []string) error {
			n, err := strconv.ParseInt(args[0], 10, 64)
			if err != nil || n < 1 {
				return usage(c, "cannot use %q as the number of a record: give a number from 1 on, as \"audit show\" prints it", args[0])
			}
			return a.prove(c, &carrelv1.ProveRequest{FromSeq: n, ToSeq: n}, func(p checkpoint.Proof) error {
				_, err := a.Out.Write(p.Marshal())
				return err
			})
		},
	}
}

func (a *app) auditExportCommand() *cobra.Command {
	var from, to int64
	c := &cobra.Command{
		Use:   "export [flags]",
		Short: "Write records as JSON lines, each with its proof",
		Long: `Write records as JSON lines: first {"checkpoint"}, the signed checkpoint that proves all
that follow, then {"index","line","hashes"} for each, where line is the record as it
stands in the log. "carrel audit check-proof" reads it.`,
		Example: `  sudo carrel audit export --workspace ws-2a97516c > ws.export
  tail -n +2 ws.export | jq -r .line | jq .action`,
		Args: exactly(),
	}
	c.Flags().Int64Var(&from, "from", 0, "the first sequence number wanted")
	c.Flags().Int64Var(&to, "to", 0, "the last sequence number wanted")
	filter := a.filterFlags(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if from < 0 || to < 0 {
			return usage(c, "cannot use a negative number of a record: give 0 for all")
		}
		f, err := filter(c)
		if err != nil {
			return err
		}
		first := true
		return a.prove(c, &carrelv1.ProveRequest{FromSeq: from, ToSeq: to, Filter: f}, func(p checkpoint.Proof) error {
			if first {
				first = false
				if err := jsonLine(a.Out, exportHead{string(p.Note)}); err != nil {
					return err
				}
			}
			l := exportLine{Index: p.Index, Line: string(p.Line), Hashes: []string{}}
			for _, h := range p.Hashes {
				l.Hashes = append(l.Hashes, h.String())
			}
			return jsonLine(a.Out, l)
		})
	}
	return c
}

// prove calls each with every record asked for and its proof.
func (a *app) prove(c *cobra.Command, req *carrelv1.ProveRequest, each func(checkpoint.Proof) error) error {
	var note []byte
	return receive(c.Context(), a, records.Prove, req, func(m *carrelv1.ProveResponse) error {
		if n := m.GetNote(); len(n) > 0 {
			note = n
		}
		for _, r := range m.GetRecords() {
			p := checkpoint.Proof{Line: r.GetLine(), Index: r.GetIndex(), Note: note}
			for _, h := range r.GetHashes() {
				one, err := checkpoint.ParseHash(base64.StdEncoding.EncodeToString(h))
				if err != nil {
					return fmt.Errorf("cannot read the daemon's proof: %w", err)
				}
				p.Hashes = append(p.Hashes, one)
			}
			if err := each(p); err != nil {
				return err
			}
		}
		return nil
	})
}

// proofView is the JSON of audit check-proof.
type proofView struct {
	OK bool `json:"ok"`
	// Records is how many records were proved, First and Last are their numbers.
	Records int64 `json:"records"`
	First   int64 `json:"first"`
	Last    int64 `json:"last"`
	// The rest is about the checkpoint: the log, its size in records, and who signed it.
	Origin        string `json:"origin"`
	Size          int64  `json:"size"`
	Signed        bool   `json:"signed"`
	Countersigned bool   `json:"countersigned"`
}

func (a *app) auditCheckProofCommand() *cobra.Command {
	var logKey, brokerKey string
	c := &cobra.Command{
		Use:   "check-proof FILE",
		Short: "Check what prove or export wrote, without the log",
		Long: `Check that each record in FILE, which "audit prove" or "audit export" wrote, is in the tree
that was signed. Keys are public keys as "audit verify" prints them, or files that hold
one; without any the daemon is asked for those that it knows. If the broker's key is
given, its signature is wanted. The exit code is 1 if something does not hold.`,
		Example: `  carrel audit check-proof --broker-key broker.pub record-42.proof
  sudo carrel audit check-proof ws.export`,
		Args: exactly("FILE"),
	}
	c.Flags().StringVar(&logKey, "log-key", "", "the log's public key, or a file that holds it")
	c.Flags().StringVar(&brokerKey, "broker-key", "", "the broker's public key, or a file that holds it")
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		keys, err := a.keys(c, logKey, brokerKey)
		if err != nil {
			return err
		}
		in := a.In
		if args[0] != "-" {
			f, err := os.Open(args[0])
			if err != nil {
				return fmt.Errorf("cannot read the proof: %w", err)
			}
			defer f.Close()
			in = f
		}
		v, err := checkProofs(in, keys)
		if err == nil && keys.Broker != nil && !v.Countersigned {
			err = errors.New("the broker did not sign its checkpoint")
		}
		if v.OK = err == nil; !v.OK {
			a.code = exitFailure
		}
		switch {
		case *out == asJSON:
			if perr := a.printJSON(v); perr != nil {
				return perr
			}
			if err != nil {
				_, err = fmt.Fprintln(a.Err, "carrel:", errorText(err))
			}
			return err
		case err != nil:
			err = say(a.Out, "not ok: %s\n", printable(errtext.Text(err)))
			return err
		}
		by := "the log's key"
		switch {
		case v.Signed && v.Countersigned:
			by += " and the broker's"
		case v.Countersigned:
			by = "the broker's key"
		}
		what := fmt.Sprintf("record %d is", v.First)
		if v.Records > 1 {
			what = fmt.Sprintf("%d records from %d to %d are", v.Records, v.First, v.Last)
		}
		err = say(a.Out, "ok: %s in the log %s, whose first %d records are signed by %s\n", what, v.Origin, v.Size, by)
		return err
	}
	return c
}

// keys returns the keys that were given, or those of the daemon.
func (a *app) keys(c *cobra.Command, log, broker string) (checkpoint.Keys, error) {
	if log == "" && broker == "" {
		m, err := ask(c.Context(), a, records.Checkpoint, &carrelv1.CheckpointRequest{})
		if err == nil {
			return checkpoint.ParseKeys(m.GetLogKey(), m.GetBrokerKey())
		}
		return checkpoint.Keys{}, fmt.Errorf(
			"cannot tell whose signatures to believe: give --log-key or --broker-key, or ask a daemon that answers: %w", err,
		)
	}
	for _, k := range []*string{&log, &broker} {
		// A key has two "+", a file name hardly ever.
		if *k == "" || strings.Count(*k, "+") >= 2 {
			continue
		}
		b, err := treefile.Read(*k, maxKeyFile)
		if err != nil {
			return checkpoint.Keys{}, fmt.Errorf("cannot read a public key: it is neither one nor a file: %w", err)
		}
		*k = string(b)
	}
	return checkpoint.ParseKeys(log, broker)
}

// maxKeyFile bounds a file with a public key, in bytes.
const maxKeyFile = 64 << 10

// checkProofs checks one proof, or an export.
func checkProofs(in io.Reader, keys checkpoint.Keys) (v proofView, err error) {
	r := bufio.NewReaderSize(in, 64<<10)
	begin, err := r.Peek(1)
	if err != nil {
		return v, errors.New("there is nothing in the file")
	}
	take := func(p checkpoint.Proof) error {
		s, err := p.Check(keys)
		if err != nil {
			return err
		}
		v.Origin, v.Size, v.Signed, v.Countersigned = s.Origin, s.Size, s.Log, s.Broker
		if v.Records++; v.Records == 1 {
			v.First = p.Index + 1
		}
		v.Last = p.Index + 1
		return nil
	}
	if begin[0] != '{' {
		b, err := io.ReadAll(io.LimitReader(r, maxExportLine))
		if err != nil {
			return v, err
		}
		p, err := checkpoint.ParseProof(b)
		if err != nil {
			return v, err
		}
		return v, take(p)
	}
	s := bufio.NewScanner(r)
	s.Buffer(nil, maxExportLine)
	var head exportHead
	for n := 1; s.Scan(); n++ {
		if n == 1 {
			if err := strict(s.Bytes(), &head, "checkpoint"); err != nil {
				return v, fmt.Errorf("line 1 is not a checkpoint: %w", err)
			}
			continue
		}
		var l exportLine
		if err := strict(s.Bytes(), &l, "index", "line", "hashes"); err != nil {
			return v, fmt.Errorf("line %d is not a record with its proof: %w", n, err)
		}
		p := checkpoint.Proof{Line: []byte(l.Line), Index: l.Index, Note: []byte(head.Checkpoint)}
		for _, text := range l.Hashes {
			h, err := checkpoint.ParseHash(text)
			if err != nil {
				return v, fmt.Errorf("line %d has something else in the place of a hash", n)
			}
			p.Hashes = append(p.Hashes, h)
		}
		if err := take(p); err != nil {
			return v, fmt.Errorf("line %d: %w", n, err)
		}
	}
	if err := s.Err(); err != nil {
		return v, err
	}
	if v.Records == 0 {
		return v, errors.New("there is no record in the file")
	}
	return v, nil
}

// strict reads one JSON object, with nothing after it, that has exactly these members, each once:
// every other reader must read what was checked.
func strict(b []byte, v any, names ...string) error {
	d := json.NewDecoder(bytes.NewReader(b))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return errors.New("it is no JSON object")
	}
	left := slices.Clone(names)
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return err
		}
		i := slices.IndexFunc(left, func(n string) bool { return name == n })
		if i < 0 {
			return fmt.Errorf("it has %.64q, which does not belong there or stands there twice", name)
		}
		left = slices.Delete(left, i, i+1)
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return err
		}
	}
	if len(left) > 0 {
		return fmt.Errorf("it lacks %q", left[0])
	}
	return json.Unmarshal(b, v) // which refuses anything after the object
}
