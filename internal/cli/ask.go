package cli

import (
	"cmp"
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/agent/hosts/steps"
	"github.com/carrel-dev/carrel/internal/agent/messages"
	"github.com/carrel-dev/carrel/internal/agent/settings"
	"github.com/carrel-dev/carrel/internal/agent/vitals"
	"github.com/carrel-dev/carrel/internal/base/fanout"
	"github.com/carrel-dev/carrel/internal/cli/attach"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// The targets that --on offers beside workspaces.
const (
	onHost   = string(operation.Host)
	onRemote = string(operation.Remote)
	onNone   = "none"
)

// agentEnv names the model of the agent where --llm does not.
const agentEnv = "CARREL_LLM"

// askFlags are the flags of "carrel ask".
type askFlags struct {
	agent, model, llm, provider string
	// command is an agent that others made, as it was given, and seat what runs it: nil for carrel's own.
	command                   string
	seat                      *settings.Agent
	on                        []string
	inventory                 string
	files                     []string
	profile                   string
	asRoot, yesSafe, planOnly bool
	after                     string
	resume                    bool
	timeout, wait             time.Duration
	requests, tokens          int64
	output                    *format
	order                     fanout.Order
	canary                    bool
	// set are the parts of order that were given.
	set fanout.Settings
}

func (a *app) askCommand() *cobra.Command {
	var x askFlags
	var schema string
	c := &cobra.Command{
		Use:   "ask [flags] QUESTION...",
		Short: "Ask a model that proposes commands, which carrel judges and runs",
		Long: `Ask a model about this machine, remote hosts or workspaces. It proposes plans of commands;
carrel finds their targets, judges every command, shows the plan, asks you where the policy
says so, runs it and records all of it. The answer is printed on stdout, and what happens
on stderr.

The agent runs in a workspace of its own and holds no key: --model names one of "carrel model
ls". Commands on this machine and on remote hosts run as you, by this process; those that say
that they only read run without the right to change anything, and --profile workspace_write
lets the others on this machine change nothing but this directory, or those of --files.
Without a terminal a plan that needs an answer is refused, unless --wait says how long to wait
for one.

A word @FILE adds that file of this machine to the question, as data: up to 8 of 64 KiB. @-
adds stdin so. @host:NAME names a host of the inventory. What is added is sent as it is.

With --output-schema the answer is one JSON value on stdout that is valid by a JSON schema of
draft 2020-12 or 7. One that is not is asked for twice more, with what is wrong with it.

--forks, --serial, --max-failures and --canary stand over what the inventory says in fanout.

The exit code is 0 if there is an answer, or with --plan-only a plan, and 1 if there is none: so
it is where a plan was not approved or not allowed. Then nothing is printed on stdout, and the
reason on stderr.`,
		Example: `  carrel ask "why is the disk full?"
  carrel ask --on remote --hosts hosts.yaml "which hosts run an old kernel?"
  carrel ask --on none "run the tests in workspace demo and say what fails"
  carrel ask --resume "and now remove them"
  journalctl -n 200 | carrel ask "what is wrong here? @-"`,
		Args: atLeast("QUESTION"),
	}
	a.addAskFlags(c, &x)
	x.output = outputFlag(c)
	c.Flags().StringVar(&schema, "output-schema", "", "print JSON alone, which has to be valid by the JSON schema in this file")
	_ = c.MarkFlagFilename("output-schema", "json") // the flag is there
	c.RunE = func(c *cobra.Command, args []string) error {
		if schema == "" {
			return a.ask(c, strings.Join(args, " "), &x, nil)
		}
		if *x.output == asJSON {
			return usage(c, "cannot use --output-schema with -o json: leave one of them out")
		}
		if x.planOnly {
			return usage(c, "cannot use --output-schema with --plan-only, which has no answer: leave one of them out")
		}
		f, err := readForm(schema)
		if err != nil {
			return err
		}
		return a.ask(c, strings.Join(args, " "), &x, f)
	}
	return c
}

// addAskFlags adds the flags that ask and chat have.
func (a *app) addAskFlags(c *cobra.Command, x *askFlags) {
	f := c.Flags()
	f.StringVar(&x.agent, "agent", "agent", "the workspace that the agent runs in; it is made if there is none")
	f.StringVar(&x.command, "agent-command", "", "run this agent that speaks ACP in the place of carrel's own: a `COMMAND` in that workspace "+
		"and its words (default by agent.yaml)")
	f.StringVar(&x.model, "model", "", "the `NAME` of the model's endpoint for a new agent, see \"carrel model ls\" (default the only one)")
	_ = c.RegisterFlagCompletionFunc("model", a.completeModel()) // the flag is there
	f.StringVar(&x.llm, "llm", "", "the model's own name, as its provider has it (default $"+agentEnv+", then llm in agent.yaml)")
	f.StringVar(&x.provider, "provider", "", "the provider, for the form of its API (default by the endpoint)")
	f.StringSliceVar(&x.on, "on", []string{onHost, onRemote}, "where commands may run beside workspaces: host, remote, none")
	completeFrom(c, "on", onHost, onRemote, onNone)
	f.StringVar(&x.inventory, "hosts", "", "the file that names remote hosts (default hosts.yaml in carrel's configuration directory)")
	_ = c.MarkFlagFilename("hosts", "yaml") // the flag is there
	f.StringArrayVar(&x.files, "files", nil, "a directory of this machine below which files may be changed; may be repeated (default .)")
	_ = c.MarkFlagDirname("files") // the flag is there
	f.StringVar(&x.profile, "profile", "", "what holds commands on this machine that do not only read: "+
		strings.Join(operation.Profiles, ", ")+" (default that of agent.yaml, or none)")
	completeFrom(c, "profile", operation.Profiles...)
	f.BoolVar(&x.yesSafe, "yes-safe", false, "at a terminal: approve plans of which you would be asked only because a model wrote them")
	f.BoolVar(&x.planOnly, "plan-only", false, "have plans judged and shown, and nothing run")
	f.IntVar(&x.order.Forks, "forks", fanout.DefaultForks, "of a step for several hosts: on how many it runs at once, at most 100")
	f.StringVar(&x.order.Serial, "serial", "", "of such a step: how many hosts are a batch, as in 5 or 20%; the next begins when it has "+
		"ended (default all)")
	f.StringVar(&x.order.MaxFailures, "max-failures", "", "of such a step: how many hosts may fail, as in 2 or 10%; once more have, no "+
		"further one begins (default none, and a batch that has begun goes on)")
	f.BoolVar(&x.canary, "canary", true, "of such a step: the first host goes alone, and if it fails there no other begins")
	f.BoolVar(&x.asRoot, "as-root", false, "as root: let commands on this machine run as root")
	f.StringVar(&x.after, "after", "", "go on from this task of the agent, which it is told")
	f.BoolVar(&x.resume, "resume", false, "go on from the agent's newest task")
	f.DurationVar(&x.timeout, "timeout", 0, "end it after this time, as in 20m (default 1h)")
	f.DurationVar(&x.wait, "wait", 0, "how long a person may take to answer, as in 5m (default 10m at a terminal)")
	f.Var((*bound)(&x.requests), "max-requests", "ask the model at most `N` times (default 32)")
	f.Var((*bound)(&x.tokens), "max-tokens", "ask the model no further once `N` tokens are used")
}

// check says what is wrong with the flags.
func (x *askFlags) check(c *cobra.Command) error {
	for _, on := range x.on {
		if !slices.Contains([]string{onHost, onRemote, onNone}, on) {
			return usage(c, "cannot use --on %q: there are host, remote and none", on)
		}
	}
	switch {
	case x.profile != "" && !slices.Contains(operation.Profiles, x.profile):
		return usage(c, "cannot use --profile %q: there are %s", x.profile, strings.Join(operation.Profiles, ", "))
	case slices.Contains(x.on, onNone) && len(x.on) > 1:
		return usage(c, "cannot use --on none with others: leave one of them out")
	case x.resume && x.after != "":
		return usage(c, "cannot use --resume with --after: leave one of them out")
	case x.timeout < 0:
		return usage(c, "cannot use a negative --timeout: give a time such as 20m, or leave it out")
	case x.requests < 0 || x.tokens < 0:
		return usage(c, "cannot use a negative bound: give a number, or leave it out")
	}
	if c.Flags().Changed("forks") && x.order.Forks < 1 {
		return usage(c, "cannot use --forks %d: give 1 to %d", x.order.Forks, fanout.MaxForks)
	}
	if err := x.order.Check(); err != nil {
		return usage(c, "%s", strings.TrimSuffix(err.Error(), ": "+errdefs.ErrInvalidArgument.Error()))
	}
	for _, name := range []string{"forks", "serial", "max-failures", "canary"} {
		if f := c.Flags().Lookup(name); f.Changed {
			if err := x.set.Read(strings.ReplaceAll(name, "-", "_"), f.Value.String()); err != nil {
				return usage(c, "%s", strings.TrimSuffix(err.Error(), ": "+errdefs.ErrInvalidArgument.Error()))
			}
		}
	}
	return checkWait(c, x.wait)
}

func (a *app) ask(c *cobra.Command, question string, x *askFlags, f *form) error {
	k, err := a.asker(c, x)
	if err != nil {
		return err
	}
	defer k.close()
	return attach.Interruptible(c.Context(), attach.Signals(false), func(ctx context.Context) error {
		question, err := k.question(question)
		if err != nil {
			return err
		}
		if err := k.ready(ctx); err != nil {
			return err
		}
		if f != nil {
			return k.formed(ctx, question, f)
		}
		return k.turn(ctx, question)
	})
}

// asker asks one agent, turn by turn.
type asker struct {
	*app
	*askFlags

	client *carrel.Client
	served steps.Config
	orders fanout.Orders
	// own is what the person has set for the agent.
	own settings.Settings
	// holding is what holds commands on this machine.
	holding steps.Holding
	close   func()
	// ws is the agent's workspace, and argv the command that runs it there.
	ws   string
	argv []string
	// attended: a person answers at the terminal. to shows them what happens.
	attended bool
	to       teller
	// over is what was over a threshold before the last turn, and foreign: the session had read what others wrote when it ended.
	over    []string
	foreign bool
	// offered is the last note that the agent has proposed. brings: the question has texts that others wrote.
	offered string
	brings  bool
	// began is told of each task that begins. Optional.
	began func(task string) error
	// told is what the agent is told with the next question, and last what could be.
	told, last string
}

// asker connects to the daemon, and to nothing else yet. The caller must call close.
func (a *app) asker(c *cobra.Command, x *askFlags) (*asker, error) {
	k, err := a.newAsker(c, x)
	if err != nil {
		return nil, err
	}
	return k, k.connect(c.Context())
}

// newAsker checks the flags, and connects to nothing.
func (a *app) newAsker(c *cobra.Command, x *askFlags) (*asker, error) {
	if err := x.check(c); err != nil {
		return nil, err
	}
	own, err := ownSettings()
	if err != nil {
		return nil, err
	}
	x.llm = cmp.Or(x.llm, os.Getenv(agentEnv), own.LLM)
	if err := x.sit(c, &own); err != nil {
		return nil, err
	}
	if x.llm == "" && x.seat == nil {
		return nil, usage(c, "cannot ask a model without its name: give --llm NAME as its provider has it, set $%s, or write "+
			"\"llm: NAME\" into agent.yaml; \"carrel agent check\" names the providers that there are", agentEnv)
	}
	if x.output == nil || *x.output != asJSON { // what a program reads is the same in every language
		a.lang = messages.Choose(own.Language, os.Getenv)
	}
	return &asker{
		app: a, own: own, askFlags: x, attended: isTerminal(a.In) && isTerminal(a.Err), to: &lineTeller{a: a}, close: func() {},
	}, nil
}

// connect connects to the daemon, and finds the hosts that are served.
func (k *asker) connect(ctx context.Context) (err error) {
	if k.client, err = k.app.client(); err != nil {
		return err
	}
	if k.holding, err = k.askFlags.holding(k.own.Profile); err != nil {
		return err
	}
	var done, hosts func()
	if k.holding, done, err = k.supervised(k.holding); err != nil {
		return err
	}
	if k.served, k.orders, hosts, err = k.servedHosts(ctx, k.askFlags, k.holding); err != nil {
		hosts()
		done()
		return err
	}
	k.close = func() {
		hosts()
		done()
	}
	return nil
}

// ready has the agent's workspace and program ready.
func (k *asker) ready(ctx context.Context) (err error) {
	if k.ws, err = k.agentWorkspace(ctx, k.client, k.askFlags); err != nil {
		return err
	}
	if k.argv, err = k.agentProgram(ctx, k.client, k.ws, k.askFlags); err != nil {
		return err
	}
	if k.resume {
		k.after, err = newestTask(ctx, k.client, k.ws)
	}
	return err
}

// maxAgain is how often a turn that was cut off goes on by itself, and goOn what the agent is asked then. What it knows to be done,
// and what it does not know, is told by the daemon.
const (
	maxAgain = 2
	goOn     = "carrel was interrupted, and goes on. Finish what I asked for last, and do nothing again that is done. What is known of it " +
		"stands above."
)

// turn runs one turn of the agent, from the question to the answer. The next one goes on from it. One that is cut off, as by the end of
// the daemon or of the agent, is taken up where it was.
func (k *asker) turn(ctx context.Context, question string) error {
	for again := 0; ; again++ {
		end, err := k.begin(ctx, question)
		if over := k.to.over(); err == nil {
			err = over
		}
		if err != nil {
			return err
		}
		switch {
		case workspace.TaskState(end.GetState()) == workspace.TaskCompleted:
			return k.recommend(ctx, question, end)
		case again < maxAgain && ctx.Err() == nil && strings.HasPrefix(end.GetReason(), workspace.TaskUnexpected):
			question = goOn
			if err := k.to.note(k.lang.Say(messages.CutOff, printable(k.lang.Known(end.GetReason())))); err != nil {
				return err
			}
		default:
			k.code = 1
			return k.to.note(k.lang.Say(messages.NoAnswer, printable(k.lang.Known(end.GetReason()))))
		}
	}
}

func fanOut(o fanout.Order) *carrelv1.FanOut {
	return &carrelv1.FanOut{Forks: int32(o.Forks), Serial: o.Serial, MaxFailures: o.MaxFailures, NoCanary: o.NoCanary}
}

// begin runs one task of the agent to its end.
func (k *asker) begin(ctx context.Context, question string) (*carrelv1.Task, error) {
	a, client := k.app, k.client
	serves := k.served.Local != nil || k.served.Remote != nil
	wait := k.wait
	if wait == 0 && !k.attended {
		wait = carrel.DoNotWait
	}
	var groups []*carrelv1.GroupFanOut
	for _, g := range k.orders.Groups {
		groups = append(groups, &carrelv1.GroupFanOut{Hosts: g.Hosts, FanOut: fanOut(g.Order)})
	}
	notes, err := k.notes()
	if err != nil {
		return nil, err
	}
	protocol, env := ownAgent, map[string]string(nil)
	if k.seat != nil {
		protocol, env = seatAgent, seatEnvironment(k.seat, k.llm)
	}
	k.over = vitals.Over(k.vitals(ctx))
	m, err := askOf(ctx, client, tasks.RunTask, &carrelv1.RunTaskRequest{
		Workspace: k.ws, Prompt: question, Protocol: protocol, Serve: serves, After: k.after, PlanOnly: k.planOnly,
		FanOut: fanOut(k.orders.All), GroupFanOuts: groups, Over: k.over, Memory: notes, BringsData: k.brings,
		Command: &carrelv1.Command{
			Argv: k.argv, Env: env, TimeoutMs: k.timeout.Milliseconds(), Source: carrel.SourceUser, ApprovalWaitMs: max(wait.Milliseconds(), -1),
		},
	})
	if err != nil {
		return nil, err
	}
	k.after = m.GetTask().GetId()
	if k.began != nil {
		if err := k.began(k.after); err != nil {
			_ = k.to.note(err.Error() + "; it cannot be loaded later")
		}
	}
	t := &turnView{
		a: a, client: client, ws: k.ws, task: m.GetTask(), out: *k.output, yesSafe: k.yesSafe, plans: newPlans(), to: k.to,
		offered: func(note string) { k.offered = note },
	}
	k.offered = ""
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer t.stop(context.WithoutCancel(ctx)) // one that has ended stays as it is
	var beside sync.WaitGroup
	defer beside.Wait()
	defer cancel(nil)
	if serves {
		stream := client.Agents().Serve(ctx)
		beside.Go(func() {
			err := steps.Serve(ctx, stream, k.ws, m.GetTask().GetId(), k.served, func() {})
			// That the daemon has gone is said by who follows the turn.
			if err != nil && ctx.Err() == nil && !errdefs.IsFailedPrecondition(err) && !errdefs.IsUnavailable(err) {
				_ = say(a.Err, "carrel: %v\n", err)
			}
		})
	}
	if k.attended {
		beside.Go(func() {
			if err := t.answer(ctx); err != nil && ctx.Err() == nil && !errdefs.IsUnavailable(err) {
				_ = say(a.Err, "carrel: %v\n", err)
			}
		})
	}
	end, err := t.follow(ctx)
	k.foreign = t.foreign
	return end, err
}
