// Command tour records the tour of the README: it types the commands of docs/tour/script on
// a terminal, runs each for real, and writes docs/tour/tour.cast (asciicast v2, for
// asciinema) and docs/tour/tour.svg.
//
//	go run ./test/tour [-bin bin]
//
// It needs root. carrel runs in a directory of its own and is taken away again. A command
// that does not end as the script says ends the tour, so what is shown did happen.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The terminal, and how fast the commands are typed and read: this alone is made up.
const (
	columns, rows = 100, 30
	perKey        = 30 * time.Millisecond
	perCommand    = 1200 * time.Millisecond
)

// atMost is how long a command may take.
const atMost = 30 * time.Second

// place is where everything is that the tour makes. The script names it.
const place = "/var/tmp/carrel-tour"

// readerID is the id of the ordinary user of the tour. No host uses it.
const readerID = 61779

func main() {
	bin := flag.String("bin", "bin", "the `directory` of carrel's programs")
	out := flag.String("out", "docs/tour", "the `directory` of the script and of what is written")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	err := record(ctx, *bin, *out)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "tour:", err)
		os.Exit(1)
	}
}

// tour is a recording.
type tour struct {
	ctx    context.Context
	dir    string
	env    []string
	now    time.Duration
	events []event
}

// event is one of a cast: when, and what was written.
type event struct {
	at   time.Duration
	text string
}

func record(ctx context.Context, bin, out string) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("the tour takes root, as carrel's broker does; try: sudo make tour")
	}
	script, err := os.ReadFile(filepath.Join(out, "script"))
	if err != nil {
		return err
	}
	if bin, err = filepath.Abs(bin); err != nil {
		return err
	}
	if err := os.Mkdir(place, 0o700); err != nil {
		return fmt.Errorf("%w; if no tour runs: carrel down --purge --data %s/data --runtime-dir %s/run; rm -rf %s", err, place, place, place)
	}
	t := &tour{ctx: ctx, dir: place}
	defer func() { err = errors.Join(err, t.takeAway(bin)) }()
	if err := t.prepare(bin); err != nil {
		return err
	}
	for line := range strings.Lines(string(script)) {
		if err := t.line(strings.TrimSuffix(line, "\n")); err != nil {
			return err
		}
	}
	if err := t.cast(filepath.Join(out, "tour.cast")); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, "tour.svg"), []byte(svg(t.text())), 0o644)
}

// prepare makes the directories: carrel's, and the home of an ordinary user.
func (t *tour) prepare(bin string) error {
	home := filepath.Join(t.dir, "home")
	project := filepath.Join(home, "project")
	if err := errors.Join(os.Chmod(t.dir, 0o711), os.MkdirAll(project, 0o755), os.MkdirAll(filepath.Join(home, ".ssh"), 0o700)); err != nil {
		return err
	}
	for name, text := range map[string]string{
		"project/hello.c":  "#include <stdio.h>\nint main(void) { puts(\"built inside\"); return 0; }\n",
		"project/Makefile": "hello: hello.c\n\t$(CC) -o $@ $<\n",
		".ssh/id_ed25519":  "not for the workspace\n",
	} {
		if err := os.WriteFile(filepath.Join(home, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	git := exec.CommandContext(t.ctx, "git", "init", "-q", project)
	if out, err := git.CombinedOutput(); err != nil {
		return fmt.Errorf("git: %w: %s", err, out)
	}
	own := exec.CommandContext(t.ctx, "chown", "-R", fmt.Sprintf("%d:%d", readerID, readerID), home)
	if out, err := own.CombinedOutput(); err != nil {
		return fmt.Errorf("chown: %w: %s", err, out)
	}
	t.env = []string{
		"HOME=" + home, "PATH=" + bin + ":/usr/sbin:/usr/bin:/sbin:/bin", "TERM=xterm-256color", "LANG=C.UTF-8",
		"CARREL_HOST=unix://" + t.dir + "/run/carrel.sock",
		"USER_DO=setpriv --reuid " + fmt.Sprint(readerID) + " --regid " + fmt.Sprint(readerID) + " --clear-groups",
	}
	return nil
}

// takeAway ends carrel and removes everything.
func (t *tour) takeAway(bin string) error {
	if _, err := os.Stat(filepath.Join(t.dir, "data/up.json")); err == nil {
		// The script may have ended before it destroyed what it made.
		all := exec.CommandContext(context.Background(), "sh", "-c", "carrel ls -q | xargs -r carrel destroy --purge")
		all.Env = t.env
		if out, err := all.CombinedOutput(); err != nil {
			return fmt.Errorf("carrel destroy: %w: %s", err, out)
		}
		down := exec.CommandContext(
			context.Background(), filepath.Join(bin, "carrel"), "down", "--purge", "--data", t.dir+"/data", "--runtime-dir", t.dir+"/run",
		)
		if out, err := down.CombinedOutput(); err != nil {
			return fmt.Errorf("carrel down: %w: %s", err, out)
		}
	}
	return os.RemoveAll(t.dir)
}

// line is one of the script:
//
//	# TEXT        a remark, shown
//	$ COMMAND     typed at root's prompt, and run; it must succeed
//	% COMMAND     the same as an ordinary user, in ~/project
//	! COMMAND     as %, and must fail
//	@ COMMAND     run as root, not shown; it must succeed
func (t *tour) line(line string) error {
	if line == "" {
		t.write("\r\n")
		return nil
	}
	kind, text, ok := strings.Cut(line, " ")
	if !ok {
		return fmt.Errorf("%q is no line of a tour", line)
	}
	command, prompt := text, "\x1b[1m$\x1b[0m "
	switch kind {
	case "#":
		t.write("\x1b[2m# " + text + "\x1b[0m\r\n")
		t.now += perCommand
		return nil
	case "$":
		prompt = "\x1b[1m#\x1b[0m "
	case "%", "!":
		command = `cd ~/project && exec $USER_DO sh -c ` + quoted(text)
	case "@":
		out, err := t.command(text).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s: %w: %s", text, err, out)
		}
		return nil
	default:
		return fmt.Errorf("%q is no line of a tour", line)
	}
	t.write(prompt)
	for _, r := range text {
		t.now += perKey
		t.write(string(r))
	}
	t.now += perKey
	t.write("\r\n")
	failed, err := t.run(command)
	if err != nil {
		return fmt.Errorf("%s: %w", text, err)
	}
	if failed != (kind == "!") {
		return fmt.Errorf("%s: it ended otherwise than the script says\n%s", text, t.text())
	}
	t.now += perCommand
	return nil
}

func quoted(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func (t *tour) write(text string) { t.events = append(t.events, event{t.now, text}) }

func (t *tour) command(line string) *exec.Cmd {
	c := exec.CommandContext(t.ctx, "sh", "-c", line)
	c.Env, c.Dir = t.env, t.dir
	return c
}

// run runs a command on a terminal and keeps what it writes, and when.
func (t *tour) run(line string) (failed bool, err error) {
	master, slave, err := terminal()
	if err != nil {
		return false, err
	}
	defer master.Close()
	c := t.command(line)
	c.Stdin, c.Stdout, c.Stderr = slave, slave, slave
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	began := time.Now()
	err = c.Start()
	slave.Close()
	if err != nil {
		return false, err
	}
	late := time.AfterFunc(atMost, func() { _ = c.Process.Kill() }) // Wait has the error
	defer late.Stop()
	from := t.now
	in := bufio.NewReader(master)
	b := make([]byte, 4096)
	for {
		n, err := in.Read(b)
		if n > 0 {
			t.now = from + time.Since(began)
			t.write(string(b[:n]))
		}
		if err != nil {
			break // EIO: the other side is closed
		}
	}
	err = c.Wait()
	t.now = from + time.Since(began)
	if _, ok := errors.AsType[*exec.ExitError](err); ok {
		return true, nil
	}
	return false, err
}

// terminal makes one of the size that is recorded.
func terminal() (master, slave *os.File, err error) {
	master, err = os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	fd := int(master.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		zero := int32(0)
		if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCSPTLCK, uintptr(unsafe.Pointer(&zero))); e != 0 {
			err = e
		}
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns})
	}
	if err == nil {
		slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		master.Close()
		return nil, nil, fmt.Errorf("cannot make a terminal: %w", err)
	}
	return master, slave, nil
}

// text is everything that was written.
func (t *tour) text() string {
	var b strings.Builder
	for _, e := range t.events {
		b.WriteString(e.text)
	}
	return b.String()
}

// cast writes the recording: a header and an event a line (asciicast v2).
func (t *tour) cast(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	enc := json.NewEncoder(f)
	enc.SetEscapeHTML(false)
	err = enc.Encode(map[string]any{"version": 2, "width": columns, "height": rows, "title": "carrel"})
	for _, e := range t.events {
		at := float64(e.at.Round(time.Millisecond)) / float64(time.Second)
		err = errors.Join(err, enc.Encode([]any{at, "o", e.text}))
	}
	return errors.Join(err, f.Close())
}
