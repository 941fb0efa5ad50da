package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	carrel "github.com/carrel-dev/carrel/sdk/go"
	"github.com/carrel-dev/carrel/test/bench/measure"
	"github.com/carrel-dev/carrel/test/bench/report"
)

// The clients in other languages run one command for each line that they read, and answer with a line.
const (
	pythonExec = `import sys, carrel
ws = carrel.Client(sys.argv[1]).workspaces(sys.argv[2])
for _ in sys.stdin:
    ws.exec([sys.argv[3]]).check()
    print(flush=True)
`
	typescriptExec = `const { Client } = await import(process.argv[1]);
const { createInterface } = await import('node:readline');
const ws = new Client({ host: process.argv[2] }).workspaces.of(process.argv[3]);
for await (const _ of createInterface({ input: process.stdin })) {
  (await ws.exec([process.argv[4]])).check();
  process.stdout.write('\n');
}
`
)

// sdks measures a warm command by the clients in Python and TypeScript beside the one in Go, each as a process of its own on
// the Unix socket.
func (b *bench) sdks() error {
	h, err := b.host()
	if err != nil {
		return err
	}
	if _, err := h.workspace("demo"); err != nil {
		return err
	}
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	host := h.client.Host()
	inGo := measure.Contestant{Name: report.GoSDK, Op: measure.Timed(func() error {
		res, err := h.client.Exec(b.ctx, "demo", carrel.Spec{Argv: []string{command}}, nil)
		if err == nil && res.Status.Code != 0 {
			err = fmt.Errorf("%s ended with code %d", command, res.Status.Code)
		}
		return err
	})}
	for _, s := range []struct {
		id, name string
		argv     []string
	}{
		{report.SDKPython, "Python SDK", []string{"python3", "-c", pythonExec, host, "demo", command}},
		{
			report.SDKTypeScript, "TypeScript SDK",
			[]string{"node", "--input-type=module", "-e", typescriptExec, filepath.Join(root, "sdk/typescript/src/index.js"), host, "demo", command},
		},
	} {
		op, end, err := b.perLine(filepath.Join(root, "sdk/python"), s.argv)
		if err != nil {
			b.Miss(s.id, err)
			continue
		}
		got := measure.Interleave(b.ctx, b.pace(slowest), []measure.Contestant{{Name: s.name, Op: measure.Timed(op)}, inGo})
		end()
		if err := b.times(s.id, time.Millisecond, got[0], got[1:]); err != nil {
			return err
		}
	}
	return nil
}

// perLine starts a program that does something for each line.
func (b *bench) perLine(pythonPath string, argv []string) (op func() error, end func(), err error) {
	ask, end, err := b.askPerLine([]string{"PYTHONPATH=" + pythonPath, "PYTHONDONTWRITEBYTECODE=1"}, argv)
	return func() error { _, err := ask(); return err }, end, err
}

// askPerLine starts a program that answers each line with a line.
func (b *bench) askPerLine(env, argv []string) (ask func() (string, error), end func(), err error) {
	c := exec.CommandContext(b.ctx, argv[0], argv[1:]...)
	c.Env, c.Stderr = append(os.Environ(), env...), os.Stderr
	in, err := c.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := c.Start(); err != nil {
		return nil, nil, err
	}
	lines := bufio.NewReader(out)
	return func() (string, error) {
			if _, err := io.WriteString(in, "\n"); err != nil {
				return "", err
			}
			line, err := lines.ReadString('\n')
			if errors.Is(err, io.EOF) {
				err = fmt.Errorf("%s has ended", argv[0])
			}
			return line, err
		}, func() {
			in.Close()
			_ = c.Wait() // its errors were those of ask
		}, nil
}
