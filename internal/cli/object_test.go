package cli_test

import (
	"encoding/json"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/cli"
)

// The members of the JSON are an interface, listed in docs/cli.md.
func TestObjects(t *testing.T) {
	for _, c := range []struct {
		m       proto.Message
		members string
	}{
		{
			&carrelv1.Workspace{},
			"name key owner user uid executor_uid agent_uid home inside_home state root boundary limits mounts allow " +
				"controls executor_pid created_at profile expires_at idle_timeout_ms silent_at reach_allow reach_deny egress " +
				"reach_ask secrets reach_approved secret_files",
		},
		{&carrelv1.Limits{}, "memory_bytes swap_bytes pids cpu_weight open_files disk_bytes"},
		{&carrelv1.Control{}, "id requested required state evidence remedy opened"},
		{&carrelv1.Mount{}, "source destination read_only owner_uid as_root"},
		{&carrelv1.CommandInfo{}, "command_id pid argv detached terminal started_at processes status"},
		{&carrelv1.Status{}, "code signal timed_out oom killed stuck ended_at user_us system_us max_rss_kib"},
		{&carrelv1.Archive{}, "id workspace key owner profile limits sha256 size entries bytes created_at expires_at"},
		{&carrelv1.RetainedHome{}, "workspace key owner home destroyed_at expires_at"},
		{&carrelv1.CheckpointResponse{}, "signed countersigned anchored log_key broker_key anchor anchor_required error anchor_error"},
		{
			&carrelv1.VerifyResponse{},
			"ok records bytes head bad_seq bad_line harm detail file checkpoints signed countersigned anchored log_key " +
				"broker_key note",
		},
		{
			&carrelv1.Approval{},
			"id state requester workspace key owner thread kind argv cwd env user source written once_only level " +
				"risk_score capabilities rules reasons segments profile isolation action_digest policy trace asked_at until answer " +
				"host port rule",
		},
		{&carrelv1.Segment{}, "text program via level risk_score capabilities rules reasons"},
		{&carrelv1.ApprovalAnswer{}, "kind reason by self at"},
		{&carrelv1.Permission{}, "id text requester workspace thread argv policy by at"},
		{&carrelv1.VersionResponse{}, "version commit go address fingerprint"},
		{
			&carrelv1.Token{},
			"id name owner roles workspaces state maker parent created_at expires_at max_uses uses rate burst revoked_at " +
				"last_used_at",
		},
		{&carrelv1.WhoAmIResponse{}, "principal kind owner roles permissions token"},
		{&carrelv1.ReloadPolicyResponse{}, "old new rules"},
		{
			&carrelv1.Usage{},
			"name key state limits memory_bytes memory_peak_bytes pids cpu_us oom_kills read_bytes written_bytes disk_bytes",
		},
		{&carrelv1.Mended{}, "kind workspace done"},
	} {
		b, err := json.Marshal(cli.ObjectOf(c.m))
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]any{}
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatal(err)
		}
		for name := range strings.FieldsSeq(c.members) {
			if _, ok := got[name]; !ok {
				t.Errorf("%T has no member %q: %s", c.m, name, b)
			}
		}
	}
}

func TestObjectValues(t *testing.T) {
	b, err := json.Marshal(cli.ObjectOf(&carrelv1.Workspace{
		Name: "<ws>", Uid: 1, CreatedUnixMs: 1_500, Limits: &carrelv1.Limits{Pids: 1 << 60},
		Controls: []*carrelv1.Control{{Id: "c"}},
	}))
	const want = `{"name":"\u003cws\u003e","key":"","owner":"","user":"","uid":1,"home":"","state":"","root":"","boundary":"",` +
		`"limits":{"memory_bytes":0,"swap_bytes":0,"pids":1152921504606846976,"cpu_weight":0,"open_files":0,"disk_bytes":0},` +
		`"controls":[{"id":"c","requested":false,"required":false,"state":"","evidence":"","remedy":"","opened":""}],` +
		`"created_at":"1970-01-01T00:00:01.5Z","executor_uid":0,"agent_uid":0,"executor_pid":0,"inside_home":"","profile":"",` +
		`"expires_at":null,"idle_timeout_ms":0,"mounts":[],"allow":[],"silent_at":null,"reach_allow":[],"reach_deny":[],` +
		`"egress":false,"reach_ask":[],"secrets":[],"reach_approved":[],"models":[],"model_budget":null,"secret_files":[],"one_use":false}`
	if err != nil || string(b) != want {
		t.Errorf("%v\n got %s\nwant %s", err, b, want)
	}
}
