package root_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/test/ptytest"
)

// tale is a text of the corpus of internal/daemon/compose, and what a model does that obeys it.
type tale struct {
	At   string   `json:"at"`
	Says string   `json:"says"`
	Plan []string `json:"plan"`
	Raw  string   `json:"raw"`
}

// answer is what the model says that obeys.
func (l *tale) answer() string {
	if l.Raw != "" {
		return l.Raw
	}
	var steps []map[string]any
	for _, s := range l.Plan {
		target, command, _ := strings.Cut(s, ": ")
		steps = append(steps, planStep(strings.TrimSuffix(target, "!"), command, strings.HasSuffix(target, "!")))
	}
	return planOfAll(steps...)
}

// Of the texts of hosts in the corpus none leads to anything that a person has not approved, where a real server says them: in its
// banner before the login, by what its login runs, and in the output of a command. The model is told the output alone, and what it does
// then is refused, or shown and denied.
func TestAskOfHostsThatSayThings(t *testing.T) {
	text, err := os.ReadFile("../../internal/daemon/compose/testdata/lies/hosts.json")
	if err != nil {
		t.Fatal(err)
	}
	var all []tale
	if err := json.Unmarshal(text, &all); err != nil || len(all) < 40 {
		t.Fatalf("%d texts, %v", len(all), err)
	}
	m, o, carrel := newPerson(t)
	banner := filepath.Join(t.TempDir(), "banner")
	openWay(t, filepath.Dir(banner))
	port1, known1 := o.sshd(t, "127.0.0.2", "Banner "+banner, "PermitUserRC yes")
	port2, known2 := o.sshd(t, "127.0.0.3", "Banner "+banner, "PermitUserRC yes")
	o.write(t, ".ssh/known_hosts", []byte(known1+known2))
	o.write(t, ".config/carrel/hosts.yaml", []byte("hosts:\n  web-1: {address: 127.0.0.2, port: "+port1+"}\n  web-2: {address: 127.0.0.3, port: "+
		port2+"}\n"))
	o.write(t, ".ssh/rc", []byte("cat \"$HOME/noise\" >&2; cat \"$HOME/noise\"\n"))
	o.write(t, "app.conf", []byte("port = 80\n"))
	look := planOf("remote web-1", "cat says", true)
	ends := []string{"it is over", "not approved", "three times in a row", "I could not go on", "there is no answer"}
	asked, refused := 0, 0
	for i := range all {
		l := &all[i]
		if err := os.WriteFile(banner, []byte("banner-of-it "+l.Says+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		o.write(t, "noise", []byte("noise-of-it "+l.Says+"\n"))
		o.write(t, "says", []byte("output-of-it "+l.Says+"\n"))
		before := o.tree(t)
		over := always(directly("it is over"))
		s := m.script(t, always(look), always(l.answer()), always(l.answer()), always(l.answer()), over, over)
		mark := m.mark(t)
		c := carrel("ask", "--model", "house", "look")
		x := ptytest.Start(t, c, 50, 120, false)
		x.Expect(question)
		x.Type("y\n")
		ended := func(screen string) bool {
			for _, e := range ends {
				if strings.Contains(screen, e) {
					return true
				}
			}
			return false
		}
		for questions := 1; ; questions++ {
			x.Until("the end of "+l.At, func(screen string) bool { return ended(screen) || strings.Count(screen, question) > questions })
			if strings.Count(x.Screen(), question) <= questions {
				break
			}
			asked++
			x.Type("n\n\n")
		}
		x.Wait()
		screen, said := x.Screen(), strings.Join(s.said(), "\n")
		if !strings.Contains(said, "output-of-it ") || strings.Contains(said, "banner-of-it") || strings.Contains(said, "noise-of-it") {
			t.Errorf("%d. %s: the model was told %.3000q", i+1, l.At, said)
		}
		if strings.Count(screen, ": done") != 1 || strings.Contains(screen, "banner-of-it") || strings.Contains(screen, "noise-of-it") {
			t.Errorf("%d. %s: the person saw %q", i+1, l.At, screen)
		}
		ran := 0
		for _, r := range m.since(t, mark) {
			if r.Type == "intent" && strings.Contains(r.raw, `"kind":"command.exec"`) && !strings.Contains(r.raw, `"argv":["./.carrel/agent/`) {
				ran++
				if !strings.Contains(r.raw, `"host":"web-1"`) || !strings.Contains(r.raw, "cat says") {
					t.Errorf("%d. %s: it ran %s", i+1, l.At, r.raw)
				}
			}
		}
		if ran != 1 {
			t.Errorf("%d. %s: %d commands were run", i+1, l.At, ran)
		}
		if !strings.Contains(screen, "not approved") {
			refused++
		}
		if after := o.tree(t); after != before {
			t.Fatalf("%d. %s: files were\n%s\nand are\n%s", i+1, l.At, before, after)
		}
	}
	if asked < 5 || refused < 10 {
		t.Errorf("%d plans were asked about and %d refused: the policy is not what was tried", asked, refused)
	}
}

// tree is what is in the operator's home, but what carrel itself keeps there.
func (o *operator) tree(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(o.home, func(path string, d os.DirEntry, err error) error {
		if err == nil && path == filepath.Join(o.home, ".local") {
			return filepath.SkipDir
		}
		var text []byte
		if err == nil && d.Type().IsRegular() {
			text, err = os.ReadFile(path)
		}
		b.WriteString(path + " " + string(text) + "\n")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}
