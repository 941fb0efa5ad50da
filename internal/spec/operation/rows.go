package operation

import (
	p "github.com/carrel-dev/carrel/internal/spec/principal"
)

// Table has a row for each operation.
var Table = []Row{
	{
		Name: CreateWorkspace, Words: "create", Needs: p.Make, On: Workspace, Class: Change, Repeatable: true,
		Help:  "Make a workspace, or show the one that a key has",
		Calls: []Call{{"WorkspaceService/Create", Large, false}},
		Judged: Judged{Rules: []Rule{
			{
				Name: "workspace.create.mounts", When: mounts, Asks: true, Risk: 60, Capability: "filesystem.mount", Final: true,
				Reason: "shows files of the host to what runs in the workspace",
			},
			{
				Name: "workspace.create.reach", When: reaches, Risk: 40, Capability: "network.out", Final: true,
				Reason: "lets what runs in the workspace reach hosts",
			},
			{
				Name: "workspace.create.models", When: models, Risk: 40, Capability: "network.out", Final: true,
				Reason: "lets what runs in the workspace use models, within budgets",
			},
			{Name: "workspace.create", Risk: 5, Reason: "makes an empty workspace within the owner's bounds"},
		}},
	},
	{
		Name: StartWorkspace, Words: "start", Needs: p.Lifecycle, On: Workspace, Class: Change,
		Help:   "Start a stopped workspace and prove its isolation",
		Calls:  small("WorkspaceService/Start"),
		Judged: rule(Rule{Name: "workspace.start", Reason: "starts what is there, with its isolation proved"}),
	},
	{
		Name: StopWorkspace, Words: "stop", Needs: p.Lifecycle, On: Workspace, Class: Change, Relieves: true,
		Help:   "End everything that runs in a workspace and keep its home",
		Calls:  small("WorkspaceService/Stop"),
		Judged: rule(Rule{Name: "workspace.stop", Risk: 20, Reason: "ends what runs in the workspace; files stay"}),
	},
	{
		Name: PauseWorkspace, Words: "pause", Needs: p.Lifecycle, On: Workspace, Class: Change,
		Help:   "Freeze the commands of a workspace",
		Calls:  small("WorkspaceService/Pause"),
		Judged: rule(Rule{Name: "workspace.pause", Risk: 5, Reason: "freezes what runs; resuming lets it go on"}),
	},
	{
		Name: ResumeWorkspace, Words: "resume", Needs: p.Lifecycle, On: Workspace, Class: Change,
		Help:   "Let the commands of a paused workspace go on",
		Calls:  small("WorkspaceService/Resume"),
		Judged: rule(Rule{Name: "workspace.resume", Reason: "lets what was frozen go on"}),
	},
	{
		Name: UpdateWorkspace, Words: "change", Needs: p.Lifecycle, On: Workspace, Class: Change, Repeatable: true,
		Help:  "Change limits, lifetime, key or network rules, while it runs too",
		Calls: []Call{{"WorkspaceService/Update", Large, false}},
		Judged: Judged{Rules: []Rule{
			{
				Name: "workspace.update.reach", When: reaches, Risk: 40, Capability: "network.out", Final: true,
				Reason: "lets what runs in the workspace reach hosts",
			},
			{
				Name: "workspace.update.models", When: models, Risk: 40, Capability: "network.out", Final: true,
				Reason: "lets what runs in the workspace use models, within budgets",
			},
			{Name: "workspace.update", Risk: 20, Reason: "changes limits, key, lifetime or network rules within the owner's bounds"},
		}},
	},
	{
		Name: DestroyWorkspace, Words: "destroy", Needs: p.Lifecycle, On: Workspace, Class: Change, Relieves: true, Repeatable: true,
		Help:  "End a workspace's life; its home is kept aside unless --purge",
		Calls: small("WorkspaceService/Destroy"),
		Judged: Judged{Rules: []Rule{
			{
				Name: "workspace.destroy.purge", When: purges, Risk: 80, Capability: "filesystem.destroy", Final: true,
				Reason: "removes the workspace's home for good",
			},
			{Name: "workspace.destroy", Risk: 40, Reason: "ends the workspace; its home is kept aside"},
		}},
	},
	{
		Name: ArchiveWorkspace, Words: "archive", Needs: p.Keep, On: Workspace, Class: Change, Repeatable: true,
		Help:  "Archive the home of a workspace",
		Calls: []Call{{"ArchiveService/CreateArchive", Small, true}},
		Judged: Judged{Rules: []Rule{
			{
				Name: "workspace.archive.destroy", When: purges, Risk: 60, Capability: "filesystem.destroy", Final: true,
				Reason: "removes the workspace's home once its archive is safe",
			},
			{Name: "workspace.archive", Risk: 10, Reason: "copies the workspace's own files for its owner"},
		}},
	},
	{
		// It makes a workspace too.
		Name: RestoreWorkspace, Words: "restore", Needs: p.Keep | p.Make, On: Workspace, Class: Change, Repeatable: true,
		Help:   "Make a workspace from an archive",
		Calls:  []Call{{"ArchiveService/Restore", Large, true}},
		Judged: rule(Rule{Name: "workspace.restore", Risk: 10, Reason: "makes a workspace from one of its owner's archives"}),
	},
	{
		// As a restore does, it has a workspace live.
		Name: ReviveWorkspace, Words: "bring back", Needs: p.Lifecycle | p.Make, On: Workspace, Class: Change,
		Help:   "Bring a destroyed workspace back, with the home that was kept",
		Calls:  small("WorkspaceService/Revive"),
		Judged: rule(Rule{Name: "workspace.revive", Risk: 10, Reason: "brings back a workspace of its owner's with its home"}),
	},
	{
		Name: RunOnce, Words: "run a command in", Needs: p.Run, On: Workspace, Class: Change,
		Help:   "Run a command in a workspace of its own, without set-up",
		Judged: Judged{Command: true},
	},
	{
		Name: InspectWorkspace, Words: "inspect", Needs: p.Look, On: Workspace, Class: Observe,
		Help:  "Show a workspace, its limits and the proof of its isolation",
		Calls: small("WorkspaceService/Get"),
	},
	{
		Name: ListWorkspaces, Words: "list workspaces", Needs: p.Look, Class: Observe,
		Help:  "List the workspaces that you may reach",
		Calls: small("WorkspaceService/List"),
	},
	{
		Name: ExplainReach, Words: "judge hosts for", Needs: p.Look, On: Workspace, Class: Observe,
		Help:  "Say whether a workspace may reach hosts, and why",
		Calls: small("WorkspaceService/ExplainReach"),
	},
	{
		Name: ListConnections, Words: "list the connections of", Needs: p.Look, On: Workspace, Class: Observe,
		Help:  "Show what a workspace is connected to, and was",
		Calls: small("WorkspaceService/ListConnections"),
	},
	{
		Name: StatWorkspace, Words: "measure", Needs: p.Look, On: Workspace, Class: Observe,
		Help:  "Show what running workspaces use",
		Calls: []Call{{"WorkspaceService/Stats", Large, false}},
	},
	{
		Name: WatchWorkspace, Words: "watch", Needs: p.Look, On: Workspace, Class: Observe,
		Help:  "Print what happens to workspaces, as it happens",
		Calls: []Call{{"WorkspaceService/Watch", Large, true}},
	},
	{
		// The daemon's own.
		Name: RemoveHome, Words: "remove the home of", Needs: p.Any, On: Workspace, Class: Change, Relieves: true,
		Judged: rule(Rule{Name: "home.remove", Asks: true, Risk: 40, Final: true, Reason: "removes a home that was kept for its time"}),
	},
	{
		Name: ExecCommand, Words: "run a command in", Needs: p.Run, On: Workspace, Class: Change,
		Help: "Run a command in a workspace",
		Calls: []Call{
			{"CommandService/Exec", Large, false},
			{"CommandService/Stream", Large, true},
			{"CommandService/Detach", Large, false},
			{"CommandService/Spawn", Large, false},
		},
		Judged: Judged{Command: true},
	},
	{
		Name: AttachCommand, Words: "attach to a command in", Needs: p.Run, On: Workspace, Class: Change,
		Help:   "Connect to a detached command until it ends",
		Calls:  append(small("CommandService/Attach"), Call{"CommandService/Join", Large, true}),
		Judged: rule(Rule{Name: "command.attach", Risk: 20, Reason: "joins a command that was judged when it was started"}),
	},
	{
		Name: SignalCommand, Words: "signal a command in", Needs: p.Run, On: Workspace, Class: Change,
		Help:   "End a command, or send it a signal",
		Calls:  small("CommandService/Signal"),
		Judged: rule(Rule{Name: "command.signal", Risk: 20, Reason: "signals a command of the workspace's own"}),
	},
	{
		// Whoever has the terminal could do the same through it.
		Name: ResizeCommand, Words: "resize a terminal in", Needs: p.Run, On: Workspace, Class: Observe,
		Calls: small("CommandService/Resize"),
	},
	{
		Name: ListCommands, Words: "list the commands of", Needs: p.Look, On: Workspace, Class: Observe,
		Help:  "List the commands of a workspace",
		Calls: small("CommandService/ListCommands"),
	},
	{
		Name: ExplainCommand, Words: "judge a command for", Needs: p.Run, On: Workspace, Class: Observe,
		Help:  "Say how a command is judged and why, segment by segment",
		Calls: []Call{{"CommandService/Explain", Large, false}},
	},
	{
		Name: ReadOutput, Words: "read the output of a command in", Needs: p.Look, On: Workspace, Class: Read,
		Help:  "Print the output of a detached command",
		Calls: []Call{{"CommandService/Logs", Small, true}},
	},
	{
		Name: WaitForEnd, Words: "wait for the end in", Needs: p.Look, On: Workspace, Class: Observe,
		Help:  "Wait for the end of a command or a workspace",
		Calls: small("CommandService/Wait"),
	},
	{
		// Nobody asks for it by a call: carrel-egress does, for a program that waits.
		Name: ConnectOut, Words: "connect out of", Needs: p.Run, On: Workspace, Class: Change,
		Judged: rule(Rule{
			Name: "network.connect", Asks: true, Risk: 40, Capability: "network.out", Final: true,
			Reason: "reaches a host that a rule of the workspace has a person asked about",
		}),
	},
	{
		// Its command is judged by itself, as command.exec.
		Name: RunTask, Words: "run a task in", Needs: p.Run, On: Workspace, Class: Change,
		Help:   "Run a task: a program that is given a prompt and reports messages",
		Calls:  []Call{{"TaskService/RunTask", Large, false}, {"AgentService/Serve", Large, true}},
		Judged: rule(Rule{Name: "task.run", Risk: 10, Reason: "gives a prompt to a program whose command is judged by itself"}),
	},
	{
		Name: ListTasks, Words: "list the tasks of", Needs: p.Look, On: Workspace, Class: Observe,
		Help:  "List the tasks of a workspace, the newest first",
		Calls: small("TaskService/ListTasks"),
	},
	{
		Name: ShowTask, Words: "see a task of", Needs: p.Look, On: Workspace, Class: Observe,
		Help:  "Show one task: its state, and why it ended",
		Calls: small("TaskService/GetTask"),
	},
	{
		Name: FollowTask, Words: "read the messages of a task in", Needs: p.Look, On: Workspace, Class: Read,
		Help:  "Print the messages of a task, and new ones until it ends",
		Calls: []Call{{"TaskService/FollowTask", Small, true}},
	},
	{
		Name: StopTask, Words: "stop a task in", Needs: p.Run, On: Workspace, Class: Change, Relieves: true,
		Help:   "Ask a task to stop, and end its program if it does not",
		Calls:  small("TaskService/StopTask"),
		Judged: rule(Rule{Name: "task.stop", Risk: 20, Reason: "ends a task of the workspace's own"}),
	},
	{
		// Nobody asks for these two by a call: the program of a task does.
		Name: AskTask, Words: "do what a task asks for in", Needs: p.Run, On: Workspace, Class: Change,
		Judged: rule(Rule{
			Name: "task.permission", Asks: true, Risk: 40, Final: true,
			Reason: "a task has a person asked before it goes on; the answer is told to the task, and gives it nothing else",
		}),
	},
	{
		Name: KeyTask, Words: "give a placeholder to a task in", Needs: p.Run, On: Workspace, Class: Change,
		Judged: rule(Rule{
			Name: "task.key", Risk: 20, Final: true,
			Reason: "gives the placeholder of a secret that the workspace uses; the value stays outside",
		}),
	},
	{
		// Its commands are judged by themselves too, each before it runs.
		Name: RunPlan, Words: "carry out a plan of", Needs: p.Run, On: Workspace, Class: Change,
		Judged: Judged{Rules: []Rule{
			{
				Name: "plan.run.asks", When: planAsks, Asks: true, Risk: 30, Scored: planRisk, Final: true, Unless: planKept,
				Reason: "an agent proposes commands of which a person has to approve one at least",
			},
			{Name: "plan.run", Risk: 10, Reason: "an agent proposes commands that the policy lets pass"},
		}},
	},
	{
		// A step of a plan, by the user who asked.
		Name: ChangeFiles, Words: "change files in", Needs: p.Run, On: Workspace, Class: Change,
		Judged: Judged{Rules: []Rule{
			{
				Name: "patch.apply.risky", When: risky, Asks: true, Risk: 90, Capability: "filesystem.system_write", Final: true,
				Reason: "changes files of the system, or files that say what runs or who may log in",
			},
			{
				Name: "patch.apply", Asks: true, Risk: 50, Capability: "filesystem.write", Final: true,
				Reason: "changes files as a model wrote it",
			},
		}},
	},
	// Who may run commands may have the files that commands have.
	{
		// Nobody asks for it by a call: a turn does, for a plan.
		Name: ReadForPatch, Words: "read files for a change in", Needs: p.Run, On: Workspace, Class: Read,
	},
	{
		Name: ListPatches, Words: "list the changes to files of", Needs: p.Run, On: Workspace, Class: Read,
		Calls: small("FileService/ListPatches"),
	},
	{
		Name: UndoPatch, Words: "undo a change to files of", Needs: p.Run, On: Workspace, Class: Change,
		Help:   "Undo a change to files that an agent made, or list them",
		Calls:  small("FileService/UndoPatch"),
		Judged: rule(Rule{Name: "patch.undo", Risk: 20, Reason: "brings back files of the workspace's own, with the rights of its commands"}),
	},
	{
		Name: ReadFile, Words: "read files of", Needs: p.Run, On: Workspace, Class: Read,
		Help:  "Print a file of a workspace",
		Calls: []Call{{"FileService/ReadFile", Small, true}, {"FileService/PackFiles", Small, true}, {"FileService/ReadBySocket", Small, false}},
	},
	{
		Name: ListFiles, Words: "look at the files of", Needs: p.Run, On: Workspace, Class: Read,
		Help:  "List files of a workspace",
		Calls: small("FileService/ListFiles", "FileService/StatFile", "FileService/SearchFiles", "FileService/ListChanges"),
	},
	{
		Name: WatchFiles, Words: "watch the files of", Needs: p.Run, On: Workspace, Class: Read,
		Help:  "Print what changes in a directory of a workspace, as it changes",
		Calls: []Call{{"FileService/WatchFiles", Small, true}},
	},
	{
		Name: WriteFile, Words: "write files of", Needs: p.Run, On: Workspace, Class: Change,
		Help: "Write a file of a workspace",
		Calls: []Call{
			{"FileService/WriteFile", Large, true}, {"FileService/UnpackFiles", Large, true}, {"FileService/WriteBySocket", Small, false},
		},
		Judged: rule(Rule{Name: "file.write", Risk: 20, Reason: "writes files of the workspace's own, with the rights of its commands"}),
	},
	{
		Name: MakeDirectory, Words: "make a directory in", Needs: p.Run, On: Workspace, Class: Change,
		Help:   "Make a directory in a workspace",
		Calls:  small("FileService/MakeDirectory"),
		Judged: rule(Rule{Name: "file.mkdir", Risk: 5, Reason: "makes a directory of the workspace's own"}),
	},
	{
		Name: MoveFile, Words: "move files of", Needs: p.Run, On: Workspace, Class: Change,
		Help:   "Give a file or a directory of a workspace another name",
		Calls:  small("FileService/MoveFile"),
		Judged: rule(Rule{Name: "file.move", Risk: 20, Reason: "moves files of the workspace's own, with the rights of its commands"}),
	},
	{
		Name: RemoveFile, Words: "remove files of", Needs: p.Run, On: Workspace, Class: Change, Relieves: true,
		Help:   "Remove files of a workspace",
		Calls:  small("FileService/RemoveFile"),
		Judged: rule(Rule{Name: "file.remove", Risk: 40, Reason: "removes files of the workspace's own, with the rights of its commands"}),
	},
	// Who may run commands can reach what listens inside by one of them.
	{
		Name: OpenPort, Words: "open a port of", Needs: p.Run, On: Workspace, Class: Change,
		Help:   "Reach what listens on a port of a workspace from here",
		Calls:  []Call{{"PortService/Publish", Small, true}},
		Judged: rule(Rule{Name: "port.open", Risk: 20, Reason: "lets who asks, and nobody else, reach a port of the workspace's loopback"}),
	},
	{
		Name: ConnectPort, Words: "connect to a port of", Needs: p.Run, On: Workspace, Class: Observe,
		Calls: []Call{{"PortService/Connect", Large, true}},
	},
	{
		Name: ListArchives, Words: "list archives", Needs: p.Keep, Class: Observe,
		Help:  "List the archives that you may read, the newest first",
		Calls: small("ArchiveService/ListArchives"),
	},
	{
		Name: ReadArchive, Words: "read an archive", Needs: p.Keep, On: Archive, Class: Change,
		Help:   "Write an archive that the daemon keeps to a file",
		Calls:  []Call{{"ArchiveService/ReadArchive", Small, true}},
		Judged: rule(Rule{Name: "archive.read", Risk: 10, Reason: "hands an archive to its owner"}),
	},
	{
		Name: RemoveArchive, Words: "remove an archive", Needs: p.Keep, On: Archive, Class: Change, Relieves: true,
		Help:  "Remove archives for good",
		Calls: small("ArchiveService/RemoveArchive"),
		Judged: rule(Rule{
			Name: "archive.remove", Risk: 80, Capability: "filesystem.destroy", Final: true,
			Reason: "removes an archive for good",
		}),
	},
	{
		// Agents see what they asked for.
		Name: InspectApproval, Words: "see an approval", Needs: p.Look, On: Approval, Class: Observe,
		Help: "Show one approval: the action, why it is asked, and the answer",
		Calls: append(small("ApprovalService/ListApprovals", "ApprovalService/GetApproval", "ApprovalService/ListPermissions"),
			Call{"ApprovalService/WatchApprovals", Small, true}),
	},
	{
		// Its record is the answer itself: see package approvals.
		Name: AnswerApproval, Words: "answer an approval", Needs: p.Answer, On: Approval, Class: Observe,
		Help:  "Approve an action, once or in its thread",
		Calls: small("ApprovalService/AnswerApproval"),
	},
	{
		// No token may, whatever its role: see approval.MayWrite.
		Name: AllowCommands, Words: "allow commands in", Needs: p.Answer, On: Workspace, Class: Change,
		Help:   "Let commands of one shape pass unasked",
		Calls:  small("ApprovalService/AllowCommand"),
		Judged: rule(Rule{Name: "permission.allow", Risk: 60, Final: true, Reason: "lets commands of a shape pass unasked"}),
	},
	{
		Name: RevokePermission, Words: "revoke a permission", Needs: p.Answer, On: Approval, Class: Change, Relieves: true,
		Help:   "Take a permission back",
		Calls:  small("ApprovalService/RevokePermission"),
		Judged: rule(Rule{Name: "permission.revoke", Reason: "has a person asked again"}),
	},
	{
		// Its record says which rules came for which: see package judge.
		Name: ReloadPolicy, Words: "reload the policy", Needs: p.Policy, Class: Observe,
		Help:  "Have the daemon read its file of rules again (administrators)",
		Calls: small("SystemService/ReloadPolicy"),
	},
	{
		Name: CreateToken, Words: "make a token", Needs: p.Tokens, On: Token, Class: Change,
		Help:  "Make a token and print it, once",
		Calls: small("TokenService/CreateToken"),
		Judged: rule(Rule{
			Name: "token.create", Risk: 40,
			Reason: "gives no more than its maker has, and approves nothing for its owner",
		}),
	},
	{
		Name: RevokeToken, Words: "revoke a token", Needs: p.Tokens, On: Token, Class: Change, Relieves: true,
		Help:   "Revoke tokens, and end what uses them",
		Calls:  small("TokenService/RevokeToken"),
		Judged: rule(Rule{Name: "token.revoke", Risk: 10, Reason: "ends what a token gives"}),
	},
	{
		Name: ListTokens, Words: "see tokens", Needs: p.Tokens, On: Token, Class: Observe,
		Help:  "List tokens",
		Calls: small("TokenService/ListTokens", "TokenService/GetToken"),
	},
	{
		Name: WhoAmI, Words: "ask who it is", Needs: p.Known, Class: Observe,
		Help:  "Show who carrel takes you for, and what you may do",
		Calls: small("TokenService/WhoAmI"),
	},
	{
		Name: SetSecret, Words: "keep a secret", Needs: p.Secrets, On: Secret, Class: Change,
		Help:  "Store a secret for your workspaces",
		Calls: []Call{{"SecretService/SetSecret", Large, false}},
		Judged: rule(Rule{
			Name: "secret.set", Risk: 30,
			Reason: "keeps a value that is sent to the hosts it names, and that nobody is shown",
		}),
	},
	{
		Name: RotateSecret, Words: "give a secret another value", Needs: p.Secrets, On: Secret, Class: Change,
		Help:  "Give a secret another value",
		Calls: []Call{{"SecretService/RotateSecret", Large, false}},
		Judged: rule(Rule{
			Name: "secret.rotate", Risk: 30,
			Reason: "sends another value to the hosts that the secret is for",
		}),
	},
	{
		Name: RemoveSecret, Words: "remove a secret", Needs: p.Secrets, On: Secret, Class: Change, Relieves: true,
		Help:   "Remove secrets",
		Calls:  small("SecretService/RemoveSecret"),
		Judged: rule(Rule{Name: "secret.remove", Risk: 10, Reason: "ends what a secret gives"}),
	},
	{
		Name: ListSecrets, Words: "see which secrets there are", Needs: p.Secrets, On: Secret, Class: Observe,
		Help:  "List secrets, without their values",
		Calls: small("SecretService/ListSecrets"),
	},
	{
		Name: ListModels, Words: "list models", Needs: p.Look, Class: Observe,
		Help:  "List models that workspaces may use, and what is left",
		Calls: small("ModelService/ListModels"),
	},
	{
		Name: ModelUsage, Words: "see what was used of models by", Needs: p.Look, On: Workspace, Class: Observe,
		Help:  "Show what workspaces have used of models",
		Calls: small("ModelService/ModelUsage"),
	},
	{Name: Login, Words: "log in", Class: Observe},
	{
		Name: ReadAudit, Words: "read the audit log", Needs: p.Audit, Class: Observe,
		Help: "Print records",
		Calls: append(small("AuditService/Verify", "AuditService/Checkpoint"),
			Call{"AuditService/Show", Small, true}, Call{"AuditService/Prove", Small, true}),
	},
	{
		Name: Version, Words: "ask for the version", Needs: p.Known, Class: Observe,
		Help:  "Print the version of this program and of the daemon",
		Calls: small("SystemService/Version"),
	},
	{
		Name: Mended, Words: "see what the broker put right", Needs: p.Host, Class: Observe,
		Calls: small("SystemService/Mended"),
	},
	{
		// The daemon's own.
		Name: Recover, Words: "put right", Needs: p.Any, On: Workspace, Class: Change, Relieves: true,
		Judged: rule(Rule{Name: "daemon.recover", Asks: true, Reason: "puts right what a crash left"}),
	},
}
