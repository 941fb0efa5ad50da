package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/carrel-dev/carrel/test/bench/measure"
	"github.com/carrel-dev/carrel/test/bench/report"
)

// e2bPackage is E2B's own client, as it is installed from npm.
const e2bPackage = "e2b@2.51.0"

// e2bSettings turn the endpoint on, which is off by default.
const e2bSettings = "e2b_listen: 127.0.0.1:0\ne2b_domain: sandboxes.test\nmax_creates_per_hour: 1000000\n"

// e2bDriver does one operation for each line that it reads, and answers with a line. It destroys what it made at its end.
const e2bDriver = `import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
const { Sandbox } = createRequire(process.argv[1] + '/')('e2b');
const { mkdtempSync, openSync, writeSync, fsyncSync, closeSync, renameSync, readFileSync, rmSync } = await import('node:fs');
const what = process.argv[2], dir = process.argv[3];
const make = () => Sandbox.create({ timeoutMs: 600000 });
const mib = Buffer.alloc(1 << 20, 'carrel');
const blob = new Blob([mib]);
const made = [];
let sb;
if (what === 'run' || what === 'file') made.push(sb = await make());
const ops = {
  create: async () => {
    const s = await make();
    made.push(s);
    if ((await s.commands.run('echo hi')).stdout !== 'hi\n') throw new Error('no output');
  },
  burst: async () => { made.push(...await Promise.all(Array.from({ length: 100 }, make))); },
  run: async () => { await sb.commands.run('true'); },
  file: async () => {
    await sb.files.write('big', blob);
    if ((await sb.files.read('big', { format: 'bytes' })).length !== mib.length) throw new Error('it is cut');
  },
  plain: async () => {
    const f = openSync(dir + '/part', 'w');
    writeSync(f, mib); fsyncSync(f); closeSync(f); renameSync(dir + '/part', dir + '/big');
    if (readFileSync(dir + '/big').length !== mib.length) throw new Error('it is cut');
  },
};
const end = async () => { while (made.length) await Promise.all(made.splice(0, 8).map(s => s.kill())); };
for await (const _ of createInterface({ input: process.stdin })) {
  const from = process.hrtime.bigint();
  await ops[what]();
  const took = process.hrtime.bigint() - from;
  if (what === 'burst' || made.length > 20) await end();
  process.stdout.write(took + '\n');
}
await end();
`

// e2b measures E2B's unmodified client in Node against carrel's endpoint. What is timed is what Node sees.
func (b *bench) e2b() error {
	modules, err := b.e2bModules()
	if err != nil {
		b.Miss(report.E2BCreate, err)
		return nil
	}
	h, err := b.newHostWith("e2b", e2bSettings)
	if err != nil {
		return err
	}
	out, err := h.carrel(b.ctx, "token", "create", "--e2b")
	if err != nil {
		return err
	}
	var env []string
	for line := range strings.Lines(string(out)) {
		if pair, ok := strings.CutPrefix(strings.TrimSpace(line), "export "); ok {
			env = append(env, pair)
		}
	}
	dir := filepath.Join(b.dir, "e2b-plain")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for _, row := range []struct {
		id    string
		name  string
		shown string
		peer  string // what of the driver stands beside it
		is    string
		likes time.Duration // about how long it takes
	}{
		{report.E2BCreate, "create", "create to the output of a command", "", "", slowest},
		{report.E2BRun, "run", "commands.run('true')", "", "", slowest},
		{report.E2BFile, "file", "1 MiB written and read", "plain", report.NodeFile, slowest},
		{report.E2BBurst, "burst", "100 creations at once", "", "", 5 * time.Second},
	} {
		mine, end, err := b.e2bOp(env, modules, row.name, dir)
		if err != nil {
			return err
		}
		all := []measure.Contestant{{Name: "E2B: " + row.shown, Op: mine}}
		endPeer := func() {}
		if row.peer != "" {
			op, end, err := b.e2bOp(env, modules, row.peer, dir)
			if err != nil {
				return err
			}
			all, endPeer = append(all, measure.Contestant{Name: row.is, Op: op}), end
		}
		got := measure.Interleave(b.ctx, b.pace(row.likes), all)
		end()
		endPeer()
		if err := b.times(row.id, time.Millisecond, got[0], got[1:]); err != nil {
			return err
		}
	}
	return nil
}

// e2bModules installs the client for this run.
func (b *bench) e2bModules() (string, error) {
	dir := filepath.Join(b.dir, "e2b-npm")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	b.say("installing %s", e2bPackage)
	npm := exec.CommandContext(b.ctx, "npm", "install", "--no-audit", "--no-fund", "--silent", e2bPackage)
	npm.Dir = dir
	if out, err := npm.CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot install %s: %w: %s", e2bPackage, err, lastLine(bytes.TrimSpace(out)))
	}
	return filepath.Join(dir, "node_modules"), nil
}

// e2bOp is an operation of the driver, whose own clock is read.
func (b *bench) e2bOp(env []string, modules, what, dir string) (func() (time.Duration, error), func(), error) {
	ask, end, err := b.askPerLine(env, []string{"node", "--input-type=module", "-e", e2bDriver, modules, what, dir})
	if err != nil {
		return nil, nil, err
	}
	return func() (time.Duration, error) {
		line, err := ask()
		if err != nil {
			return 0, err
		}
		return time.ParseDuration(strings.TrimSpace(line) + "ns")
	}, end, nil
}
