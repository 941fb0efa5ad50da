package root_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// A port by the host that E2B's SDKs give it, with a token and not without.
func TestPortsOfE2B(t *testing.T) {
	h := e2bHost(t)
	c := h.e2b(t)
	s := c.create()
	d := h.look(t, s.ID)
	d.Key = s.ID
	d.put(t, "page.txt", []byte("a page\n"), "644")
	d.detach(t, "python3", "-u", "-m", "http.server", "--bind", "127.0.0.1", "8000")
	ask := func(host, path string, headers ...string) (int, string, http.Header) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		for i := 0; i+1 < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		res, err := c.http.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(b), res.Header
	}
	host := "8000-" + s.ID + ".sandboxes.test"
	until(t, "the page", func() bool {
		status, text, _ := ask(host, "/page.txt", "E2b-Traffic-Access-Token", s.Traffic)
		return status == 200 && text == "a page\n"
	})
	if status, text, _ := ask(host, "/page.txt"); status != 401 {
		t.Errorf("without a token: %d %s", status, text)
	}
	other := c.create()
	if status, text, _ := ask(host, "/page.txt", "E2b-Traffic-Access-Token", other.Traffic); status != 401 {
		t.Errorf("with that of another sandbox: %d %s", status, text)
	}
	if status, text, _ := ask("8001-"+s.ID+".sandboxes.test", "/", "E2b-Traffic-Access-Token", s.Traffic); status != 502 ||
		!strings.Contains(text, "nothing listens there") {
		t.Errorf("where nothing listens: %d %s", status, text)
	}
	h.carrel(t, "stop", s.ID)
	status, text, _ := ask(host, "/page.txt", "E2b-Traffic-Access-Token", s.Traffic)
	if status != 502 || !strings.Contains(text, "does not run") {
		t.Errorf("of one that is stopped: %d %s", status, text)
	}
}
