package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/boundary/hostrun"
	"github.com/carrel-dev/carrel/internal/files/patch"
	"github.com/carrel-dev/carrel/test/bench/measure"
	"github.com/carrel-dev/carrel/test/bench/report"
	"github.com/carrel-dev/carrel/test/terminal"
)

const (
	// question is what "carrel ask" ends a question with, and chatPrompt where "carrel chat" waits for one.
	question, chatPrompt = "[y] once  [n] no: ", "you>"
	// slowestTurn is what LinuxAgent takes for a turn, with its start.
	slowestTurn = 5 * time.Second
	modelName   = "m1"
)

// scriptedModel is a model over OpenAI's chat completions. It answers each kind of request of either agent in one way: with the
// plan of one command, or with a last word.
type scriptedModel struct {
	port string

	mu sync.Mutex
	// plan is the answer with a plan, in the form of the agent that is measured.
	plan string
	// planned is when the last byte of the plan was written; calls and tokens are those since reset.
	planned       time.Time
	calls, tokens int
}

// saidAtLast is the answer that ends a turn.
const saidAtLast = "It is done at last."

func (b *bench) newModel() (*scriptedModel, error) {
	m := &scriptedModel{}
	l, err := (&net.ListenConfig{}).Listen(b.ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	if _, m.port, err = net.SplitHostPort(l.Addr().String()); err != nil {
		return nil, err
	}
	s := &http.Server{Handler: http.HandlerFunc(m.answer), ReadHeaderTimeout: 10 * time.Second}
	b.later(func(context.Context) error { return s.Close() })
	go func() { _ = s.Serve(l) }()
	return m, nil
}

// reset has the model answer with a plan from now on, and count anew.
func (m *scriptedModel) reset(plan string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.plan, m.planned, m.calls, m.tokens = plan, time.Time{}, 0, 0
}

func (m *scriptedModel) used() (calls, tokens float64, planned time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return float64(m.calls), float64(m.tokens), m.planned
}

// say is the answer to a request.
func (m *scriptedModel) say(body string) (text string, plan bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	plan = m.planned.IsZero()
	switch {
	case strings.Contains(body, "intent router"): // LinuxAgent asks first which of its prompts fits
		text, plan = `{"mode":"COMMAND_PLAN","answer":"","reason":"a command"}`, false
	case plan:
		text = m.plan
	case strings.Contains(body, "direct_answer"):
		text = `{"type":"direct_answer","answer":"` + saidAtLast + `"}`
	default:
		text = saidAtLast
	}
	m.calls++
	m.tokens += (len(body) + len(text)) / 4 // as the providers' own estimates have it
	return text, plan
}

func (m *scriptedModel) answer(w http.ResponseWriter, r *http.Request) {
	var body bytes.Buffer
	if _, err := body.ReadFrom(r.Body); err != nil {
		return
	}
	var asked struct {
		Stream bool `json:"stream"`
	}
	if err := json.Unmarshal(body.Bytes(), &asked); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	text, plan := m.say(body.String())
	said, _ := json.Marshal(text) // a text always marshals
	usage := fmt.Sprintf(`{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}`, body.Len()/4, len(text)/4, (body.Len()+len(text))/4)
	if asked.Stream {
		w.Header().Set("Content-Type", "text/event-stream")
		const chunk = `{"id":"x","object":"chat.completion.chunk","created":1,"model":"` + modelName + `","choices":`
		for _, data := range []string{
			chunk + `[{"index":0,"delta":{"role":"assistant","content":` + string(said) + `}}]}`,
			chunk + `[{"index":0,"delta":{},"finish_reason":"stop"}]}`, chunk + `[],"usage":` + usage + `}`, `[DONE]`,
		} {
			fmt.Fprintf(w, "data: %s\n\n", data)
		}
	} else {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"id":"x","object":"chat.completion","created":1,"model":"`+modelName+`","choices":[{"index":0,"message":`+
			`{"role":"assistant","content":%s},"finish_reason":"stop"}],"usage":%s}`, said, usage)
	}
	if plan {
		m.mu.Lock()
		m.planned = time.Now()
		m.mu.Unlock()
	}
}

// asking is an ordinary user of a carrel whose agent has the scripted model.
type asking struct {
	b     *bench
	h     *carrelHost
	p     person
	model *scriptedModel
}

// asking is made once.
func (b *bench) asker() (*asking, error) {
	if b.asks != nil {
		return b.asks, nil
	}
	m, err := b.newModel()
	if err != nil {
		return nil, err
	}
	file := filepath.Join(b.dir, "models.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, "models:\n"+
		"  here: {api: openai, url: \"http://127.0.0.1:%[1]s/v1\", key: HERE_KEY, secret: BENCH_KEY}\n"+
		"allow: [\"127.0.0.1:%[1]s\"]\n", m.port), 0o644); err != nil {
		return nil, err
	}
	h, err := b.newHostWith("agent", fmt.Sprintf("socket_mode: \"0666\"\negress:\n  file: %s\n", file))
	if err != nil {
		return nil, err
	}
	if _, err := h.client.Secrets().SetSecret(b.ctx, connect.NewRequest(&carrelv1.SetSecretRequest{
		Name: "BENCH_KEY", Value: "the-key-of-the-bench", Hosts: []string{"127.0.0.1:" + m.port},
	})); err != nil {
		return nil, err
	}
	p, err := b.person()
	if err != nil {
		return nil, err
	}
	b.asks = &asking{b, h, p, m}
	return b.asks, nil
}

// program is a program of the person's at a terminal.
func (a *asking) program(argv ...string) (*terminal.Terminal, error) {
	c := a.p.command("", argv...)
	c.Env = append(c.Env, "CARREL_HOST="+a.h.address(), "TERM=xterm", "LANG=C.UTF-8")
	return terminal.Start(c, 50, 120, true)
}

// ask runs "carrel ask" with a plan and says yes. begun is called when the answer was sent.
func (a *asking) ask(plan string, begun func(x *terminal.Terminal) error, args ...string) (*terminal.Terminal, error) {
	a.model.reset(plan)
	x, err := a.program(append([]string{a.h.program, "ask", "--llm", modelName, "--model", "here"}, args...)...)
	if err != nil {
		return nil, err
	}
	defer x.End()
	if err := x.ExpectAfter("", question); err != nil {
		return nil, err
	}
	if err := errors.Join(x.Type("y\n"), begun(x)); err != nil {
		return nil, err
	}
	if err := x.ExpectAfter("", saidAtLast); err != nil {
		return nil, err
	}
	if code, err := x.Wait(); err != nil || code != 0 {
		return nil, errors.Join(err, fmt.Errorf("carrel ask ended with %d: %s", code, x.Screen()))
	}
	return x, nil
}

// stepOf is a step of a plan of carrel's agent.
func stepOf(target, command string) string {
	return fmt.Sprintf(`{"type":"command_plan","goal":"see","commands":[{"command":%q,"purpose":"see","read_only":false,"target":%q}],`+
		`"risk_summary":"none","preflight_checks":[],"verification_commands":[],"rollback_commands":[],"requires_root":false,`+
		`"expected_side_effects":[]}`, command, target)
}

// appears waits for a file, and returns when it was seen.
func appears(path string) (time.Time, error) {
	for until := time.Now().Add(terminal.Patience); time.Now().Before(until); {
		if _, err := os.Stat(path); err == nil {
			return time.Now(), os.Remove(path)
		}
		time.Sleep(500 * time.Microsecond)
	}
	return time.Time{}, fmt.Errorf("%s does not appear", path)
}

// agent measures the agent: from the model's answer to the first effect of its command, what a turn asks of the model, when a
// person can type, what a step on this machine costs, and how long a large patch takes to be read.
func (b *bench) agent() error {
	a, err := b.asker()
	if err != nil {
		return err
	}
	return errors.Join(a.turns(), b.hostSteps(), b.patches())
}

func (a *asking) turns() error {
	b, mark := a.b, filepath.Join(a.p.home, "first")
	prompt := measure.Contestant{Name: "carrel chat", Op: func() (time.Duration, error) {
		began := time.Now()
		x, err := a.program(a.h.program, "chat", "--llm", modelName, "--model", "here")
		if err != nil {
			return 0, err
		}
		defer x.End()
		err = x.ExpectAfter("", chatPrompt)
		return time.Since(began), err
	}}
	var ours, theirs turnCost
	turn := measure.Contestant{Name: "carrel ask", Op: func() (took time.Duration, err error) {
		_, err = a.ask(stepOf("host", "touch "+mark), func(*terminal.Terminal) error {
			at, err := appears(mark)
			_, _, planned := a.model.used()
			took = at.Sub(planned)
			return err
		}, "--on", "host", "touch the file")
		ours.add(a.model)
		return took, err
	}}
	prompts, turns := []measure.Contestant{prompt}, []measure.Contestant{turn}
	if la, err := a.linuxAgent(); err != nil {
		b.Miss(report.LinuxAgent, err)
	} else {
		prompts = append(prompts, la.prompt())
		turns = append(turns, la.turn(mark, &theirs))
	}
	got := measure.Interleave(b.ctx, b.turnPace(), turns)
	if err := b.times(report.Agent, time.Millisecond, got[0], got[1:]); err != nil {
		return err
	}
	for _, x := range []struct {
		id, unit    string
		ours, other float64
	}{
		{report.AgentCalls, "calls", ours.calls / ours.n, theirs.calls / max(theirs.n, 1)},
		{report.AgentTokens, "tokens", ours.tokens / ours.n, theirs.tokens / max(theirs.n, 1)},
	} {
		row := report.Row{ID: x.id, Unit: x.unit, Ours: report.Stat{Name: "a turn of carrel ask", N: int(ours.n), P50: x.ours}}
		if x.other > 0 {
			row.Peer, row.Ratio = report.LinuxAgent, x.ours/x.other
			row.Other = &report.Stat{Name: report.LinuxAgent, N: int(theirs.n), P50: x.other}
		}
		b.Add(row)
	}
	got = measure.Interleave(b.ctx, b.turnPace(), prompts)
	return b.times(report.AgentPrompt, time.Millisecond, got[0], got[1:])
}

// turnPace is that of what takes seconds.
func (b *bench) turnPace() measure.Pace {
	p := measure.Pace{Rounds: 5, Block: 2 * slowestTurn, Warm: 1}
	if b.quick {
		p.Rounds, p.Block = 2, slowestTurn
	}
	return p
}

// turnCost is what turns used of the model.
type turnCost struct{ calls, tokens, n float64 }

func (s *turnCost) add(m *scriptedModel) {
	calls, tokens, _ := m.used()
	s.calls, s.tokens, s.n = s.calls+calls, s.tokens+tokens, s.n+1
}

// hostSteps measures a command on this machine as a step of a turn runs it: with its supervisor ready, or, beside that, with none.
func (b *bench) hostSteps() error {
	program, err := hostrun.OpenProgram(filepath.Join(b.bin, "carrel-hostrun"))
	if err != nil {
		return err
	}
	defer program.Close()
	cold, ready := hostrun.NewRunner(program), hostrun.NewRunner(program)
	defer ready.Ready(hostrun.None)()
	run := func(by *hostrun.Runner, p hostrun.Profile) func() (time.Duration, error) {
		return measure.Timed(func() error {
			r, err := by.Run(b.ctx, hostrun.Command{Argv: []string{command}, Profile: p, AllowRoot: true})
			if err == nil && r.Code != 0 {
				err = fmt.Errorf("exit code %d", r.Code)
			}
			return err
		})
	}
	got := measure.Interleave(b.ctx, b.pace(10*time.Millisecond), []measure.Contestant{
		{Name: "a step on this machine", Op: run(ready, hostrun.None)},
		fork(),
		{Name: "with no supervisor ready", Op: run(cold, hostrun.None)},
		{Name: "one that only reads", Op: run(cold, hostrun.SystemInspect)},
	})
	return b.times(report.AgentStep, time.Millisecond, got[0], got[1:])
}

// patches measures the dry run of a patch with a thousand hunks for a file of 5 MiB.
func (b *bench) patches() error {
	const lines, hunks = 100_000, 1000
	dir := filepath.Join(b.dir, "patched")
	var file, text strings.Builder
	line := func(i int) string { return fmt.Sprintf("line %06d of a file that has very many of them\n", i) }
	for i := range lines {
		file.WriteString(line(i))
	}
	text.WriteString("--- a/f\n+++ b/f\n")
	for h := range hunks {
		i := h*(lines/hunks) + 10
		fmt.Fprintf(&text, "@@ -%d,3 +%d,3 @@\n %s-%s+%s %s", i, i, line(i-1), line(i), strings.ToUpper(line(i)), line(i+1))
	}
	diff := filepath.Join(b.dir, "patched.diff")
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "f"), []byte(file.String()), 0o644),
		os.WriteFile(diff, []byte(text.String()), 0o644)); err != nil {
		return err
	}
	all := []measure.Contestant{{Name: "a dry run", Op: measure.Timed(func() error {
		p, err := patch.Parse([]byte(text.String()))
		if err != nil {
			return err
		}
		got, err := patch.Read(b.ctx, patch.Roots{Dir: dir}, p)
		if err == nil && got.Files()[0].Added != hunks {
			err = fmt.Errorf("%d lines are added", got.Files()[0].Added)
		}
		return err
	})}}
	for _, argv := range [][]string{{"git", "apply", "--check", diff}, {"patch", "--dry-run", "-p1", "-i", diff}} {
		all = append(all, measure.Contestant{Name: strings.Join(argv[:2], " "), Op: measure.Timed(func() error {
			c := exec.CommandContext(b.ctx, argv[0], argv[1:]...)
			c.Dir = dir
			return c.Run()
		})})
	}
	got := measure.Interleave(b.ctx, b.pace(100*time.Millisecond), all)
	return b.times(report.AgentPatch, time.Millisecond, got[0], got[1:])
}
