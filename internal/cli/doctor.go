package cli

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/fault"
	"github.com/carrel-dev/carrel/internal/sandbox/probe"
)

// doctorTimeout is for the daemon; the probes take a few milliseconds.
const doctorTimeout = 500 * time.Millisecond

// doctorView is the JSON of doctor.
type doctorView struct {
	// OK: every check that a daemon requires is yes or partly. Rootless: every check that
	// "carrel run" requires as an ordinary user is. The exit code follows OK for root, and
	// Rootless for other users.
	OK       bool           `json:"ok"`
	Rootless bool           `json:"rootless"`
	Checks   []probe.Result `json:"checks"`
}

func (a *app) doctorCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "doctor [flags]",
		Short: "Check what this host supports, and what to do about the rest",
		Long: `Test what workspaces require of this host, and print for each check the result and the
command that repairs it. The exit code is 1 if something required is missing: as root for
workspaces of the daemon, as an ordinary user for "carrel run". As root it can test more.`,
		Example: `  sudo carrel doctor
  carrel doctor -o json | jq '.checks[] | select(.state != "yes")'`,
		Args: exactly(),
	}
	i := instanceFlags(c)
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if err := i.absolute(); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(c.Context(), doctorTimeout)
		defer cancel()
		cfg := i.probeConfig()
		if daemon, err := findProgram("carreld"); err == nil {
			cfg.Programs = append(cfg.Programs, daemon)
		}
		results := probe.Run(ctx, cfg)
		v := doctorView{OK: len(probe.Unmet(results)) == 0, Rootless: len(probe.UnmetRootless(results)) == 0}
		answers, version := a.checkDaemon(ctx)
		v.Checks = append(results, checkPrograms(), i.checkData(), answers)
		if r, ok := i.checkDisk(version, results); ok {
			v.Checks = append(v.Checks, r)
		}
		if r, ok := i.checkIDs(cfg.FirstID, cfg.IDs); ok {
			v.Checks = append(v.Checks, r)
		}
		if r, ok := a.checkAudit(c.Context()); ok {
			v.Checks = append(v.Checks, r)
		}
		if os.Geteuid() == 0 && !v.OK || os.Geteuid() != 0 && !v.Rootless {
			a.code = exitFailure
		}
		if *out == asJSON {
			return a.printJSON(v)
		}
		return a.printDoctor(v)
	}
	return c
}

func (a *app) printDoctor(v doctorView) error {
	t := newTable(1, "CHECK", "STATE", "FOUND")
	var missing, optional int
	for _, r := range v.Checks {
		found := r.Found
		if r.State != probe.Yes {
			found += "; for " + r.Needed + "; remedy: " + r.Remedy
			if r.Required && r.State == probe.No {
				missing++
			} else {
				optional++
			}
		}
		t.add(r.ID, string(r.State), found)
	}
	if err := t.render(a.Out); err != nil {
		return err
	}
	verdict := "This host can hold workspaces."
	if !v.OK {
		verdict = fmt.Sprintf("This host cannot hold workspaces: %d required checks fail.", missing)
	}
	if optional > 0 {
		verdict += fmt.Sprintf(" %d optional checks are not met.", optional)
	}
	own := "\"carrel run\" works here for an ordinary user, without root or a daemon."
	if !v.Rootless {
		own = "\"carrel run\" does not work here for an ordinary user."
	}
	_, err := fmt.Fprintln(a.Out, "\n"+verdict+"\n"+own)
	return err
}

func checkPrograms() probe.Result {
	r := probe.Result{ID: "programs", Needed: "carrel up", State: probe.Yes}
	programs, err := findPrograms()
	if err != nil {
		r.State, r.Found, r.Remedy = probe.No, fault.Text(err), "make build, or install the package"
		return r
	}
	r.Found = programs["carrel-broker"]
	for _, p := range programs {
		st, err := os.Stat(p)
		if err == nil && st.Mode()&0o022 != 0 {
			r.State, r.Found, r.Remedy = probe.No, fmt.Sprintf("others can write %s (mode %04o), which root runs",
				p, st.Mode().Perm()), "chmod go-w "+shellQuote([]string{p})
		}
	}
	return r
}

// checkData checks the data directory, if it exists.
func (i *instance) checkData() probe.Result {
	r := probe.Result{ID: "data_directory", Needed: "carrel up", State: probe.Yes, Found: i.data + " is not there yet; up makes it"}
	if _, err := os.Lstat(i.data); err != nil {
		return r
	}
	r.Found = i.data + " is root's and closed to others"
	if err := checkDir(i.data); err != nil {
		r.State, r.Found, r.Remedy = probe.No, fault.Text(err), "name another with --data"
	}
	return r
}

// fewIDs is the part of the range below which doctor warns, and maxLedger bounds what it reads.
const (
	fewIDs    = 10
	maxLedger = 64 << 20
)

// checkIDs reads in the broker's ledger, as root, how many ids were never used.
func (i *instance) checkIDs(first, count uint32) (probe.Result, bool) {
	r := probe.Result{ID: "ids_left", Needed: "creating workspaces, each of which takes three ids for ever", State: probe.Yes}
	f, err := os.OpenFile(i.ledger(), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return r, false // no workspace was made yet, or the caller is not root
	}
	defer f.Close()
	next := uint64(first)
	for lines := bufio.NewScanner(io.LimitReader(f, maxLedger)); lines.Scan(); {
		var l struct {
			Next      uint64 `json:"next_uid"`
			Workspace struct {
				IDs struct {
					Agent uint64 `json:"agent"`
				} `json:"ids"`
			} `json:"workspace"`
		}
		if json.Unmarshal(lines.Bytes(), &l) == nil { // the broker may be writing the last one
			next = max(next, l.Next, l.Workspace.IDs.Agent+1)
		}
	}
	left := uint64(first) + uint64(count) - min(next, uint64(first)+uint64(count))
	r.Found = fmt.Sprintf("%d of %d ids were never used, enough for %d workspaces", left, count, left/3)
	if left < uint64(count)/fewIDs {
		r.State, r.Remedy = probe.Partly, "raise uid_count in "+i.settings()+", then end the broker and run carrel up --detach"
	}
	if left < 3 {
		r.State = probe.No
	}
	return r, true
}

// checkDaemon asks the daemon who it is. m is nil if it does not answer.
func (a *app) checkDaemon(ctx context.Context) (_ probe.Result, m *carrelv1.VersionResponse) {
	r := probe.Result{ID: "daemon", Needed: "using carrel", State: probe.Yes}
	t, err := a.target()
	if err != nil {
		r.State, r.Found, r.Remedy = probe.No, fault.Text(err), "as the error says"
		return r, nil
	}
	client, err := a.clientIfUp()
	if t.host == "" && errors.Is(err, errNotUp) {
		r.Found = "your own at " + t.own.Socket + " starts when it is needed: " + t.why
		return r, nil
	}
	if err == nil {
		r.Found = "answers at " + client.Host() + ": " + t.why
		m, err = askOf(ctx, client, system.Version, &carrelv1.VersionRequest{})
	}
	if err != nil {
		r.State, r.Found, r.Remedy = probe.No, fault.Text(err), "sudo carrel up --detach"
		return r, nil
	}
	return r, m
}

// verifyTimeout is how long doctor verifies the audit log.
const verifyTimeout = 5 * time.Second

// checkAudit reports to administrators up to which record the audit log is signed, and whether it holds. What
// there was no time to verify it says.
func (a *app) checkAudit(ctx context.Context) (probe.Result, bool) {
	r := probe.Result{ID: "audit_log", Needed: "a record that nobody can change unnoticed", State: probe.Yes}
	soon, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	m, err := ask(soon, a, records.Checkpoint, &carrelv1.CheckpointRequest{})
	if err != nil {
		return r, false // there is no daemon, or the caller is no administrator
	}
	r.Found = fmt.Sprintf("signed to record %d, countersigned to %d", m.GetSigned(), m.GetCountersigned())
	if m.GetAnchor() != "" {
		r.Found += fmt.Sprintf(", anchored to %d in %s", m.GetAnchored(), m.GetAnchor())
	} else {
		r.Found += "; no anchor"
	}
	short, cancel := context.WithTimeout(ctx, verifyTimeout)
	defer cancel()
	v, err := ask(short, a, records.Verify, &carrelv1.VerifyRequest{})
	switch {
	case short.Err() != nil:
		r.Found += fmt.Sprintf("; not verified here, as that takes longer than %v: sudo carrel audit verify", verifyTimeout)
	case err != nil:
		r.Found += "; not verified: " + fault.Text(err)
	case v.GetOk():
		r.Found += fmt.Sprintf("; all %d records verified", v.GetRecords())
	default:
		r.State, r.Found, r.Remedy = probe.No, v.GetDetail(), "sudo carrel audit verify"
		return r, true
	}
	switch {
	case m.GetError() != "":
		r.State, r.Found, r.Remedy = probe.No, m.GetError(), "sudo carrel audit verify"
	case m.GetAnchorError() != "":
		r.State, r.Found, r.Remedy = probe.Partly, m.GetAnchorError(), "see to the file that audit.anchor names"
	}
	return r, true
}
