package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// message is a message of the API as JSON, without what is not set.
func message(m proto.Message) (*answer, error) {
	b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("cannot show what the daemon answered: %w", err)
	}
	var compact bytes.Buffer // protojson varies its blanks
	if err := json.Compact(&compact, b); err != nil {
		return nil, fmt.Errorf("cannot show what the daemon answered: %w", err)
	}
	return said("%s", cut(compact.String(), 2*maxPart)), nil
}

func inspectWorkspace(ctx context.Context, c *call, _ struct{}) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	m, err := c.cfg.Client.Workspaces().Get(ctx, connect.NewRequest(&carrelv1.GetRequest{Workspace: c.workspace}))
	if err != nil {
		return nil, err
	}
	return message(m.Msg.GetWorkspace())
}

func listWorkspaces(ctx context.Context, c *call, _ struct{}) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	m, err := c.cfg.Client.Workspaces().List(ctx, connect.NewRequest(&carrelv1.ListRequest{}))
	if err != nil {
		return nil, err
	}
	var lines bounded
	for _, w := range m.Msg.GetWorkspaces() {
		lines.add("%s  %-9s %s", w.GetName(), w.GetState(), clean(w.GetKey()))
	}
	return lines.answer("there is none; create_workspace makes one", "there are more"), nil
}

type createArgs struct {
	Key     string `json:"key" jsonschema:"any text that you choose"`
	Profile string `json:"profile,omitempty" jsonschema:"a named set of defaults of the host"`
	TTLs    int64  `json:"ttl_s,omitempty" jsonschema:"destroy it after so many seconds"`
}

// createWorkspace makes a workspace without network rules and mounts: a model gives itself neither.
func createWorkspace(ctx context.Context, c *call, in createArgs) (*answer, error) {
	if in.TTLs < 0 {
		return nil, fmt.Errorf("cannot use a negative ttl_s: %w", errdefs.ErrInvalidArgument)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	w, created, err := c.cfg.Client.Create(ctx, &carrelv1.CreateRequest{Key: in.Key, Profile: in.Profile, TtlMs: in.TTLs * 1000})
	if err != nil {
		return nil, err
	}
	what := "was there already"
	if created {
		what = "was made"
	}
	return said("%s %s; it is %s; its home is %s", w.GetName(), what, w.GetState(), clean(w.GetInsideHome())), nil
}

func startWorkspace(ctx context.Context, c *call, _ struct{}) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	m, err := c.cfg.Client.Workspaces().Start(ctx, connect.NewRequest(&carrelv1.StartRequest{Workspace: c.workspace}))
	if err != nil {
		return nil, err
	}
	return said("%s is %s", m.Msg.GetWorkspace().GetName(), m.Msg.GetWorkspace().GetState()), nil
}

func stopWorkspace(ctx context.Context, c *call, _ struct{}) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	m, err := c.cfg.Client.Workspaces().Stop(ctx, connect.NewRequest(&carrelv1.StopRequest{Workspace: c.workspace}))
	if err != nil {
		return nil, err
	}
	return said("%s is %s", m.Msg.GetWorkspace().GetName(), m.Msg.GetWorkspace().GetState()), nil
}

type explainArgs struct {
	Command string            `json:"command,omitempty" jsonschema:"a line for sh; give this or argv"`
	Argv    []string          `json:"argv,omitempty" jsonschema:"the program and its arguments"`
	Cwd     string            `json:"cwd,omitempty" jsonschema:"the directory, as for exec"`
	Env     map[string]string `json:"env,omitempty" jsonschema:"variables, as for exec"`
}

func explainPolicy(ctx context.Context, c *call, in explainArgs) (*answer, error) {
	spec, err := c.spec(ctx, in.Command, in.Argv, in.Cwd, in.Env)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	m, err := c.cfg.Client.Commands().Explain(ctx, connect.NewRequest(&carrelv1.ExplainRequest{
		Workspace: c.workspace, Command: &carrelv1.Command{Argv: spec.Argv, Env: in.Env, Cwd: spec.Dir, Source: carrel.SourceLLM},
	}))
	if err != nil {
		return nil, err
	}
	how := "the isolation of the workspace was seen to hold"
	switch {
	case m.Msg.GetAssumed():
		how = "the workspace does not run, and its isolation is assumed to hold"
	case !m.Msg.GetVerified():
		how = "the isolation of the workspace was not seen to hold, so the command is judged as for a host"
	}
	a := said("%s", how)
	a.texts = append(a.texts, cut(valid(m.Msg.GetDecision()), 2*maxPart))
	return a, nil
}

type recordArgs struct {
	Last      int64  `json:"last,omitempty" jsonschema:"how many of the newest; 20 unless given, at most 200"`
	Workspace string `json:"workspace,omitempty" jsonschema:"only of this workspace, by its key or derived name"`
	Type      string `json:"type,omitempty" jsonschema:"only records of this type, as intent, outcome or denial"`
}

func showRecord(ctx context.Context, c *call, in recordArgs) (*answer, error) {
	if in.Last == 0 {
		in.Last = 20
	}
	if in.Last < 0 || in.Last > 200 {
		return nil, fmt.Errorf("cannot show that many records: last is from 1 to 200: %w", errdefs.ErrInvalidArgument)
	}
	if c.bound != "" {
		if in.Workspace != "" && in.Workspace != c.bound {
			return nil, fmt.Errorf("cannot show records of another workspace: this server serves %s alone: %w", clean(c.key),
				errdefs.ErrPermissionDenied)
		}
		in.Workspace = c.bound
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if in.Workspace != "" { // the record has names, and the other tools take keys; of one that is gone the name is all that there is
		m, err := c.cfg.Client.Workspaces().Get(ctx, connect.NewRequest(&carrelv1.GetRequest{Workspace: in.Workspace}))
		if err == nil {
			in.Workspace = m.Msg.GetWorkspace().GetName()
		} else if !errdefs.IsNotFound(err) && !errdefs.IsPermissionDenied(err) {
			return nil, err
		}
	}
	s, err := c.cfg.Client.Audit().Show(ctx, connect.NewRequest(&carrelv1.ShowRequest{
		Last: in.Last, Filter: &carrelv1.Filter{Workspace: in.Workspace, Type: in.Type},
	}))
	if err != nil {
		return nil, err
	}
	defer s.Close()
	var all []string
	for s.Receive() {
		for _, l := range s.Msg().GetLines() {
			all = append(all, valid(l))
		}
	}
	if err := s.Err(); err != nil {
		return nil, err
	}
	// The newest are kept if there is no room for all.
	n, from := 0, len(all)
	for from > 0 && n+len(all[from-1])+1 <= 2*maxPart {
		from--
		n += len(all[from]) + 1
	}
	switch {
	case len(all) == 0:
		return said("there are no such records"), nil
	case from == len(all):
		return said("%s", cut(all[from-1], 2*maxPart)), nil
	case from > 0:
		return &answer{texts: []string{fmt.Sprintf("the newest %d of %d", len(all)-from, len(all)), strings.Join(all[from:], "\n")}}, nil
	}
	return said("%s", strings.Join(all, "\n")), nil
}

// verifyRecord verifies the chain, which takes as long as the log is large.
func verifyRecord(ctx context.Context, c *call, _ struct{}) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, maxAnswerWait)
	defer cancel()
	defer c.progress(ctx, "verifies the record", nil)()
	m, err := c.cfg.Client.Audit().Verify(ctx, connect.NewRequest(&carrelv1.VerifyRequest{}))
	if err != nil {
		return nil, err
	}
	a, err := message(m.Msg)
	if err != nil {
		return nil, err
	}
	if !m.Msg.GetOk() {
		a.wrong = true
		a.texts = append([]string{"the record does not verify: tell the user"}, a.texts...)
	}
	return a, nil
}
