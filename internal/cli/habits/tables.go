package habits

const (
	noImages   = "a workspace has the programs of this host, read-only, so there are no images; carrel create NAME makes one"
	saved      = "carrel archive create NAME keeps the home of a workspace, and carrel restore makes a workspace from it"
	wholeHost  = "carrel doctor shows what this host supports, and carrel version the versions"
	looks      = "carrel inspect NAME shows a workspace, and carrel ls all of them"
	terminals  = "carrel shell NAME opens a terminal in a workspace"
	outOfReach = "what a workspace may reach is said with --allow HOST, and carrel egress changes it"
	directory  = "a directory of this host is mounted with carrel create -v SRC:DST NAME"
	login      = "carrel token makes and lists tokens, and carrel context names the carrels that you use"
)

// commands are answers to commands of other programs.
var commands = map[string]string{
	"info": wholeHost, "status": wholeHost, "system": wholeHost,
	"images": noImages, "image": noImages, "pull": noImages, "push": noImages, "build": noImages, "tag": noImages,
	"template": noImages, "templates": noImages,
	"commit": saved, "save": saved, "load": saved, "export": saved, "import": saved,
	"snapshot": saved, "backup": saved, "clone": saved, "fork": saved,
	"get": looks, "describe": looks, "show": looks, "sandbox": looks, "sandboxes": looks, "container": looks, "pod": looks, "pods": looks,
	"ssh": terminals, "enter": terminals, "connect": terminals, "console": terminals, "bash": terminals, "sh": terminals, "spawn": terminals,
	"network": outOfReach, "net": outOfReach, "firewall": outOfReach,
	"volume": directory, "volumes": directory, "mount": directory,
	"login": login, "logout": login, "auth": login,
	"delete":       "carrel destroy NAME ends a workspace; its home is kept aside unless --purge is given",
	"remove":       "carrel destroy NAME ends a workspace; its home is kept aside unless --purge is given",
	"prune":        "stopped workspaces cost only disk; carrel destroy NAME ends one, and carrel discard --older 7d removes staged copies",
	"rename":       "carrel update --key NEW NAME gives a workspace another key",
	"port-forward": "carrel port NAME 8080:80 reaches port 80 of a workspace at 127.0.0.1:8080",
	"ports":        "carrel port NAME 8080:80 reaches port 80 of a workspace at 127.0.0.1:8080",
	"history":      "carrel audit show prints what was done, and carrel logs the output of a command",
	"compose":      "there are no groups of workspaces; carrel create makes one at a time",
	"unpause":      "carrel resume NAME lets a paused workspace go on",
	"config":       "the daemon's settings are a file: carrel up --config FILE; \"carrel policy\" and \"carrel egress\" have the rules",
	"upload":       "carrel cp FILE NAME:PATH copies into a workspace",
	"download":     "carrel cp NAME:PATH . copies out of a workspace",
	"cat":          "carrel files cat NAME PATH prints a file of a workspace",
	"claude":       "carrel run --here -it -- claude runs it in a workspace of its own",
	"codex":        "carrel run --here -it -- codex runs it in a workspace of its own",
}

// sets are other names of sets.
var sets = map[string]string{
	"@pypi": "@pip", "@python": "@pip", "@uv": "@pip", "@poetry": "@pip",
	"@node": "@npm", "@nodejs": "@npm", "@npmjs": "@npm", "@yarn": "@npm", "@pnpm": "@npm", "@bun": "@npm",
	"@crates": "@cargo", "@crates.io": "@cargo", "@rust": "@cargo", "@golang": "@go", "@goproxy": "@go",
	"@debian": "@apt", "@ubuntu": "@apt", "@deb": "@apt", "@gh": "@github", "@hf": "@huggingface",
	"@anthropic": "@llm", "@openai": "@llm", "@gemini": "@llm", "@ai": "@llm",
}

// flags are answers to flags of other programs, in the order in which they are looked for. of are the commands that a row is for, all
// if it is empty.
var flags = []struct{ of, names, answer string }{
	{"run", "d detach", "it would end with this command; carrel create NAME makes a workspace that stays, and carrel exec -d NAME COMMAND " +
		"runs it there"},
	{"run", "name", "its workspace ends with the command; carrel create NAME makes one that stays"},
	{"create", "name", "the name stands alone: carrel create NAME"},
	{"create restore update", "p publish port", "carrel port NAME 8080:80 reaches a port of a workspace, as long as it runs"},
	{"exec shell", "u user", "a workspace has one user of its own, and no root inside"},
	{"run create", "u user", "a workspace has a user of its own, and no root inside"},
	{"run create restore update", "cpus cpu", "processors are shared out by --cpu-weight of carrel create, and not counted"},
	{
		"run create", "privileged cap-add security-opt",
		"there are no privileges to give; --allow userns, mounts or io_uring open what can be opened",
	},
	{"run create exec", "mount bind volumes-from", "a directory of this host is mounted with -v SRC:DST, and -v SRC:DST:ro read-only"},
	{"run exec shell", "workdir chdir cd", "the directory is -w PATH, or --cwd PATH"},
	{"run exec", "env-file", "variables are given one by one: -e NAME=VALUE, or -e NAME for yours"},
	{"run create", "image template t", noImages},
	{"run create", "entrypoint", "the command stands behind the flags: carrel run -- COMMAND"},
	{"run create", "gpus gpu device", "devices of the host are not given to workspaces"},
	{"run create", "restart", "a workspace is started when it is used; nothing in it is started by itself"},
	{"run create", "dns add-host hostname h", "names are looked up by carrel, for the hosts that --allow names"},
	{"run create", "full-auto yolo dangerously-skip-permissions", "it is a flag of the agent: put it behind the command's name"},
	{"ls", "a all", "carrel ls lists all that you may reach, also stopped ones"},
	{"destroy", "f force", "it asks nothing; --purge removes the home too"},
	{"exec", "rm", "the workspace stays after it; carrel run COMMAND has one that ends with it"},
	{"", "verbose debug", "carrel audit show and carrel events say what was done"},
}
