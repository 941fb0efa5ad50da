package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	carrel "github.com/carrel-dev/carrel/sdk/go"
	"github.com/carrel-dev/carrel/test/bench/measure"
	"github.com/carrel-dev/carrel/test/bench/report"
)

// transfers measures "carrel cp" of one large file beside cp, and of many small ones beside tar.
func (b *bench) transfers(h *carrelHost) error {
	size, files, rounds := int64(1<<30), 20_000, 5
	if b.quick {
		size, files, rounds = 128<<20, 2_000, 3
	}
	dir := filepath.Join(b.dir, "clients")
	if err := os.MkdirAll(filepath.Join(dir, "many"), 0o755); err != nil {
		return err
	}
	large, out := filepath.Join(dir, "large"), filepath.Join(dir, "out")
	if err := b.tool("head", "-c", fmt.Sprint(size), "/dev/urandom", large); err != nil {
		return err
	}
	for i := range files {
		if err := os.WriteFile(filepath.Join(dir, "many", fmt.Sprint(i)), []byte("small\n"), 0o644); err != nil {
			return err
		}
	}
	cp := func(from, to string) func() error {
		return func() error { _, err := h.carrel(b.ctx, "cp", from, to); return err }
	}
	plain := measure.Contestant{Name: report.Cp, Op: measure.Timed(func() error {
		return exec.CommandContext(b.ctx, "cp", large, out+".cp").Run()
	})}
	p := measure.Pace{Rounds: rounds}
	for _, x := range []struct{ id, name, from, to string }{
		{report.ClientsIn, "carrel cp in", large, "demo:large"},
		{report.ClientsOut, "carrel cp out", "demo:large", out},
	} {
		got := measure.Interleave(b.ctx, p, []measure.Contestant{
			{Name: fmt.Sprintf("%s, %d MiB", x.name, size>>20), Op: measure.Timed(cp(x.from, x.to))}, plain,
		})
		for i := range got {
			for _, r := range got[i].Rounds {
				got[i].Rates = append(got[i].Rates, float64(size)/1e9/r[0].Seconds())
			}
		}
		if err := b.rates(x.id, "GB/s", got[0], got[1:]); err != nil {
			return err
		}
	}
	n := 0
	fresh := func() string { n++; return fmt.Sprint("many", n) }
	many := filepath.Join(dir, "many")
	got := measure.Interleave(b.ctx, p, []measure.Contestant{
		{Name: fmt.Sprintf("carrel cp, %d files", files), Op: measure.Timed(func() error { return cp(many, "demo:"+fresh())() })},
		{Name: report.TarTar, Op: measure.Timed(func() error {
			to := filepath.Join(dir, fresh())
			return exec.CommandContext(b.ctx, "sh", "-c", `mkdir "$2" && tar -C "$1" -c . | tar -C "$2" -x`, "sh", many, to).Run()
		})},
	})
	return b.times(report.ClientsFiles, time.Millisecond, got[0], got[1:])
}

// tool runs a program whose stdout goes to the file that is named last.
func (b *bench) tool(argv ...string) error {
	f, err := os.Create(argv[len(argv)-1])
	if err != nil {
		return err
	}
	c := exec.CommandContext(b.ctx, argv[0], argv[1:len(argv)-1]...)
	c.Stdout = f
	return errors.Join(c.Run(), f.Close())
}

// tools measures a command by the tool "exec" of "carrel mcp" on stdio beside the same by the client in Go.
func (b *bench) tools(h *carrelHost) error {
	c := exec.CommandContext(b.ctx, h.program, "mcp", "demo")
	c.Env = append(append(os.Environ(), carrel.HostEnv+"="+h.address()), h.env...)
	session, err := sdk.NewClient(&sdk.Implementation{Name: "bench", Version: "1"}, nil).Connect(b.ctx, &sdk.CommandTransport{Command: c}, nil)
	if err != nil {
		return err
	}
	defer session.Close()
	got := measure.Interleave(b.ctx, b.pace(slowest), []measure.Contestant{
		{Name: "MCP exec", Op: measure.Timed(func() error {
			r, err := session.CallTool(b.ctx, &sdk.CallToolParams{Name: "exec", Arguments: map[string]any{"argv": []string{command}}})
			if err == nil && r.IsError {
				err = fmt.Errorf("the tool exec failed: %s", strings.TrimSpace(fmt.Sprint(r.Content)))
			}
			return err
		})},
		{Name: report.GoSDK, Op: measure.Timed(func() error {
			_, err := h.client.Exec(b.ctx, "demo", carrel.Spec{Argv: []string{command}}, nil)
			return err
		})},
	})
	return b.times(report.ClientsMCP, time.Millisecond, got[0], got[1:])
}
