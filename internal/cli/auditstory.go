package cli

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/carrel-dev/carrel/internal/spec/operation"
)

// storyRecord is what a story tells of a record.
type storyRecord struct {
	Seq       int64     `json:"seq"`
	Time      time.Time `json:"time"`
	Trace     string    `json:"trace"`
	Type      string    `json:"type"`
	Principal string    `json:"principal"`
	Owner     string    `json:"owner"`
	Workspace string    `json:"workspace"`
	Intent    int64     `json:"intent"`
	Status    string    `json:"status"`
	Error     string    `json:"error"`
	Approval  string    `json:"approval"`
	Decision  struct {
		Level string `json:"level"`
		Risk  int    `json:"risk_score"`
	} `json:"decision"`
	Action struct {
		Kind     string   `json:"kind"`
		Target   string   `json:"target"`
		Host     string   `json:"host"`
		Argv     []string `json:"argv"`
		Protocol string   `json:"protocol"`
		Prompt   string   `json:"prompt_digest"`
		Bytes    int      `json:"prompt_bytes"`
		Number   int      `json:"number"`
		Goal     string   `json:"goal"`
		Digest   string   `json:"digest"`
		Files    []string `json:"files"`
		Steps    []struct {
			Part     string `json:"part"`
			Target   string `json:"target"`
			Command  string `json:"shell"`
			ReadOnly bool   `json:"read_only"`
			Profile  string `json:"profile"`
			Job      bool   `json:"background"`
			Level    string `json:"level"`
			Risk     int    `json:"risk"`
		} `json:"steps"`
	} `json:"action"`
	Data struct {
		Kind     string `json:"kind"`
		Reason   string `json:"reason"`
		State    string `json:"state"`
		Plan     string `json:"plan"`
		StepsRun int    `json:"steps_run"`
		Status   *struct {
			Code     int   `json:"code"`
			Signal   int   `json:"signal"`
			TimedOut bool  `json:"timed_out"`
			Began    int64 `json:"started_ns"`
			Ended    int64 `json:"ended_ns"`
		} `json:"status"`
		Models []struct {
			Endpoint string              `json:"endpoint"`
			Requests int64               `json:"requests"`
			Tokens   int64               `json:"tokens"`
			Refused  int64               `json:"refused"`
			Models   map[string]struct{} `json:"models"`
			Calls    []struct {
				Model     string `json:"model"`
				Sent      string `json:"sent"`
				SentBytes int64  `json:"sent_bytes"`
				Came      string `json:"came"`
				CameBytes int64  `json:"came_bytes"`
				Status    int    `json:"status"`
				Whole     bool   `json:"whole"`
			} `json:"calls"`
			NotListed int64 `json:"calls_not_listed"`
		} `json:"models"`
	} `json:"data"`
}

// story is the records of one trace, as a person reads them.
type story struct {
	all []storyRecord
	// ends are the outcomes of intents, and plans those that were shown whole.
	ends  map[int64]storyRecord
	plans map[int]bool
}

// add adds a record, as it stands in the log.
func (s *story) add(line []byte) error {
	var r storyRecord
	if err := json.Unmarshal(line, &r); err != nil {
		return fmt.Errorf("cannot read a record that the daemon sent: %w", err)
	}
	if s.ends == nil {
		s.ends, s.plans = map[int64]storyRecord{}, map[int]bool{}
	}
	if r.Type == "outcome" {
		s.ends[r.Intent] = r
	}
	s.all = append(s.all, r)
	return nil
}

// text is the story: a line for what happened, with the time since its beginning.
func (s *story) text() string {
	if len(s.all) == 0 {
		return ""
	}
	first, last := s.all[0], s.all[len(s.all)-1]
	var b strings.Builder
	fmt.Fprintf(&b, "trace %s of %s: %s, %v, records %d to %d\n", first.Trace, cmp.Or(first.Owner, first.Principal),
		first.Time.UTC().Format(stamp), last.Time.Sub(first.Time).Round(time.Millisecond), first.Seq, last.Seq)
	for i := range s.all {
		r := &s.all[i]
		if line := s.line(r); line != "" {
			fmt.Fprintf(&b, "%+9.3fs  %s\n", r.Time.Sub(first.Time).Seconds(), printable(line))
			if r.Action.Kind == string(operation.RunPlan) && !s.plans[r.Action.Number] {
				s.plans[r.Action.Number] = true
				s.steps(&b, r)
			}
			s.calls(&b, r)
		}
	}
	return b.String()
}

// steps shows the commands of a plan.
func (s *story) steps(b *strings.Builder, r *storyRecord) {
	for i, x := range r.Action.Steps {
		word := verdictOf(x.Level, x.Risk)
		if x.ReadOnly {
			word += ", only reads"
		}
		if x.Profile != "" {
			word += ", profile " + printable(x.Profile)
		}
		if x.Job {
			word += ", in the background"
		}
		fmt.Fprintf(b, "%13s%d. %s: %s  [%s]\n", "", i+1, printable(x.Target), printable(cut(x.Command, 120)), word)
	}
}

// calls shows what was sent to models and what came, by the beginning of each digest.
func (s *story) calls(b *strings.Builder, r *storyRecord) {
	for _, m := range r.Data.Models {
		for i, c := range m.Calls {
			text := fmt.Sprintf("sent %d bytes %.12s", c.SentBytes, c.Sent)
			switch {
			case c.Came == "":
				text += ", nothing came"
			case !c.Whole:
				text += fmt.Sprintf(", %d: came %d bytes %.12s, not to its end", c.Status, c.CameBytes, c.Came)
			default:
				text += fmt.Sprintf(", %d: came %d bytes %.12s", c.Status, c.CameBytes, c.Came)
			}
			fmt.Fprintf(b, "%13s%d. %s: %s\n", "", i+1, printable(cmp.Or(c.Model, m.Endpoint)), printable(text))
		}
		if m.NotListed > 0 {
			fmt.Fprintf(b, "%13sand %s that no record lists\n", "", counted(m.NotListed, "call"))
		}
	}
}

func verdictOf(level string, risk int) string {
	return strings.TrimSpace(fmt.Sprintf("%s %d", level, risk))
}

// line is what a record says; "" if another line says it.
func (s *story) line(r *storyRecord) string {
	switch r.Type {
	case "intent":
		return s.begun(r)
	case "outcome":
		return s.ended(r)
	case "request":
		return s.what(r) + ": a person is asked, " + r.Approval
	case "approval":
		text := fmt.Sprintf("%s answered %s: %s", r.Principal, r.Approval, r.Data.Kind)
		if r.Data.Reason != "" {
			text += ", " + r.Data.Reason
		}
		return text
	case "denial":
		return fmt.Sprintf("%s [%s]: denied: %s", s.what(r), verdictOf(r.Decision.Level, r.Decision.Risk), r.Error)
	case "usage":
		return modelsLine(r)
	}
	text := r.Type + " " + r.Action.Kind
	if r.Error != "" {
		text += ": " + r.Error
	}
	return strings.TrimSpace(text + " " + r.Status)
}

// what names what a record is about.
func (s *story) what(r *storyRecord) string {
	on := strings.TrimSpace(cmp.Or(r.Action.Target, "workspace "+r.Workspace) + " " + r.Action.Host)
	switch r.Action.Kind {
	case string(operation.RunTask):
		return fmt.Sprintf("task in %s, %s, prompt of %d bytes %.12s", on, r.Action.Protocol, r.Action.Bytes, r.Action.Prompt)
	case string(operation.RunPlan):
		return fmt.Sprintf("plan %d: %s", r.Action.Number, cut(r.Action.Goal, 120))
	case string(operation.ExecCommand):
		return on + ": " + cut(plainCommand(r.Action.Argv), 120)
	case string(operation.ChangeFiles):
		return fmt.Sprintf("%s: change %s", on, cut(strings.Join(r.Action.Files, ", "), 120))
	}
	return on + ": " + r.Action.Kind
}

// plainCommand is a command as it was typed: without the shell that every step of a plan has.
func plainCommand(argv []string) string {
	if len(argv) == 3 && argv[0] == "/bin/sh" && argv[1] == "-c" {
		return argv[2]
	}
	return shellQuote(argv)
}

// begun is an intent. That of a command says how it ended, too.
func (s *story) begun(r *storyRecord) string {
	text := fmt.Sprintf("%s  [%s]", s.what(r), verdictOf(r.Decision.Level, r.Decision.Risk))
	if r.Action.Kind == string(operation.RunPlan) {
		text = fmt.Sprintf("plan %d runs", r.Action.Number)
		if !s.plans[r.Action.Number] {
			text = s.what(r) + ", which runs"
		}
	}
	if id, _, _ := strings.Cut(r.Approval, " "); id != "" && id != "none" {
		text += ", by " + id
	}
	if end, ok := s.ends[r.Seq]; !ok {
		text += ": its end is not in these records"
	} else if end.Data.Status != nil {
		text += ": " + statusOf(&end)
	}
	return text
}

// statusOf says how a command ended.
func statusOf(r *storyRecord) string {
	x := r.Data.Status
	text := fmt.Sprintf("exit code %d", x.Code)
	switch {
	case x.TimedOut:
		text = "ended at its time"
	case x.Signal != 0:
		text = fmt.Sprintf("signal %d", x.Signal)
	}
	if took := time.Duration(x.Ended - x.Began); x.Began > 0 && took >= 0 {
		text += fmt.Sprintf(", %v", took.Round(time.Millisecond))
	}
	return text
}

// ended is an outcome that is told by itself: that of a task or of a plan, or of what failed.
func (s *story) ended(r *storyRecord) string {
	at := slices.IndexFunc(s.all, func(x storyRecord) bool { return x.Seq == r.Intent })
	name := fmt.Sprintf("record %d", r.Intent)
	if at >= 0 {
		name = s.what(&s.all[at])
	}
	switch {
	case r.Error != "":
		return name + ": " + r.Status + ": " + r.Error
	case r.Data.Plan != "":
		return fmt.Sprintf("plan %d: %s, %s run", s.all[max(at, 0)].Action.Number, r.Data.Plan, counted(int64(r.Data.StepsRun), "step"))
	case r.Data.State != "":
		return "task " + r.Data.State
	case r.Data.Status != nil, at >= 0:
		return ""
	}
	return name + " " + r.Status
}

// modelsLine says what was used of models.
func modelsLine(r *storyRecord) string {
	var all []string
	for _, m := range r.Data.Models {
		text := fmt.Sprintf("model %s", m.Endpoint)
		if names := slices.Sorted(maps.Keys(m.Models)); len(names) > 0 {
			text += " (" + strings.Join(names, ", ") + ")"
		}
		text += fmt.Sprintf(": %s, %s", counted(m.Requests, "request"), counted(m.Tokens, "token"))
		if m.Refused > 0 {
			text += fmt.Sprintf(", %d refused", m.Refused)
		}
		all = append(all, text)
	}
	return strings.Join(all, "; ")
}
