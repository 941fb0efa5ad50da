package messages

// Key names one text. The English one, in english.go, says what it is.
type Key uint16

const (
	// The line-by-line view of a turn.
	PlanHead Key = iota
	PlanUndoes
	Together
	OnlyReads
	Background
	ToUndo
	StepExit
	StepJob
	StepDone
	StepMerged
	ToolRead
	NotBegun
	StepNotBegun
	ChosenFiles
	NoFiles
	Remembered
	CutOff
	NoAnswer
	YesSafe
	Settled
	Proposes
	Read

	// What becomes of a proposal. The whys are the fixed texts of the daemon.
	Denied
	Refused
	Invalid
	Blocked
	Planned
	WhyPlanOnly
	WhyNobody
	WhyNoMore
	WhyInTime

	// A question at a terminal.
	KeyOnce
	KeyThread
	KeySession
	KeySteps
	KeyFiles
	KeyNo
	AsksYou
	AnswerWith
	WhyNot
	ChangeFile
	AnswerYesNo
	QuestionHead
	RowWhere
	RowAs
	RowVariables
	RowAskedBy
	RowThread
	RowRule
	RowFiles
	RowIsolation
	RowMay
	RowBecause
	RowReason
	InDirectory
	PersonTyped
	ModelWrote
	AllVerified
	NotVerified
	RunBy
	HoldsMinute
	HoldsSession
	NeverKept
	ExpiresAt
	AnsweredBy
	Themselves

	// A chat, with and without a screen.
	You
	ChatBegins
	NoScreen
	DetailsShown
	DetailsHidden
	ToldNext
	Stopped
	BeginsAnew
	GoesOnFrom
	OnlyPlans
	PlansRun
	NoJobs
	JobHelp
	Undone
	NoChanges
	ChangeConflict
	ChangeUndone
	ChangeMade
	NoteKept
	NoteForgotten
	NoNotes
	ServedWorkspaces
	ServedHost
	OneRemote
	Remotes
	And
	ShortHost
	ShortOneRemote
	ShortRemotes
	ShortWorkspaces

	// The screen of a chat.
	Because
	AndBecause
	RuleLead
	RunIt
	SessionKept
	StateNotBegun
	StateFailed
	StateJob
	StateNotRun
	StateWaitsForYou
	StateWaits
	StateRuns
	RiskIs
	FirstRun
	DetailFor
	DetailHeld
	DetailStderr
	Thinks
	YouOnce
	YouSteps
	YouStepsAll
	YouFiles
	YouThread
	YouAlways
	YouDeny
	LeftAsIs
	StepElsewhere
	AnotherCame
	TurnEnded
	YouLeft
	KeysOnce
	KeysSteps
	KeysSession
	KeysFiles
	KeysAlways
	KeysNo
	KeysEdit
	KeysWhole
	KeysShort
	EscStops
	ChooseFile
	FootReason
	FootEdit
	FootWaits
	FootAnswering
	FootNew
	FootMore
	Queued
	QueuedMore
	PromptReason
	PromptEdit
	Ready
	Connecting
	Working
	RunningOwn
	NotReady
	PlansOnly
	Used
	ReadsOn
	HintNotAnswered
	HintStopping
	HintTakenBack
	HintOnItsWay
	HintTooSoon
	HintOnceOnly
	HintOnceOrSession
	HintEveryPlan
	HintWholeFirst
	HintRestFirst
	HintOver
	HintNoText
	HintNothing
	HintAgain

	// What "carrel agent check" shows.
	CheckWorkspace
	CheckModel
	CheckBudget
	CheckRunsIn
	CheckOnlyReads
	CheckChanges
	CheckRemote
	CheckFanOut
	CheckTool
	CheckToolsMay
	CheckToolsRead
	CheckMakes
	CheckNoModel
	CheckNone
	CheckNotHeld
	CheckGroup
	OneHost
	Hosts
	FigureOK
	FigureOver
	FigureMissing

	// What is recommended.
	AdviceThreshold
	AdviceAllow
	AdviceSession
	AdviceRunbook
	Help
	HelpCommands

	count // of the keys
)
