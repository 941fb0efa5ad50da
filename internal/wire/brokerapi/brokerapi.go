// Package brokerapi holds the messages between the daemon and the broker: JSON-RPC
// 2.0 on a Unix stream socket, specified in docs/protocols/broker.md. It holds the messages
// and the check of their form; neither side's behaviour belongs here.
package brokerapi

import (
	"encoding/pem"
	"fmt"

	"github.com/containerd/errdefs"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/carrel-dev/carrel/internal/base/checkpoint"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// Version is the protocol version that this build speaks.
const Version = 1

// The closed table of methods. Any other ends the connection.
const (
	MethodHello   = "hello"
	MethodCreate  = "create"
	MethodStart   = "start"
	MethodStop    = "stop"
	MethodDestroy = "destroy"
	MethodList    = "list"
	MethodReport  = "report"
	MethodPause   = "pause"
	MethodResume  = "resume"
	MethodUpdate  = "update"
	MethodStats   = "stats"
	MethodForget  = "forget"
	MethodRevive  = "revive"

	MethodCountersign = "countersign"
	MethodEgress      = "egress"
)

// HelloParams opens a connection; every other method needs it first.
type HelloParams struct {
	Version int `json:"version"`
}

// Check refuses another version.
func (p HelloParams) Check() error {
	if p.Version == Version {
		return nil
	}
	return fmt.Errorf("cannot serve version %d of the broker's protocol: this carrel-broker speaks %d; "+
		"install broker and daemon of one release: %w",
		p.Version, Version, errdefs.ErrFailedPrecondition)
}

// HelloResult says who answered.
type HelloResult struct {
	Version int    `json:"version"`
	Build   string `json:"build"`
	// ExecutorDir is where the sockets of running executors are bound.
	ExecutorDir string `json:"executor_dir"`
	// Start tells this start of the broker from others, and Mended is what that put right,
	// at most MaxMended.
	Start  string             `json:"start"`
	Mended []workspace.Mended `json:"mended,omitempty"`
	// UIDFirst and UIDCount are the range of the ids of workspaces and what serves them; no user of the host has one of those.
	UIDFirst uint32 `json:"uid_first,omitempty"`
	UIDCount uint32 `json:"uid_count,omitempty"`
}

// leastSpread is the size of a range whose last quarter is for carrel-egress: there is an id for that of each workspace then.
const leastSpread = 4096

// WorkspaceIDs is how many ids at the beginning of a range of so many are for workspaces. Of a smaller range all but the last are,
// which every carrel-egress has then.
func WorkspaceIDs(count uint32) uint32 {
	if count < leastSpread {
		return count - 1
	}
	return count - count/4
}

// MaxMended bounds HelloResult.Mended, and MaxDone what one of them says, in bytes.
const (
	MaxMended = 100
	MaxDone   = 512
)

// CreateParams asks for a user, its ids and a home. Repeating it with the same
// name and key digest returns the same workspace; with another digest it is
// refused with kind already_exists, and the daemon tries the next name.
type CreateParams struct {
	Name id.Workspace `json:"name"`
	// KeyDigest is the lower-case hex SHA-256 of the key.
	KeyDigest string           `json:"key_digest"`
	Limits    workspace.Limits `json:"limits"`
	// Allow is what commands may do that commands of other workspaces may not.
	Allow []workspace.Opening `json:"allow,omitempty"`
	// Mounts are what the grant beside the request must say. Without any there is no
	// descriptor.
	Mounts []workspace.Mount `json:"mounts,omitempty"`
	// Owner is the same for all workspaces of one owner, which share bounds, and tells nothing else: 16 lower-case
	// hex digits, or "" for one that shares those of all workspaces alone.
	Owner string `json:"owner,omitempty"`
	// Start asks for a new one to be started as well. One that could not be started, or
	// that was there before, is returned without a report.
	Start bool `json:"start,omitempty"`
	// Egress and Trust are those of StartParams, for that start.
	Egress bool   `json:"egress,omitempty"`
	Trust  string `json:"trust,omitempty"`
}

// Check reports what is wrong with the form of a request. The limits are not looked at: a
// client may get them wrong.
func (p CreateParams) Check() error {
	if len(p.KeyDigest) != 64 || !hexDigits(p.KeyDigest) {
		return malformed("%q is not a key digest", p.KeyDigest)
	}
	if p.Owner != "" && (len(p.Owner) != 16 || !hexDigits(p.Owner)) {
		return malformed("%q does not say who is the owner", p.Owner)
	}
	if err := workspace.CheckOpenings(p.Allow, p.Mounts); err != nil {
		return err
	}
	if err := checkTrust(p.Egress, p.Trust); err != nil {
		return err
	}
	return checkName(p.Name)
}

func hexDigits(s string) bool {
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

func checkName(name id.Workspace) error {
	_, err := id.ParseWorkspace(string(name))
	return err
}

func malformed(format string, a ...any) error {
	return fmt.Errorf("cannot accept the request: "+format+": %w", append(a, errdefs.ErrInvalidArgument)...)
}

// StartParams names a workspace to be started.
type StartParams struct {
	Name id.Workspace `json:"name"`
	// Egress asks for a way out, which reaches nothing until "egress" hands out its carrel-egress. One that
	// runs stays as it is.
	Egress bool `json:"egress,omitempty"`
	// Trust is the certificate, in PEM, of an authority that its programs trust beside the host's; "" is none. Only
	// a workspace with a way out has one.
	Trust string `json:"trust,omitempty"`
}

// Check reports what is wrong with the form of a request. Whether Trust is a certificate is for the programs that
// read it.
func (p StartParams) Check() error {
	if err := checkTrust(p.Egress, p.Trust); err != nil {
		return err
	}
	return checkName(p.Name)
}

// MaxTrust bounds StartParams.Trust, in bytes.
const MaxTrust = 4 << 10

func checkTrust(egress bool, trust string) error {
	if trust == "" {
		return nil
	}
	block, rest := pem.Decode([]byte(trust))
	if !egress || len(trust) > MaxTrust || block == nil || block.Type != "CERTIFICATE" || len(block.Headers)+len(rest) > 0 ||
		string(pem.EncodeToMemory(block)) != trust {
		return malformed("what the workspace is to trust is not one certificate of a way out, in PEM")
	}
	return nil
}

// NameParams names one workspace.
type NameParams struct {
	Name id.Workspace `json:"name"`
}

// Check reports what is wrong with the form of a request.
func (p NameParams) Check() error { return checkName(p.Name) }

// DestroyParams removes user, group, cgroups and processes. The home is kept
// aside under the data directory unless Purge is set. With Unused it is done only if the
// workspace is stopped and nothing was put into its home; it is failed_precondition
// otherwise.
type DestroyParams struct {
	Name   id.Workspace `json:"name"`
	Purge  bool         `json:"purge"`
	Unused bool         `json:"unused,omitempty"`
}

// Check reports what is wrong with the form of a request.
func (p DestroyParams) Check() error { return checkName(p.Name) }

// ForgetParams names the home that a destroy kept of the workspace with this name and this
// first id: forget removes it, and one that is gone is no error; revive brings the workspace back.
type ForgetParams struct {
	Name id.Workspace `json:"name"`
	ID   uint32       `json:"id"`
}

// Check reports what is wrong with the form of a request.
func (p ForgetParams) Check() error { return checkName(p.Name) }

// UpdateParams changes the limits of a workspace, at once where it runs. Limits.OpenFiles
// is in force from the next start on.
type UpdateParams struct {
	Name   id.Workspace     `json:"name"`
	Limits workspace.Limits `json:"limits"`
}

// Check reports what is wrong with the form of a request, but for the limits.
func (p UpdateParams) Check() error { return checkName(p.Name) }

// Executor identifies a running executor beyond pid reuse.
type Executor struct {
	PID int `json:"pid"`
	// StartTime is field 22 of /proc/PID/stat, in clock ticks since boot.
	StartTime uint64 `json:"start_time"`
	// BootID is /proc/sys/kernel/random/boot_id.
	BootID string `json:"boot_id"`
	// Socket is the path the executor listens on.
	Socket string `json:"socket"`
}

// Workspace is what the broker's ledger holds of one workspace.
type Workspace struct {
	Name      id.Workspace     `json:"name"`
	KeyDigest string           `json:"key_digest"`
	State     workspace.State  `json:"state"`
	User      string           `json:"user"`
	IDs       workspace.IDs    `json:"ids"`
	Home      string           `json:"home"`
	Limits    workspace.Limits `json:"limits"`
	// Executor is set while State is running.
	Executor *Executor `json:"executor,omitempty"`
	// Retained is where destroy put the home, if it kept it.
	Retained string `json:"retained,omitempty"`
	// Mounts are the project mounts, as they are in force.
	Mounts []workspace.Mount `json:"mounts,omitempty"`
	// Allow is what its commands may do beyond what others may.
	Allow []workspace.Opening `json:"allow,omitempty"`
	// Egress: it was started with a way out.
	Egress bool `json:"egress,omitempty"`
	// Trust is workspace.Digest of the certificate that it was started with, "" for none.
	Trust string `json:"trust,omitempty"`
}

// StartResult is a running workspace and the proof of its isolation, which is empty if it
// was not started.
type StartResult struct {
	Workspace Workspace        `json:"workspace"`
	Report    workspace.Report `json:"report"`
}

// ListParams asks for the workspaces whose names come after After; "" is from the start.
type ListParams struct {
	After id.Workspace `json:"after,omitempty"`
}

// Check reports what is wrong with the form of a request.
func (p ListParams) Check() error {
	if p.After == "" {
		return nil
	}
	return checkName(p.After)
}

// ListResult is workspaces that are not destroyed, by name. With More set the list did
// not fit into one message, and goes on after the last one.
type ListResult struct {
	Workspaces []Workspace `json:"workspaces"`
	More       bool        `json:"more,omitempty"`
}

// CountersignParams asks for a signature on a checkpoint of the audit log. Origin names the
// log, and Proof shows that its tree of Size records begins with the tree of Old records, which the
// broker countersigned last; Old is 0 if there is none. Hashes are base64.
type CountersignParams struct {
	Origin string   `json:"origin"`
	Size   int64    `json:"size"`
	Root   string   `json:"root"`
	Old    int64    `json:"old"`
	Proof  []string `json:"proof"`
}

// Parse returns the checkpoint to sign, and the proof that its tree begins with the tree of Old
// records.
func (p CountersignParams) Parse() (next checkpoint.Checkpoint, proof tlog.TreeProof, err error) {
	if !checkpoint.IsName(p.Origin) || p.Size < 1 || p.Old < 0 || p.Old > p.Size || len(p.Proof) > checkpoint.MaxProof ||
		(p.Old == 0) != (len(p.Proof) == 0) && p.Old != p.Size {
		return next, nil, malformed("no checkpoint has that form")
	}
	next = checkpoint.Checkpoint{Origin: p.Origin, Size: p.Size}
	if next.Root, err = checkpoint.ParseHash(p.Root); err != nil {
		return next, nil, malformed("the root %q is %w", p.Root, err)
	}
	proof = make(tlog.TreeProof, len(p.Proof))
	for i, text := range p.Proof {
		if proof[i], err = checkpoint.ParseHash(text); err != nil {
			return next, nil, malformed("%q in the proof is %w", text, err)
		}
	}
	return next, proof, nil
}

// Check reports what is wrong with the form of a request.
func (p CountersignParams) Check() error {
	_, _, err := p.Parse()
	return err
}

// CountersignResult is a note with the broker's signature. Without Note nothing was signed:
// Old is not Size, the size that was countersigned last, and a proof from there is wanted.
type CountersignResult struct {
	Note string `json:"note,omitempty"`
	// Key is the broker's public one.
	Key string `json:"key"`
	// Size and Root belong to the checkpoint that is countersigned now; Size is 0 if none is.
	Size int64  `json:"size"`
	Root string `json:"root"`
}
