package cli_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/carrel-dev/carrel/internal/base/checkpoint"
	"github.com/carrel-dev/carrel/internal/cli"
)

// stored is a hash tree in memory.
type stored []tlog.Hash

func (s stored) ReadHashes(at []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(at))
	for i, n := range at {
		out[i] = s[n]
	}
	return out, nil
}

// FuzzCheckProof reads anything as what prove or export wrote: what is believed is a record of
// the log that was signed, in its place.
func FuzzCheckProof(f *testing.F) {
	const records = 7
	var tree stored
	lines := map[int64]string{}
	for i := range int64(records) {
		lines[i] = fmt.Sprintf(`{"seq":%d,"text":"\u00e4"}`, i+1)
		h, err := tlog.StoredHashes(i, []byte(lines[i]), tree)
		if err != nil {
			f.Fatal(err)
		}
		tree = append(tree, h...)
	}
	root, err := tlog.TreeHash(records, tree)
	if err != nil {
		f.Fatal(err)
	}
	secret, public, err := checkpoint.NewKey(rand.NewChaCha8([32]byte{1}), "carrel-audit-0123456789abcdef")
	if err != nil {
		f.Fatal(err)
	}
	signer, err := note.NewSigner(secret)
	if err != nil {
		f.Fatal(err)
	}
	signed, err := checkpoint.Sign(checkpoint.Checkpoint{Origin: signer.Name(), Size: records, Root: root}, signer)
	if err != nil {
		f.Fatal(err)
	}
	keys, err := checkpoint.ParseKeys(public, "")
	if err != nil {
		f.Fatal(err)
	}
	type head struct {
		Checkpoint string `json:"checkpoint"`
	}
	type one struct {
		Index  int64    `json:"index"`
		Line   string   `json:"line"`
		Hashes []string `json:"hashes"`
	}
	var export bytes.Buffer
	write := json.NewEncoder(&export)
	if err := write.Encode(head{string(signed)}); err != nil {
		f.Fatal(err)
	}
	for i := range int64(records) {
		hashes, err := tlog.ProveRecord(records, i, tree)
		if err != nil {
			f.Fatal(err)
		}
		p := checkpoint.Proof{Line: []byte(lines[i]), Index: i, Hashes: hashes, Note: signed}
		f.Add(p.Marshal())
		l := one{Index: i, Line: lines[i], Hashes: []string{}}
		for _, h := range hashes {
			l.Hashes = append(l.Hashes, h.String())
		}
		if err := write.Encode(l); err != nil {
			f.Fatal(err)
		}
	}
	if n, err := cli.CheckProofs(export.Bytes(), keys); n != records || err != nil {
		f.Fatal(n, err)
	}
	f.Add(export.Bytes())
	f.Add(bytes.Replace(export.Bytes(), []byte(`\"seq\":3`), []byte(`\"seq\":4`), 1))
	f.Add([]byte(`{"checkpoint":""}`))
	// What one reader takes for the record and another does not.
	f.Add(bytes.Replace(export.Bytes(), []byte(`"line":`), []byte(`"line":"forged","LINE":`), 1))
	f.Add(bytes.Replace(export.Bytes(), []byte(`"line":`), []byte(`"line":"forged","line":`), 1))
	f.Add(bytes.Replace(export.Bytes(), []byte("]}\n"), []byte(`]}{"index":0,"line":"forged","hashes":[]}`+"\n"), 1))
	f.Add(bytes.Replace(export.Bytes(), []byte(`"hashes":[`), []byte(`"hashes":null,"hashes":[`), 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := cli.CheckProofs(b, keys)
		if err != nil {
			return
		}
		if n == 0 {
			t.Error("nothing is believed")
		}
		if p, err := checkpoint.ParseProof(b); err == nil {
			if lines[p.Index] != string(p.Line) {
				t.Errorf("record %d is believed to be %q", p.Index, p.Line)
			}
			return
		}
		all := bytes.Split(bytes.TrimSuffix(b, []byte("\n")), []byte("\n"))
		if int64(len(all)) != n+1 {
			t.Errorf("%d lines, of which %d records are believed", len(all), n)
		}
		for _, line := range all[1:] {
			// As readers have it that know nothing of Go.
			var l map[string]any
			if err := json.Unmarshal(line, &l); err != nil {
				t.Errorf("%s is believed: %v", line, err)
			}
			if at, ok := l["index"].(float64); !ok || lines[int64(at)] != l["line"] {
				t.Errorf("%s is believed", line)
			}
		}
	})
}
