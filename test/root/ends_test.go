package root_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/state/audit"
)

// connected has the workspace hold a connection through carrel-egress.
func (n *network) connected(t *testing.T, d *desk) {
	t.Helper()
	d.detach(t, "/bin/bash", "-c", "curl -sSN http://a.test:"+n.port+"/slow > answer")
	d.sh(t, "until grep -q begun answer; do sleep 0.01; done")
}

// verified sees that "carreld --verify-audit" finds the record of a carrel whose daemon has ended whole.
func (h *host) verified(t testing.TB) {
	t.Helper()
	c := h.program(t.Context(), nil, "carreld", "--config", h.config, "--data-dir", h.data, "--verify-audit")
	if r := finish(c, ""); r.code != 0 {
		t.Errorf("carreld --verify-audit: %+v", r)
	}
}

// lastRecord is the last line of the record.
func (h *host) lastRecord(t testing.TB) record {
	t.Helper()
	all := h.since(t, 0)
	return all[len(all)-1]
}

// A daemon that is asked to end while workspaces have live connections records their ends before its own, which is the
// last line, and starts again.
func TestAnEndUnderConnections(t *testing.T) {
	n := newNetwork(t, "")
	d := n.desk(t, n.allow("a.test")...)
	for _, s := range []unix.Signal{unix.SIGTERM, unix.SIGINT} {
		n.connected(t, d)
		mark := n.mark(t)
		end(t, n.part(t, "daemon"), s)
		n.host.recorded(t, mark, `"type":"connection"`, `"host":"a.test"`)
		if last := n.lastRecord(t); !strings.Contains(last.raw, `"event":"daemon.stopped"`) {
			t.Errorf("after %v the last record is %s", s, last.raw)
		}
		n.verified(t)
		if err := n.up(); err != nil {
			t.Fatalf("after %v: %v", s, err)
		}
		var v struct {
			OK bool `json:"ok"`
		}
		if err := json.Unmarshal([]byte(n.carrel(t, "audit", "verify", "-o", "json")), &v); err != nil || !v.OK {
			t.Errorf("audit verify: %+v, %v", v, err)
		}
		d.well(t)
	}
}

// What somebody who can write the record alone puts behind the end of a daemon is named by a start and by
// "carreld --verify-audit" alike, in the words of one verifier. Looking changes nothing of the daemon's files.
func TestBothVerifiersNameAForgedAppend(t *testing.T) {
	h := newHostFor(t)
	h.desk(t).sh(t, "true")
	end(t, h.part(t, "daemon"), unix.SIGTERM)
	before, err := h.readRecord()
	if err != nil {
		t.Fatal(err)
	}
	files := func() string {
		return finish(exec.CommandContext(t.Context(), "/bin/bash", "-c", `cd "$1" && find . -type f -printf '%p %u %m %s ' -exec md5sum {} \;`,
			"bash", h.data+"/daemon"), "").out
	}
	h.verified(t)
	was := files()
	h.verified(t)
	if now := files(); now != was || was == "" {
		t.Errorf("verifying changed\n%s\nto\n%s", was, now)
	}
	lines := bytes.SplitAfter(before, []byte("\n"))
	last, err := audit.Decode(lines[len(lines)-2])
	if err != nil {
		t.Fatal(err)
	}
	// By its form it is what an earlier version wrote there.
	forged := strings.Replace(string(lines[len(lines)-2]), last.PrevHash, last.Hash, 1)
	forged = strings.Replace(forged, fmt.Sprintf(`"seq":%d`, last.Seq), fmt.Sprintf(`"seq":%d`, last.Seq+1), 1)
	forged = strings.Replace(forged, `"type":"lifecycle","principal":"system"`, `"type":"connection","principal":"system","workspace":"crt-00000000"`, 1)
	sum := sha256.Sum256([]byte(strings.TrimSuffix(forged[75:], "\n")))
	forged = `{"hash":"` + hex.EncodeToString(sum[:]) + forged[73:]
	if err := writeThrough(h.auditLog(), append(slices.Clone(before), forged...)); err != nil {
		t.Fatal(err)
	}
	c := h.program(t.Context(), nil, "carreld", "--config", h.config, "--data-dir", h.data, "--verify-audit")
	const said = "and did not write what follows: a forged append"
	if r := finish(c, ""); r.code == 0 || !strings.Contains(r.err, said) {
		t.Errorf("carreld --verify-audit: %+v", r)
	}
	if err := h.up(); err == nil || !strings.Contains(err.Error(), said) {
		t.Errorf("the start: %v", err)
	}
	if err := writeThrough(h.auditLog(), before); err != nil {
		t.Fatal(err)
	}
	h.verified(t)
	if err := h.up(); err != nil {
		t.Fatal(err)
	}
}
