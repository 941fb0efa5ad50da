package record_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/state/record"
)

// kept is a Recorder that keeps what it is given.
type kept []audit.Record

func (k *kept) Append(_ context.Context, r audit.Record) (int64, error) {
	*k = append(*k, r)
	return int64(len(*k)), nil
}

func (k *kept) AppendAsync(r audit.Record) error {
	_, err := k.Append(context.Background(), r)
	return err
}

func (*kept) Flush() error { return nil }

// However many callers look, the sums stay bounded, and nothing is left uncounted.
func TestSumsAreBounded(t *testing.T) {
	var k kept
	w := record.NewWriter(&k, nil)
	const callers, each = 5000, 2
	for uid := range uint32(callers) {
		for range each {
			w.Observed(&operation.Request{By: principal.Principal{Kind: principal.User, UID: uid}, Op: operation.Simple(operation.Version)})
		}
	}
	if err := w.FlushSums(); err != nil {
		t.Fatal(err)
	}
	var sum, anonymous int64
	for _, r := range k {
		var counts map[operation.Name]int64
		if err := json.Unmarshal(r.Data, &counts); err != nil {
			t.Fatal(err)
		}
		sum += counts[operation.Version]
		if r.Principal == "" {
			anonymous += counts[operation.Version]
		}
	}
	if len(k) != 1025 || sum != callers*each || anonymous != (callers-1024)*each {
		t.Errorf("%d records of %d operations, %d of nobody named", len(k), sum, anonymous)
	}
}
