package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carrel-dev/carrel/internal/attend"
)

// chatPrompt stands where a person types.
const chatPrompt = "you> "

func (a *app) chatCommand() *cobra.Command {
	var x askFlags
	c := &cobra.Command{
		Use:   "chat [flags]",
		Short: "Talk with a model that proposes commands, turn by turn",
		Long: `Talk with the agent of "carrel ask". What you type is a question, and what was said before
is told with the next one. Ctrl-C ends the turn that runs, and at the prompt the chat; the
task goes on being kept, and "carrel chat --resume" goes on from it.

Lines that begin with a slash are for carrel: /help lists them.`,
		Example: `  carrel chat --llm gpt-5
  carrel chat --resume --on remote --hosts hosts.yaml`,
		Args: exactly(),
	}
	a.addAskFlags(c, &x)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if !isTerminal(a.In) || !isTerminal(a.Out) {
			return usage(c, "cannot chat without a terminal: use \"carrel ask\"")
		}
		table := asTable
		x.output = &table
		return a.chat(c, &x)
	}
	return c
}

const chatHelp = `/new     begin anew: what was said is not told any more
/resume  go on from the newest turn that is kept
/on      say where commands may run
/quit    leave; so does the end of the input
`

func (a *app) chat(c *cobra.Command, x *askFlags) error {
	k, err := a.asker(c, x)
	if err != nil {
		return err
	}
	defer k.close()
	signals := attend.Signals(false)
	if err := attend.Interruptible(c.Context(), signals, k.ready); err != nil {
		return err
	}
	_ = say(a.Err, "carrel: the agent is in workspace %s; /help says what can be typed\n", k.agent)
	for {
		var line string
		err := attend.Interruptible(c.Context(), signals, func(ctx context.Context) (err error) {
			if err = say(a.Out, chatPrompt); err == nil {
				line, err = a.readLine(ctx)
			}
			return err
		})
		switch {
		case errors.Is(err, io.EOF), isInterrupt(err):
			return say(a.Out, "\n")
		case err != nil:
			return err
		}
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		if line == "/quit" {
			return nil
		}
		if strings.HasPrefix(line, "/") {
			err = k.command(c.Context(), line)
		} else {
			err = attend.Interruptible(c.Context(), signals, func(ctx context.Context) error { return k.turn(ctx, line) })
		}
		a.code = 0 // of a turn without an answer, which was said
		if isInterrupt(err) {
			_ = say(a.Err, "\ncarrel: stopped\n")
		} else if err != nil {
			_ = say(a.Err, "carrel: %s\n", errorText(err))
		}
	}
}

func isInterrupt(err error) bool {
	_, ok := errors.AsType[*attend.Interrupt](err)
	return ok
}

// command carries out a line that begins with a slash.
func (k *asker) command(ctx context.Context, line string) error {
	switch line {
	case "/help":
		return say(k.Out, "%s", chatHelp)
	case "/new":
		k.after = ""
		return nil
	case "/resume":
		after, err := newestTask(ctx, k.client, k.ws)
		if err == nil {
			k.after = after
		}
		return err
	case "/on":
		return say(k.Out, "%s\n", k.servedText())
	}
	return fmt.Errorf("cannot do %.40q: /help lists what there is", line)
}

// servedText says where commands may run.
func (k *asker) servedText() string {
	where := []string{"workspaces that you reach"}
	if k.served.Local != nil {
		where = append(where, "this machine, as you")
	}
	if n := len(k.served.Remotes); n > 0 {
		where = append(where, counted(int64(n), "remote host"))
	}
	return strings.Join(where, ", ")
}
