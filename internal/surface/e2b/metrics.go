package e2b

import (
	"net/http"
	"runtime"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/surface/authn"
)

// metric is what a sandbox uses now.
type metric struct {
	Time     time.Time `json:"timestamp"`
	Unix     int64     `json:"timestampUnix"`
	CPUs     int       `json:"cpuCount"`
	CPUUsed  float64   `json:"cpuUsedPct"`
	MemUsed  int64     `json:"memUsed"`
	MemTotal int64     `json:"memTotal"`
	MemCache int64     `json:"memCache"`
	DiskUsed int64     `json:"diskUsed"`
	Disk     int64     `json:"diskTotal"`
}

func (s *Server) metrics(w http.ResponseWriter, r *http.Request) error {
	ws, _, err := s.one(r)
	if err != nil {
		return err
	}
	found, err := s.measured(r, string(ws.Name))
	if err != nil {
		return err
	}
	list := []metric{}
	for _, m := range found {
		list = append(list, m)
	}
	answer(w, http.StatusOK, list)
	return nil
}

func (s *Server) allMetrics(w http.ResponseWriter, r *http.Request) error {
	names := strings.FieldsFunc(r.URL.Query().Get("sandbox_ids"), func(c rune) bool { return c == ',' })
	if len(names) == 0 || len(names) > maxPage {
		return wrong("sandbox_ids has %d ids, 1 to %d are allowed", len(names), maxPage)
	}
	found, err := s.measured(r, names...)
	if err != nil {
		return err
	}
	answer(w, http.StatusOK, struct {
		Sandboxes map[string]metric `json:"sandboxes"`
	}{found})
	return nil
}

// measured is what sandboxes use, by their ids. Of one that does not run nothing is known, and it is left out.
func (s *Server) measured(r *http.Request, names ...string) (map[string]metric, error) {
	list, err := s.Gate.Stats(r.Context(), authn.FromContext(r.Context()), names)
	if errdefs.IsNotFound(err) || errdefs.IsPermissionDenied(err) { // which are one, and a key is told to nobody
		return nil, notFound("one of these sandboxes is not there")
	}
	if err != nil {
		return nil, err
	}
	now, found := time.Now().UTC(), map[string]metric{}
	for _, u := range list {
		if !u.State.Live() {
			continue
		}
		ws, err := s.Gate.Get(r.Context(), authn.FromContext(r.Context()), string(u.Name))
		if err != nil {
			return nil, err
		}
		m := metric{
			Time: now, Unix: now.Unix(), CPUs: runtime.NumCPU(), MemUsed: max(0, u.MemoryBytes), MemTotal: u.Limits.MemoryBytes,
			DiskUsed: max(0, u.DiskBytes), Disk: u.Limits.DiskBytes,
		}
		// The share of all processors since it was made: nothing here remembers an earlier look.
		if age := now.Sub(ws.CreatedAt).Microseconds(); age > 0 && u.CPUMicros > 0 {
			m.CPUUsed = 100 * float64(u.CPUMicros) / float64(age)
		}
		found[string(u.Name)] = m
	}
	return found, nil
}
