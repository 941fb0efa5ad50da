package operation

// The operations.
const (
	CreateWorkspace  Name = "workspace.create"
	StartWorkspace   Name = "workspace.start"
	StopWorkspace    Name = "workspace.stop"
	PauseWorkspace   Name = "workspace.pause"
	ResumeWorkspace  Name = "workspace.resume"
	UpdateWorkspace  Name = "workspace.update"
	DestroyWorkspace Name = "workspace.destroy"
	ArchiveWorkspace Name = "workspace.archive"
	RestoreWorkspace Name = "workspace.restore"
	// RunOnce makes a workspace for one command, and ends it with the command.
	RunOnce          Name = "workspace.run"
	InspectWorkspace Name = "workspace.inspect"
	ListWorkspaces   Name = "workspace.list"
	StatWorkspace    Name = "workspace.stats"
	WatchWorkspace   Name = "workspace.watch"
	// ExplainReach says what the network rules of a workspace say of hosts.
	ExplainReach Name = "workspace.reach"
	// ListConnections shows what a workspace is connected to, and was.
	ListConnections Name = "workspace.connections"
	// ReviveWorkspace brings a destroyed workspace back.
	ReviveWorkspace Name = "workspace.revive"
	// RemoveHome removes the home that was kept of a destroyed workspace.
	RemoveHome Name = "home.remove"

	ExecCommand   Name = "command.exec"
	AttachCommand Name = "command.attach"
	SignalCommand Name = "command.signal"
	ResizeCommand Name = "command.resize"
	ListCommands  Name = "command.list"
	// ExplainCommand says how a command would be judged.
	ExplainCommand Name = "command.explain"
	ReadOutput     Name = "command.logs"
	// ConnectOut is a connection that a rule has a person asked about. What runs in the workspace asks for it.
	ConnectOut Name = "network.connect"
	WaitForEnd Name = "command.wait"

	// RunTask starts a task, and AskTask and KeyTask are what a task under way asks for.
	RunTask    Name = "task.run"
	ListTasks  Name = "task.list"
	ShowTask   Name = "task.show"
	FollowTask Name = "task.follow"
	StopTask   Name = "task.stop"
	AskTask    Name = "task.permission"
	KeyTask    Name = "task.key"
	// RunPlan is what an agent's task proposes: commands on targets.
	RunPlan Name = "plan.run"
	// ChangeFiles is a step of a plan that changes files, on the machine of the user who asked or in a workspace.
	ChangeFiles Name = "patch.apply"
	// ReadForPatch computes a change to files of a workspace. ListPatches and UndoPatch are about those that were made there.
	ReadForPatch Name = "patch.plan"
	ListPatches  Name = "patch.list"
	UndoPatch    Name = "patch.undo"

	// ReadFile reads files of a workspace, ListFiles looks at names and searches, WriteFile writes files and trees.
	ReadFile      Name = "file.read"
	ListFiles     Name = "file.list"
	WatchFiles    Name = "file.watch"
	WriteFile     Name = "file.write"
	MakeDirectory Name = "file.mkdir"
	MoveFile      Name = "file.move"
	RemoveFile    Name = "file.remove"

	// OpenPort has a port of a workspace be reached from outside, and ConnectPort is one connection to it.
	OpenPort    Name = "port.open"
	ConnectPort Name = "port.connect"

	ListArchives  Name = "archive.list"
	ReadArchive   Name = "archive.read"
	RemoveArchive Name = "archive.remove"

	InspectApproval  Name = "approval.inspect"
	AnswerApproval   Name = "approval.answer"
	AllowCommands    Name = "permission.allow"
	RevokePermission Name = "permission.revoke"
	ReloadPolicy     Name = "policy.reload"

	CreateToken Name = "token.create"
	RevokeToken Name = "token.revoke"
	ListTokens  Name = "token.list"
	WhoAmI      Name = "principal.whoami"
	// Login is the first request of a connection that brings a token. Nobody asks for it.
	Login Name = "login"

	// SetSecret keeps a secret, and RotateSecret gives it another value.
	SetSecret    Name = "secret.set"
	RotateSecret Name = "secret.rotate"
	RemoveSecret Name = "secret.remove"
	ListSecrets  Name = "secret.list"

	// ListModels lists the models of the host, ModelUsage what was used of them.
	ListModels Name = "model.list"
	ModelUsage Name = "model.usage"

	ReadAudit Name = "audit.read"
	Version   Name = "daemon.version"
	// Mended is what the broker put right at its start.
	Mended Name = "daemon.mended"
	// Recover finishes or undoes what a crash left.
	Recover Name = "daemon.recover"
)
