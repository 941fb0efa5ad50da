package rootless

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/egress/conf"
	"github.com/carrel-dev/carrel/internal/egress/ways/endpoints"
	"github.com/carrel-dev/carrel/internal/spec/budget"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// Models are the models that a run may use.
type Models struct {
	// List are at most egressapi.MaxModels.
	List []Model
	// Requests and Tokens bound all of them together; 0 is no bound.
	Requests, Tokens int64
}

// Model is a model with its key.
type Model struct {
	conf.Model
	Value redact.Value
}

// ModelNames are the models that need no file, as --model takes them.
func ModelNames() []string { return conf.BuiltInModels() }

// readModels returns the models of these names. value returns the value of a variable of the caller's.
func readModels(host *conf.Config, names []string, value func(string) string) (list []Model, err error) {
	if len(names) > egressapi.MaxModels {
		return nil, fmt.Errorf("cannot use %d models: at most %d: %w", len(names), egressapi.MaxModels, errdefs.ErrInvalidArgument)
	}
	for i, name := range names {
		if slices.Contains(names[:i], name) {
			continue
		}
		m, err := host.Model(name)
		if err != nil {
			return nil, err
		}
		bad := func(why string) error {
			return fmt.Errorf("cannot use --model %s: %s: %w", name, why, errdefs.ErrInvalidArgument)
		}
		if err := endpoints.Check(m); err != nil {
			return nil, fmt.Errorf("cannot use --model %s: %w", name, err)
		}
		v := redact.NewValue(value(m.Key))
		switch {
		case m.Secret != "":
			return nil, bad("secret is for the file of a host, whose daemon keeps it; remove it from your egress.yaml")
		case v.Reveal() == "":
			return nil, bad("its key is the variable " + m.Key + ", which is not set here; export it first")
		case !endpoints.IsKey(v):
			return nil, bad("the value of " + m.Key + " is not a key: it is too short or too long, or has a space or a line end")
		}
		list = append(list, Model{m, v})
	}
	return list, nil
}

// endpoints are the models without their keys.
func (m *Models) endpoints() (all []conf.Model) {
	for _, one := range m.List {
		all = append(all, one.Model)
	}
	return all
}

// variables are those by which programs find models.
func (m *Models) variables() []string { return endpoints.Variables(m.endpoints()) }

// setup is what carrel-egress is told of the models.
func (m *Models) setup() (all []egressapi.Model) {
	for _, one := range m.List {
		all = append(all, endpoints.Served(one.Model, one.Value))
	}
	return all
}

// usage counts what a run's models use.
type usage struct {
	of   *Models
	book *budget.Book

	mu        sync.Mutex // of what follows
	refused   map[string]int64
	estimated map[string]int64
}

// wholeRun is the subject that every model of a run counts for. The others are the names of models, which have no space.
const wholeRun = "the run"

func newUsage(of *Models) (*usage, error) {
	book, err := budget.New(endpoints.Prices(of.endpoints()), nil)
	if err != nil {
		return nil, err
	}
	err = book.Set(wholeRun, budget.Limits{Period: budget.Whole, Requests: of.Requests, Tokens: of.Tokens})
	for _, one := range of.List {
		l := one.Limits
		l.Period = budget.Whole
		err = errors.Join(err, book.Set(one.Name, l))
	}
	return &usage{of: of, book: book, refused: map[string]int64{}, estimated: map[string]int64{}}, err
}

// reserve is keeper.Config.Reserve.
func (u *usage) reserve(_ context.Context, endpoint, name string) (func(egressapi.Usage), error) {
	r, err := u.book.Reserve(time.Now(), endpoints.Subject(endpoint, name), wholeRun, endpoint)
	if err != nil {
		u.mu.Lock()
		u.refused[endpoint]++
		u.mu.Unlock()
		var no *budget.Refused
		switch {
		case errors.As(err, &no) && no.Subject == wholeRun:
			return nil, fmt.Errorf("%w; --model-requests and --model-tokens bound this run", err)
		case no != nil:
			return nil, fmt.Errorf("%w; it is that of the model %s in egress.yaml", err, endpoint)
		}
		return nil, err
	}
	return func(x egressapi.Usage) {
		r.Spend(time.Now(), budget.Usage{Input: x.Input, Output: x.Output, CachedInput: x.CachedInput, CacheWrite: x.CacheWrite})
		if x.Unknown {
			u.mu.Lock()
			u.estimated[endpoint]++
			u.mu.Unlock()
		}
	}, nil
}

// sums are what was used of each model that was asked for anything.
func (u *usage) sums() (all []endpoints.Used) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, one := range u.of.List {
		used := u.book.Used(time.Now(), one.Name)
		x := endpoints.Used{
			Endpoint: one.Name, URL: one.URL, Sum: used.Sum, Estimated: u.estimated[one.Name], Refused: u.refused[one.Name],
			Models: map[string]budget.Sum{},
		}
		for _, name := range slices.Sorted(maps.Keys(used.Models)) {
			x.Models[strings.TrimPrefix(name, one.Name+"/")] = used.Models[name]
		}
		if x.Requests+x.Refused > 0 {
			all = append(all, x)
		}
	}
	return all
}

// recordUsage records what the models have used and tells it. carrel-egress has ended.
func (w *wayOut) recordUsage() {
	sums := w.usage.sums()
	if len(sums) == 0 {
		return
	}
	data, _ := json.Marshal(struct { // texts and numbers always marshal
		Models []endpoints.Used `json:"models"`
	}{sums})
	err := w.records.AppendAsync(audit.Record{
		Type: audit.Usage, Principal: principal.OwnerOf(uint32(os.Geteuid())), Workspace: w.name, Status: audit.StatusOK, Data: data,
	})
	if err != nil {
		w.say(fmt.Sprintf("cannot record what models have used: %v", err))
	}
	for _, x := range sums {
		w.say(x.Line())
	}
}
