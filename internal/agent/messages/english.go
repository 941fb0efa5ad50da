package messages

// english are the texts as they are without a setting. They are what other languages are translated from.
var english = [count]string{
	PlanHead:     "plan %d%s: %s",
	PlanUndoes:   " (the rollback steps of plan %d; they run only if you say y)",
	Together:     "%d to %d: %s",
	OnlyReads:    ", only reads",
	Background:   ", in the background for at most %v",
	ToUndo:       "to undo it: ",
	StepExit:     "exit code %d",
	StepJob:      "runs as job %s",
	StepDone:     "done",
	StepMerged:   "done; merged, as it had changed elsewhere meanwhile: %s",
	ToolRead:     "read",
	NotBegun:     "not begun, because %s:",
	StepNotBegun: "not begun: %s",
	ChosenFiles:  "only these files: %s; left as they are: %s",
	NoFiles:      "none",
	Remembered: "plan %d runs without a question, as its commands were allowed for this session (%s); \"carrel " +
		"approvals revoke ID\" takes that back",
	CutOff:   "the turn was cut off, and goes on: %s",
	NoAnswer: "there is no answer: %s",
	YesSafe:  "approved, as you said --yes-safe",
	Settled:  "somebody else has answered, or its time is over",
	Proposes: "the agent proposes a note: %s\n  to keep it: /remember in a chat, or \"carrel agent memory add\"",
	Read:     "read %s",

	Denied:      "denied",
	Refused:     "refused",
	Invalid:     "invalid",
	Blocked:     "blocked",
	Planned:     "planned",
	WhyPlanOnly: "only the plan was asked for, and nothing was run",
	WhyNobody:   "nobody approved it in time",
	WhyNoMore:   "nothing more is taken in this turn",
	WhyInTime:   "it ran out of its time; give it more with --timeout",

	KeyOnce:      "[y] once",
	KeyThread:    "[t] in this thread",
	KeySession:   "[t] for this session",
	KeySteps:     "[s] step by step",
	KeyFiles:     "[f] choose among its files",
	KeyNo:        "[n] no",
	AsksYou:      "carrel: the policy asks for your answer before this runs\n\n%s\nRun it?  %s: ",
	AnswerWith:   "Answer with one of %s: ",
	WhyNot:       "Why not (may be left empty): ",
	ChangeFile:   "%d of %d: change %s? [y] yes  [n] leave it as it is: ",
	AnswerYesNo:  "Answer with y or n: ",
	QuestionHead: "%s  %s  risk %d of 100",
	RowWhere:     "where",
	RowAs:        "as",
	RowVariables: "variables",
	RowAskedBy:   "asked by",
	RowThread:    "thread",
	RowRule:      "rule",
	RowFiles:     "files",
	RowIsolation: "isolation",
	RowMay:       "may",
	RowBecause:   "because",
	RowReason:    "reason",
	InDirectory:  ", in %s",
	PersonTyped:  "%s; a person typed it",
	ModelWrote:   "%s; a model or a program wrote it",
	AllVerified:  "; all that is required of it was verified",
	NotVerified:  "; not all that is required of it was verified, so it is judged as on the host",
	RunBy:        "run by %s",
	HoldsMinute:  "An answer holds a minute for that host and port; with --always until its rule is removed.",
	HoldsSession: `An answer for the session lets each of these commands pass again that you are asked about now: the same words on
  the same target, until the policy changes or you take it back (carrel approvals revoke %s).`,
	NeverKept:  "An answer to it is never remembered.",
	ExpiresAt:  "Expires at %s.",
	AnsweredBy: "%s by %s%s at %s",
	Themselves: ", themselves",

	You:              "you> ",
	ChatBegins:       "carrel: the agent is in workspace %s; /help says what can be typed",
	NoScreen:         "there is no screen to clear; /new begins anew",
	DetailsShown:     "details are shown",
	DetailsHidden:    "details are hidden",
	ToldNext:         "the agent is told of this with your next question",
	Stopped:          "stopped",
	BeginsAnew:       "what was said before is not told any more",
	GoesOnFrom:       "the next question goes on from task %s",
	OnlyPlans:        "plans are judged and shown, and nothing is run; /plan undoes that",
	PlansRun:         "plans are carried out again",
	NoJobs:           "there are no background jobs on hosts",
	JobHelp:          "carrel job shows, follows and stops them",
	Undone:           "undone; /undo %s does it again",
	NoChanges:        "no files were changed",
	ChangeConflict:   "in conflict",
	ChangeUndone:     "undone",
	ChangeMade:       "made",
	NoteKept:         "note %d is told in sessions that begin from now on: %s",
	NoteForgotten:    "forgotten; this session was told of it, and /new begins another one",
	NoNotes:          "there are no notes; /remember TEXT keeps one",
	ServedWorkspaces: "workspaces that you reach",
	ServedHost:       "this machine, as you",
	OneRemote:        "1 remote host",
	Remotes:          "%d remote hosts",
	And:              ", ",
	ShortHost:        "host",
	ShortOneRemote:   "1 remote",
	ShortRemotes:     "%d remotes",
	ShortWorkspaces:  "workspaces",

	Because:           "because ",
	AndBecause:        "    and ",
	RuleLead:          "rule    ",
	RunIt:             "Run it? risk %d of 100, until %s",
	SessionKept:       "with t its commands that need an answer pass again in this session, word for word on the same target",
	StateNotBegun:     "not begun: %s",
	StateFailed:       "failed: %s",
	StateJob:          "goes on as job %s",
	StateNotRun:       "not run",
	StateWaitsForYou:  "waiting for you",
	StateWaits:        "waiting",
	StateRuns:         "running",
	RiskIs:            "risk %d",
	FirstRun:          ", asked about as a model wrote it",
	DetailFor:         "for: ",
	DetailHeld:        "held: ",
	DetailStderr:      "stderr: ",
	Thinks:            "thinks: ",
	YouOnce:           "you let it pass, once",
	YouSteps:          "you let its first step pass",
	YouStepsAll:       "you are asked about each of its steps, and of the first about its files",
	YouFiles:          "you let a part of it pass",
	YouThread:         "you let it pass, and its commands for this session",
	YouAlways:         "you let it pass, always",
	YouDeny:           "you denied it",
	LeftAsIs:          "; left as they are: %s",
	StepElsewhere:     "a step on %s has ended",
	AnotherCame:       "another question came",
	TurnEnded:         "the turn has ended",
	YouLeft:           "you left",
	KeysOnce:          "[y] once",
	KeysSteps:         "[s] step by step",
	KeysSession:       "[t] this session",
	KeysFiles:         "[f] files",
	KeysAlways:        "[a] always",
	KeysNo:            "[n] no",
	KeysEdit:          "[e] edit",
	KeysWhole:         "[v] whole",
	KeysShort:         "[v] short",
	EscStops:          "esc stops",
	ChooseFile:        "%d of %d: change %s? [y] yes  [n] leave it  esc goes back",
	FootReason:        "enter denies it; the reason may be left empty  esc goes back",
	FootEdit:          "enter denies the plan and asks for this instead  esc goes back",
	FootWaits:         "a question waits: an empty line answers it (ctrl+u)",
	FootAnswering:     "answering",
	FootNew:           "a question: read it",
	FootMore:          "more below: space reads on  esc stops",
	Queued:            "queued: %s",
	QueuedMore:        "queued: %d more",
	PromptReason:      "why not? ",
	PromptEdit:        "instead: ",
	Ready:             "ready",
	Connecting:        "connecting",
	Working:           "working",
	RunningOwn:        "running",
	NotReady:          "not ready",
	PlansOnly:         "plans only",
	Used:              "%d requests, %d tokens",
	ReadsOn:           "pgdn reads on",
	HintNotAnswered:   "not answered",
	HintStopping:      "stopping",
	HintTakenBack:     "taken back: enter queues it again, ctrl+u forgets it",
	HintOnItsWay:      "your answer is on its way",
	HintTooSoon:       "that key came before you could have read the question: press it again",
	HintOnceOnly:      "not answered: this can be approved once only",
	HintOnceOrSession: "not answered: once only, or with t for this session",
	HintEveryPlan:     "not answered: this can be approved once only, as every plan is one of its own",
	HintWholeFirst:    "not answered: v shows the whole change first",
	HintRestFirst:     "not answered: space shows the rest first",
	HintOver:          "that question is over",
	HintNoText:        "nothing was answered: there is no text",
	HintNothing:       "nothing to complete",
	HintAgain:         "enter tries again",

	CheckWorkspace: "workspace",
	CheckModel:     "model",
	CheckBudget:    "budget",
	CheckRunsIn:    "runs in",
	CheckOnlyReads: "only reads",
	CheckChanges:   "changes",
	CheckRemote:    "remote",
	CheckFanOut:    "fan-out",
	CheckTool:      "tool",
	CheckToolsMay:  "tools may",
	CheckToolsRead: "tools read",
	CheckMakes:     "%s, which the first question makes",
	CheckNoModel:   "none: give it one with \"carrel update --model NAME %s\"",
	CheckNone:      "none: %s",
	CheckNotHeld:   "it is not held, and not run: %s",
	CheckGroup:     "group %s, %s: %s",
	OneHost:        "1 host",
	Hosts:          "%d hosts",
	FigureOK:       "ok: %s, %s",
	FigureOver:     "over: %s, %s",
	FigureMissing:  "not measured: %s",

	AdviceThreshold: "worth a look: %s",
	AdviceAllow:     "you approved this %d times on %s: %s; to have it pass: %s",
	AdviceSession:   "you approved this %d times on %s: %s; with t it passes for the rest of a session",
	AdviceRunbook:   "the runbook %s fits your question: carrel runbook show %s",
	Help: `Type a question and press enter. What you enter while a turn runs is queued and asked next.

  enter            send; alt+enter, ctrl+j  begin another line
  up, down         what was entered before; at an empty line, up takes back what is queued
  tab              complete /commands, @files and @hosts, and where /undo is meant
  esc              stop the turn, and ask what is queued at once
  ctrl+c           stop; at an empty line leave, as ctrl+d does
  pgup, pgdn       read

A question is answered at an empty line, once all of it was on the screen:
  y  let it pass once        n  deny it, with a reason
  t  let it pass, and its commands again in this session: word for word, same target
  s  let its first step pass, and ask about each of the others by itself;
     about the first too, if it changes several files
  f  go through the files of a change: y has one changed, n leaves it as it is
  e  deny it and say what to do instead, beginning with the plan's text
  v  show the change whole, or its heads alone

`,
	HelpCommands: `  /new        begin anew: what was said is not told any more
  /resume     go on from the newest turn that is kept
  /clear      clear the screen; what was said is still told
  /plan       have plans judged and shown, and nothing run; again to undo that
  /on         say where commands may run
  /tools      say what the agent has to work with
  /job        show the jobs that run in the background
  /undo [ID]  list changes to files of this machine, or undo one
  /undo workspace NAME [ID], /undo remote NAME [ID]  those of a workspace or a
              remote host; /undo --on NAME is a workspace too
  /memory     list the notes that the agent is told when a session begins
  /remember TEXT  keep such a note; without a text, the one that the agent proposed
  /forget N   forget a note
  /trace      show details: risks, rules, what holds a step, what it wrote to stderr
  /quit       leave

  @FILE       adds a file of this machine, of at most 64 KiB, as data; at most 8
  @host:NAME  names a host of the inventory; so does @NAME
  !COMMAND    runs a command in your own shell. It is yours and not carrel's: it is
              not judged, not recorded, and not told to the agent
  !!COMMAND   the same, and tells the agent with your next question; !! alone tells
              of the last one
`,
}
