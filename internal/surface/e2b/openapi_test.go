package e2b_test

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/surface/e2b"
)

// docs/reference/openapi.json has every route of the control plane and no other, and each of its paths is served, by either
// generation of paths.
func TestOpenAPI(t *testing.T) {
	text, err := os.ReadFile("../../../docs/reference/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Paths map[string]map[string]any `json:"paths"`
	}
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	var described []string
	for path, item := range doc.Paths {
		for method := range item {
			if method != "parameters" && strings.HasPrefix(path, "/sandboxes") {
				described = append(described, strings.ToUpper(method)+" "+path)
			}
		}
	}
	slices.Sort(described)
	if routes := e2b.Routes(); !slices.Equal(described, routes) {
		t.Errorf("described are\n%q\nserved are\n%q", described, routes)
	}
	r := start(t, 0)
	for _, d := range append(described, "POST /sandboxes/{id}/nothing") {
		method, path, _ := strings.Cut(d, " ")
		for _, generation := range []string{"", "/v2"} {
			url := r.url + generation + strings.ReplaceAll(path, "{id}", "ws-00000000")
			req, err := http.NewRequestWithContext(t.Context(), method, url, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("X-Api-Key", r.key)
			res, err := r.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(res.Body)
			res.Body.Close()
			unknown := strings.Contains(string(b), "is no request that is known here")
			if err != nil || unknown != strings.HasSuffix(path, "/nothing") {
				t.Errorf("%s%s: %d %s, %v", generation, d, res.StatusCode, b, err)
			}
		}
	}
}
