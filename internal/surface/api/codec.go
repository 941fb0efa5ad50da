package api

import (
	"errors"
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/wire/jsonrpc"
)

// jsonCodec takes the place of connect's codec for JSON under one of its names. That one takes
// numbers like "0e", which are not JSON, and passes over members that the schema does not know:
// a limit that is misspelt would be none.
type jsonCodec struct{ name string }

var _ connect.Codec = jsonCodec{}

// strictJSON replaces both names that connect has for JSON.
var strictJSON = connect.WithHandlerOptions(connect.WithCodec(jsonCodec{"json"}), connect.WithCodec(jsonCodec{"json; charset=utf-8"}))

// Name implements connect.Codec.
func (c jsonCodec) Name() string { return c.name }

// Marshal implements connect.Codec.
func (c jsonCodec) Marshal(message any) ([]byte, error) { return c.MarshalAppend(nil, message) }

// MarshalAppend appends to dst: connect looks for it.
func (jsonCodec) MarshalAppend(dst []byte, message any) ([]byte, error) {
	m, ok := message.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("cannot write a %T: it is no message of protocol buffers", message)
	}
	return protojson.MarshalOptions{}.MarshalAppend(dst, m)
}

// Unmarshal implements connect.Codec.
func (jsonCodec) Unmarshal(b []byte, message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return fmt.Errorf("cannot read a %T: it is no message of protocol buffers", message)
	}
	if why := jsonrpc.Unreadable(b); why != "" {
		return errors.New("it " + why)
	}
	err := protojson.Unmarshal(b, m) // which finds names that come twice, or are not known
	if err != nil && hasSecret(m) {
		return errors.New("it is not JSON with the fields of this message; where it goes wrong is not shown, because it may hold a secret")
	}
	return err
}

// hasSecret reports whether a message carries the value of a secret, which errors about its text would quote.
func hasSecret(m proto.Message) bool {
	switch m.(type) {
	case *carrelv1.SetSecretRequest, *carrelv1.RotateSecretRequest:
		return true
	}
	return false
}
