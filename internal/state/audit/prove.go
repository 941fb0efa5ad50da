package audit

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/carrel-dev/carrel/internal/base/checkpoint"
)

// Prove makes a checkpoint, and calls emit with the records from number from to number to that the
// filter selects, each with its proof by that checkpoint. to 0 means all. A record that cannot be
// proved is an error; not_found means that no record is selected. A proof's Line is valid until emit
// returns.
func (c *Checkpoints) Prove(ctx context.Context, from, to int64, f Filter, emit func(proofs []checkpoint.Proof) error) error {
	_, merr := c.Make(ctx)
	c.mu.Lock()
	last := c.last
	signed, _, err := lastNote(c.file)
	c.mu.Unlock()
	if err != nil {
		return err
	}
	if to > last.Size || from > last.Size || last.Size == 0 {
		return errors.Join(merr, fmt.Errorf("cannot prove records from %d to %d: the log is signed up to record %d: %w",
			from, to, last.Size, errdefs.ErrNotFound))
	}
	if to == 0 {
		to = last.Size
	}
	found := false
	err = c.log.Read(ctx, from, 0, false, func(lines [][]byte) error {
		var proofs []checkpoint.Proof
		over := false
		for _, line := range lines {
			fr, ok := parseFrame(line)
			if !ok {
				return fmt.Errorf("cannot prove a record: its line is no record; run \"carrel audit verify\": %w", errdefs.ErrDataLoss)
			}
			if over = fr.seq > to; over {
				break
			}
			if !f.Match(line) {
				continue
			}
			hashes, err := c.inclusion(ctx, last.Checkpoint, fr.seq-1, line)
			if err != nil {
				return err
			}
			proofs = append(proofs, checkpoint.Proof{Line: line, Index: fr.seq - 1, Hashes: hashes, Note: signed})
		}
		if len(proofs) > 0 {
			found = true
			if err := emit(proofs); err != nil {
				return err
			}
		}
		if over {
			return errEnough
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return err
	}
	if !found {
		return fmt.Errorf("cannot prove records: none from %d to %d is selected: %w", max(from, 1), to, errdefs.ErrNotFound)
	}
	return nil
}

// inclusion proves the line at index in the signed tree. If the stored hashes give no valid proof,
// they are made anew once.
func (c *Checkpoints) inclusion(ctx context.Context, signed checkpoint.Checkpoint, index int64, line []byte) (tlog.RecordProof, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for again := true; ; again = false {
		proof, err := tlog.ProveRecord(signed.Size, index, c.tree)
		if err == nil {
			err = tlog.CheckRecord(proof, signed.Size, signed.Root, index, tlog.RecordHash(line))
		}
		if err == nil {
			return proof, nil
		}
		if !again {
			return nil, fmt.Errorf("cannot prove record %d: it is not the one that was signed (%w); run \"carrel audit verify\": %w",
				index+1, err, errdefs.ErrDataLoss)
		}
		if err := c.rebuild(ctx); err != nil {
			return nil, err
		}
	}
}
