package fast

import (
	"strings"
	"time"
	"unicode/utf8"
)

// plain is a plain exec: one that attaches stdout and stderr only.
type plain struct {
	workspace string
	argv      []string
	env       map[string]string
	dir       string
	source    string
	thread    string
	timeout   time.Duration
	grace     time.Duration
	lookup    func(string) (string, bool)
}

// flags are the flags of a plain exec, in the forms "--flag value" and "--flag=value". Each sets its value; it is not ok if the full
// program has to say what is wrong with it.
var flags = map[string]func(p *plain, value string) (ok bool){
	"--env":     (*plain).setEnv,
	"-e":        (*plain).setEnv,
	"--cwd":     (*plain).setDir,
	"-w":        (*plain).setDir,
	"--source":  func(p *plain, v string) bool { p.source = v; return v == "user" || v == "llm" },
	"--thread":  func(p *plain, v string) bool { p.thread = v; return utf8.ValidString(v) },
	"--timeout": func(p *plain, v string) bool { return setTime(&p.timeout, v) },
	"--grace":   func(p *plain, v string) bool { return setTime(&p.grace, v) },
}

// parse reads a command line. It is not ok if that is no plain exec, or there is something to say about it.
func parse(args []string, lookup func(string) (string, bool)) (p *plain, ok bool) {
	if len(args) == 0 || args[0] != "exec" {
		return nil, false
	}
	p = &plain{source: "user", lookup: lookup}
	args = args[1:]
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		name, value, joined := strings.Cut(args[0], "=")
		set := flags[name]
		switch {
		case set == nil, joined && !strings.HasPrefix(name, "--"):
			return nil, false
		case joined:
			args = args[1:]
		case len(args) > 1:
			value, args = args[1], args[2:]
		default:
			return nil, false
		}
		if !set(p, value) {
			return nil, false
		}
	}
	if len(args) == 0 {
		return nil, false
	}
	p.workspace, p.argv = args[0], args[1:]
	switch {
	case len(p.argv) > 0 && p.argv[0] == "--":
		p.argv = p.argv[1:]
	case len(p.argv) > 0 && strings.HasPrefix(p.argv[0], "-") && p.argv[0] != "-":
		return nil, false // a flag behind the name
	}
	for _, a := range p.argv {
		if !utf8.ValidString(a) {
			return nil, false
		}
	}
	return p, len(p.argv) > 0 && p.workspace != "" && utf8.ValidString(p.workspace)
}

func (p *plain) setEnv(v string) bool {
	name, value, given := strings.Cut(v, "=")
	if !given {
		if value, given = p.lookup(name); !given {
			return true // unset here, it stays unset there
		}
	}
	if p.env == nil {
		p.env = map[string]string{}
	}
	p.env[name] = value
	return name != "" && utf8.ValidString(name) && utf8.ValidString(value)
}

func (p *plain) setDir(v string) bool {
	p.dir = v
	return strings.HasPrefix(v, "/") && utf8.ValidString(v) // others begin at a home that the daemon knows
}

func setTime(to *time.Duration, v string) bool {
	d, err := time.ParseDuration(v)
	*to = d
	return err == nil && d >= 0
}

// The messages, as package fdapi says: those of carrel.v1 that have the same names, without the fields that are not used here.
type (
	spawnRequest struct {
		Start streamStart `json:"start"`
	}
	streamStart struct {
		Workspace string  `json:"workspace"`
		Command   command `json:"command"`
	}
	command struct {
		Argv           []string          `json:"argv"`
		Env            map[string]string `json:"env,omitempty"`
		Cwd            string            `json:"cwd,omitempty"`
		TimeoutMS      int64             `json:"timeout_ms,omitempty"`
		GraceMS        int64             `json:"grace_ms,omitempty"`
		Source         string            `json:"source,omitempty"`
		Thread         string            `json:"thread,omitempty"`
		ApprovalWaitMS int64             `json:"approval_wait_ms,omitempty"`
	}
	spawnResponse struct {
		CommandID string `json:"command_id"`
	}
	signalRequest struct {
		Workspace string `json:"workspace"`
		CommandID string `json:"command_id"`
		Signal    int    `json:"signal"`
	}
	exited struct {
		Status *status `json:"status"`
		Error  string  `json:"error"`
	}
	status struct {
		Code     int  `json:"code"`
		TimedOut bool `json:"timed_out"`
		OOM      bool `json:"oom"`
		Stuck    int  `json:"stuck"`
	}
)

// doNotWait is the approval_wait_ms of a command that fails at once if a person has to answer.
const doNotWait = -1

func (p *plain) request() spawnRequest {
	return spawnRequest{streamStart{p.workspace, command{
		Argv: p.argv, Env: p.env, Cwd: p.dir, TimeoutMS: milliseconds(p.timeout), GraceMS: milliseconds(p.grace),
		Source: p.source, Thread: p.thread, ApprovalWaitMS: doNotWait,
	}}}
}

// milliseconds rounds up, so that a short timeout does not become none.
func milliseconds(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }
