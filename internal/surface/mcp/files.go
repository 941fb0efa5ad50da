package mcp

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
)

// Bounds of files, in bytes.
const (
	// maxFile is the most that read_file returns at once, and maxWhole the longest file that is patched or written.
	maxFile  = 256 << 10
	maxWhole = 2 << 20
)

type readArgs struct {
	Path   string `json:"path"`
	Offset int64  `json:"offset,omitempty" jsonschema:"from which byte on"`
	Length int64  `json:"length,omitempty" jsonschema:"how many bytes; 65536 unless given, at most 262144"`
	Base64 bool   `json:"base64,omitempty" jsonschema:"return the bytes as base64, for what is no text"`
}

// full is a buffer that refuses more than its limit.
type full struct {
	bytes.Buffer
	limit int
}

var errFull = errors.New("it is longer")

func (f *full) Write(p []byte) (int, error) {
	if f.Len()+len(p) > f.limit {
		return 0, errFull
	}
	return f.Buffer.Write(p)
}

// readFile returns a part of a file.
func readFile(ctx context.Context, c *call, in readArgs) (*answer, error) {
	if in.Length == 0 {
		in.Length = 64 << 10
	}
	if in.Offset < 0 || in.Length < 0 || in.Length > maxFile {
		return nil, fmt.Errorf("cannot read that part: offset is from 0 on, and length from 1 to %d: %w", maxFile, errdefs.ErrInvalidArgument)
	}
	b, file, err := c.read(ctx, in.Path, in.Offset, in.Length)
	if err != nil {
		return nil, err
	}
	n, end := file.GetSize(), in.Offset+int64(len(b))
	if end < n && !in.Base64 {
		b = whole(b)
		end = in.Offset + int64(len(b))
	}
	a := said("%s; %d bytes", clean(in.Path), n)
	switch {
	case in.Offset > 0 || end < n:
		a.texts[0] += fmt.Sprintf("; this is from byte %d to %d", in.Offset, end)
		if end < n {
			a.texts[0] += fmt.Sprintf("; go on with offset %d", end)
		}
	default:
		a.texts[0] += "; sha256 " + digest(b)
	}
	if !in.Base64 && !utf8.Valid(b) {
		a.texts[0] += "; it is no UTF-8: bytes that are none are shown as U+FFFD, and base64 has them as they are"
	}
	if in.Base64 {
		a.texts = append(a.texts, base64.StdEncoding.EncodeToString(b))
	} else {
		a.texts = append(a.texts, valid(b))
	}
	return a, nil
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// read returns a part of a file, of at most length bytes.
func (c *call) read(ctx context.Context, path string, offset, length int64) ([]byte, *carrelv1.FileEntry, error) {
	if path == "" {
		return nil, nil, fmt.Errorf("cannot read a file: path is empty: %w", errdefs.ErrInvalidArgument)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	b := full{limit: int(length)}
	file, err := c.cfg.Client.ReadFile(ctx, &carrelv1.ReadFileRequest{Workspace: c.workspace, Path: path, Offset: offset, Length: length}, &b)
	return b.Bytes(), file, err
}

type writeArgs struct {
	Path    string  `json:"path"`
	Content string  `json:"content" jsonschema:"the whole content"`
	Base64  bool    `json:"base64,omitempty" jsonschema:"content is base64"`
	Mode    *uint32 `json:"mode,omitempty" jsonschema:"permission bits, as 493 for 0755; 0644 for a new file unless given"`
	Parents bool    `json:"parents,omitempty" jsonschema:"make missing directories above"`
	Create  bool    `json:"create,omitempty" jsonschema:"fail if there is something with this name"`
}

// writeFile writes a file whole.
func writeFile(ctx context.Context, c *call, in writeArgs) (*answer, error) {
	b := []byte(in.Content)
	if in.Base64 {
		var err error
		if b, err = base64.StdEncoding.DecodeString(in.Content); err != nil {
			return nil, fmt.Errorf("cannot use content: it is no base64: %w: %w", err, errdefs.ErrInvalidArgument)
		}
	}
	file, err := c.write(ctx, b, &carrelv1.WriteFileStart{
		Workspace: c.workspace, Path: in.Path, Mode: in.Mode, Parents: in.Parents, Keep: in.Create,
	})
	if err != nil {
		return nil, err
	}
	return said("%s was written; %d bytes; sha256 %s", clean(in.Path), file.GetSize(), digest(b)), nil
}

func (c *call) write(ctx context.Context, b []byte, start *carrelv1.WriteFileStart) (*carrelv1.FileEntry, error) {
	if start.GetPath() == "" {
		return nil, fmt.Errorf("cannot write a file: path is empty: %w", errdefs.ErrInvalidArgument)
	}
	if len(b) > maxWhole {
		return nil, fmt.Errorf("cannot write %d bytes: it is at most %d at once; have a command make the file: %w", len(b), maxWhole,
			errdefs.ErrInvalidArgument)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return c.cfg.Client.WriteFile(ctx, start, bytes.NewReader(b))
}

type edit struct {
	Old string `json:"old" jsonschema:"text that is in the file exactly once"`
	New string `json:"new" jsonschema:"what stands in its place then"`
}

type patchArgs struct {
	Path   string `json:"path"`
	Edits  []edit `json:"edits" jsonschema:"replacements, made one after the other"`
	SHA256 string `json:"sha256,omitempty" jsonschema:"what the file must have as its digest before, as read_file said it"`
}

// patchFile makes replacements: all of them, in a file that nobody else has changed meanwhile, or none.
func patchFile(ctx context.Context, c *call, in patchArgs) (*answer, error) {
	if len(in.Edits) == 0 || len(in.Edits) > 100 {
		return nil, fmt.Errorf("cannot change the file: give 1 to 100 edits: %w", errdefs.ErrInvalidArgument)
	}
	// Others that patch by this server take turns for the same file.
	end, err := c.turn(ctx, c.workspace+"\x00"+in.Path)
	if err != nil {
		return nil, err
	}
	defer end()
	before, file, err := c.read(ctx, in.Path, 0, maxWhole+1)
	if errors.Is(err, errFull) || len(before) > maxWhole {
		return nil, fmt.Errorf("cannot change %s: it has %d bytes, of at most %d; use a command: %w", clean(in.Path), file.GetSize(), maxWhole,
			errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		return nil, err
	}
	if in.SHA256 != "" && !strings.EqualFold(in.SHA256, digest(before)) {
		return nil, conflict(in.Path, "its digest is another than sha256 says")
	}
	after, err := edited(string(before), in.Edits)
	if err != nil {
		return nil, fmt.Errorf("cannot change %s: %w; nothing was changed", clean(in.Path), err)
	}
	if err := c.unchanged(ctx, in.Path, file, before); err != nil {
		return nil, err
	}
	if _, err := c.write(ctx, []byte(after), &carrelv1.WriteFileStart{Workspace: c.workspace, Path: in.Path}); err != nil {
		return nil, err
	}
	return said("%s was changed; %d edits; %d bytes before, %d now; sha256 %s", clean(in.Path), len(in.Edits), len(before), len(after),
		digest([]byte(after))), nil
}

// edited makes the replacements.
func edited(text string, edits []edit) (string, error) {
	for i, e := range edits {
		if e.Old == "" {
			return "", fmt.Errorf("the old text of edit %d is empty; write_file makes new files: %w", i+1, errdefs.ErrInvalidArgument)
		}
		at := strings.Index(text, e.Old)
		if at < 0 {
			return "", fmt.Errorf("the old text of edit %d is not in it; read the file again: %w", i+1, errdefs.ErrFailedPrecondition)
		}
		// Occurrences that overlap are several too.
		if strings.Contains(text[at+1:], e.Old) {
			return "", fmt.Errorf("the old text of edit %d is in it more than once; give more of what stands around it: %w", i+1,
				errdefs.ErrFailedPrecondition)
		}
		text = text[:at] + e.New + text[at+len(e.Old):]
		if len(text) > maxWhole {
			return "", fmt.Errorf("with edit %d it has more than %d bytes: %w", i+1, maxWhole, errdefs.ErrInvalidArgument)
		}
	}
	return text, nil
}

func conflict(path, why string) error {
	return fmt.Errorf("cannot change %s: somebody else has changed it: %s; nothing was changed; read it again: %w", clean(path), why,
		errdefs.ErrConflict)
}

// unchanged looks once more, right before a write. A change between this and the write is not seen.
func (c *call) unchanged(ctx context.Context, path string, was *carrelv1.FileEntry, before []byte) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	m, err := c.cfg.Client.Files().StatFile(ctx, connect.NewRequest(&carrelv1.StatFileRequest{
		Workspace: c.workspace, Path: path, Follow: true,
	}))
	if err != nil {
		return err
	}
	now := m.Msg.GetFile()
	if now.GetSize() != int64(len(before)) || now.GetModifiedUnixNs() != was.GetModifiedUnixNs() {
		return conflict(path, fmt.Sprintf("it has %d bytes of %s", now.GetSize(),
			time.Unix(0, now.GetModifiedUnixNs()).UTC().Format(time.RFC3339Nano)))
	}
	return nil
}

// bounded are lines of an answer, of at most maxPart bytes together.
type bounded struct {
	lines []string
	n     int
	full  bool
}

// add adds a line if there is room.
func (b *bounded) add(format string, v ...any) bool {
	line := strings.ToValidUTF8(fmt.Sprintf(format, v...), "\uFFFD")
	if b.full = b.full || b.n+len(line)+1 > maxPart; b.full {
		return false
	}
	b.lines, b.n = append(b.lines, line), b.n+len(line)+1
	return true
}

// answer is the lines, or that there is none; more is said if there was no room.
func (b *bounded) answer(none, more string) *answer {
	switch {
	case len(b.lines) == 0 && !b.full:
		return said("%s", none)
	case b.full:
		return &answer{texts: []string{more, strings.Join(b.lines, "\n")}}
	}
	return &answer{texts: []string{strings.Join(b.lines, "\n")}}
}

// pathOf is the path of an entry on one line.
func pathOf(e *carrelv1.FileEntry) string { return clean(e.GetPath() + string(e.GetRawPath())) }

type listArgs struct {
	Path  string `json:"path,omitempty" jsonschema:"the directory; the home unless given"`
	Depth int32  `json:"depth,omitempty" jsonschema:"how deep, 1 to 64; 1 unless given"`
	After string `json:"after,omitempty" jsonschema:"go on behind this path, the last one of the answer before"`
}

func listFiles(ctx context.Context, c *call, in listArgs) (*answer, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	m, err := c.cfg.Client.Files().ListFiles(ctx, connect.NewRequest(&carrelv1.ListFilesRequest{
		Workspace: c.workspace, Path: in.Path, Depth: in.Depth, After: in.After, Limit: 1000,
	}))
	if err != nil {
		return nil, err
	}
	entries := m.Msg.GetEntries()
	if m.Msg.GetFile().GetType() != "directory" {
		entries = []*carrelv1.FileEntry{m.Msg.GetFile()}
	}
	var lines bounded
	last := ""
	for _, e := range entries {
		target := ""
		if e.GetType() == "link" {
			target = " -> " + clean(e.GetTarget()+string(e.GetRawTarget()))
		}
		if !lines.add("%-9s %04o %10d  %s%s", e.GetType(), e.GetMode(), e.GetSize(), pathOf(e), target) {
			break
		}
		last = e.GetPath()
	}
	lines.full = lines.full || m.Msg.GetTruncated()
	return lines.answer("the directory is empty", fmt.Sprintf("there are more: go on with after %q", last)), nil
}

type searchArgs struct {
	Path  string `json:"path,omitempty" jsonschema:"the directory; the home unless given"`
	Name  string `json:"name,omitempty" jsonschema:"a pattern that names have to match, as *.go"`
	Text  string `json:"text,omitempty" jsonschema:"a regular expression that a line has to match; without, names alone are found"`
	Depth int32  `json:"depth,omitempty" jsonschema:"how deep, 1 to 64, which it is unless given"`
}

func searchFiles(ctx context.Context, c *call, in searchArgs) (*answer, error) {
	if in.Name == "" && in.Text == "" {
		return nil, fmt.Errorf("cannot search for nothing: give name, text or both: %w", errdefs.ErrInvalidArgument)
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	m, err := c.cfg.Client.Files().SearchFiles(ctx, connect.NewRequest(&carrelv1.SearchFilesRequest{
		Workspace: c.workspace, Path: in.Path, Name: in.Name, Text: in.Text, Depth: in.Depth,
	}))
	if err != nil {
		return nil, err
	}
	var lines bounded
	for _, e := range m.Msg.GetMatches() {
		if e.GetLine() > 0 {
			lines.add("%s:%d:%s", pathOf(e), e.GetLine(), clean(string(e.GetText())))
		} else {
			lines.add("%s", pathOf(e))
		}
	}
	lines.full = lines.full || m.Msg.GetTruncated()
	return lines.answer("nothing was found", "there may be more: search below another directory, or for less"), nil
}

type changesArgs struct {
	Path  string `json:"path,omitempty" jsonschema:"the directory; the home unless given"`
	Since string `json:"since,omitempty" jsonschema:"a time as of RFC 3339; when the workspace was made unless given"`
	All   bool   `json:"all,omitempty" jsonschema:"ordinary files too, which are counted alone unless this is set"`
}

// listChanges lists what needs a look, and counts what does not.
func listChanges(ctx context.Context, c *call, in changesArgs) (*answer, error) {
	var since time.Time
	if in.Since != "" {
		var err error
		if since, err = time.Parse(time.RFC3339, in.Since); err != nil {
			return nil, fmt.Errorf("cannot use since: it is no time as of RFC 3339, such as 2026-01-31T15:04:05Z: %w", errdefs.ErrInvalidArgument)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	list, more, err := c.cfg.Client.ListChanges(ctx, c.workspace, in.Path, since)
	if err != nil {
		return nil, err
	}
	var lines bounded
	lines.full = more
	ordinary := 0
	for _, x := range list {
		if !in.All && (x.GetKind() == "source" || x.GetKind() == "built") {
			ordinary++
			continue
		}
		why := ""
		if x.GetReader() != "" {
			why = fmt.Sprintf("  (%s: %s)", clean(x.GetReader()), clean(x.GetTrigger()))
		}
		if !lines.add("%-7s  %s%s", clean(x.GetKind()), pathOf(x.GetFile()), why) {
			break
		}
	}
	a := lines.answer("nothing that needs a look was changed", "there are more: name a directory below")
	if ordinary > 0 {
		a.texts = append(a.texts, fmt.Sprintf("%d other files were changed; all lists them", ordinary))
	}
	return a, nil
}
