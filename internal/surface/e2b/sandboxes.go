package e2b

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"runtime"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/base/token"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/surface/authn"
)

const (
	// baseTemplate is the template of E2B that stands for no profile.
	baseTemplate = "base"
	// defaultTimeout is how long a sandbox lives whose client does not say.
	defaultTimeout = 15 * time.Second
	// maxTimeout is what an int64 of nanoseconds holds with room.
	maxTimeout = 10 * 365 * 24 * time.Hour
	// pageSize is how many sandboxes a list has, and maxPage how many it may have.
	pageSize, maxPage = 100, 1000
)

// controlRoute is a request of the control plane. Both generations of paths, with and without /v2, mean the same.
type controlRoute struct {
	method, path string
	serve        func(*Server, http.ResponseWriter, *http.Request) error
}

func later(what string) func(*Server, http.ResponseWriter, *http.Request) error {
	return func(*Server, http.ResponseWriter, *http.Request) error { return notImplemented("%s", what) }
}

// controlRoutes are all of them. docs/reference/openapi.json describes each, which a test holds.
var controlRoutes = []controlRoute{
	{"POST", "/sandboxes", (*Server).create},
	{"GET", "/sandboxes", (*Server).list},
	{"GET", "/sandboxes/metrics", (*Server).allMetrics},
	{"GET", "/sandboxes/{id}", (*Server).get},
	{"DELETE", "/sandboxes/{id}", (*Server).kill},
	{"POST", "/sandboxes/{id}/timeout", (*Server).setTimeout},
	{"POST", "/sandboxes/{id}/refreshes", (*Server).refresh},
	{"POST", "/sandboxes/{id}/pause", (*Server).pause},
	{"POST", "/sandboxes/{id}/resume", (*Server).connect},
	{"POST", "/sandboxes/{id}/connect", (*Server).connect},
	{"GET", "/sandboxes/{id}/metrics", (*Server).metrics},
	{"PUT", "/sandboxes/{id}/network", (*Server).setNetwork},
	{"POST", "/sandboxes/{id}/fork", later("a workspace cannot be forked; \"carrel archive\" keeps one")},
	{"POST", "/sandboxes/{id}/snapshots", later("a workspace has no snapshots; \"carrel archive\" keeps one")},
	{"GET", "/sandboxes/{id}/logs", (*Server).logs},
}

// sandboxRoutes serves the control plane.
func (s *Server) sandboxRoutes() http.Handler {
	m := http.NewServeMux()
	for _, c := range controlRoutes {
		served := func(w http.ResponseWriter, r *http.Request) {
			r.Body = http.MaxBytesReader(w, r.Body, maxBody)
			if err := c.serve(s, w, r); err != nil {
				fail(w, err)
			}
		}
		m.HandleFunc(c.method+" "+c.path, served)
		m.HandleFunc(c.method+" /v2"+c.path, served)
	}
	m.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, notFound("%s %s is no request that is known here; see docs/compatibility.md", r.Method, r.URL.Path))
	})
	return m
}

// read reads a body of JSON. An empty one leaves v as it is.
func read(r *http.Request, v any) error {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		return wrong("its body cannot be read: %w", err)
	}
	if len(b) == 0 {
		return nil
	}
	if err := json.Unmarshal(b, v); err != nil {
		return wrong("its body is not the JSON that is expected: %w", err)
	}
	return nil
}

// newSandbox is what Create takes. What is not here is passed over, as E2B does.
type newSandbox struct {
	Template string            `json:"templateID"`
	Timeout  *int64            `json:"timeout"`
	Metadata map[string]string `json:"metadata"`
	Envs     map[string]string `json:"envVars"`
	Internet *bool             `json:"allow_internet_access"`
	Network  *network          `json:"network"`

	AutoPause   bool  `json:"autoPause"`
	PauseMemory *bool `json:"autoPauseMemory"`
	AutoResume  struct {
		Enabled bool `json:"enabled"`
	} `json:"autoResume"`
	MCP     json.RawMessage `json:"mcp"`
	IAM     json.RawMessage `json:"iam"`
	Volumes []any           `json:"volumeMounts"`
}

// network is what a sandbox may reach.
type network struct {
	AllowOut []string `json:"allowOut,omitempty"`
	DenyOut  []string `json:"denyOut,omitempty"`

	// What is not there would be missed without a word: requests would go out another way than was asked for.
	Proxy any            `json:"egressProxy,omitempty"`
	Rules map[string]any `json:"rules,omitempty"`
	Mask  string         `json:"maskRequestHost,omitempty"`
	HTTPS []int          `json:"httpsPorts,omitempty"`
}

// check says what is asked for and not there.
func (n *network) check() error {
	switch {
	case n == nil:
		return nil
	case n.Proxy != nil:
		return notImplemented("connections do not go through a proxy of yours (egressProxy)")
	case len(n.Rules) > 0:
		return notImplemented("requests are not changed by rules of hosts (rules); \"carrel secret set --inject\" puts secrets into them")
	case n.Mask != "":
		return notImplemented("requests to ports have the host that was asked for (maskRequestHost)")
	case len(n.HTTPS) > 0:
		return notImplemented("ports are spoken to without TLS (httpsPorts)")
	}
	return nil
}

// all is a network of every address, as SDKs name it.
var all = []string{"0.0.0.0/0", "::/0"}

// reach are the rules of a workspace for n. Nothing is reached without one, so that to deny all says nothing new.
func (n *network) reach() workspace.Reach {
	if n == nil {
		return workspace.Reach{}
	}
	deny := slices.DeleteFunc(slices.Clone(n.DenyOut), func(v string) bool { return slices.Contains(all, v) })
	return workspace.Reach{Allow: n.AllowOut, Deny: deny}.Unique()
}

func (n *newSandbox) check() error {
	given := func(m json.RawMessage) bool { return len(m) > 0 && string(m) != "null" }
	switch {
	case n.AutoResume.Enabled && !n.AutoPause:
		return wrong("autoResume is for a sandbox that is paused when its time is over; set autoPause too")
	case n.AutoResume.Enabled && n.PauseMemory != nil && !*n.PauseMemory:
		return wrong("autoResume is for a sandbox whose memory is kept; leave autoPauseMemory out")
	case given(n.MCP):
		return notImplemented("there is no gateway for MCP inside")
	case given(n.IAM):
		return notImplemented("there are no workload tokens")
	case len(n.Volumes) > 0:
		return notImplemented("there are no volumes")
	}
	return n.Network.check()
}

// atEnd is what becomes of it when its time is over.
func (n *newSandbox) atEnd() atEnd {
	switch {
	case !n.AutoPause:
		return ends
	case n.PauseMemory != nil && !*n.PauseMemory:
		return stops
	}
	return pauses
}

func timeout(seconds *int64, otherwise time.Duration) (time.Duration, error) {
	if seconds == nil {
		return otherwise, nil
	}
	if *seconds < 1 || *seconds > int64(maxTimeout/time.Second) {
		return 0, wrong("the timeout of %d seconds is not in 1 to %d", *seconds, int64(maxTimeout/time.Second))
	}
	return time.Duration(*seconds) * time.Second, nil
}

func (s *Server) create(w http.ResponseWriter, r *http.Request) error {
	var n newSandbox
	if err := read(r, &n); err != nil {
		return err
	}
	p := authn.FromContext(r.Context())
	kept := row{Template: cmp.Or(n.Template, baseTemplate), Metadata: n.Metadata, Envs: n.Envs}
	if p.Kind == principal.Token {
		kept.Token = p.Grant.ID
	}
	life, err := timeout(n.Timeout, defaultTimeout)
	if err = errors.Join(err, n.check(), kept.check()); err != nil {
		return err
	}
	kept.AtEnd, kept.Wakes, kept.Life = n.atEnd(), n.AutoResume.Enabled, int64(life/time.Second)
	want := workspace.Wanted{TTL: life, Reach: n.Network.reach(), Request: r.Header.Get("Idempotency-Key")}
	if kept.Template != baseTemplate {
		want.Profile = kept.Template
	}
	if want.Request == "" {
		want.Request = string(id.NewTrace())
	}
	// A repeated request means the same workspace, so its key follows from the request.
	sum := sha256.Sum256([]byte(p.String() + "\x00" + want.Request))
	if want.Key, err = id.ParseKey("e2b-" + hex.EncodeToString(sum[:10])); err != nil {
		return err
	}
	made, _, err := s.Gate.Create(r.Context(), p, want)
	if err != nil {
		return err
	}
	if err := s.put(r.Context(), string(made.Name), kept); err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), time.Minute)
		defer cancel()
		_, undo := s.Gate.Destroy(ctx, p, string(made.Name), true, "")
		return errors.Join(err, undo)
	}
	answer(w, http.StatusCreated, s.handle(r.Context(), made, kept))
	return nil
}

// handle is what an SDK needs to use a sandbox.
func (s *Server) handle(ctx context.Context, w workspace.Workspace, kept row) any {
	h := struct {
		Client   string `json:"clientID"`
		Envd     string `json:"envdVersion"`
		Sandbox  string `json:"sandboxID"`
		Template string `json:"templateID"`
		Access   string `json:"envdAccessToken,omitempty"`
		Traffic  string `json:"trafficAccessToken,omitempty"`
		Domain   string `json:"domain"`
	}{Client: clientID, Envd: EnvdVersion, Sandbox: string(w.Name), Template: cmp.Or(kept.Template, w.Profile, baseTemplate)}
	if p := authn.FromContext(ctx); p.Kind == principal.Token {
		h.Access, h.Traffic = s.giveOut(ctx, h.Sandbox), s.trafficToken(h.Sandbox, token.ID(p.Grant.ID))
	}
	h.Domain = cmp.Or(s.Domain, noDomain)
	return h
}

// noDomain is said where sandboxes have no hosts. It leads nowhere (RFC 2606) and says what to do; without one, SDKs take E2B's own,
// and what is meant for a sandbox, with its access token, would go there.
const noDomain = "set-e2b-domain.invalid"

const clientID = "carrel"

// sandbox is a workspace as the control plane shows it.
type sandbox struct {
	Client   string            `json:"clientID"`
	Envd     string            `json:"envdVersion"`
	Sandbox  string            `json:"sandboxID"`
	Template string            `json:"templateID"`
	Alias    string            `json:"alias,omitempty"`
	CPUs     int               `json:"cpuCount"`
	MemoryMB int64             `json:"memoryMB"`
	DiskMB   int64             `json:"diskSizeMB"`
	Started  time.Time         `json:"startedAt"`
	Ends     time.Time         `json:"endAt"`
	State    string            `json:"state"`
	Metadata map[string]string `json:"metadata"`
	Access   string            `json:"envdAccessToken,omitempty"`
	Network  *network          `json:"network,omitempty"`
	Internet *bool             `json:"allowInternetAccess,omitempty"`
	Life     *lifecycle        `json:"lifecycle,omitempty"`
}

// lifecycle is what becomes of a sandbox whose time is over.
type lifecycle struct {
	AutoResume bool   `json:"autoResume"`
	OnTimeout  string `json:"onTimeout"`
}

// never is when a workspace ends that lives for ever.
var never = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

// shown is a workspace as a sandbox. One that does not run and is not paused will be when it is used: it counts as paused.
func shown(w workspace.Workspace, kept row) sandbox {
	state := "paused"
	if w.State == workspace.StateRunning {
		state = "running"
	}
	end := w.Expires
	if end.IsZero() {
		end = never
	}
	template := cmp.Or(kept.Template, w.Profile, baseTemplate)
	metadata := kept.Metadata
	if metadata == nil {
		metadata = map[string]string{}
	}
	return sandbox{
		Client: clientID, Envd: EnvdVersion, Sandbox: string(w.Name), Template: template, Alias: template, CPUs: runtime.NumCPU(),
		MemoryMB: w.Limits.MemoryBytes >> 20, DiskMB: w.Limits.DiskBytes >> 20, Started: w.CreatedAt.UTC(), Ends: end.UTC(), State: state,
		Metadata: metadata,
	}
}

// one returns the workspace that a path names. One that may not be reached, or is being made or destroyed, is not found.
func (s *Server) one(r *http.Request) (workspace.Workspace, row, error) {
	name := r.PathValue("id")
	w, err := s.Gate.Get(r.Context(), authn.FromContext(r.Context()), name)
	if errdefs.IsPermissionDenied(err) || err == nil && string(w.Name) != name {
		err = notFound("there is no sandbox %q", name)
	}
	if err != nil {
		return w, row{}, err
	}
	kept, err := s.row(r.Context(), name)
	return w, kept, err
}

func (s *Server) get(w http.ResponseWriter, r *http.Request) error {
	ws, kept, err := s.one(r)
	if err != nil {
		return err
	}
	x := shown(ws, kept)
	x.Access = s.giveOut(r.Context(), x.Sandbox)
	x.Life = &lifecycle{OnTimeout: "kill", AutoResume: kept.Wakes}
	if kept.AtEnd != ends {
		x.Life.OnTimeout = "pause"
	}
	reached := len(ws.Reach.Allow) > 0
	x.Internet, x.Network = &reached, &network{AllowOut: ws.Reach.Allow, DenyOut: ws.Reach.Deny}
	answer(w, http.StatusOK, x)
	return nil
}

func (s *Server) kill(w http.ResponseWriter, r *http.Request) error {
	ws, _, err := s.one(r)
	if err != nil {
		return err
	}
	if _, err := s.Gate.Destroy(r.Context(), authn.FromContext(r.Context()), string(ws.Name), true, ""); err != nil {
		return err
	}
	s.forget(string(ws.Name))
	answer(w, http.StatusNoContent, nil)
	return nil
}

// setNetwork replaces the rules of a sandbox.
func (s *Server) setNetwork(w http.ResponseWriter, r *http.Request) error {
	var body network
	if err := errors.Join(read(r, &body), body.check()); err != nil {
		return err
	}
	ws, _, err := s.one(r)
	if err != nil {
		return err
	}
	want := body.reach()
	gone := func(have, want []string) []string {
		return slices.DeleteFunc(slices.Clone(have), func(v string) bool { return slices.Contains(want, v) })
	}
	change := workspace.Change{Reach: workspace.ReachChange{
		Allow: gone(want.Allow, ws.Reach.Allow), Deny: gone(want.Deny, ws.Reach.Deny),
		Remove: slices.Concat(gone(ws.Reach.Allow, want.Allow), gone(ws.Reach.Deny, want.Deny)),
	}}
	if _, err := s.Gate.Update(r.Context(), authn.FromContext(r.Context()), string(ws.Name), change); err != nil {
		return err
	}
	answer(w, http.StatusNoContent, nil)
	return nil
}
