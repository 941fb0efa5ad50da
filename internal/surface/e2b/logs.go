package e2b

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/errtext"
	"github.com/carrel-dev/carrel/internal/linux/pollfd"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/surface/authn"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// History tells what was done in workspaces: *flow.Flow.
type History interface {
	// History returns entries about the workspace that ref names, oldest first, for who may see them.
	History(ctx context.Context, p principal.Principal, ref string, want workspace.EntriesWanted) ([]workspace.Entry, error)
}

const (
	// maxLogs is how many entries an answer has at most, and as many as it has if the client does not say.
	maxLogs = 1000
	// maxSearch bounds the text that is searched for, in bytes.
	maxSearch = 256
	// outputs is of how many commands output is read, outputLines and outputBytes how much of each one's end.
	outputs, outputLines, outputBytes = 8, 100, 64 << 10
	// outputWait is how long that may take altogether.
	outputWait = 5 * time.Second
)

// levels are those of E2B, the least first.
var levels = []string{"debug", "info", "warn", "error"}

// logEntry is one entry in the form of E2B.
type logEntry struct {
	Time    time.Time         `json:"timestamp"`
	Level   string            `json:"level"`
	Message string            `json:"message"`
	Fields  map[string]string `json:"fields"`
}

// logLine is an entry in the form of E2B's first generation: Line is JSON, with the fields and the rest.
type logLine struct {
	Time time.Time `json:"timestamp"`
	Line string    `json:"line"`
}

func (e logEntry) line() logLine {
	all := map[string]string{}
	maps.Copy(all, e.Fields)
	all["level"], all["message"], all["logger"] = e.Level, e.Message, clientID
	text, _ := json.Marshal(all) // strings always marshal
	return logLine{e.Time, string(text)}
}

// logQuery says which entries are asked for.
type logQuery struct {
	workspace.EntriesWanted

	level  int
	search string
}

// logQueryFrom reads a query. The second generation begins at "cursor" or, backwards, ends there.
func logQueryFrom(q url.Values, second bool) (l logQuery, err error) {
	l.Most = maxLogs
	if v := q.Get("limit"); v != "" {
		if l.Most, err = strconv.Atoi(v); err != nil || l.Most < 0 || l.Most > maxLogs {
			return l, wrong("the limit %q is not in 0 to %d", v, maxLogs)
		}
	}
	name := "start"
	if second {
		name = "cursor"
		switch v := q.Get("direction"); v {
		case "", "forward":
		case "backward":
			l.Newest = true
		default:
			return l, wrong("the direction %q is neither forward nor backward", v)
		}
		if v := q.Get("level"); v != "" {
			if l.level = slices.Index(levels, v); l.level < 0 {
				return l, wrong("the level %q is none of %s", v, strings.Join(levels, ", "))
			}
		}
		if l.search = q.Get("search"); len(l.search) > maxSearch {
			return l, wrong("the text to search for has %d bytes, at most %d are allowed", len(l.search), maxSearch)
		}
	}
	if v := q.Get(name); v != "" {
		ms, err := strconv.ParseInt(v, 10, 64)
		if err != nil || ms < 0 {
			return l, wrong("%s %q is no time in milliseconds", name, v)
		}
		if at := time.UnixMilli(ms).UTC(); l.Newest {
			l.Until = at
		} else {
			l.From = at
		}
	}
	return l, nil
}

// takes reports whether an entry is asked for, the times apart.
func (l *logQuery) takes(e logEntry) bool {
	return slices.Index(levels, e.Level) >= l.level && strings.Contains(e.Message, l.search)
}

// within reports whether a time is asked for.
func (l *logQuery) within(t time.Time) bool {
	return !t.Before(l.From) && (l.Until.IsZero() || t.Before(l.Until))
}

// logs shows what was done in a sandbox, with the output that is kept of its commands.
func (s *Server) logs(w http.ResponseWriter, r *http.Request) error {
	ws, _, err := s.one(r)
	if err != nil {
		return err
	}
	second := strings.HasPrefix(r.URL.Path, "/v2/")
	l, err := logQueryFrom(r.URL.Query(), second)
	if err != nil {
		return err
	}
	l.Take = func(e *workspace.Entry) bool { return l.takes(entryFrom(e)) }
	found, err := s.History.History(r.Context(), authn.FromContext(r.Context()), string(ws.Name), l.EntriesWanted)
	if err != nil {
		return err
	}
	entries := make([]logEntry, 0, len(found))
	for _, e := range found {
		entries = append(entries, entryFrom(&e))
	}
	if ws.State == workspace.StateRunning { // else nothing answers, and of a stopped one nothing is kept
		lines, err := s.keptLines(r, string(ws.Name), &l)
		if err != nil {
			return err
		}
		entries = append(entries, lines...)
	}
	slices.SortStableFunc(entries, func(a, b logEntry) int { return a.Time.Compare(b.Time) })
	if extra := len(entries) - l.Most; extra > 0 && l.Newest {
		entries = entries[extra:]
	} else if extra > 0 {
		entries = entries[:l.Most]
	}
	if l.Newest {
		slices.Reverse(entries)
	}
	if second {
		answer(w, http.StatusOK, struct {
			Logs []logEntry `json:"logs"`
		}{entries})
		return nil
	}
	lines := make([]logLine, 0, len(entries))
	for _, e := range entries {
		lines = append(lines, e.line())
	}
	answer(w, http.StatusOK, struct {
		Logs    []logLine  `json:"logs"`
		Entries []logEntry `json:"logEntries"`
	}{lines, entries})
	return nil
}

// entryFrom is an entry of the record in the form of E2B.
func entryFrom(e *workspace.Entry) logEntry {
	out := logEntry{Time: e.Time.UTC(), Level: "info", Fields: map[string]string{"record": strconv.FormatInt(e.Seq, 10)}}
	for k, v := range map[string]string{
		"operation": e.Kind, "principal": e.Principal, "command": string(e.Command), "status": e.Status, "error": e.Error,
	} {
		if v != "" {
			out.Fields[k] = v
		}
	}
	about := cmp.Or(e.Kind, "an earlier operation")
	if len(e.Words) > 0 {
		about += ": " + spaced(e.Words)
	}
	switch {
	case e.Type == "read":
		out.Level, out.Message = "debug", "read: "+about
	case e.Type == "request":
		out.Message = "waits for a person's answer: " + about
	case e.Type == "denial":
		out.Level, out.Message = "warn", "denied: "+about+": "+e.Error
	case e.Type == "intent":
		out.Message = "begins: " + about
	case e.Status != "ok":
		out.Level, out.Message = "error", e.Status+": "+about+": "+e.Error
	case e.Exit != nil:
		how := "exit code " + strconv.Itoa(e.Exit.Code)
		out.Fields["exit_code"] = strconv.Itoa(e.Exit.Code)
		switch {
		case e.Exit.TimedOut:
			how += ", it ran out of its time"
		case e.Exit.OOM:
			how += ", the workspace ran out of memory"
		}
		if e.Exit.Code != 0 {
			out.Level = "warn"
		}
		out.Message = "ended, " + how + ": " + about
	default:
		out.Message = "done: " + about
	}
	return out
}

// spaced shows words with spaces between, and quotes those that have some themselves.
func spaced(list []string) string {
	var b strings.Builder
	for i, v := range list {
		if i > 0 {
			b.WriteByte(' ')
		}
		if v == "" || strings.ContainsFunc(v, func(c rune) bool { return c <= ' ' || c == '"' || c == 0x7f }) {
			v = strconv.Quote(v)
		}
		b.WriteString(v)
	}
	return b.String()
}

// keptLines are the last lines of what detached commands have written that have ended, at the time of their end: nobody knows
// when each was written. Who asks again for what is newer has those of every command once.
func (s *Server) keptLines(r *http.Request, name string, l *logQuery) ([]logEntry, error) {
	ctx, cancel := context.WithTimeout(r.Context(), outputWait)
	defer cancel()
	list, err := s.Gate.ListCommands(ctx, authn.FromContext(ctx), name)
	if err != nil {
		return nil, err
	}
	list = slices.DeleteFunc(list, func(c execapi.Command) bool {
		return !c.Detached || c.Status == nil || !l.within(time.Unix(0, c.Status.EndedNS))
	})
	slices.SortFunc(list, func(a, b execapi.Command) int { return cmp.Compare(b.Status.EndedNS, a.Status.EndedNS) })
	var lines []logEntry
	for _, c := range list[:min(len(list), outputs)] {
		at := time.Unix(0, c.Status.EndedNS).UTC()
		add := func(level, text string) {
			e := logEntry{at, level, text, map[string]string{"operation": "output", "command": string(c.ID)}}
			if l.takes(e) {
				lines = append(lines, e)
			}
		}
		end, err := s.keptEnd(ctx, name, c)
		for _, text := range end {
			add("info", text)
		}
		if err != nil {
			add("warn", "cannot read the output of "+string(c.ID)+": "+errtext.Text(err))
		}
	}
	return lines, nil
}

// keptEnd are the last lines of what a command has written.
func (s *Server) keptEnd(ctx context.Context, name string, c execapi.Command) (lines []string, err error) {
	res, files, err := s.Gate.Output(ctx, authn.FromContext(ctx), name, execapi.OutputParams{ID: c.ID}, false)
	if err != nil {
		return nil, err
	}
	for _, f := range files[min(1, len(files)):] {
		_ = f.Close()
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("the executor sent no descriptor: %w", errdefs.ErrInternal)
	}
	out, err := pollfd.Open(files[0])
	if err != nil {
		return nil, err
	}
	defer out.Close()
	if by, ok := ctx.Deadline(); ok {
		if err := out.SetReadDeadline(by); err != nil {
			return nil, err
		}
	}
	t := tail{cut: res.Lost > 0}
	if _, err = io.Copy(&t, out); err != nil {
		return nil, err
	}
	return t.lines(), nil
}

// tail keeps the end of what is written to it.
type tail struct {
	kept []byte
	cut  bool // the beginning is missing
}

func (t *tail) Write(b []byte) (int, error) {
	t.kept = append(t.kept, b...)
	if n := len(t.kept) - outputBytes; n > 0 {
		t.cut = true
		t.kept = append(t.kept[:0], t.kept[n:]...)
	}
	return len(b), nil
}

// lines are the last lines, each whole but for the last one if that has no end.
func (t *tail) lines() []string {
	text := strings.TrimSuffix(strings.ToValidUTF8(string(t.kept), "\uFFFD"), "\n")
	if text == "" {
		return nil
	}
	all := strings.Split(text, "\n")
	if t.cut && len(all) > 1 {
		all = all[1:]
	}
	return all[max(0, len(all)-outputLines):]
}
