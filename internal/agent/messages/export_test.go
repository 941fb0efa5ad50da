package messages

import (
	"maps"
	"slices"
)

// Reasons are the reasons that have a Chinese form, in order.
func Reasons() []string { return slices.Sorted(maps.Keys(reasons)) }

// Said are texts of the daemon with what they are in Chinese.
var Said = said
