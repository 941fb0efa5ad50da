package cli

import (
	"context"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/spec/operation"
)

// pollEvery is how often connections are asked for by who follows them.
const pollEvery = time.Second

// newestConnections shows the connections of a workspace that the daemon has in memory, and with -f what comes.
func (a *app) newestConnections(ctx context.Context, ref string, l *connectionLog) error {
	var after int64
	for first := true; ; first = false {
		m, err := ask(ctx, a, workspaces.ListConnections, &carrelv1.ListConnectionsRequest{Workspace: ref, After: after})
		if err != nil {
			return err
		}
		if err := l.head(); err != nil {
			return err
		}
		ended := m.GetEnded()
		if l.refused {
			ended = slices.DeleteFunc(slices.Clone(ended), func(c *carrelv1.Connection) bool { return c.GetRefused() == "" })
		}
		if first && l.newest > 0 {
			ended = ended[max(0, len(ended)-int(l.newest)):]
		}
		for _, c := range ended {
			if l.json {
				err = jsonLine(a.Out, objectOf(c))
			} else {
				err = l.printRecord(recordOf(c))
			}
			if err != nil {
				return err
			}
		}
		if n := len(m.GetEnded()); n > 0 {
			after = m.GetEnded()[n-1].GetNumber()
		}
		if !l.follow {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pollEvery):
		}
	}
}

// recordOf is a connection as its record in the audit log would be read.
func recordOf(c *carrelv1.Connection) *connectionRecord {
	r := &connectionRecord{Time: at(c.GetBeganUnixMs() + c.GetDurationMs())}
	d := &r.Data
	d.DurationMS, d.Way, d.Host, d.Port = c.GetDurationMs(), c.GetWay(), c.GetHost(), uint16(c.GetPort())
	d.Rule, d.Refused, d.Secrets, d.Count = c.GetRule(), c.GetRefused(), c.GetSecrets(), c.GetCount()
	d.SentBytes, d.ReceivedBytes = c.GetSentBytes(), c.GetReceivedBytes()
	return r
}

func (a *app) egressTopCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "top [flags] WORKSPACE",
		Short: help(operation.ListConnections),
		Long: `top shows what a workspace is connected to, by host: how many connections are open, how
many bytes go to the host and come from it each second, how many connections have ended
and how many were refused since top was started or, at most 64, before. On a terminal it
is refreshed until you press q or interrupt it; with --once, -o json or in a pipe it is
measured over one interval and printed once.`,
		Example: `  carrel egress top demo
  carrel egress top --once -o json demo`,
		Args:              exactly("WORKSPACE"),
		ValidArgsFunction: onlyFirst(a.completeWorkspaces()),
	}
	return a.refreshed(c, a.egressTop)
}

func (a *app) egressTop(ctx context.Context, args []string, every time.Duration, out format, once bool) error {
	seen := hostsSeen{}
	measure := func() error {
		m, err := ask(ctx, a, workspaces.ListConnections, &carrelv1.ListConnectionsRequest{Workspace: args[0], After: seen.newest})
		if err == nil {
			seen.take(m, time.Now())
		}
		return err
	}
	if err := measure(); err != nil {
		return err
	}
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		if err := measure(); err != nil {
			return err
		}
		if out == asJSON {
			return a.printJSON(seen.objects())
		}
		if !once {
			const clear = "\x1b[H\x1b[2J"
			if _, err := a.Out.WriteString(clear); err != nil {
				return err
			}
		}
		if err := out.print(seen.table(), a.Out); err != nil || once {
			return err
		}
	}
}

// hostsSeen are the sums of a workspace's connections by host.
type hostsSeen struct {
	newest int64 // number of the last connection that has ended
	when   time.Time
	hosts  map[string]*hostSeen
}

// hostSeen are the sums of one host. Sent and received are of connections that are open and that have ended.
type hostSeen struct {
	name                 string
	open, ended, refused int64
	sent, received       int64
	endedSent, endedRecv int64
	sentRate, recvRate   float64 // bytes a second between two measurements
	why                  string  // of the last refusal
}

// take takes a measurement.
func (s *hostsSeen) take(m *carrelv1.ListConnectionsResponse, now time.Time) {
	seconds := now.Sub(s.when).Seconds()
	first := s.when.IsZero()
	s.when = now
	if s.hosts == nil {
		s.hosts = map[string]*hostSeen{}
	}
	was := map[string]hostSeen{}
	for name, h := range s.hosts {
		was[name] = *h
		h.open, h.sent, h.received = 0, 0, 0
	}
	for _, c := range m.GetEnded() {
		h := s.host(c)
		s.newest = c.GetNumber()
		if c.GetRefused() != "" {
			h.refused += c.GetCount()
			h.why = c.GetRefused()
		} else {
			h.ended++
		}
		h.endedSent += c.GetSentBytes()
		h.endedRecv += c.GetReceivedBytes()
	}
	for _, c := range m.GetOpen() {
		h := s.host(c)
		h.open++
		h.sent += c.GetSentBytes()
		h.received += c.GetReceivedBytes()
	}
	for name, h := range s.hosts {
		h.sent, h.received = h.sent+h.endedSent, h.received+h.endedRecv
		if !first && seconds > 0 {
			h.sentRate = max(float64(h.sent-was[name].sent)/seconds, 0)
			h.recvRate = max(float64(h.received-was[name].received)/seconds, 0)
		}
	}
}

func (s *hostsSeen) host(c *carrelv1.Connection) *hostSeen {
	name := c.GetHost()
	if c.GetPort() != 0 {
		name = net.JoinHostPort(name, strconv.Itoa(int(c.GetPort())))
	}
	h := s.hosts[name]
	if h == nil {
		h = &hostSeen{name: name}
		s.hosts[name] = h
	}
	return h
}

// sorted are the hosts, those with the most traffic first, then those with the most open connections.
func (s *hostsSeen) sorted() (all []*hostSeen) {
	for _, h := range s.hosts {
		all = append(all, h)
	}
	slices.SortFunc(all, func(x, y *hostSeen) int {
		switch rate, other := x.sentRate+x.recvRate, y.sentRate+y.recvRate; {
		case rate != other:
			return map[bool]int{true: -1, false: 1}[rate > other]
		case x.open != y.open:
			return int(y.open - x.open)
		}
		return strings.Compare(x.name, y.name)
	})
	return all
}

func (s *hostsSeen) objects() []object {
	all := []object{}
	for _, h := range s.sorted() {
		all = append(all, object{
			{"host", h.name},
			{"open", h.open},
			{"sent_bytes_per_second", int64(h.sentRate)},
			{"received_bytes_per_second", int64(h.recvRate)},
			{"sent_bytes", h.sent},
			{"received_bytes", h.received},
			{"ended", h.ended},
			{"refused", h.refused},
			{"last_refusal", h.why},
		})
	}
	return all
}

func (s *hostsSeen) table() *table {
	t := newTable(-1, "HOST", "OPEN", "SENT/S", "RECEIVED/S", "SENT", "RECEIVED", "ENDED", "REFUSED", "LAST REFUSAL").
		wideOnly("ENDED", "LAST REFUSAL")
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	for _, h := range s.sorted() {
		t.add(printable(h.name), number(h.open), bytesText(int64(h.sentRate)), bytesText(int64(h.recvRate)), bytesText(h.sent),
			bytesText(h.received), number(h.ended), number(h.refused), printable(h.why))
	}
	return t
}
