package rootless

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/egress"
	"github.com/carrel-dev/carrel/internal/egress/ca"
	"github.com/carrel-dev/carrel/internal/egress/conf"
	"github.com/carrel-dev/carrel/internal/egress/intercept"
	"github.com/carrel-dev/carrel/internal/egress/keeper"
	"github.com/carrel-dev/carrel/internal/egress/ways/recorder"
	"github.com/carrel-dev/carrel/internal/spec/httprule"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/config"
	"github.com/carrel-dev/carrel/internal/state/record"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// Egress is what a command may reach.
type Egress struct {
	// Binary is the path of carrel-egress. Required with Rules or Models.
	Binary string
	// Rules are all rules; without any the command reaches nothing.
	Rules []netrule.Rule
	// Public are networks that count as public on this host.
	Public []netip.Prefix
	// Resolver is the name server to ask; the zero value is the host's own resolver.
	Resolver netip.AddrPort
	// Proxy is by which other hosts are reached; nil is none.
	Proxy *conf.Proxy
	// Secrets are those that the command has placeholders of.
	Secrets []Secret
	// Files have placeholders of some of them too.
	Files []workspace.SecretFile
	// Models are those that the command may use.
	Models Models
	// Refused is told once of each host that was refused, with the reason for people. It must not block. Optional.
	Refused func(string)
}

// Secret is a secret that hosts get, and the command does not.
type Secret struct {
	conf.Secret
	Value redact.Value
}

// ReadEgress returns what the values of --allow, --ask, --deny, --secret and --model and the caller's file of network rules mean
// together. A file that cannot be used, or that others may change, is an error: nothing runs. avoid are directories
// that a command may have written: no package client there is asked for the hosts of its set. files are for some of the secrets.
// value returns the value of a variable of the caller's.
func ReadEgress(
	ctx context.Context, r workspace.Reach, secrets []string, files []workspace.SecretFile, models, avoid []string,
	value func(name string) string,
) (e Egress, err error) {
	host, clients := conf.Default(), conf.HostClients(avoid).Lookup(ctx)
	host.Clients = clients
	if path := EgressPath(); path != "" {
		b, err := config.ReadTrusted(path, "network rules", conf.MaxFile)
		if err != nil {
			return e, err
		}
		if host, err = conf.ParseWith(path, b, clients); err != nil {
			return e, err
		}
	}
	rules, err := host.Read(conf.Texts{Allow: r.Allow, Ask: r.Ask, Deny: r.Deny})
	if err != nil {
		return e, err
	}
	e = Egress{Rules: append(rules, host.Rules...), Public: host.Public, Resolver: host.Resolver, Proxy: host.Proxy}
	judge, err := netrule.New(e.Rules, netrule.Options{Public: e.Public})
	if err != nil {
		return e, err
	}
	for _, text := range secrets {
		s, err := host.ParseSecret(text)
		if err != nil {
			return e, err
		}
		v := value(s.Name)
		if v == "" {
			return e, fmt.Errorf("cannot use --secret %s: the variable is not set here; export it first: %w", s.Name, errdefs.ErrInvalidArgument)
		}
		if !slices.ContainsFunc(s.Hosts, judge.ReachesSome) {
			return e, fmt.Errorf("cannot use --secret %s: no rule lets the command reach %s; add --allow %[2]s: %w",
				s.Name, s.Hosts[0].Text, errdefs.ErrInvalidArgument)
		}
		e.Secrets = append(e.Secrets, Secret{s, redact.NewValue(v)})
	}
	for _, f := range files {
		for _, s := range e.Secrets {
			if err := f.Holds(s.Name, s.Value.Reveal()); err != nil {
				return e, err
			}
		}
	}
	e.Files = files
	if e.Models.List, err = readModels(host, models, value); err != nil {
		return e, err
	}
	for _, v := range e.Models.variables() {
		name, _, _ := strings.Cut(v, "=")
		if slices.ContainsFunc(e.Secrets, func(s Secret) bool { return s.Name == name }) {
			return e, fmt.Errorf("cannot use --secret %s with a model that sets this variable; leave one of the two out: %w", name,
				errdefs.ErrInvalidArgument)
		}
	}
	return e, nil
}

// SecretNames are the variables whose hosts are known, as --secret takes them.
func SecretNames() []string { return conf.Variables() }

// SetNames are the built-in sets of hosts and those of package clients, as --allow takes them.
func SetNames() (names []string) {
	for _, n := range slices.Concat(slices.Collect(maps.Keys(netrule.BuiltIn())), conf.ClientNames()) {
		names = append(names, "@"+n)
	}
	slices.Sort(names)
	return names
}

// texts are the rules as the record shows them.
func (e *Egress) texts() (all []string) {
	for _, r := range e.Rules {
		all = append(all, string(r.Action)+" "+r.Text)
	}
	for _, s := range e.Secrets {
		for _, h := range s.Hosts {
			text := "secret " + s.Name + " to " + h.Text
			if s.Inject != "" {
				text += " as " + s.Inject
			}
			all = append(all, text)
		}
	}
	for _, f := range e.Files {
		text := "secret " + f.Name + " in the file " + f.Path
		if f.Template != "" {
			text += " by a template with sha256:" + workspace.Digest(f.Template)
		}
		all = append(all, text)
	}
	for _, m := range e.Models.List {
		all = append(all, "model "+m.Name+" at "+m.URL)
	}
	return all
}

// authorityLife is longer than a run lasts.
const authorityLife = 30 * 24 * time.Hour

// mostTold bounds the hosts whose refusal is told.
const mostTold = 20

// wayOut is the egress of one run.
type wayOut struct {
	of       *Egress
	name     id.Workspace
	records  *record.Writer
	keeper   *keeper.Keeper
	recorder *recorder.Recorder
	setup    egressapi.Setup
	usage    *usage
	// uses are the secrets that have files, with these.
	uses []workspace.SecretUse

	mu   sync.Mutex // of told
	told map[string]bool
}

// newWayOut prepares the egress of a run. env are the variables that its command gets, authority what it has to
// trust.
func newWayOut(e *Egress, name id.Workspace, records *record.Writer) (w *wayOut, env []string, authority string, err error) {
	w = &wayOut{of: e, name: name, records: records}
	w.setup = egressapi.Setup{
		Rules: e.Rules, Public: e.Public, Resolver: e.Resolver, Proxy: keeper.ProxyOf(e.Proxy), Remedy: `"carrel run --allow %s" allows it`,
	}
	if w.usage, err = newUsage(&e.Models); err != nil {
		return nil, nil, "", err
	}
	w.setup.Models, env = e.Models.setup(), e.Models.variables()
	if len(e.Secrets) == 0 && !w.setup.InsideTLS() {
		return w, env, "", nil
	}
	var all workspace.Secrets
	for _, s := range e.Secrets {
		if s.Inject != "" { // the command has nothing in its place
			w.setup.Secrets = append(w.setup.Secrets, egressapi.Secret{
				Name: s.Name, Value: egressapi.Private{Value: s.Value}, Hosts: s.Hosts, Sending: httprule.Sending{Inject: s.Inject},
			})
			all.Uses = append(all.Uses, workspace.SecretUse{Name: s.Name})
			continue
		}
		value := s.Value.Reveal()
		placeholder, err := intercept.NewPlaceholder(s.Prefix(value), len(value))
		if err != nil {
			return nil, nil, "", fmt.Errorf("cannot use --secret %s: its value is too short or too long for a secret: %w",
				s.Name, errdefs.ErrInvalidArgument)
		}
		env = append(env, s.Name+"="+placeholder)
		all.Uses = append(all.Uses, workspace.SecretUse{Name: s.Name, Placeholder: placeholder})
		w.setup.Secrets = append(w.setup.Secrets, egressapi.Secret{
			Name: s.Name, Placeholder: placeholder, Value: egressapi.Private{Value: s.Value}, Hosts: s.Hosts,
		})
	}
	if all, err = all.WithFiles(e.Files); err != nil {
		return nil, nil, "", err
	}
	w.uses = slices.DeleteFunc(all.Uses, func(u workspace.SecretUse) bool { return u.File == "" })
	if err := intercept.Check(intercept.Of(w.setup.Secrets)); err != nil { // carrel-egress would end with it, when the start has begun
		return nil, nil, "", err
	}
	authorities, err := ca.Make(string(name), authorityLife)
	if err != nil {
		return nil, nil, "", err
	}
	key, err := authorities.Marshal()
	if err != nil {
		return nil, nil, "", err
	}
	w.setup.CA = egressapi.NewPrivate(string(key))
	return w, append(env, sandbox.TrustVariables()...), string(authorities.PEM()), nil
}

// start serves the sockets of the run. It is launch.Config.Ways.
func (w *wayOut) start(ctx context.Context, sockets []*os.File) (err error) {
	w.told = map[string]bool{}
	w.recorder = recorder.New(recorder.Config{
		Log: w.records, Principal: principal.OwnerOf(uint32(os.Geteuid())), Workspace: w.name,
		Trouble: func(err error) { w.say(fmt.Sprintf("cannot record a connection: %v", err)) },
	})
	w.keeper, err = keeper.Start(ctx, keeper.Config{
		Starter: &keeper.Child{Binary: w.of.Binary, Sockets: sockets}, Connection: w.connection,
		Trouble: func(err error) { w.say(err.Error()) }, Setup: w.setup, Ask: nobody, Reserve: w.usage.reserve,
	})
	if err != nil {
		w.recorder.Close()
	}
	return err
}

// nobody answers for a run: its command may hold the terminal, where a question would be mixed with what it prints and
// an answer with what it reads.
func nobody(_ context.Context, q keeper.Question) keeper.Answer {
	const why = `nobody can be asked during a run without root; "carrel run --allow %s" instead of --ask allows it`
	return keeper.Answer{Reason: fmt.Sprintf(why, q.Target)}
}

// close ends it once every connection has been recorded.
func (w *wayOut) close() {
	if w == nil || w.keeper == nil {
		return
	}
	w.keeper.Close()
	w.recorder.Close()
	w.recordUsage()
}

// connection takes a report. It does not wait for the disk.
func (w *wayOut) connection(c egressapi.Connection) {
	if c.Refused != "" && c.Way != keeper.WayEnd { // that is told as trouble
		w.refused(c)
	}
	w.recorder.Connection(c)
}

// refused tells a person once of each host.
func (w *wayOut) refused(c egressapi.Connection) {
	if c.Host == "" && c.Way == egress.WayDNS { // nobody can do anything about it
		return
	}
	w.mu.Lock()
	tell := !w.told[c.Host] && len(w.told) < mostTold
	if tell {
		w.told[c.Host] = true
	}
	w.mu.Unlock()
	if tell {
		w.say(c.Refused + w.remedy(c))
	}
}

// remedy says which rule would allow what was refused, if its reason does not.
func (w *wayOut) remedy(c egressapi.Connection) string {
	host, err := netrule.ParseHost(c.Host)
	if err != nil || c.Requests > 0 || strings.HasSuffix(host.Name(), egress.ModelDomain) {
		return ""
	}
	judge, err := netrule.New(w.of.Rules, netrule.Options{Public: w.of.Public})
	if err != nil {
		return ""
	}
	t, text := netrule.Target{Host: host, Port: c.Port}, c.Host
	if c.Port == 0 { // a name that was only asked about
		t.Port = 443
	} else {
		text = t.String()
	}
	if !judge.Judge(t).Unnamed() {
		return ""
	}
	return "; " + fmt.Sprintf(w.setup.Remedy, text)
}

func (w *wayOut) say(text string) {
	if w.of.Refused != nil {
		w.of.Refused(text)
	}
}
