package crash_test

import (
	"crypto/rand"
	"os"
	"regexp"
	"strings"
	"testing"

	"connectrpc.com/connect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	carrel "github.com/carrel-dev/carrel/sdk/go"
	"github.com/carrel-dev/carrel/test/crash/check"
)

// approvalPoints are those that TestApprovalPoints arms.
var approvalPoints = []string{
	"daemon.approval.requested", "daemon.approval.asked", "daemon.approval.recorded", "daemon.approval.answered",
	"daemon.approval.spent", "daemon.approval.settled",
}

var approvalID = regexp.MustCompile(`approval (ap-[0-9a-f]{16})`)

// The daemon is killed at every step of a question, its answer and its use. No answer that
// counted is lost, none is used twice, and the command runs once, with an intent that names
// the answer.
func TestApprovalPoints(t *testing.T) {
	h := newHostUp(t)
	client, err := carrel.New(carrel.Options{Host: "unix://" + h.run + "/carrel.sock"})
	must(t, err)
	defer client.Close()
	for _, point := range append(approvalPoints, "daemon.intent.written") {
		t.Run(point, func(t *testing.T) {
			key, word := "crk "+rand.Text()[:10], rand.Text()
			h.carrel(t, "create", key)
			file := h.data + "/homes/" + h.name(t, key) + "/tokens"
			command := []string{key, "--", "/bin/sh", "-c", "echo " + word + " >> tokens; git push https://example.invalid/ x; true"}
			ask := append([]string{"exec"}, command...)
			state := func(id string) string {
				t.Helper()
				return strings.Fields(h.carrel(t, "approvals", "show", id))[1]
			}
			answer := func(id string) error {
				_, err := client.Approvals().AnswerApproval(
					t.Context(), connect.NewRequest(&carrelv1.AnswerApprovalRequest{Id: id, Kind: "once", Terminal: true}),
				)
				return err
			}
			mark := h.logEnd()
			if point != "daemon.intent.written" {
				h.arm(t, point, 1)
			}
			r := h.try(ask...)
			h.up(t)
			if approvalID.FindStringSubmatch(r.err) == nil {
				r = h.try(ask...) // the crash came before it was told
			}
			found := approvalID.FindStringSubmatch(r.err)
			if found == nil {
				t.Fatalf("it is not asked about: %v", r)
			}
			id := found[1]
			// Answered as often as it takes; an answer that counted stays.
			if err := answer(id); err != nil {
				h.up(t)
				switch s := state(id); s {
				case "pending":
					must(t, answer(id))
				case "approved":
				default:
					t.Fatalf("after a crash at its answer it is %s", s)
				}
			}
			if point == "daemon.intent.written" {
				h.arm(t, point, 1)
			}
			_ = h.try(append([]string{"exec"}, command...)...)
			h.up(t)
			if !h.fired(point, mark) {
				t.Fatalf("nothing ended at %s", point)
			}
			h.settled(t)
			switch s := state(id); s {
			case "approved": // its intent was not written: it lets the same pass still
				if r := h.try(append([]string{"exec"}, command...)...); r.code != 0 {
					t.Errorf("an answer was lost: %v", r)
				}
			case "spent":
			default:
				t.Errorf("it is %s", s)
			}
			if r := h.try(ask...); approvalID.FindStringSubmatch(r.err) == nil || strings.Contains(r.err, id) {
				t.Errorf("it passes again: %v", r)
			}
			h.settled(t)
			b, err := os.ReadFile(file)
			if err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			intents := strings.Count(h.carrel(t, "audit", "show", "-o", "json"), `"approval":"`+id+` once by uid:0, self"`)
			// The intent is written, and the approval settled, before the command runs or beside it.
			begun := point == "daemon.intent.written" || point == "daemon.approval.settled"
			if n := strings.Count(string(b), word); n > intents || intents != 1 || n == 0 && !begun {
				t.Errorf("it ran %d times, by %d intents", n, intents)
			}
			h.carrel(t, "destroy", "--purge", key)
			h.settled(t)
		})
	}
	h.carrel(t, "audit", "verify")
	h.look(t, check.Expect{})
	h.gone(t)
}
