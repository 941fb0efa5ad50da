package store_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/state/store"
)

func issued(id string, change ...func(*principal.Issued)) principal.Issued {
	t := principal.Issued{
		Grant: principal.Grant{ID: id, Owner: "uid:1000", Roles: principal.Agent | principal.Approver, Scope: principal.Scope{"demo", "bot-*"}},
		Name:  "ci", Hash: [32]byte{1, 2, 31: 3}, Maker: "uid:1000", Created: time.Now(), Expires: time.Now().Add(time.Hour), Rate: 2.5, Burst: 3,
	}
	for _, c := range change {
		c(&t)
	}
	return t
}

func addToken(t *testing.T, s *store.Store, i principal.Issued) {
	t.Helper()
	if err := s.AddToken(t.Context(), i); err != nil {
		t.Fatal(err)
	}
}

func TestTokensAreKept(t *testing.T) {
	s, path := newStore(t)
	addToken(t, s, issued("a", func(i *principal.Issued) { i.MaxUses = 3 }))
	addToken(t, s, issued("b", func(i *principal.Issued) { i.Scope, i.Rate, i.Burst, i.Parent, i.Maker = nil, 0, 0, "a", "token:a" }))
	if _, err := s.SpendToken(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	before := s.Tokens()
	s = reopen(t, s, path)
	after := s.Tokens()
	if len(before) != 2 || len(after) != 2 || after[0].Uses != 1 {
		t.Fatalf("%+v, %+v", before, after)
	}
	for i := range before {
		b, a := before[i], after[i]
		if !a.Created.Equal(b.Created) || a.Expires.Sub(b.Expires).Abs() > time.Minute || !a.LastUsed.Equal(b.LastUsed) {
			t.Errorf("times: %+v, %+v", b, a)
		}
		a.Created, a.Expires, a.LastUsed = b.Created, b.Expires, b.LastUsed
		if fmt.Sprint(a) != fmt.Sprint(b) || (a.Scope == nil) != (b.Scope == nil) {
			t.Errorf("%+v, want %+v", a, b)
		}
	}
	if err := s.AddToken(t.Context(), issued("a")); err == nil {
		t.Error("an id was given twice")
	}
}

func TestRevokeEndsTheLine(t *testing.T) {
	s, path := newStore(t)
	child := func(of string) func(*principal.Issued) { return func(i *principal.Issued) { i.Parent = of } }
	for _, i := range []principal.Issued{issued("a"), issued("b", child("a")), issued("c", child("b")), issued("d"), issued("e", child("d"))} {
		addToken(t, s, i)
	}
	if ended, err := s.RevokeToken(t.Context(), "b"); err != nil || !slices.Equal(ended, []string{"b", "c"}) {
		t.Errorf("%v, %v", ended, err)
	}
	if ended, err := s.RevokeToken(t.Context(), "a"); err != nil || !slices.Equal(ended, []string{"a"}) {
		t.Errorf("%v, %v", ended, err)
	}
	if _, err := s.RevokeToken(t.Context(), "x"); !errdefs.IsNotFound(err) {
		t.Error(err)
	}
	if err := s.AddToken(t.Context(), issued("late", child("a"))); !errdefs.IsPermissionDenied(err) {
		t.Errorf("a revoked token made another: %v", err)
	}
	for range 2 {
		for id, good := range map[string]bool{"a": false, "b": false, "c": false, "d": true, "e": true} {
			if _, err := s.SpendToken(t.Context(), id); (err == nil) != good || err != nil && !errdefs.IsPermissionDenied(err) {
				t.Errorf("%s: %v", id, err)
			}
		}
		s = reopen(t, s, path)
	}
	if _, err := s.SpendToken(t.Context(), "x"); !errdefs.IsPermissionDenied(err) {
		t.Error(err)
	}
}

func TestUsesAtOnce(t *testing.T) {
	s, _ := newStore(t)
	addToken(t, s, issued("a", func(i *principal.Issued) { i.MaxUses = 10 }))
	var good atomic.Int64
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if _, err := s.SpendToken(context.Background(), "a"); err == nil {
				good.Add(1)
			}
		})
	}
	wg.Wait()
	if good.Load() != 10 {
		t.Errorf("%d uses of 10", good.Load())
	}
}

// A clock that is set back neither makes an expired token good again nor a good one longer
// good, in the same process or in the next.
func TestTokensAndClockSteps(t *testing.T) {
	s, path := newStore(t)
	now := time.Now()
	s.SetClock(func() time.Time { return now })
	addToken(t, s, issued("short", func(i *principal.Issued) { i.Created, i.Expires = now, now.Add(time.Hour) }))
	addToken(t, s, issued("long", func(i *principal.Issued) { i.Created, i.Expires = now, now.Add(3*time.Hour) }))
	now = now.Add(2 * time.Hour)
	for id, good := range map[string]bool{"short": false, "long": true} {
		if _, err := s.SpendToken(t.Context(), id); (err == nil) != good {
			t.Errorf("%s after two hours: %v", id, err)
		}
	}
	s = reopen(t, s, path)
	now = now.Add(-24 * time.Hour)
	s.SetClock(func() time.Time { return now })
	s.LoadTokens(t)
	for id, good := range map[string]bool{"short": false, "long": true} {
		if _, err := s.SpendToken(t.Context(), id); (err == nil) != good {
			t.Errorf("%s with the clock set back: %v", id, err)
		}
	}
	now = now.Add(61 * time.Minute)
	if _, err := s.SpendToken(t.Context(), "long"); err == nil {
		t.Error("a token got a day more by a clock that was set back")
	}
}

func TestTokensAreBounded(t *testing.T) {
	s, _ := newStore(t)
	for n := range 1024 {
		addToken(t, s, issued(strconv.Itoa(n)))
	}
	if err := s.AddToken(t.Context(), issued("more")); !errdefs.IsResourceExhausted(err) {
		t.Errorf("one too many: %v", err)
	}
	addToken(t, s, issued("another's", func(i *principal.Issued) { i.Owner = "uid:1001" }))
	if _, err := s.RevokeToken(t.Context(), "7"); err != nil {
		t.Fatal(err)
	}
	addToken(t, s, issued("more"))
	if _, ok := s.Token("7"); ok {
		t.Error("a revoked one keeps the place of a good one")
	}
}

// spendHelper makes this test binary a process that uses a token until it is refused, and
// says each use that it was granted.
const spendHelper = "CARREL_TEST_SPEND"

func TestSpendHelper(t *testing.T) {
	path := os.Getenv(spendHelper)
	if path == "" {
		t.Skip("skipped: only TestNoUseIsSpentTwice runs it, in a process of its own")
	}
	s, err := store.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for {
		got, err := s.SpendToken(t.Context(), "a")
		if err != nil {
			fmt.Println("refused")
			return
		}
		fmt.Println("granted", got.Uses)
	}
}

// The process is killed in the middle of its uses, again and again: none that was granted
// is granted another time, and all together are no more than there may be.
func TestNoUseIsSpentTwice(t *testing.T) {
	s, path := newStore(t)
	const most = 400
	addToken(t, s, issued("a", func(i *principal.Issued) { i.MaxUses = most }))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	granted := map[string]bool{}
	kills, done := 0, false
	for !done {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSpendHelper$")
		cmd.Env = append(os.Environ(), spendHelper+"="+path)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		after := 7 + kills%23
		for n := 0; lines.Scan(); {
			use, ok := strings.CutPrefix(lines.Text(), "granted ")
			if !ok {
				done = done || lines.Text() == "refused"
				continue
			}
			if granted[use] {
				t.Errorf("use %s was granted twice", use)
			}
			granted[use] = true
			if n++; n == after {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
				kills++
			}
		}
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait() // it was killed
	}
	if len(granted) > most || len(granted) < most-kills || kills < 5 {
		t.Errorf("%d of %d uses were granted with %d kills", len(granted), most, kills)
	}
	s = open(t, path)
	if i, ok := s.Token("a"); !ok || i.Uses != most {
		t.Errorf("%+v", i)
	}
}
