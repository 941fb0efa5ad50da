package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/agent/hosts/steps"
	"github.com/carrel-dev/carrel/internal/agent/messages"
	"github.com/carrel-dev/carrel/internal/base/termtext"
)

// command carries out a line of a chat that begins with a slash, in both modes, and returns what there is to say.
func (k *asker) command(ctx context.Context, line string) (text string, leave bool, err error) {
	name, arg, _ := strings.Cut(line, " ")
	arg = strings.TrimSpace(arg)
	if arg != "" && !slices.Contains([]string{"/undo", "/remember", "/forget"}, name) {
		return "", false, fmt.Errorf("cannot do %.40q: %s takes nothing: %w", line, name, errdefs.ErrInvalidArgument)
	}
	switch name {
	case "/new":
		k.after, k.told = "", ""
		return k.lang.Say(messages.BeginsAnew), false, nil
	case "/resume":
		after, err := newestTask(ctx, k.client, k.ws)
		if err != nil {
			return "", false, err
		}
		k.after = after
		return k.lang.Say(messages.GoesOnFrom, after), false, nil
	case "/on":
		return k.servedText(), false, nil
	case "/plan":
		if k.planOnly = !k.planOnly; k.planOnly {
			return k.lang.Say(messages.OnlyPlans), false, nil
		}
		return k.lang.Say(messages.PlansRun), false, nil
	case "/tools":
		rows, err := k.checked(ctx)
		var b strings.Builder
		for _, r := range rows {
			if r[1] != "" {
				fmt.Fprintf(&b, "%s%s\n", termtext.Cell(r[0], 12), r[1])
			}
		}
		return b.String(), false, err
	case "/job":
		text, err = k.jobs(ctx)
		return text, false, err
	case "/remember", "/forget", "/memory":
		text, err = k.memoryCommand(name, arg)
		return text, false, err
	case "/undo":
		text, err = k.undoText(ctx, arg)
		return text, false, err
	case "/quit":
		return "", true, nil
	}
	return "", false, fmt.Errorf("cannot do %.40q: /help lists what there is: %w", line, errdefs.ErrInvalidArgument)
}

// jobs says which jobs run in the background.
func (k *asker) jobs(ctx context.Context) (text string, err error) {
	err = onJobs(func(j *steps.Jobs) error {
		all, broken, err := j.List(ctx)
		for _, x := range all {
			text += fmt.Sprintf("%s  %s  %s: %s\n", x.ID, x.Status(), jobTarget(x), cut(jobCommandText(x), 60))
		}
		for _, b := range broken {
			text += errorText(b) + "\n"
		}
		return err
	})
	if text == "" {
		text = k.lang.Say(messages.NoJobs) + "\n"
	}
	return text + k.lang.Say(messages.JobHelp), err
}

// shellDelay is how long what a command left running may go on printing.
const shellDelay = time.Second

// maxShell bounds what is kept of what a person's own command prints, in characters.
const maxShell = 20_000

// shell runs a command in the person's own shell and returns what it printed. It is theirs: nothing judges or records it. It has
// no terminal and no input, and is ended with all of its processes when ctx ends.
func (k *asker) shell(ctx context.Context, command string, tell bool) (string, error) {
	if command == "" {
		if !tell || k.last == "" {
			return "", fmt.Errorf("cannot run nothing: write !COMMAND, or !!COMMAND to tell the agent of it: %w", errdefs.ErrInvalidArgument)
		}
		k.told, k.last = k.last, ""
		return "", nil
	}
	sh := os.Getenv("SHELL")
	if sh == "" {
		sh = "/bin/sh"
	}
	c := exec.CommandContext(ctx, sh, "-c", command)
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a group of its own, without the terminal
	c.Cancel = func() error { return unix.Kill(-c.Process.Pid, unix.SIGKILL) }
	var out shellOutput
	c.Stdout, c.Stderr = &out, &out
	c.WaitDelay = shellDelay
	err := c.Run()
	text := out.text()
	end := "exit code 0"
	if exit, ok := errors.AsType[*exec.ExitError](err); ok || ctx.Err() != nil {
		end = "ended"
		if ok && exit.ExitCode() >= 0 {
			end = fmt.Sprintf("exit code %d", exit.ExitCode())
		}
		text, err = strings.TrimSuffix(text, "\n")+"\n("+end+")", nil
	}
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return text, fmt.Errorf("cannot run it in your shell: %w", err)
	}
	k.last = asData(fmt.Sprintf("output of %q, which the person ran (%s),", command, end), text)
	if tell {
		k.told += k.last
	}
	return text, nil
}

// shellOutput keeps the beginning of what is written to it.
type shellOutput struct {
	mu   sync.Mutex
	b    []byte
	lost int
}

func (o *shellOutput) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := min(len(p), 4*maxShell-len(o.b))
	o.b = append(o.b, p[:n]...)
	o.lost += len(p) - n
	return len(p), nil
}

// text is what was kept, of at most maxShell characters.
func (o *shellOutput) text() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := strings.ToValidUTF8(string(o.b), "\uFFFD")
	lost := o.lost
	if utf8.RuneCountInString(s) > maxShell {
		kept := string([]rune(s)[:maxShell])
		lost += len(s) - len(kept)
		s = kept
	}
	if lost > 0 {
		s += fmt.Sprintf("\n(%d bytes more were not kept)", lost)
	}
	return s
}
