package e2b_test

import (
	"testing"

	"github.com/carrel-dev/carrel/test/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }
