package mcp

// where is what a tool is about.
type where int

const (
	// inWorkspace: one workspace, which the call names unless the server is bound to one.
	inWorkspace where = iota
	// everywhere: all workspaces. A server that is bound has no such tool.
	everywhere
	// anywhere: none, or what has a workspace of its own, which a server that is bound compares.
	anywhere
)

// tool is a row of the table.
type tool struct {
	name, title, description string
	where                    where
	// reads: it changes nothing. destroys: it may replace or end what is there. again: twice is as good as once.
	reads, destroys, again bool
	// outside: it takes rights that no program inside the workspace has.
	outside bool
	handler handler
}

// table has every tool. docs/mcp.md is written from it.
func table() []tool {
	return []tool{
		{
			name: "exec", title: "Run a command", destroys: true, handler: of(exec),
			description: "Run a command in the workspace, which is started if it is stopped, and return its exit code and output. Give a " +
				"line of shell as command, or the words as argv. Long output is shown with its middle left out; command_output and a " +
				"resource have more. With detach the command goes on by itself, and the answer is its id. A policy judges each command: " +
				"one that a person has to approve is not run before that.",
		},
		{
			name: "command_output", title: "Read the output of a command", reads: true, again: true, handler: of(commandOutput),
			description: "Return output of a command from an offset on, and how it ended if it has. With wait_s it waits until there is " +
				"more, or the command has ended.",
		},
		{
			name: "command_signal", title: "Signal or end a command", destroys: true, handler: of(commandSignal),
			description: "Send a signal to a running command. Without a signal it is ended with all that it left behind: TERM, a grace " +
				"period, KILL.",
		},
		{
			name: "list_commands", title: "List commands", reads: true, again: true, handler: of(listCommands),
			description: "List the commands that run in the workspace, and the detached ones that have ended and whose output is kept.",
		},
		{
			name: "read_file", title: "Read a file", reads: true, again: true, handler: of(readFile),
			description: "Return a file of the workspace, or a part of it, as text, or as base64 if asked for. " + aboutPaths,
		},
		{
			name: "write_file", title: "Write a file", destroys: true, again: true, handler: of(writeFile),
			description: "Write a file whole. What was there stays until all of the new content is on disk. " + aboutPaths,
		},
		{
			name: "patch_file", title: "Change a file", destroys: true, handler: of(patchFile),
			description: "Replace texts in a file. Each old text must be in the file exactly once when its turn comes. All edits are made or " +
				"none. A file that somebody else changes meanwhile is an error and stays as it is. " + aboutPaths,
		},
		{
			name: "list_files", title: "List files", reads: true, again: true, handler: of(listFiles),
			description: "List a directory of the workspace, the home unless path says another. " + aboutPaths,
		},
		{
			name: "search_files", title: "Search files", reads: true, again: true, handler: of(searchFiles),
			description: "Find names by a pattern (*, ?, [a-z]) and lines by a regular expression (RE2) below a directory. A search ends at " +
				"bounds of time, bytes and matches, and says so. " + aboutPaths,
		},
		{
			name: "list_changes", title: "List what changed", reads: true, again: true, handler: of(listChanges),
			description: "List files that were changed below a directory since a moment, or since the workspace was made: first those on which " +
				"programs act by themselves, as hooks and settings, then links that lead out, and programs among installed packages. It sees " +
				"what git ignores. " + aboutPaths,
		},
		{
			name: "inspect_workspace", title: "Inspect a workspace", reads: true, again: true, handler: of(inspectWorkspace),
			description: "Return state, limits, isolation measures, network rules and models of the workspace as JSON.",
		},
		{
			name: "list_workspaces", title: "List workspaces", where: everywhere, reads: true, again: true, handler: of(listWorkspaces),
			description: "List the workspaces that you may use, with their states.",
		},
		{
			name: "create_workspace", title: "Create a workspace", where: everywhere, again: true, handler: of(createWorkspace),
			description: "Make a workspace for a key, any text that you choose, and start it. It has no network rules and no directories of " +
				"the host. If there is one for the key already, that is returned.",
		},
		{
			name: "start_workspace", title: "Start a workspace", again: true, outside: true, handler: of(startWorkspace),
			description: "Start the workspace. exec does that by itself.",
		},
		{
			name: "stop_workspace", title: "Stop a workspace", destroys: true, again: true, outside: true, handler: of(stopWorkspace),
			description: "Stop the workspace. All its commands end, also those of others; its files stay.",
		},
		{
			name: "explain_policy", title: "Explain the policy", reads: true, again: true, handler: of(explainPolicy),
			description: "Say how the policy would judge a command, and why, as JSON. Nothing is run and nobody is asked.",
		},
		{
			name: "wait_approval", title: "Wait for an approval", where: anywhere, destroys: true, handler: of(waitApproval),
			description: "Wait until a person has answered the approval of a call that was not carried out, and then carry exactly that call " +
				"out, once. You cannot approve anything yourself.",
		},
		{
			name: "show_record", title: "Show the record", where: anywhere, reads: true, again: true, outside: true, handler: of(showRecord),
			description: "Return the newest records of what was done, as JSON lines. It takes the role auditor or admin.",
		},
		{
			name: "verify_record", title: "Verify the record", where: anywhere, reads: true, again: true, outside: true, handler: of(verifyRecord),
			description: "Verify the whole chain of records and its signatures. It takes the role auditor or admin.",
		},
	}
}

const aboutPaths = "Paths are absolute, or relative to the home, or begin with ~/."
