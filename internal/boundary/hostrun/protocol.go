package hostrun

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// The caller and the supervisor speak lines of JSON on a socket pair that nobody else has:
//
//	caller                         supervisor
//	  │ spec ─────────────────────────► │ takes the profile's steps, tries the controls
//	  │ ◄───────────────────── findings │
//	  │ looks from outside, judges      │
//	  │ go ───────────────────────────► │ starts the command
//	  │ ◄───────────────────────── began │ the command runs
//	  │ stop (time over, ctx ended) ──► │ SIGTERM, grace, SIGKILL for all that is there
//	  │ ◄──────────────────────── ended │ once nothing of it is left
//
// Instead of any answer the supervisor may say why it cannot go on. If the socket ends on the caller's side, the
// supervisor ends all at once, without grace.

// controlFD is the supervisor's end.
const controlFD = 3

// maxLine bounds a line, in bytes: a spec with the longest arguments, variables and paths, each byte escaped.
const maxLine = 6*(MaxArgvBytes+MaxEnvBytes+(MaxWrites+1)*unix.PathMax) + 64<<10

// spec is what the supervisor is to do.
type spec struct {
	Profile Profile  `json:"profile"`
	Argv    []string `json:"argv"`
	Env     []string `json:"env"`
	// place is where it begins.
	place
	// Writes are the directories that it may change, of which none is within another.
	Writes  []place `json:"writes,omitempty"`
	GraceMS int64   `json:"grace_ms"`
	// Caller is the caller's process number, on the host.
	Caller int  `json:"caller"`
	Root   bool `json:"root,omitempty"`
	// Memory is in bytes; 0 of it, and of Processes, is no bound.
	Memory    int64 `json:"memory,omitempty"`
	Processes int   `json:"processes,omitempty"`
	// Grouped: a control group bounds the processes.
	Grouped bool `json:"grouped,omitempty"`
}

// order is what the caller says after the spec.
type order struct {
	Go   bool `json:"go,omitempty"`
	Stop bool `json:"stop,omitempty"`
	// Now: without grace.
	Now bool `json:"now,omitempty"`
}

// word is what the supervisor says. One field is set.
type word struct {
	Failed   *failure   `json:"failed,omitempty"`
	Findings *[]finding `json:"findings,omitempty"`
	Began    bool       `json:"began,omitempty"`
	Ended    *ended     `json:"ended,omitempty"`
}

// failure is why the command was not started.
type failure struct {
	Step  string `json:"step"`
	Error string `json:"error"`
	Kind  kind   `json:"kind"`
}

// kind is the kind of a failure on the wire.
type kind string

const (
	kindMissing kind = "missing"
	kindDenied  kind = "denied"
	kindHost    kind = "host"
)

func (f failure) err() error {
	of := map[kind]error{kindMissing: errdefs.ErrNotFound, kindDenied: errdefs.ErrPermissionDenied}[f.Kind]
	if of == nil {
		of = errdefs.ErrFailedPrecondition
	}
	return fmt.Errorf("cannot run the command: %s: %w", f.Error, of)
}

// ended says how a command ended.
type ended struct {
	Code   int `json:"code"`
	Signal int `json:"signal,omitempty"`
	// Stopped: it was told to end.
	Stopped bool `json:"stopped,omitempty"`
	// Left are processes that could not be ended.
	Left []string `json:"left,omitempty"`
}

func writeLine(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// lines reads them. Each of a stream must be read by the same one.
func lines(r io.Reader) *bufio.Reader { return bufio.NewReader(r) }

func readLine(r *bufio.Reader, v any) error {
	var line []byte
	for {
		b, err := r.ReadSlice('\n')
		if len(line)+len(b) > maxLine {
			return fmt.Errorf("cannot read a line: it has more than %d bytes", maxLine)
		}
		line = append(line, b...)
		if err == nil {
			return json.Unmarshal(line, v)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return err
		}
	}
}
