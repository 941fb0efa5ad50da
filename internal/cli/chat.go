package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carrel-dev/carrel/internal/agent/messages"
	"github.com/carrel-dev/carrel/internal/cli/attach"
	"github.com/carrel-dev/carrel/internal/cli/chatui"
)

func (a *app) chatCommand() *cobra.Command {
	var x askFlags
	var plain bool
	c := &cobra.Command{
		Use:   "chat [flags]",
		Short: "Talk with a model that proposes commands, turn by turn",
		Long: `Talk with the agent of "carrel ask". What you type is a question, and what was said before
is told with the next one. What you enter while a turn runs is asked when it has ended, and
Esc ends it. A plan that needs your answer is shown with the reasons; no key answers before
all of it was on the screen. The task goes on being kept, and "carrel chat --resume" goes on
from it.

Lines that begin with a slash are for carrel, those with an exclamation mark for your shell:
/help lists them. --plain, or TERM=dumb, shows it line by line, as screen readers need it.`,
		Example: `  carrel chat --llm gpt-5
  carrel chat --resume --on remote --hosts hosts.yaml
  carrel chat --plain`,
		Args: exactly(),
	}
	a.addAskFlags(c, &x)
	c.Flags().BoolVar(&plain, "plain", false, "show it line by line, without a screen of its own")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if !isTerminal(a.In) || !isTerminal(a.Out) {
			return usage(c, "cannot chat without a terminal: use \"carrel ask\"")
		}
		table := asTable
		x.output = &table
		k, err := a.newAsker(c, &x)
		if err != nil {
			return err
		}
		defer func() { k.close() }() // the one that connecting sets
		if plain || os.Getenv("TERM") == "dumb" {
			return k.chatPlain(c.Context())
		}
		return k.chat(c.Context())
	}
	return c
}

// chat talks on a screen of its own. What was said is left on the terminal.
func (k *asker) chat(ctx context.Context) error {
	s := newChatSession(k)
	var said []string
	in, out := k.In, k.Out
	err := s.quietly(func() (err error) {
		said, err = chatui.Run(ctx, s, k.lang, in, out)
		return err
	})
	return errors.Join(lines(said).render(k.Out), err)
}

// chatPlain talks line by line.
func (k *asker) chatPlain(ctx context.Context) error {
	shown := &lineTeller{a: k.app}
	k.to = shown
	signals := attach.Signals(false)
	if err := attach.Interruptible(ctx, signals, func(ctx context.Context) error {
		if err := k.connect(ctx); err != nil {
			return err
		}
		return k.ready(ctx)
	}); err != nil {
		return err
	}
	_ = say(k.Err, "%s\n", k.lang.Say(messages.ChatBegins, k.agent))
	for {
		var line string
		err := attach.Interruptible(ctx, signals, func(ctx context.Context) (err error) {
			if err = say(k.Out, "%s", k.lang.Say(messages.You)); err == nil {
				line, err = k.readLine(ctx)
			}
			return err
		})
		switch {
		case errors.Is(err, io.EOF), isInterrupt(err):
			return say(k.Out, "\n")
		case err != nil:
			return err
		}
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		leave := false
		err = attach.Interruptible(ctx, signals, func(ctx context.Context) (err error) {
			leave, err = k.plainLine(ctx, line, shown)
			return err
		})
		k.code = 0 // of a turn without an answer, which was said
		if leave {
			return nil
		}
		if isInterrupt(err) {
			_ = say(k.Err, "\ncarrel: %s\n", k.lang.Say(messages.Stopped))
		} else if err != nil {
			_ = say(k.Err, "carrel: %s\n", errorText(err))
		}
	}
}

// plainLine carries out one line of a chat without a screen.
func (k *asker) plainLine(ctx context.Context, line string, shown *lineTeller) (leave bool, err error) {
	text := ""
	switch {
	case line == "/help":
		text = k.lang.Say(messages.HelpCommands)
	case line == "/clear":
		text = k.lang.Say(messages.NoScreen)
	case line == "/trace":
		shown.trace = !shown.trace
		text = k.lang.Say(map[bool]messages.Key{true: messages.DetailsShown, false: messages.DetailsHidden}[shown.trace])
	case strings.HasPrefix(line, "!"):
		command, tell := strings.CutPrefix(line[1:], "!")
		if text, err = k.shell(ctx, strings.TrimSpace(command), tell); err == nil && tell {
			text = strings.TrimSuffix(text, "\n") + "\n" + k.lang.Say(messages.ToldNext)
		}
	case strings.HasPrefix(line, "/"):
		text, leave, err = k.command(ctx, line)
	default:
		question, err := k.question(line)
		if err != nil {
			return false, err
		}
		return false, k.turn(ctx, question)
	}
	if text = strings.TrimSpace(text); text != "" {
		err = errors.Join(err, say(k.Out, "%s\n", text))
	}
	return leave, err
}

func isInterrupt(err error) bool {
	_, ok := errors.AsType[*attach.Interrupt](err)
	return ok
}

// servedText says where commands may run.
func (k *asker) servedText() string {
	where := []string{k.lang.Say(messages.ServedWorkspaces)}
	if k.served.Local != nil {
		where = append(where, k.lang.Say(messages.ServedHost))
	}
	if n := len(k.served.Remotes); n > 0 {
		where = append(where, manyOf(k.lang, n, messages.OneRemote, messages.Remotes))
	}
	return strings.Join(where, k.lang.Say(messages.And))
}

// manyOf is a number of things, by the text for one and that for more.
func manyOf(lang messages.Language, n int, one, more messages.Key) string {
	if n == 1 {
		return lang.Say(one)
	}
	return lang.Say(more, n)
}
