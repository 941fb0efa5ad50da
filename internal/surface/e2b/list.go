package e2b

import (
	"cmp"
	"encoding/hex"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/carrel-dev/carrel/internal/surface/authn"
)

// filter is which sandboxes a list has.
type filter struct {
	metadata url.Values
	states   []string
	template string
	after    time.Time
}

func filterFrom(q url.Values) (f filter, err error) {
	if f.metadata, err = url.ParseQuery(q.Get("metadata")); err != nil {
		return f, wrong("metadata is not a query: %w", err)
	}
	for _, v := range q["state"] {
		f.states = append(f.states, strings.Split(v, ",")...)
	}
	f.template = q.Get("template")
	if v := q.Get("startedAfter"); v != "" {
		if f.after, err = time.Parse(time.RFC3339Nano, v); err != nil {
			return f, wrong("startedAfter is no time: %w", err)
		}
	}
	return f, nil
}

func (f filter) takes(x sandbox) bool {
	for k, v := range f.metadata {
		// SDKs quote names and values before they make a query of them.
		name, err := url.PathUnescape(k)
		value, verr := url.PathUnescape(v[0])
		if got, ok := x.Metadata[name]; errors.Join(err, verr) != nil || !ok || got != value {
			return false
		}
	}
	return (len(f.states) == 0 || slices.Contains(f.states, x.State)) && (f.template == "" || f.template == x.Template) &&
		(f.after.IsZero() || x.Started.After(f.after))
}

// list has the newest first, and a header with where the next page begins.
func (s *Server) list(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	f, err := filterFrom(q)
	if err != nil {
		return err
	}
	limit := pageSize
	if v := q.Get("limit"); v != "" {
		if limit, err = strconv.Atoi(v); err != nil || limit < 1 || limit > maxPage {
			return wrong("the limit %q is not in 1 to %d", v, maxPage)
		}
	}
	found, err := s.Gate.List(r.Context(), authn.FromContext(r.Context()))
	if err != nil {
		return err
	}
	page := []sandbox{}
	for _, ws := range found {
		kept, err := s.row(r.Context(), string(ws.Name))
		if err != nil {
			return err
		}
		if x := shown(ws, kept); f.takes(x) {
			page = append(page, x)
		}
	}
	order := func(a, b sandbox) int {
		return cmp.Or(b.Started.Compare(a.Started), strings.Compare(a.Sandbox, b.Sandbox))
	}
	if q.Get("order") == "asc" {
		order = func(a, b sandbox) int {
			return cmp.Or(a.Started.Compare(b.Started), strings.Compare(a.Sandbox, b.Sandbox))
		}
	}
	slices.SortFunc(page, order)
	if v := q.Get("nextToken"); v != "" {
		last, err := pageEnd(v)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(page, func(x sandbox) bool { return order(last, x) < 0 })
		if i < 0 {
			i = len(page)
		}
		page = page[i:]
	}
	if len(page) > limit {
		page = page[:limit]
		last := page[limit-1]
		w.Header().Set("X-Next-Token", hex.EncodeToString([]byte(last.Started.Format(time.RFC3339Nano)+" "+last.Sandbox)))
	}
	answer(w, http.StatusOK, page)
	return nil
}

// pageEnd is the last sandbox of the page before.
func pageEnd(next string) (sandbox, error) {
	b, err := hex.DecodeString(next)
	at, name, ok := strings.Cut(string(b), " ")
	if err == nil && ok {
		var t time.Time
		if t, err = time.Parse(time.RFC3339Nano, at); err == nil {
			return sandbox{Started: t, Sandbox: name}, nil
		}
	}
	return sandbox{}, wrong("nextToken is not one that was given")
}
