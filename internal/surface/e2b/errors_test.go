package e2b_test

import (
	"strings"
	"testing"

	"connectrpc.com/connect"

	pb "github.com/carrel-dev/carrel/gen/e2b/filesystem"
)

// Who is not let in is told so by a call, and by a stream, whose clients take every status but 200 for a sandbox that has gone.
func TestRefusalsOfCalls(t *testing.T) {
	r := start(t, 0)
	s := r.sandbox()
	s.access = "wrong"
	st, err := r.processes(s).Start(t.Context(), shell("true", false))
	if err == nil {
		st.Receive()
		err = st.Err()
	}
	_, list := r.files(s).ListDir(t.Context(), connect.NewRequest(&pb.ListDirRequest{Path: "/"}))
	for what, err := range map[string]error{"a stream": err, "a call": list} {
		if connect.CodeOf(err) != connect.CodeUnauthenticated || !strings.Contains(err.Error(), "carrel token ls") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
