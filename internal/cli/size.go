package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// size is a flag value in bytes: a number, with a binary unit or not.
type size int64

var sizeUnits = []struct {
	suffix string
	shift  uint
}{
	{"kib", 10},
	{"mib", 20},
	{"gib", 30},
	{"tib", 40},
	{"k", 10},
	{"m", 20},
	{"g", 30},
	{"t", 40},
	{"b", 0},
}

func (s *size) String() string {
	if *s == 0 {
		return ""
	}
	return strconv.FormatInt(int64(*s), 10)
}

func (s *size) Type() string { return "SIZE" }

func (s *size) Set(text string) error {
	number, shift := strings.ToLower(strings.TrimSpace(text)), uint(0)
	for _, u := range sizeUnits {
		if n, ok := strings.CutSuffix(number, u.suffix); ok {
			number, shift = n, u.shift
			break
		}
	}
	n, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64>>shift {
		return fmt.Errorf("%q is not a size; give bytes or a unit, as in 512MiB or 2GiB", text)
	}
	*s = size(n << shift)
	return nil
}
