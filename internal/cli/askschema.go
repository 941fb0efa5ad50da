package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/google/jsonschema-go/jsonschema"
)

// maxSchemaTries is how often an answer is asked for that has to be of a form.
const maxSchemaTries = 3

// form is what --output-schema asks of an answer.
type form struct {
	text     string
	resolved *jsonschema.Resolved
}

// readForm reads a JSON schema.
func readForm(file string) (*form, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("cannot read the schema: %w", err)
	}
	defer f.Close()
	text, err := textOf(f, file)
	if err != nil {
		return nil, err
	}
	var s jsonschema.Schema
	if err = json.Unmarshal([]byte(text), &s); err != nil {
		return nil, fmt.Errorf("cannot use %s: it is no JSON schema: %w: %w", file, err, errdefs.ErrInvalidArgument)
	}
	if s.Schema == "" {
		s.Schema = "https://json-schema.org/draft/2020-12/schema"
	}
	r, err := s.Resolve(nil)
	if err != nil {
		return nil, fmt.Errorf("cannot use the JSON schema %s: %w: %w", file, err, errdefs.ErrInvalidArgument)
	}
	return &form{text, r}, nil
}

// told is what the agent is told of the form, behind the question.
func (f *form) told() string {
	return "\n\nYour answer in direct_answer has to be one JSON value alone, without Markdown around it, that is valid by this " +
		"JSON schema:\n" + f.text
}

// check returns an answer as JSON alone. A fence of Markdown around it is taken off.
func (f *form) check(answer string) (string, error) {
	answer = strings.TrimSpace(answer)
	if rest, ok := strings.CutPrefix(answer, "```"); ok {
		_, rest, _ = strings.Cut(rest, "\n")
		if inner, ok := strings.CutSuffix(strings.TrimSpace(rest), "```"); ok {
			answer = strings.TrimSpace(inner)
		}
	}
	var v any
	if err := json.Unmarshal([]byte(answer), &v); err != nil {
		return "", fmt.Errorf("it is not JSON: %w", err)
	}
	return answer, f.resolved.Validate(v)
}

// collector is a teller that keeps the agent's words.
type collector struct {
	teller

	mu  sync.Mutex
	all strings.Builder
}

func (c *collector) words(text string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all.WriteString(text)
	return nil
}

// take returns the words since the last call.
func (c *collector) take() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.all.Reset()
	return c.all.String()
}

// formed asks a question whose answer has to be of a form, and prints that alone. An answer that is not is asked for again, with
// what is wrong.
func (k *asker) formed(ctx context.Context, question string, f *form) error {
	said := &collector{teller: k.to}
	k.to = said
	ask := question + f.told()
	var err error
	for range maxSchemaTries {
		if err := k.turn(ctx, ask); err != nil || k.code != 0 {
			return err // it said why there is no answer
		}
		var answer string
		if answer, err = f.check(said.take()); err == nil {
			_, err = fmt.Fprintln(k.Out, answer)
			return err
		}
		_ = said.note("the answer is not of the form that was asked for: " + err.Error())
		ask = "Your answer is not valid: " + err.Error() + "\nAnswer the question once more." + f.told()
	}
	return fmt.Errorf("cannot use the answer: %d were not valid by the schema, the last one as %w; \"carrel task follow\" shows them: %w",
		maxSchemaTries, err, errdefs.ErrInvalidArgument)
}
