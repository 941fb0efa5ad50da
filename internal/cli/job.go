package cli

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/carrel-dev/carrel/internal/agent/hosts/jobs"
	"github.com/carrel-dev/carrel/internal/agent/hosts/steps"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/cli/attach"
	"github.com/carrel-dev/carrel/internal/rootless/paths"
)

// openJobs opens the background jobs of the calling user, in their state directory.
func openJobs() (*steps.Jobs, error) {
	state, err := paths.State()
	if err != nil {
		return nil, err
	}
	return steps.OpenJobs(filepath.Join(state, "jobs"))
}

func (a *app) jobCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "job",
		Short: "See and stop what the agent runs on hosts in the background",
		Long: `Steps of "carrel ask" and "carrel chat" on this machine and on remote hosts may go on in the
background, for at most a day. At most 200 jobs are kept, and each for 30 days after its end.
Jobs in workspaces are detached commands: see "carrel ps", "carrel logs" and "carrel kill".`,
		Example: `  carrel job ls
  carrel job output --follow c-0123456789abcdef
  carrel job stop c-0123456789abcdef`,
	}, a.jobLsCommand(), a.jobShowCommand(), a.jobOutputCommand(), a.jobStopCommand(), a.jobRmCommand())
}

// onJobs runs f with the jobs of the calling user.
func onJobs(f func(*steps.Jobs) error) error {
	j, err := openJobs()
	if err != nil {
		return err
	}
	defer j.Close()
	return f(j)
}

// completeJobs completes the id of a job. No host is asked for it.
func completeJobs() cobra.CompletionFunc {
	return onlyFirst(func(*cobra.Command, []string, string) (out []string, _ cobra.ShellCompDirective) {
		_ = onJobs(func(j *steps.Jobs) error { // nothing is completed then
			all, _, err := j.Known()
			for _, x := range all {
				out = append(out, cobra.CompletionWithDesc(string(x.ID), x.Status()+" "+cut(jobCommandText(x), 40)))
			}
			return err
		})
		return out, cobra.ShellCompDirectiveNoFileComp
	})
}

func jobTarget(j jobs.Job) string {
	if j.Host != "" {
		return onRemote + " " + j.Host
	}
	return onHost
}

// jobCommandText is what a job runs: the text of a shell as it is, which a step of an agent always is.
func jobCommandText(j jobs.Job) string {
	if len(j.Argv) == 3 && j.Argv[0] == "/bin/sh" && j.Argv[1] == "-c" {
		return j.Argv[2]
	}
	return shellQuote(j.Argv)
}

func jobObject(j jobs.Job) object {
	o := object{
		{"id", j.ID},
		{"state", j.State},
		{"status", j.Status()},
		{"target", jobTarget(j)},
		{"argv", j.Argv},
		{"read_only", j.ReadOnly},
		{"profile", j.Profile},
		{"limit_ms", j.LimitMS},
		{"began", j.Began.Format(time.RFC3339)},
	}
	if j.End != nil {
		o = append(o, member{"exit_code", j.End.Code}, member{"ended", j.End.At.Format(time.RFC3339)})
	}
	if !j.Seen.IsZero() {
		o = append(o, member{"seen", j.Seen.Format(time.RFC3339)})
	}
	if j.Why != "" {
		o = append(o, member{"why", j.Why})
	}
	return o
}

func (a *app) jobLsCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the background jobs on hosts, the newest first",
		Long: `List the background jobs on this machine and on remote hosts. Remote hosts are asked for jobs that
have not ended; one that cannot be asked is shown as unknown.`,
		Example: "  carrel job ls\n  carrel job ls -o json",
		Args:    exactly(),
	}
	return a.prints(c, func(c *cobra.Command, _ []string) (any, printer, error) {
		list, t := []object{}, newTable(1, "JOB", "STATUS", "TARGET", "BEGAN", "COMMAND").freeText()
		err := onJobs(func(j *steps.Jobs) error {
			all, broken, err := j.List(c.Context())
			for _, x := range all {
				list = append(list, jobObject(x))
				t.add(string(x.ID), x.Status(), jobTarget(x), age(x.Began), jobCommandText(x))
			}
			for _, b := range broken {
				_ = say(a.Err, "carrel: %v\n", b)
			}
			return err
		})
		return list, t, err
	})
}

// one completes a command that shows one job.
func (a *app) one(c *cobra.Command, find func(ctx context.Context, j *steps.Jobs, job id.Command) (jobs.Job, error)) *cobra.Command {
	c.Args, c.ValidArgsFunction = exactly("JOB"), completeJobs()
	return a.prints(c, func(c *cobra.Command, args []string) (any, printer, error) {
		var x jobs.Job
		err := onJobs(func(j *steps.Jobs) (err error) {
			x, err = find(c.Context(), j, id.Command(args[0]))
			return err
		})
		if err != nil {
			return nil, nil, err
		}
		rows := [][2]string{
			{"job", string(x.ID)},
			{"status", x.Status()},
			{"why", x.Why},
			{"target", jobTarget(x)},
			{"command", jobCommandText(x)},
			{"began", x.Began.Format(time.RFC3339)},
			{"for at most", x.Limit().String()},
		}
		if x.End != nil {
			rows = append(rows, [2]string{"ended", x.End.At.Format(time.RFC3339)})
			for _, left := range x.End.Left {
				rows = append(rows, [2]string{"left", left})
			}
		}
		return jobObject(x), pairs(rows...), nil
	})
}

func (a *app) jobShowCommand() *cobra.Command {
	return a.one(&cobra.Command{
		Use:   "show [flags] JOB",
		Short: "Show one background job",
		Long: `Show a background job. Its status is running, exited with its code, stopped, timed out, lost if its
supervisor was killed or the machine was started anew, or unknown if its host cannot be asked.`,
		Example: "  carrel job show c-0123456789abcdef",
	}, func(ctx context.Context, j *steps.Jobs, job id.Command) (jobs.Job, error) { return j.Show(ctx, job) })
}

func (a *app) jobStopCommand() *cobra.Command {
	return a.one(&cobra.Command{
		Use:   "stop [flags] JOB",
		Short: "End a background job with all that it has started",
		Long: `End a background job: TERM, after 5 seconds KILL, to all that it has started. One that has ended
stays as it is.`,
		Example: "  carrel job stop c-0123456789abcdef",
	}, func(ctx context.Context, j *steps.Jobs, job id.Command) (jobs.Job, error) { return j.Stop(ctx, job) })
}

func (a *app) jobRmCommand() *cobra.Command {
	c := &cobra.Command{
		Use:               "rm JOB",
		Short:             "Remove a background job that has ended, and its output",
		Long:              `Remove a background job that has ended, with its output, on its remote host too.`,
		Example:           "  carrel job rm c-0123456789abcdef",
		Args:              exactly("JOB"),
		ValidArgsFunction: completeJobs(),
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		return onJobs(func(j *steps.Jobs) error { return j.Remove(c.Context(), id.Command(args[0])) })
	}
	return c
}

func (a *app) jobOutputCommand() *cobra.Command {
	var follow bool
	c := &cobra.Command{
		Use:   "output [flags] JOB",
		Short: "Print the output of a background job",
		Long: `Print what is kept of the output of a background job, on stdout and stderr: of each stream the
beginning, and of what follows at least the last 256 KiB.`,
		Example:           "  carrel job output c-0123456789abcdef\n  carrel job output --follow c-0123456789abcdef",
		Args:              exactly("JOB"),
		ValidArgsFunction: completeJobs(),
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "keep printing new output until the job ends")
	c.RunE = func(c *cobra.Command, args []string) error {
		return onJobs(func(j *steps.Jobs) error { return a.jobOutput(c.Context(), j, id.Command(args[0]), follow) })
	}
	return c
}

// How often the output of a job is looked at that is followed.
const (
	followPause       = 200 * time.Millisecond
	followRemotePause = 2 * time.Second
)

func (a *app) jobOutput(ctx context.Context, j *steps.Jobs, job id.Command, follow bool) error {
	var from [2]int64
	for {
		// The state first: what is read then is all that there is of a job that had ended.
		x, err := j.Show(ctx, job)
		if err != nil {
			return err
		}
		for i, stream := range []string{jobs.Stdout, jobs.Stderr} {
			to := []*os.File{a.Out, a.Err}[i]
			for {
				chunk, err := j.Output(ctx, x, stream, from[i])
				if err != nil {
					return err
				}
				if len(chunk.Data) == 0 {
					break
				}
				if chunk.At > from[i] {
					_ = say(a.Err, "carrel: %s of %s are not kept\n", counted(chunk.At-from[i], "byte"), stream)
				}
				if from[i] = chunk.Next(); !isTerminal(to) {
					_, err = to.Write(chunk.Data)
				} else { // a terminal obeys nothing that it prints
					_, err = fmt.Fprint(to, attach.Message(string(chunk.Data)))
				}
				if err != nil {
					return err
				}
			}
		}
		if !follow || x.State.Over() {
			return nil
		}
		if x.State == jobs.Unknown {
			return fmt.Errorf("cannot follow job %s: %s", job, cmp.Or(x.Why, "it is not known whether it runs"))
		}
		wait := followPause
		if x.Host != "" {
			wait = followRemotePause
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
