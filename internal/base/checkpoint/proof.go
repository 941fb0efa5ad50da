package checkpoint

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/mod/sumdb/tlog"
)

// Proof proves that a line is a record of a log, for a reader who has the keys but not the log.
type Proof struct {
	// Line is the exact line without its newline.
	Line []byte
	// Index counts from 0: the record's number less one.
	Index  int64
	Hashes tlog.RecordProof
	// Note is a signed checkpoint of a tree that has the record.
	Note []byte
}

// The form of a proof is C2SP tlog-proof; extra is the line.
//
//	c2sp.org/tlog-proof@v1
//	extra <base64 of the line>
//	index <n>
//	<base64 of a hash>
//	…
//
//	<the note>
const (
	proofHeader = "c2sp.org/tlog-proof@v1"
	extraWord   = "extra "
	indexWord   = "index "
	// maxProofText bounds a proof: the longest line in base64, hashes and note.
	maxProofText = 128 << 10
)

// Marshal writes p as text.
func (p Proof) Marshal() []byte {
	var b bytes.Buffer
	b.WriteString(proofHeader + "\n" + extraWord + base64.StdEncoding.EncodeToString(p.Line) + "\n")
	b.WriteString(indexWord + strconv.FormatInt(p.Index, 10) + "\n")
	for _, h := range p.Hashes {
		b.WriteString(h.String() + "\n")
	}
	b.WriteByte('\n')
	b.Write(p.Note)
	return b.Bytes()
}

// ParseProof parses the text of Marshal.
func ParseProof(b []byte) (p Proof, err error) {
	bad := func(what string) (Proof, error) {
		return Proof{}, fmt.Errorf("cannot read a proof: %s: %w", what, errdefs.ErrInvalidArgument)
	}
	if len(b) > maxProofText {
		return bad("it is longer than any")
	}
	head, signed, ok := strings.Cut(string(b), "\n\n")
	lines := strings.Split(head, "\n")
	if !ok || len(lines) < 3 || lines[0] != proofHeader {
		return bad("it does not begin with " + proofHeader + " and two lines more")
	}
	extra, ok := strings.CutPrefix(lines[1], extraWord)
	if p.Line, err = base64.StdEncoding.Strict().DecodeString(extra); !ok || err != nil {
		return bad("its second line is not the record")
	}
	index, ok := strings.CutPrefix(lines[2], indexWord)
	if p.Index, err = parseSize(index); !ok || err != nil {
		return bad("its third line is not an index")
	}
	if len(lines) > 3+MaxProof {
		return bad("it has too many hashes")
	}
	for _, l := range lines[3:] {
		h, err := ParseHash(l)
		if err != nil {
			return bad("a line in the place of a hash is none")
		}
		p.Hashes = append(p.Hashes, h)
	}
	p.Note = []byte(signed)
	return p, nil
}

// Check checks the proof and returns who signed the tree. The error (data_loss) says what is wrong.
func (p Proof) Check(keys Keys) (Signed, error) {
	s, err := Open(p.Note, keys)
	if err != nil {
		return s, err
	}
	// tlog.CheckRecord does not check for a size below 1.
	if p.Index < 0 || p.Index >= s.Size {
		return s, fmt.Errorf("cannot believe the proof: record %d is not in a tree of %d: %w", p.Index+1, s.Size, errdefs.ErrDataLoss)
	}
	if err := tlog.CheckRecord(p.Hashes, s.Size, s.Root, p.Index, tlog.RecordHash(p.Line)); err != nil {
		return s, fmt.Errorf("cannot believe the proof: the record is not the one in the tree that was signed: %w: %w",
			err, errdefs.ErrDataLoss)
	}
	return s, nil
}

// Consistent checks that the tree of newer begins with the tree of older. The empty tree is the
// beginning of every tree.
func Consistent(proof tlog.TreeProof, newer, older Checkpoint) error {
	switch {
	case older.Size == 0:
		return nil
	case newer.Size < older.Size:
		return fmt.Errorf("a tree of %d records is smaller than one of %d: %w", newer.Size, older.Size, errdefs.ErrDataLoss)
	case len(proof) > MaxProof:
		return fmt.Errorf("a proof of %d hashes is longer than any: %w", len(proof), errdefs.ErrInvalidArgument)
	case newer.Size == older.Size:
		if newer.Root != older.Root || len(proof) > 0 {
			return fmt.Errorf("two trees of %d records differ: %w", newer.Size, errdefs.ErrDataLoss)
		}
		return nil
	}
	if err := tlog.CheckTree(proof, newer.Size, newer.Root, older.Size, older.Root); err != nil {
		return fmt.Errorf("the tree of %d records does not begin with the tree of %d: %w: %w",
			newer.Size, older.Size, err, errdefs.ErrDataLoss)
	}
	return nil
}

// Countersigned is the broker's answer to a checkpoint.
type Countersigned struct {
	// Note has the broker's signature. It is nil if the broker did not sign, because the proof
	// did not start at the checkpoint that it signed last.
	Note []byte
	// Key is the broker's public key.
	Key string
	// Size and Root of the checkpoint that it signed last; 0 if there is none.
	Size int64
	Root tlog.Hash
}
