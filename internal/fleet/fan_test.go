package fleet_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/crypto/ssh"

	"github.com/carrel-dev/carrel/internal/fleet"
)

// farm is a real sshd on many addresses, each of which is a host: h00, h01, …
func farm(t *testing.T, n int) (*lab, []fleet.Host) {
	t.Helper()
	l := newLab(t)
	const most = 10 // sshd listens on 16 at most
	var hosts []fleet.Host
	for len(hosts) < n {
		var ips []string
		for range min(most, n-len(hosts)) - 1 {
			ips = append(ips, loopback())
		}
		s := l.start(ips)
		for _, ip := range append([]string{s.ip}, ips...) {
			x := *s
			x.ip = ip
			l.known(x.line(s.key))
			h := l.host(fmt.Sprintf("h%02d", len(hosts)), &x)
			h.Env.Set = []string{fmt.Sprintf("NUMBER=%d", len(hosts))}
			hosts = append(hosts, h)
		}
	}
	return l, hosts
}

func TestFan(t *testing.T) {
	l, hosts := farm(t, 20)
	down := loopback()
	hosts[19].Address, hosts[19].Port = down, port(t, down)
	c := l.client()
	fail := fleet.Step{Shell: true, ShellText: `echo "$NUMBER"; case $NUMBER in 3|7) exit 1; esac`}
	var before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var reports []fleet.Report
	sum, err := c.Fan(t.Context(), fleet.Fan{MaxFailures: -1, Forks: 10}, hosts, fail, func(r fleet.Report) { reports = append(reports, r) })
	if err != nil || sum != (fleet.Summary{OK: 17, Failed: 3}) || len(reports) != 20 {
		t.Fatalf("%+v, %v, %d", sum, err, len(reports))
	}
	var after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&after)
	if each := (int64(after.HeapAlloc+after.StackInuse) - int64(before.HeapAlloc+before.StackInuse)) / 20; each > 1<<20 {
		t.Errorf("a host takes %d bytes", each)
	} else {
		t.Logf("a host takes %d bytes with its connection open", each)
	}
	slices.SortFunc(reports, func(a, b fleet.Report) int { return a.Index - b.Index })
	for i, r := range reports {
		switch {
		case r.Index != i || r.Host != hosts[i].Name || r.Skipped:
			t.Errorf("%+v", r)
		case i == 19:
			if !errdefs.IsUnavailable(r.Err) || r.OK() {
				t.Errorf("%+v", r)
			}
		case r.Err != nil || r.OK() != (i != 3 && i != 7) || string(r.Result.Stdout.Bytes()) != fmt.Sprintf("%d\n", i):
			t.Errorf("%+v", r)
		}
	}
	t.Run("failures", func(t *testing.T) {
		for _, x := range []struct {
			fan  fleet.Fan
			last int // the host whose failure ends it
			ran  int // at most so many hosts from the first run: those of its batch may have begun when it fails
		}{
			{fleet.Fan{Forks: 1}, 3, 4},
			{fleet.Fan{Forks: 1, MaxFailures: 1}, 7, 8},
			{fleet.Fan{Forks: 20, Serial: "6"}, 3, 6},
			{fleet.Fan{Forks: 20, Serial: "25%", MaxFailures: 1}, 7, 10},
			{fleet.Fan{Forks: 20, Canary: 4, MaxFailures: -1}, 3, 4},
			{fleet.Fan{Forks: 20, Canary: 3, Serial: "1", MaxFailures: 0}, 3, 4},
		} {
			var ran, skipped []int
			sum, err := c.Fan(t.Context(), x.fan, hosts, fail, func(r fleet.Report) {
				if r.Skipped {
					skipped = append(skipped, r.Index)
					if !errdefs.IsAborted(r.Err) {
						t.Errorf("%v", r.Err)
					}
				} else {
					ran = append(ran, r.Index)
				}
			})
			slices.Sort(ran)
			want := make([]int, 0, 20)
			for i := range 20 {
				want = append(want, i)
			}
			n := len(ran)
			failed := 1 + (x.last-3)/4
			if err != nil || n <= x.last || n > x.ran || sum != (fleet.Summary{OK: n - failed, Failed: failed, Skipped: 20 - n}) ||
				!slices.Equal(ran, want[:n]) || !slices.Equal(skipped, want[n:]) {
				t.Errorf("%+v: %+v, %v: %v and %v", x.fan, sum, err, ran, skipped)
			}
		}
	})
	t.Run("canceled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		sum, err := c.Fan(ctx, fleet.Fan{Forks: 1}, hosts, fleet.Step{Argv: []string{"true"}}, func(fleet.Report) { cancel() })
		if err != nil || sum != (fleet.Summary{OK: 1, Skipped: 19}) {
			t.Errorf("%+v, %v", sum, err)
		}
	})
	t.Run("refused", func(t *testing.T) {
		some := slices.Clone(hosts)
		some[9].Cwd = "relative"
		twice := append(slices.Clone(hosts), hosts[0])
		for _, x := range []struct {
			fan   fleet.Fan
			hosts []fleet.Host
		}{
			{fleet.Fan{Forks: -1}, hosts},
			{fleet.Fan{Forks: fleet.MaxForks + 1}, hosts},
			{fleet.Fan{Serial: "x"}, hosts},
			{fleet.Fan{Serial: "0"}, hosts},
			{fleet.Fan{Serial: "101%"}, hosts},
			{fleet.Fan{Serial: "+5"}, hosts},
			{fleet.Fan{Canary: -1}, hosts},
			{fleet.Fan{MaxFailures: -2}, hosts},
			{fleet.Fan{}, some},
			{fleet.Fan{}, twice},
		} {
			_, err := c.Fan(t.Context(), x.fan, x.hosts, fleet.Step{Argv: []string{"true"}}, func(r fleet.Report) { t.Errorf("%+v", r) })
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("%+v: %v", x.fan, err)
			}
		}
	})
}

// No more hosts run at once than Forks says, and a batch begins when the one before it has ended.
func TestFanForks(t *testing.T) {
	l := newLab(t)
	began, release, ended := make(chan int, 12), make(chan struct{}), make(chan struct{}, 12)
	var hosts []fleet.Host
	for i := range 13 {
		f := &fake{shell: func(ch ssh.Channel, script string) {
			fmt.Fprintf(ch, "%s run 5\n", mark(script))
			if i < 12 {
				began <- i
				<-release
			}
			status(ch, 0)
		}}
		f.start(t)
		l.known(f.line(f.key))
		hosts = append(hosts, l.host(fmt.Sprintf("h%02d", i), &f.sshd))
	}
	c := l.client()
	var wg sync.WaitGroup
	wg.Go(func() {
		fan := fleet.Fan{Forks: 4, Serial: "50%"}
		sum, err := c.Fan(t.Context(), fan, hosts[:12], fleet.Step{Argv: []string{"true"}}, func(fleet.Report) { ended <- struct{}{} })
		if err != nil || sum.OK != 12 {
			t.Errorf("%+v, %v", sum, err)
		}
	})
	// Batches of six on four at once: four begin, and two when four have ended.
	for _, x := range []struct{ from, to int }{{0, 4}, {4, 6}, {6, 10}, {10, 12}} {
		var got []int
		for range x.to - x.from {
			got = append(got, <-began)
		}
		slices.Sort(got)
		if got[0] != x.from || got[len(got)-1] != x.to-1 {
			t.Errorf("%v began, not %d to %d", got, x.from, x.to-1)
		}
		// Others that begin too early have the time of some steps to do so.
		for range 5 {
			run(t, c, hosts[12], fleet.Step{Argv: []string{"true"}})
		}
		if n := len(began); n != 0 {
			t.Errorf("%d more began", n)
		}
		for range x.to - x.from {
			release <- struct{}{}
		}
		for range x.to - x.from {
			<-ended
		}
	}
	wg.Wait()
}
