package api_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/base/token"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
)

// minimal is a request of each procedure that can be read: only the gate refuses it.
var minimal = map[string]string{
	"CommandService/Exec":              `{"workspace":"demo","command":{"argv":["true"]}}`,
	"CommandService/Stream":            `{"start":{"workspace":"demo","command":{"argv":["true"]}}}`,
	"CommandService/Detach":            `{"workspace":"demo","command":{"argv":["true"]}}`,
	"CommandService/Join":              `{"start":{"workspace":"demo","commandId":"c-0123456789abcdef"}}`,
	"AgentService/Serve":               `{"start":{"workspace":"demo","taskId":"c-0123456789abcdef"}}`,
	"CommandService/Logs":              `{"workspace":"demo","commandId":"c-0123456789abcdef"}`,
	"CommandService/Wait":              `{"workspace":"demo","commandId":"c-0123456789abcdef"}`,
	"CommandService/Resize":            `{"workspace":"demo","commandId":"c-0123456789abcdef","size":{}}`,
	"CommandService/Signal":            `{"workspace":"demo","commandId":"c-0123456789abcdef"}`,
	"PortService/Publish":              `{"workspace":"demo","port":80}`,
	"PortService/Connect":              `{"start":{"workspace":"demo","port":80}}`,
	"TaskService/RunTask":              `{"workspace":"demo","command":{"argv":["true"]},"prompt":"hello"}`,
	"TaskService/GetTask":              `{"workspace":"demo","taskId":"c-0123456789abcdef"}`,
	"TaskService/StopTask":             `{"workspace":"demo","taskId":"c-0123456789abcdef"}`,
	"TaskService/FollowTask":           `{"workspace":"demo","taskId":"c-0123456789abcdef"}`,
	"ArchiveService/Restore":           `{"start":{"key":"demo"}}`,
	"ArchiveService/ReadArchive":       `{"archive":"demo"}`,
	"ArchiveService/RemoveArchive":     `{"archive":"demo"}`,
	"FileService/WriteFile":            `{"start":{"workspace":"demo","path":"a"}}`,
	"FileService/UnpackFiles":          `{"start":{"workspace":"demo","path":"a"}}`,
	"WorkspaceService/Create":          `{"key":"demo"}`,
	"ApprovalService/GetApproval":      `{"id":"ap-0123456789abcdef"}`,
	"ApprovalService/AnswerApproval":   `{"id":"ap-0123456789abcdef","kind":"deny"}`,
	"ApprovalService/RevokePermission": `{"id":"ap-0123456789abcdef"}`,
	"TokenService/CreateToken":         `{"roles":["agent"]}`,
	"TokenService/GetToken":            `{"id":"0123456789ab"}`,
	"TokenService/RevokeToken":         `{"id":"0123456789ab"}`,
	"SecretService/SetSecret":          `{"name":"API_KEY","value":"a value that nobody sees","hosts":["a.example"]}`,
	"SecretService/RotateSecret":       `{"name":"API_KEY","value":"a value that nobody sees"}`,
	"SecretService/RemoveSecret":       `{"name":"API_KEY"}`,
	"SecretService/ListSecrets":        `{}`,
	"ModelService/ListModels":          `{}`,
	"ModelService/ModelUsage":          `{}`,
	"WorkspaceService/List":            `{}`,
	"WorkspaceService/Stats":           `{}`,
	"WorkspaceService/Watch":           `{}`,
	"ArchiveService/ListArchives":      `{}`,
	"ApprovalService/ListApprovals":    `{}`,
	"ApprovalService/WatchApprovals":   `{}`,
	"ApprovalService/ListPermissions":  `{}`,
	"TokenService/ListTokens":          `{}`,
	"TokenService/WhoAmI":              `{}`,
	"AuditService/Verify":              `{}`,
	"AuditService/Show":                `{}`,
	"AuditService/Checkpoint":          `{}`,
	"AuditService/Prove":               `{}`,
	"SystemService/Version":            `{}`,
	"SystemService/Mended":             `{}`,
	"SystemService/ReloadPolicy":       `{}`,
}

// protocol is a way to make a call over HTTP.
type protocol struct {
	name string
	// unary and stream are the content types of procedures of either kind.
	unary, stream string
	binary        bool
	// framed: a message has a prefix in unary procedures too.
	framed bool
	// refused and unknown are what answers of permission_denied and unauthenticated have in status, trailers
	// or body.
	refused, unknown string
}

var protocols = []protocol{
	{"Connect JSON", "application/json", "application/connect+json", false, false, "permission_denied", "unauthenticated"},
	{"Connect", "application/proto", "application/connect+proto", true, false, "permission_denied", "unauthenticated"},
	{"gRPC", "application/grpc+proto", "application/grpc+proto", true, true, "grpc-status: 7", "grpc-status: 16"},
	{"gRPC JSON", "application/grpc+json", "application/grpc+json", false, true, "grpc-status: 7", "grpc-status: 16"},
	{"gRPC-Web", "application/grpc-web+proto", "application/grpc-web+proto", true, true, "grpc-status: 7", "grpc-status: 16"},
}

// request is a message of a procedure in a protocol.
func (p protocol) request(t *testing.T, call operation.Call, text string) (body []byte, content string) {
	t.Helper()
	service, method, _ := strings.Cut(call.Path, "/")
	m := carrelv1.File_carrel_v1_carrel_proto.Services().ByName(protoreflect.Name(service)).Methods().ByName(protoreflect.Name(method))
	msg := dynamicpb.NewMessage(m.Input())
	err := protojson.Unmarshal([]byte(text), msg)
	if body = []byte(text); err == nil && p.binary {
		body, err = proto.Marshal(msg)
	}
	if err != nil {
		t.Fatalf("%s: %v", call.Path, err)
	}
	if call.Stream || p.framed {
		body = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...)
	}
	if call.Stream {
		return body, p.stream
	}
	return body, p.unary
}

// said is all that an answer says of its status.
func said(res *http.Response, body []byte) string {
	var b strings.Builder
	for _, h := range []http.Header{res.Header, res.Trailer} {
		for name, v := range h {
			b.WriteString(strings.ToLower(name) + ": " + strings.Join(v, " ") + "\n")
		}
	}
	b.Write(body)
	return b.String()
}

// lasting are the procedures that have no end of their own once they are let in.
var lasting = regexp.MustCompile(`/Watch|^PortService/Publish$`)

// Each procedure is tried with each role, and with no token, by each protocol: the gate refuses those that
// lack the permission of the row, nothing but the gate decides, and the caller is told so in the protocol's
// own way. A procedure without a request here, or a row without one, fails.
func TestEveryRouteForEveryRole(t *testing.T) {
	f := overTLS(t)
	c := f.client(true)
	callers := map[string]principal.Permission{}
	secrets := map[string]token.Secret{}
	for _, name := range principal.AllRoles.Names() {
		r, err := principal.ParseRoles(name)
		if err != nil {
			t.Fatal(err)
		}
		callers[name], secrets[name] = r.Permissions(), f.gate.Issue(t, root, principal.Wanted{Roles: r})
	}
	procedures, tried := map[string]bool{}, 0
	for _, row := range operation.Table {
		for _, call := range row.Calls {
			procedures[call.Path] = true
			if carried[call.Path] {
				continue // a token gets no descriptors: TestDescriptorsOfAnotherUserAreRefused
			}
			text := minimal[call.Path]
			if text == "" {
				text = `{"workspace":"demo"}`
			}
			for _, p := range protocols {
				body, content := p.request(t, call, text)
				try := func(c *http.Client, header http.Header, endless bool) string {
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
					defer cancel()
					req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://"+f.addr+"/carrel.v1."+call.Path, bytes.NewReader(body))
					if err != nil {
						t.Fatal(err)
					}
					req.Header = header
					req.Header.Set("Content-Type", content)
					req.Header.Set("Te", "trailers")
					res, err := c.Do(req)
					if err != nil {
						t.Fatal(call.Path, err)
					}
					defer res.Body.Close()
					if endless {
						cancel() // it has no other end
					}
					answer, _ := io.ReadAll(res.Body)
					tried++
					return said(res, answer)
				}
				for name, may := range callers {
					before := len(f.gate.Refused())
					answer := try(c, bearer(secrets[name]), lasting.MatchString(call.Path) && may.Has(row.Needs))
					refused := len(f.gate.Refused()) > before
					if refused == may.Has(row.Needs) || refused && !strings.Contains(answer, p.refused) {
						t.Errorf("%s for role %s by %s: refused %v: %q", call.Path, name, p.name, refused, answer)
					}
				}
				if p != protocols[len(procedures)%len(protocols)] {
					continue // strangers get few tries
				}
				before := len(f.gate.Refused())
				if answer := try(f.client(true), http.Header{}, false); !strings.Contains(answer, p.unknown) || len(f.gate.Refused()) > before {
					t.Errorf("%s without a token by %s: %q", call.Path, p.name, answer)
				}
			}
		}
	}
	services := carrelv1.File_carrel_v1_carrel_proto.Services()
	for i := range services.Len() {
		methods := services.Get(i).Methods()
		for j := range methods.Len() {
			if path := string(services.Get(i).Name()) + "/" + string(methods.Get(j).Name()); !procedures[path] {
				t.Errorf("%s is of no row of the table", path)
			}
		}
	}
	if tried < 1000 {
		t.Errorf("only %d were tried", tried)
	}
	t.Logf("%d were tried", tried)
}
