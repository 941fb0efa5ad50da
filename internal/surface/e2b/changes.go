package e2b

import (
	"cmp"
	"net/http"
	"strconv"
	"time"

	"github.com/carrel-dev/carrel/internal/wire/fileapi"
)

// change is a file that was changed, as JSON. E2B has no such call: the names are those of carrel's API.
type change struct {
	Path    string `json:"path"`
	Type    string `json:"type"`
	Kind    string `json:"kind"`
	Reader  string `json:"reader,omitempty"`
	Trigger string `json:"trigger,omitempty"`
	Target  string `json:"target,omitempty"`
	Size    int64  `json:"size"`
}

type changesAnswer struct {
	Changes []change `json:"changes"`
	// More: there are more, or some were not looked at.
	More bool `json:"more"`
}

// changes lists what was changed in a directory, the home unless path says another, since a time in RFC 3339 or since the sandbox was
// made.
func (s *Server) changes(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	p, err := pathOf(r, "~")
	if err != nil {
		fail(w, err)
		return
	}
	ask := fileapi.Request{Op: fileapi.Changes, Path: []byte(p)}
	if v := q.Get("since"); v != "" {
		since, err := time.Parse(time.RFC3339, v)
		if err != nil || since.Unix() < 0 {
			fail(w, wrong("since is no time as of RFC 3339, such as 2026-01-31T15:04:05Z"))
			return
		}
		ask.SinceNS = since.UnixNano()
	}
	if ask.Limit, err = strconv.Atoi(cmp.Or(q.Get("limit"), "0")); err != nil {
		fail(w, wrong("limit is no number"))
		return
	}
	all := changesAnswer{Changes: []change{}}
	res, err := s.on(r.Context(), ask, fileapi.Streams{
		Entries: func(list []fileapi.Entry) error {
			for _, e := range list {
				all.Changes = append(all.Changes, change{
					Path: string(e.Path), Type: e.Type, Kind: e.Kind, Reader: e.Reader, Trigger: e.Trigger, Target: string(e.Target), Size: e.Size,
				})
			}
			return nil
		},
	})
	if err != nil {
		answerWith(w, r, err)
		return
	}
	all.More = res.Truncated || res.Skipped > 0
	answer(w, http.StatusOK, all)
}
