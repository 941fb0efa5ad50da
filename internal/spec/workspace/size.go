package workspace

import (
	"errors"
	"math"
	"strconv"
	"strings"
)

// sizeUnits are the units of sizes, a longer one before its end.
var sizeUnits = []struct {
	suffix string
	shift  uint
}{
	{"kb", 10},
	{"mb", 20},
	{"gb", 30},
	{"tb", 40},
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

// ParseSize returns the bytes of a size as people write it, on a command line and in settings: a whole number, with a
// unit or not, as 512M, 1GB or 1GiB. All units count in 1024, with B and iB too, as docker has it: a limit must not be
// another one because of a letter.
func ParseSize(text string) (int64, error) {
	number, shift := strings.ToLower(strings.TrimSpace(text)), uint(0)
	for _, u := range sizeUnits {
		if n, ok := strings.CutSuffix(number, u.suffix); ok {
			number, shift = n, u.shift
			break
		}
	}
	n, err := strconv.ParseUint(strings.TrimSpace(number), 10, 64)
	if err != nil || n > math.MaxInt64>>shift {
		return 0, errors.New("it is not a size; give a whole number of bytes, or of a unit, as in 512M, 1GB or 1GiB, which count in 1024")
	}
	return int64(n << shift), nil
}
