package keeper_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/egress/keeper"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

const patience = 20 * time.Second

// person answers questions, or waits for their end.
type person struct {
	questions chan keeper.Question
	answers   chan keeper.Answer
	gone      chan keeper.Question
	now, most atomic.Int64
}

func newPerson() *person {
	return &person{
		questions: make(chan keeper.Question, 100_000), answers: make(chan keeper.Answer), gone: make(chan keeper.Question, 100_000),
	}
}

func (p *person) ask(ctx context.Context, q keeper.Question) keeper.Answer {
	n := p.now.Add(1)
	defer p.now.Add(-1)
	for most := p.most.Load(); n > most && !p.most.CompareAndSwap(most, n); most = p.most.Load() {
	}
	p.questions <- q
	select {
	case a := <-p.answers:
		return a
	case <-ctx.Done():
		p.gone <- q
		return keeper.Answer{}
	}
}

func next[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case x := <-from:
		return x
	case <-time.After(patience):
		t.Fatal("nothing comes")
		panic("unreachable")
	}
}

func ruleOf(t *testing.T, action netrule.Action, text string) netrule.Rule {
	t.Helper()
	r, err := netrule.ParseRule(action, text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// With a carrel-egress: a question arrives with its rule, and its answer lets the connection through or tells why not. It
// ends with the program, the process and the Keeper.
func TestQuestions(t *testing.T) {
	p := newPerson()
	w, err := startWith(t, binary, func(c *keeper.Config) { c.Ask = p.ask })
	if err != nil {
		t.Fatal(err)
	}
	ask := func() {
		t.Helper()
		if err := w.SetRules(t.Context(), []netrule.Rule{ruleOf(t, netrule.Ask, w.echo)}); err != nil {
			t.Fatal(err)
		}
	}
	ask()
	type result struct {
		c  net.Conn
		no string
	}
	results := make(chan result, 1)
	connect := func() { go func() { c, no := w.connect(t); results <- result{c, no} }() }
	connect()
	if q := next(t, p.questions); q.Rule != w.echo || q.Target.String() != w.echo {
		t.Errorf("%+v", q)
	}
	p.answers <- keeper.Answer{Allow: true}
	got := next(t, results)
	if got.no != "" {
		t.Fatal(got.no)
	}
	if err := echo(got.c); err != nil {
		t.Error(err)
	}
	got.c.Close()
	w.await(t, 1) // it has ended by itself
	// Other rules, and back: the yes was for the rules before.
	if err := w.SetRules(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	ask()
	connect()
	next(t, p.questions)
	p.answers <- keeper.Answer{Reason: "uid:1000 denied it\n" + strings.Repeat("é", egressapi.MaxReason)}
	if got := next(t, results); !strings.Contains(got.no, "403") {
		t.Error(got.no)
	}
	w.await(t, 2)
	w.mu.Lock()
	told := w.told[len(w.told)-1]
	w.mu.Unlock()
	if !strings.Contains(told.Refused, "was not approved: uid:1000 denied it") || len(told.Refused) > egressapi.MaxReason+100 {
		t.Errorf("told %d bytes: %.80s", len(told.Refused), told.Refused)
	}
	ask() // the no is forgotten
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", w.proxy)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", w.echo)
	next(t, p.questions)
	c.Close()
	next(t, p.gone)
	connect()
	next(t, p.questions)
	if err := unix.Kill(w.PID(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	next(t, p.gone)
	next(t, w.trouble)
	next(t, results)
	connect()
	next(t, p.questions)
	w.Close()
	if n := p.now.Load(); n != 0 {
		t.Errorf("%d questions are open after Close", n)
	}
	next(t, results)
}

// hostile is a carrel-egress that was taken over.
func hostile(t *testing.T, p *person, rules ...netrule.Rule) (*keeper.Keeper, *net.UnixConn, chan error) {
	t.Helper()
	trouble := make(chan error, 1000)
	c := keeper.Config{
		Setup: egressapi.Setup{Rules: rules}, Connection: func(egressapi.Connection) {}, Trouble: func(err error) { trouble <- err },
	}
	if p != nil {
		c.Ask = p.ask
	}
	var ends []*net.UnixConn
	var mu sync.Mutex
	c.Starter = keeper.Remote(func(context.Context) (*os.File, error) {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		end := os.NewFile(uintptr(fds[1]), "far")
		defer end.Close()
		conn, err := net.FileConn(end)
		if err != nil {
			return nil, err
		}
		mu.Lock()
		ends = append(ends, conn.(*net.UnixConn))
		mu.Unlock()
		_ = json.NewEncoder(conn).Encode(egressapi.Report{Ready: true})
		return os.NewFile(uintptr(fds[0]), "near"), nil
	})
	k, err := keeper.Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		mu.Lock()
		for _, c := range ends {
			c.Close()
		}
		mu.Unlock()
		k.Close()
	})
	mu.Lock()
	defer mu.Unlock()
	in := bufio.NewReader(ends[0])
	if _, err := in.ReadString('\n'); err != nil { // the Setup
		t.Fatal(err)
	}
	return k, ends[0], trouble
}

// However much is asked, a person is asked within bounds, the rest is refused, and nothing grows.
func TestQuestionsAreBounded(t *testing.T) {
	p := newPerson()
	_, c, trouble := hostile(t, p, ruleOf(t, netrule.Ask, "*:*"))
	refused := make(chan int, 1)
	go func() { // it reads its answers
		n := 0
		for in := bufio.NewScanner(c); in.Scan(); {
			var line egressapi.Line
			if json.Unmarshal(in.Bytes(), &line) != nil || line.Answer == nil || line.Answer.Allow || line.Answer.Reason == "" {
				break
			}
			n++
		}
		refused <- n
	}()
	out := json.NewEncoder(c)
	before := runtime.NumGoroutine()
	// A person has one: the flood may be ended before they have another.
	if err := out.Encode(egressapi.Report{Ask: &egressapi.Ask{ID: 1 << 40, Host: "first.example", Port: 443}}); err != nil {
		t.Fatal(err)
	}
	next(t, p.questions)
	const flood = 20_000
	for id := range uint64(flood) {
		if err := out.Encode(egressapi.Report{Ask: &egressapi.Ask{ID: id + 1, Host: fmt.Sprintf("h%d.example", id), Port: 443}}); err != nil {
			t.Fatal(err)
		}
		if id%100 == 0 {
			if n := runtime.NumGoroutine() - before; n > egressapi.MostAsked+10 {
				t.Fatalf("%d goroutines", n)
			}
		}
	}
	if most := p.most.Load(); most > egressapi.MostAsked || most == 0 {
		t.Errorf("%d questions at once", most)
	}
	c.Close()
	next(t, trouble)
	// All but those that a person is still asked about, and the answers that were on their way at the end.
	if n := next(t, refused); n < flood/2 {
		t.Errorf("%d are refused", n)
	}
	// Questions that end at once are no way around it.
	q := newPerson()
	_, c, _ = hostile(t, q, ruleOf(t, netrule.Ask, "*:*"))
	go func() {
		for in := bufio.NewScanner(c); in.Scan(); {
		}
	}()
	out = json.NewEncoder(c)
	for id := range uint64(1000) {
		_ = out.Encode(egressapi.Report{Ask: &egressapi.Ask{ID: id + 1, Host: "a.example", Port: 443}})
		_ = out.Encode(egressapi.Report{Gone: &egressapi.Gone{ID: id + 1}})
		<-time.After(100 * time.Microsecond)
	}
	if n := len(q.questions); n == 0 || n > 2*egressapi.MostAsked+1 {
		t.Errorf("asked %d times", n)
	}
}

// One that does not read what it is answered is ended, and so is one that breaks the protocol.
func TestHostileQuestions(t *testing.T) {
	for name, say := range map[string]func(out *json.Encoder) error{
		"reads nothing": func(out *json.Encoder) error {
			for id := range uint64(1_000_000) {
				if err := out.Encode(egressapi.Report{Ask: &egressapi.Ask{ID: id + 1, Host: "a.example", Port: 443}}); err != nil {
					return err
				}
			}
			return nil
		},
		"the same question": func(out *json.Encoder) error {
			return errorsOf(out, egressapi.Ask{ID: 7, Host: "a.example", Port: 443}, egressapi.Ask{ID: 7, Host: "b.example", Port: 443})
		},
		"no host": func(out *json.Encoder) error { return errorsOf(out, egressapi.Ask{ID: 1, Port: 443}) },
		"another form": func(out *json.Encoder) error {
			return errorsOf(out, egressapi.Ask{ID: 1, Host: "A.example", Port: 443})
		},
		"a terminal's codes": func(out *json.Encoder) error {
			return errorsOf(out, egressapi.Ask{ID: 1, Host: "a.example\x1b[2J", Port: 443})
		},
		"no port": func(out *json.Encoder) error { return errorsOf(out, egressapi.Ask{ID: 1, Host: "a.example"}) },
	} {
		p := newPerson()
		_, c, trouble := hostile(t, p, ruleOf(t, netrule.Ask, "*.example"))
		_ = say(json.NewEncoder(c))
		err := next(t, trouble)
		if name == "reads nothing" {
			if err == nil {
				t.Error("it goes on")
			}
		} else if !strings.Contains(err.Error(), "it asks") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func errorsOf(out *json.Encoder, all ...egressapi.Ask) error {
	for _, a := range all {
		if err := out.Encode(egressapi.Report{Ask: &a}); err != nil {
			return err
		}
	}
	return nil
}

// A person is asked only about what the rules ask, by the rule that they name, and never without a Config.Ask.
func TestMadeUpQuestions(t *testing.T) {
	answer := func(c *net.UnixConn, a egressapi.Ask) egressapi.Answer {
		t.Helper()
		_ = c.SetDeadline(time.Now().Add(patience))
		if err := json.NewEncoder(c).Encode(egressapi.Report{Ask: &a}); err != nil {
			t.Fatal(err)
		}
		var line egressapi.Line
		if err := json.NewDecoder(c).Decode(&line); err != nil || line.Answer == nil || line.Answer.ID != a.ID {
			t.Fatalf("%+v, %v", line, err)
		}
		return *line.Answer
	}
	p := newPerson()
	_, c, _ := hostile(t, p, ruleOf(t, netrule.Ask, "*.example"), ruleOf(t, netrule.Allow, "example.org"),
		ruleOf(t, netrule.Deny, "bad.example"))
	for id, host := range []string{"example.org", "bad.example", "other.test", "10.0.0.1"} {
		if a := answer(c, egressapi.Ask{ID: uint64(id) + 1, Host: host, Port: 443, Rule: "*.example"}); a.Allow || a.Reason == "" {
			t.Errorf("%s: %+v", host, a)
		}
	}
	if n := len(p.questions); n != 0 {
		t.Errorf("%d questions", n)
	}
	go func() { p.answers <- keeper.Answer{Allow: true} }()
	if a := answer(c, egressapi.Ask{ID: 9, Host: "a.example", Port: 443, Rule: "a friendly rule"}); !a.Allow {
		t.Errorf("%+v", a)
	}
	if q := next(t, p.questions); q.Rule != "*.example" {
		t.Errorf("by the rule %q", q.Rule)
	}
	_, c, _ = hostile(t, nil, ruleOf(t, netrule.Ask, "*.example"))
	if a := answer(c, egressapi.Ask{ID: 1, Host: "a.example", Port: 443}); a.Allow || a.Reason != "nobody can be asked" {
		t.Errorf("%+v", a)
	}
}
