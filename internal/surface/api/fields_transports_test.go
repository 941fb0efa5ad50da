package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"os"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/emptypb"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
	"github.com/carrel-dev/carrel/internal/wire/fdapi"
	"github.com/carrel-dev/carrel/internal/wire/mountgrant"
)

// transports are all protocols on the Unix socket and over TLS with a token, and the connection with
// descriptors.
func transports(t *testing.T, g apitest.Remote) []transport {
	t.Helper()
	socket, _ := apitest.Serve(t, g, &alice, api.Options{})
	address, keys, _ := apitest.ServeTLS(t, g, api.Options{})
	f := &far{t: t, addr: address, pin: keys.Fingerprint()}
	encrypted := f.client(true)
	encrypted.Transport = bearing{encrypted.Transport, bearer(g.Issue(t, root, principal.Wanted{Roles: principal.Admin}))}
	all := []transport{{"descriptors", true, byDescriptors(t, socket)}}
	for _, protocol := range []struct {
		name string
		opts []connect.ClientOption
	}{
		{"Connect with JSON", []connect.ClientOption{connect.WithProtoJSON()}},
		{"Connect with protobuf", nil},
		{"gRPC", []connect.ClientOption{connect.WithGRPC()}},
		{"gRPC-Web", []connect.ClientOption{connect.WithGRPCWeb()}},
	} {
		all = append(all,
			transport{protocol.name + " on the socket", false, byHTTP(t.Context(), unix(t, socket, true), "http://carrel/", protocol.opts)},
			transport{protocol.name + " over TLS", false, byHTTP(t.Context(), encrypted, "https://"+address+"/", protocol.opts)})
	}
	return all
}

// bearing sends a token with every request.
type bearing struct {
	http.RoundTripper

	header http.Header
}

func (b bearing) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	maps.Copy(r.Header, b.header)
	return b.RoundTripper.RoundTrip(r)
}

func byHTTP(ctx context.Context, c *http.Client, base string, opts []connect.ClientOption) func(procedure, ...proto.Message) error {
	return func(p procedure, messages ...proto.Message) error {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second) // a call takes milliseconds
		defer cancel()
		path := fmt.Sprintf("%s%s/%s", base, p.Parent().FullName(), p.Name())
		// One type serves all messages; answers are not read.
		client := connect.NewClient[dynamicpb.Message, emptypb.Empty](c, path, opts...)
		req := dynamicpb.NewMessage(p.Input())
		proto.Merge(req, messages[0])
		switch {
		case p.IsStreamingClient():
			s := client.CallBidiStream(ctx)
			defer s.CloseResponse()
			defer s.CloseRequest()
			for _, m := range messages {
				req := dynamicpb.NewMessage(p.Input())
				proto.Merge(req, m)
				_ = s.Send(req) // Receive has the error
			}
			if p.Name() != "Stream" { // close_stdin ends its input
				_ = s.CloseRequest()
			}
			for {
				if _, err := s.Receive(); err != nil {
					return err
				}
			}
		case p.IsStreamingServer():
			s, err := client.CallServerStream(ctx, connect.NewRequest(req))
			if err != nil {
				return err
			}
			defer s.Close()
			for s.Receive() {
			}
			return s.Err()
		}
		_, err := client.CallUnary(ctx, connect.NewRequest(req))
		return err
	}
}

// byDescriptors sends as the SDK does; with mounts comes a grant, and with the bytes of files a socket.
func byDescriptors(t *testing.T, socket string) func(procedure, ...proto.Message) error {
	t.Helper()
	c, _ := handOver(t, socket)
	far, near, err := mountgrant.Offer(mountgrant.Message{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { far.Close(); near.Close() })
	return func(p procedure, messages ...proto.Message) error {
		var with []*os.File
		if r, ok := messages[0].(*carrelv1.CreateRequest); ok && len(r.GetMounts()) > 0 {
			with = []*os.File{far}
		}
		if at := pathOf(p); at == fdapi.Read || at == fdapi.Write {
			ours, theirs := sockets(t)
			defer ours.Close()
			with = []*os.File{theirs}
		}
		_, err := c.Call(t.Context(), pathOf(p), messages[0], new(json.RawMessage), with...)
		return err
	}
}
