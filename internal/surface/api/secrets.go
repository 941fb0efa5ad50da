package api

import (
	"context"
	"fmt"

	"connectrpc.com/connect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/surface/authn"
	"github.com/carrel-dev/carrel/internal/wire/errcode"
)

type secrets struct{ *Server }

// taken takes the value out of a request, so that nothing that looks at the request later finds it.
func taken(value *string) redact.Value {
	v := redact.NewValue(*value)
	*value = ""
	return v
}

func (s secrets) SetSecret(ctx context.Context, req *request[carrelv1.SetSecretRequest]) (*response[carrelv1.SetSecretResponse], error) {
	value := taken(&req.Msg.Value)
	want := workspace.Secret{Name: req.Msg.GetName(), Hosts: req.Msg.GetHosts(), Headers: req.Msg.GetHeaders(), Sending: workspace.Sending{
		Inject: req.Msg.GetInject(), Methods: req.Msg.GetMethods(), Paths: req.Msg.GetPaths(), Pointers: req.Msg.GetJson(),
	}}
	kept, err := s.gate.SetSecret(ctx, authn.FromContext(ctx), want, value)
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&carrelv1.SetSecretResponse{Secret: secretTo(kept)}), nil
}

func (s secrets) RotateSecret(
	ctx context.Context, req *request[carrelv1.RotateSecretRequest],
) (*response[carrelv1.RotateSecretResponse], error) {
	kept, err := s.gate.RotateSecret(ctx, authn.FromContext(ctx), req.Msg.GetName(), taken(&req.Msg.Value))
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&carrelv1.RotateSecretResponse{Secret: secretTo(kept)}), nil
}

func (s secrets) ListSecrets(
	ctx context.Context, _ *request[carrelv1.ListSecretsRequest],
) (*response[carrelv1.ListSecretsResponse], error) {
	all, err := s.gate.ListSecrets(ctx, authn.FromContext(ctx))
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	out := &carrelv1.ListSecretsResponse{Secrets: make([]*carrelv1.Secret, 0, len(all))}
	for _, x := range all {
		out.Secrets = append(out.Secrets, secretTo(x))
	}
	return connect.NewResponse(out), nil
}

func (s secrets) RemoveSecret(
	ctx context.Context, req *request[carrelv1.RemoveSecretRequest],
) (*response[carrelv1.RemoveSecretResponse], error) {
	owner := req.Msg.GetOwner()
	if owner != "" && !owners.MatchString(owner) {
		return nil, errcode.ToWire(invalid("owner", fmt.Sprintf("%.32q is no user", owner), "give one as \"uid:1000\""))
	}
	if err := s.gate.RemoveSecret(ctx, authn.FromContext(ctx), owner, req.Msg.GetName()); err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&carrelv1.RemoveSecretResponse{}), nil
}

func secretTo(x workspace.Secret) *carrelv1.Secret {
	return &carrelv1.Secret{
		Owner: x.Owner, Name: x.Name, Hosts: x.Hosts, Headers: x.Headers, CreatedUnixMs: unixMS(x.Created), RotatedUnixMs: unixMS(x.Rotated),
		Inject: x.Sending.Inject, Methods: x.Sending.Methods, Paths: x.Sending.Paths, Json: x.Sending.Pointers,
	}
}
