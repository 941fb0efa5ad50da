package cli

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// agentDir is where the agent's program is in its workspace, from the home.
const agentDir = ".carrel/agent"

// agentWorkspace is the workspace that the agent runs in. It is made, with the model, if there is none.
func (a *app) agentWorkspace(ctx context.Context, client *carrel.Client, x *askFlags) (string, error) {
	m, err := askOf(ctx, client, workspaces.Get, &carrelv1.GetRequest{Workspace: x.agent})
	switch {
	case err == nil && m.GetWorkspace().GetState() == string(workspace.StateCreating): // the second of two first questions waits
	case err == nil && len(m.GetWorkspace().GetModels()) == 0 && x.seat == nil: // another agent may have a key of its own
		return "", fmt.Errorf("cannot ask a model: workspace %s has none; give it one with \"carrel update --model NAME %s\" "+
			"(\"carrel model ls\"): %w", x.agent, x.agent, errdefs.ErrFailedPrecondition)
	case err == nil:
		return m.GetWorkspace().GetName(), nil
	case !errdefs.IsNotFound(err):
		return "", err
	}
	name := x.model
	if name == "" {
		if name, err = onlyModel(ctx, client); err != nil {
			return "", err
		}
	}
	w, created, err := create(ctx, client, &carrelv1.CreateRequest{Key: x.agent, Models: []*carrelv1.ModelUse{{Name: name}}}, nil, nil)
	if err != nil {
		return "", err
	}
	if !created {
		return w.GetName(), nil
	}
	a.progress("made workspace %s for the agent, which may use the model %s.", x.agent, name)
	return w.GetName(), nil
}

// onlyModel is the name of the one model that there is a key for.
func onlyModel(ctx context.Context, client *carrel.Client) (string, error) {
	m, err := askOf(ctx, client, models.ListModels, &carrelv1.ListModelsRequest{})
	if err != nil {
		return "", err
	}
	names, missing := []string{}, []string{}
	for _, x := range m.GetModels() {
		if x.GetKey() == workspace.KeyMissing {
			missing = append(missing, strings.TrimSuffix(x.GetName()+" with "+x.GetSecret(), " with "))
			continue
		}
		names = append(names, x.GetName())
	}
	switch {
	case len(names) == 0 && len(missing) > 0:
		return "", fmt.Errorf("cannot ask a model: there is no key for any; store one with \"carrel secret set\" (%s): %w",
			strings.Join(missing, ", "), errdefs.ErrFailedPrecondition)
	case len(names) == 0:
		return "", fmt.Errorf("cannot ask a model: this carrel has none; an administrator names one in egress.yaml, see docs/agent.md: %w",
			errdefs.ErrFailedPrecondition)
	case len(names) == 1:
		return names[0], nil
	}
	return "", fmt.Errorf("cannot choose a model: there are %s; name one with --model: %w", strings.Join(names, ", "),
		errdefs.ErrInvalidArgument)
}

// agentProgram has the agent's program in its workspace, and returns the command that runs it. Whoever can write in that
// workspace can change it: it has no rights beyond those of the workspace.
func (a *app) agentProgram(ctx context.Context, client *carrel.Client, ws string, x *askFlags) ([]string, error) {
	if x.seat != nil {
		return x.seat.Command, nil // who set it has put it there
	}
	path, err := findProgram("carrel-agent")
	if err != nil {
		return nil, err
	}
	program, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the agent's program: %w", err)
	}
	sum := sha256.Sum256(program)
	inside := agentDir + "/carrel-agent-" + hex.EncodeToString(sum[:8])
	m, err := askOf(ctx, client, files.StatFile, &carrelv1.StatFileRequest{Workspace: ws, Path: inside})
	if err != nil || m.GetFile().GetSize() != int64(len(program)) {
		if err != nil && !errdefs.IsNotFound(err) {
			return nil, err
		}
		// It has its name once it is whole and nobody writes it any more: it could not be run before, and another question may
		// come meanwhile.
		mode, part := uint32(0o755), agentDir+"/.new-"+rand.Text()
		start := &carrelv1.WriteFileStart{Workspace: ws, Path: part, Mode: &mode, Parents: true}
		if _, err := client.WriteFile(ctx, start, bytes.NewReader(program)); err != nil {
			return nil, err
		}
		if _, err := askOf(ctx, client, files.MoveFile, &carrelv1.MoveFileRequest{
			Workspace: ws, Path: part, To: inside, Replace: true,
		}); err != nil {
			return nil, err
		}
	}
	argv := []string{"./" + inside, "--model", x.llm}
	if x.provider != "" {
		argv = append(argv, "--provider", x.provider)
	}
	if x.requests > 0 {
		argv = append(argv, "--requests", strconv.FormatInt(x.requests, 10))
	}
	if x.tokens > 0 {
		argv = append(argv, "--tokens", strconv.FormatInt(x.tokens, 10))
	}
	return argv, nil
}
