package leaks_test

import (
	"testing"
	"time"

	"github.com/carrel-dev/carrel/test/leaks"
)

func TestFind(t *testing.T) {
	go func() { <-time.After(700 * time.Millisecond) }() // longer than goleak waits
	if err := leaks.Find(10 * time.Second); err != nil {
		t.Errorf("a goroutine that ends by itself counts as left: %v", err)
	}
	release := make(chan struct{})
	go func() { <-release }()
	defer close(release)
	if leaks.Find(time.Second) == nil {
		t.Error("a goroutine that does not end is not found")
	}
}
