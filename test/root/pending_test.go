package root_test

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/gen/carrel/v1/carrelv1connect"
)

// Ten thousand questions wait for a person. More are refused with what to do, programs leave
// room for people, the daemon's memory stays small, an administrator sees all of them page by page
// and as a stream, an answer counts, and after kill -9 each is there once with the end that it had.
func TestTenThousandPending(t *testing.T) {
	needRoot(t)
	t.Parallel() // with a carrel of its own, like all that are
	h := newHostWith(t, func(string) string { return "socket_mode: \"0666\"\n" })
	if err := h.up(); err != nil {
		t.Fatal(err)
	}
	const people = 10
	ctx := t.Context()
	ask := func(c carrelv1connect.CommandServiceClient, in, source string, n int) error {
		_, err := c.Exec(ctx, connect.NewRequest(&carrelv1.ExecRequest{
			Workspace: in, Command: &carrelv1.Command{
				Argv: []string{"git", "push", "https://example.com/" + strconv.Itoa(n), "x"}, Source: source, ApprovalWaitMs: -1,
			},
		}))
		return err
	}
	clients := make([]carrelv1connect.CommandServiceClient, people+1)
	keys := make([]string, people+1)
	for i := range clients {
		uid := uint32(61100 + i)
		c := h.client(t, uid)
		clients[i], keys[i] = carrelv1connect.NewCommandServiceClient(c, "http://carrel"), fmt.Sprint("crt p", i)
		if _, err := carrelv1connect.NewWorkspaceServiceClient(c, "http://carrel").Create(ctx,
			connect.NewRequest(&carrelv1.CreateRequest{Key: keys[i], NoStart: true})); err != nil {
			t.Fatal(err)
		}
	}
	many := func(source string, each int) {
		t.Helper()
		var wg sync.WaitGroup
		for i := range people {
			wg.Go(func() {
				for n := range each {
					if err := ask(clients[i], keys[i], source, n); connect.CodeOf(err) != connect.CodeFailedPrecondition {
						t.Errorf("question %d of %d: %v", n, i, err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	full := func(i int, source string) {
		t.Helper()
		if err := ask(clients[i], keys[i], source, 5000); connect.CodeOf(err) != connect.CodeResourceExhausted ||
			!strings.Contains(err.Error(), "carrel approvals list") {
			t.Errorf("%s of %d: %v", source, i, err)
		}
	}
	many("llm", 900)
	full(3, "llm")
	full(people, "llm") // who has asked for nothing yet: 9,000 are of programs
	many("user", 100)
	full(3, "user")
	full(people, "user")
	h.settled(t)
	if rss := resident(t, h.part(t, "daemon")); rss > 192<<20 {
		t.Errorf("the daemon takes %d MiB", rss>>20)
	}

	admin := carrelv1connect.NewApprovalServiceClient(h.client(t, 0), "http://carrel")
	pending := func() map[string]int64 {
		t.Helper()
		seen := map[string]int64{}
		req := &carrelv1.ListApprovalsRequest{State: "pending", PageSize: 500}
		for {
			res, err := admin.ListApprovals(ctx, connect.NewRequest(req))
			if err != nil {
				t.Fatal(err)
			}
			for _, a := range res.Msg.GetApprovals() {
				seen[a.GetId()] = a.GetUntilUnixMs()
			}
			if req.PageToken = res.Msg.GetNextPageToken(); req.PageToken == "" {
				return seen
			}
		}
	}
	before := pending()
	if len(before) != 10_000 {
		t.Errorf("%d are listed", len(before))
	}
	end(t, h.part(t, "daemon"), unix.SIGKILL)
	if err := h.up(); err != nil {
		t.Fatal(err)
	}
	after := pending()
	for name, until := range before {
		if after[name] != until {
			t.Fatalf("approval %s was open until %d and is until %d", name, until, after[name])
		}
	}
	full(people, "user")

	stream, err := admin.WatchApprovals(ctx, connect.NewRequest(&carrelv1.WatchApprovalsRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	watched := 0
	var last string
	for stream.Receive() && !stream.Msg().GetCaughtUp() {
		last = stream.Msg().GetApproval().GetId()
		watched++
	}
	if watched != len(after) || len(after) != len(before) {
		t.Fatalf("%d are watched of %d: %v", watched, len(after), stream.Err())
	}
	if _, err := admin.AnswerApproval(ctx, connect.NewRequest(&carrelv1.AnswerApprovalRequest{Id: last, Kind: "deny"})); err != nil {
		t.Fatal(err)
	}
	if !stream.Receive() || stream.Msg().GetApproval().GetId() != last || stream.Msg().GetApproval().GetState() != "denied" {
		t.Fatalf("%v, %v", stream.Msg(), stream.Err())
	}
	// That made room for one.
	if err := ask(clients[people], keys[people], "user", 1); connect.CodeOf(err) != connect.CodeFailedPrecondition {
		t.Error(err)
	}
	full(people, "user")
	if !stream.Receive() || stream.Msg().GetApproval().GetRequester() != fmt.Sprint("uid:", 61100+people) {
		t.Fatalf("%v, %v", stream.Msg(), stream.Err())
	}
}

// resident is what a process has in memory, in bytes.
func resident(t testing.TB, pid int) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := bytes.Cut(b, []byte("VmRSS:"))
	kib, err := strconv.ParseInt(string(bytes.Fields(rest)[0]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}
