package api_test

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
	"github.com/carrel-dev/carrel/internal/surface/authn"
)

// gateOfAnswers sees what reaches the gate.
type gateOfAnswers struct {
	*apitest.Gate
	bad func(format string, args ...any)
}

func (g *gateOfAnswers) named(name id.Approval) {
	if again, err := id.ParseApproval(string(name)); err != nil || again != name {
		g.bad("the gate is given the id %q", name)
	}
}

func (g *gateOfAnswers) Answer(ctx context.Context, p principal.Principal, name id.Approval, kind approval.Kind, reason string,
	terminal bool, files ...string,
) (approval.View, error) {
	g.named(name)
	return g.Gate.Answer(ctx, p, name, kind, reason, terminal, files...)
}

func (g *gateOfAnswers) Approval(ctx context.Context, p principal.Principal, name id.Approval) (approval.View, error) {
	g.named(name)
	return g.Gate.Approval(ctx, p, name)
}

func (g *gateOfAnswers) RevokePermission(ctx context.Context, p principal.Principal, name id.Approval) error {
	g.named(name)
	return g.Gate.RevokePermission(ctx, p, name)
}

func (g *gateOfAnswers) Approvals(ctx context.Context, p principal.Principal, f approval.Filter) ([]approval.View, string, error) {
	if f.Limit < 1 || f.Limit > 500 {
		g.bad("the gate is asked for a page of %d", f.Limit)
	}
	return g.Gate.Approvals(ctx, p, f)
}

// deadlines is a recorder that takes deadlines, as a connection does.
type deadlines struct{ *httptest.ResponseRecorder }

func (deadlines) SetReadDeadline(time.Time) error { return nil }

// FuzzApprovals posts anything to the methods of approvals: what reaches the gate has the form
// that the gate relies on, and no request makes the server fail in itself.
func FuzzApprovals(f *testing.F) {
	methods := []string{"ListApprovals", "GetApproval", "AnswerApproval", "ListPermissions", "RevokePermission"}
	for i, body := range []string{
		`{"state":"pending","pageSize":500,"pageToken":"1.ap-0123456789abcdef"}`, `{"id":"ap-0123456789abcdef"}`,
		`{"id":"ap-0123456789abcdef","kind":"once","reason":"r","terminal":true}`, `{"workspace":"demo","thread":"t1"}`,
		`{"id":"ap-0123456789abcdef"}`,
	} {
		f.Add(uint8(i), true, []byte(body))
	}
	f.Add(uint8(2), true, []byte(`{"id":"ap-0123456789abcdef","id":"ap-f","kind":"deny"}`))
	f.Add(uint8(0), true, []byte(`{"pageSize":-1}`))
	f.Add(uint8(2), false, []byte("\x0a\x13ap-0123456789abcdef\x12\x04once\x20\x01"))
	f.Add(uint8(1), false, []byte("\x0a\x03ap-\xff"))
	g := &gateOfAnswers{Gate: &apitest.Gate{}}
	h := api.NewServer(g, api.Options{Version: "test"}).HTTPServer(func(ctx context.Context,
		_ net.Conn,
	) context.Context {
		return ctx
	}).Handler
	f.Fuzz(func(t *testing.T, which uint8, asJSON bool, body []byte) {
		g.bad = t.Errorf
		req := httptest.NewRequestWithContext(authn.NewContext(t.Context(), principal.Principal{Kind: principal.User, UID: 1000}),
			http.MethodPost, "http://carrel/carrel.v1.ApprovalService/"+methods[int(which)%len(methods)], bytes.NewReader(body))
		req.Header.Set("Content-Type", map[bool]string{true: "application/json", false: "application/proto"}[asJSON])
		rec := deadlines{httptest.NewRecorder()}
		h.ServeHTTP(rec, req)
		if rec.Code == http.StatusUnauthorized || rec.Code == http.StatusForbidden {
			t.Fatalf("it does not get so far: %d %s", rec.Code, rec.Body)
		}
		if rec.Code == http.StatusInternalServerError {
			t.Errorf("%s of %q: %d %s", req.URL.Path, body, rec.Code, rec.Body)
		}
	})
}
