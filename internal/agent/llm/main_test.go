package llm_test

import (
	"testing"

	"go.uber.org/goleak"
)

// No request leaves anything running, however it ended.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
