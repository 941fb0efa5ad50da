package api_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
	"github.com/carrel-dev/carrel/internal/surface/authn"
)

const sent = "tin-whistle-47-blue"

// secretFields are the fields that the schema marks as secret, by message.
func secretFields() map[string]string {
	all := map[string]string{}
	messages := carrelv1.File_carrel_v1_carrel_proto.Messages()
	for i := range messages.Len() {
		for _, f := range fieldsOf(messages.Get(i)) {
			if o, ok := f.Options().(*descriptorpb.FieldOptions); ok && o.GetDebugRedact() {
				all[string(messages.Get(i).Name())] = string(f.Name())
			}
		}
	}
	return all
}

// No response carries a value, however deep.
func TestNoResponseHasASecret(t *testing.T) {
	marked := secretFields()
	if len(marked) != 2 || marked["SetSecretRequest"] != "value" || marked["RotateSecretRequest"] != "value" {
		t.Errorf("marked are %v", marked)
	}
	var walk func(m protoreflect.MessageDescriptor, seen map[protoreflect.FullName]bool) bool
	walk = func(m protoreflect.MessageDescriptor, seen map[protoreflect.FullName]bool) bool {
		if seen[m.FullName()] {
			return false
		}
		seen[m.FullName()] = true
		for _, f := range fieldsOf(m) {
			if marked[string(m.Name())] != "" || f.Message() != nil && walk(f.Message(), seen) {
				return true
			}
		}
		return false
	}
	services := carrelv1.File_carrel_v1_carrel_proto.Services()
	for i := range services.Len() {
		for j := range services.Get(i).Methods().Len() {
			m := services.Get(i).Methods().Get(j)
			if walk(m.Output(), map[protoreflect.FullName]bool{}) {
				t.Errorf("the answer of %s can have a value", m.FullName())
			}
		}
	}
}

// Whatever a client gets wrong, no answer and no line of the log repeats the value.
func TestAnswersDoNotRepeatASecret(t *testing.T) {
	var logs bytes.Buffer
	g := &apitest.Gate{}
	as := func(ctx context.Context, _ net.Conn) context.Context { return ctx }
	log := slog.New(slog.NewTextHandler(&logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	h := api.NewServer(g, api.Options{Version: "test", Log: log}).HTTPServer(as).Handler
	post := func(path, contentType string, body []byte) *httptest.ResponseRecorder {
		t.Helper()
		req := httptest.NewRequestWithContext(authn.NewContext(t.Context(), principal.Principal{Kind: principal.User, UID: 1000}),
			http.MethodPost, "http://carrel/carrel.v1.SecretService/"+path, bytes.NewReader(body))
		req.Header.Set("Content-Type", contentType)
		rec := deadlines{httptest.NewRecorder()}
		h.ServeHTTP(rec, req)
		return rec.ResponseRecorder
	}
	quoted := `"` + sent + `"`
	refused := 0
	for _, path := range []string{"SetSecret", "RotateSecret"} {
		var bodies [][]byte
		for _, text := range []string{
			`{"name":"API_KEY","value":` + quoted + `,"hosts":["a.example"]}`, `{"name":"API_KEY","value":` + quoted + `,"value":` + quoted + `}`,
			`{"name":"API_KEY","value":` + sent + `}`, `{"name":"API_KEY","value":[` + quoted + `]}`,
			`{"name":"API_KEY","value":{` + quoted + `:1}}`,
			`{"name":"API_KEY",` + quoted + `:1}`, `{"name":"API_KEY","value":` + quoted, quoted, `[` + quoted + `]`, `{"name":[` + quoted + `]}`,
			`{"name":"API_KEY","value":12345678,"x":` + quoted + `}`, `{"name":"API_KEY","value":"` + sent + "\xff" + `"}`,
			`{"hosts":` + quoted + `}`, `{"hosts":[{"` + sent + `":1}]}`, `{"name":"API_KEY","value":"` + sent + `\ud800"}`,
		} {
			bodies = append(bodies, []byte(text))
		}
		for _, body := range bodies {
			for _, content := range []string{"application/json", "application/json; charset=utf-8", "application/grpc-web+json"} {
				rec := post(path, content, body)
				refused += rec.Code / 400
				if text := rec.Body.String(); strings.Contains(text, sent) || strings.Contains(text, base64.StdEncoding.EncodeToString([]byte(sent))) {
					t.Errorf("%s %s %s: %s", path, content, body, text)
				}
			}
		}
		for _, m := range []proto.Message{
			&carrelv1.SetSecretRequest{Name: "API_KEY", Value: sent},
			&carrelv1.SetSecretRequest{Name: "API_KEY", Value: strings.Repeat(sent, 1<<17)},
		} {
			b, err := proto.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			for _, body := range [][]byte{b, b[:len(b)-1], bytes.ReplaceAll(b, []byte("whistle"), []byte("\xff\xff\xffstle"))} {
				rec := post(path, "application/proto", body)
				refused += rec.Code / 400
				if strings.Contains(rec.Body.String(), sent) || strings.Contains(rec.Body.String(), "stle") {
					t.Errorf("%s in binary: %s", path, rec.Body)
				}
			}
		}
	}
	if strings.Contains(logs.String(), sent) {
		t.Errorf("the log is %s", &logs)
	}
	if refused < 60 || g.ValueOf("uid:1000", "API_KEY") == "" { // the first arrives
		t.Errorf("%d were refused, and what is kept is %q", refused, g.ValueOf("uid:1000", "API_KEY"))
	}
}

// What the handler was given is not in the message any more when the gate is asked, so that nothing that looks at the
// message afterwards finds it.
func TestAValueLeavesItsRequest(t *testing.T) {
	m := &carrelv1.SetSecretRequest{Value: sent}
	if v := api.Taken(&m.Value); v.Reveal() != sent || m.GetValue() != "" || strings.Contains(m.String(), sent) {
		t.Errorf("%v", m)
	}
}
