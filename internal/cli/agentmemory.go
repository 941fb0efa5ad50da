package cli

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/agent/memory"
	"github.com/carrel-dev/carrel/internal/agent/messages"
	"github.com/carrel-dev/carrel/internal/rootless/paths"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// memoryFile is where the notes for the agent are kept, in the user's configuration directory.
func memoryFile() (string, error) {
	dir, err := paths.ConfigDir()
	return filepath.Join(dir, "memory.json"), err
}

func (a *app) agentMemoryCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "memory",
		Short: "Keep notes that the agent is told in later sessions",
		Long: `Keep what the agent of "carrel ask" and "carrel chat" should know in every session: at most 64
notes of one line and 500 characters, in memory.json in carrel's configuration directory.
They are sent to the model as advice, which allows nothing. A session has the notes that
there were when it began. Only you write them: what an agent proposes is not kept by itself.`,
		Example: "  carrel agent memory add \"the staging hosts may be restarted at any time\"\n  carrel agent memory ls\n" +
			"  carrel agent memory rm 3",
	}, a.memoryListCommand(), a.memoryAddCommand(), a.memoryRemoveCommand())
}

func (a *app) memoryListCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "ls [flags]", Short: "List the notes", Long: "List the notes that a new session of the agent is told, the oldest first.",
		Example: "  carrel agent memory ls\n  carrel agent memory ls -o json", Args: exactly(),
	}
	return a.prints(c, func(*cobra.Command, []string) (any, printer, error) {
		file, err := memoryFile()
		if err != nil {
			return nil, nil, err
		}
		all, err := memory.List(file)
		if err != nil {
			return nil, nil, err
		}
		t := newTable(-1, "NOTE", "TEXT").freeText()
		list := []object{}
		for _, n := range all {
			t.add(strconv.FormatInt(n.Number, 10), n.Text)
			list = append(list, noteOf(n))
		}
		return list, t, nil
	})
}

func noteOf(n memory.Note) object { return object{{"number", n.Number}, {"text", n.Text}} }

func (a *app) memoryAddCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "add [flags] TEXT...", Short: "Keep a note",
		Long:    `Keep a note. Secrets with a known shape are taken out of it; others are not, so write none.`,
		Example: "  carrel agent memory add \"backups run at three\"", Args: atLeast("TEXT"),
	}
	return a.prints(c, func(_ *cobra.Command, args []string) (any, printer, error) {
		n, err := remember(strings.Join(args, " "))
		if err != nil {
			return nil, nil, err
		}
		return noteOf(n), text(keptText(messages.English, n) + "\n"), nil
	})
}

func remember(text string) (n memory.Note, err error) {
	file, err := memoryFile()
	if err != nil {
		return n, err
	}
	return memory.Add(file, text)
}

func keptText(lang messages.Language, n memory.Note) string {
	return lang.Say(messages.NoteKept, n.Number, n.Text)
}

func (a *app) memoryRemoveCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "rm [flags] NOTE...", Short: "Forget notes", Long: "Forget notes by their numbers: all that are named, or none.",
		Example: "  carrel agent memory rm 3", Args: atLeast("NOTE"),
	}
	c.RunE = func(_ *cobra.Command, args []string) error { return forget(args) }
	return c
}

func forget(args []string) error {
	file, err := memoryFile()
	if err != nil {
		return err
	}
	var numbers []int64
	for _, arg := range args {
		n, err := strconv.ParseInt(arg, 10, 64)
		if err != nil || n < 1 {
			return fmt.Errorf("cannot forget %.40q: give the number of a note: %w", arg, errdefs.ErrInvalidArgument)
		}
		numbers = append(numbers, n)
	}
	return memory.Remove(file, numbers...)
}

// notes are what the agent is told when a session begins. A session that goes on has its own.
func (k *asker) notes() ([]string, error) {
	if k.after != "" {
		return nil, nil
	}
	file, err := memoryFile()
	if err != nil {
		return nil, nil // a user without a home has none
	}
	return memory.Texts(file)
}

// memoryCommand carries out /remember, /forget and /memory.
func (k *asker) memoryCommand(name, arg string) (string, error) {
	switch name {
	case "/remember":
		if arg == "" {
			arg = k.offered
		}
		if arg == "" {
			return "", fmt.Errorf("cannot remember nothing: the agent has proposed no note; write /remember TEXT: %w", errdefs.ErrInvalidArgument)
		}
		n, err := remember(arg)
		if err != nil {
			return "", err
		}
		k.offered = ""
		return keptText(k.lang, n), nil
	case "/forget":
		if arg == "" {
			return "", fmt.Errorf("cannot forget nothing: write /forget N; /memory lists the notes: %w", errdefs.ErrInvalidArgument)
		}
		if err := forget(strings.Fields(arg)); err != nil {
			return "", err
		}
		return k.lang.Say(messages.NoteForgotten), nil
	}
	file, err := memoryFile()
	if err != nil {
		return "", err
	}
	all, err := memory.List(file)
	if err != nil || len(all) == 0 {
		return k.lang.Say(messages.NoNotes), err
	}
	var b strings.Builder
	for _, n := range all {
		fmt.Fprintf(&b, "%d  %s\n", n.Number, n.Text)
	}
	return b.String(), nil
}

// offer shows a note that the agent proposes. It is kept if the person says so, and by nothing else.
func (t *turnView) offer(m *carrelv1.TaskMessage) error {
	var x struct {
		Text string `json:"text"`
	}
	if json.Unmarshal(m.GetBody(), &x) != nil || workspace.CheckNote(x.Text) != nil {
		return nil
	}
	t.offered(x.Text)
	return t.to.note(t.a.lang.Say(messages.Proposes, printable(x.Text)))
}
