// Package rules judges what a command would do. From the facts of internal/policy/shell, the
// knowledge about programs in commands/*.yaml and rules it makes a Decision: SAFE, CONFIRM
// or BLOCK, with a risk score, capabilities and every reason. It is triage in front of the
// boundary and never the boundary itself. It runs nothing, reads no file but those that it
// is handed, and knows neither clock nor machine: the same question has the same answer.
package rules
