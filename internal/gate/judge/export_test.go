package judge

import "github.com/carrel-dev/carrel/internal/policy/rules"

// Ask asks the policy in force, or the memory of what it said.
func (j *Judge) Ask(q *rules.Question) error {
	f, err := j.rules()
	if err == nil {
		_, err = f.ask(q)
	}
	return err
}
