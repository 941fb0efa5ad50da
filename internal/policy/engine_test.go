package policy_test

import (
	"testing"

	"github.com/carrel-dev/carrel/internal/policy"
)

func engine(t testing.TB) *policy.Engine {
	t.Helper()
	e, err := policy.New(policy.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestBuiltin(t *testing.T) {
	engine(t)
}
