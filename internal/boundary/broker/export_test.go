package broker

import (
	"context"
	"os"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// What tests from outside need to reach.

// ErrTaken is what an id that somebody else has gives.
var ErrTaken = errTaken

// MaxRequest bounds a request of the daemon.
const MaxRequest = maxRequest

// UserAddArgs is what useradd is told.
func UserAddArgs(name id.Workspace, n uint32, home, shell, group string) []string {
	return userAddArgs(name, n, home, shell, group)
}

// UsersAt reads another /etc.
func UsersAt(etc string, s Settings) interface {
	IDsFree(workspace.IDs) (bool, error)
	NameFree(id.Workspace) error
	Verify(id.Workspace, workspace.IDs) error
	Complete(id.Workspace, workspace.IDs) bool
	Rights(uid, gid uint32) (group uint32, groups []uint32, homes []string, err error)
} {
	return usersAt{&users{etc: etc, settings: s}}
}

type usersAt struct{ *users }

// Verify sees that the entries are as asked.
func (u usersAt) Verify(name id.Workspace, ids workspace.IDs) error { return u.verify(name, ids) }

// Complete reports whether gshadow, the last, has its entry too.
func (u usersAt) Complete(name id.Workspace, ids workspace.IDs) bool { return u.complete(name, ids) }

// Rights are those with which a user's directories are opened.
func (u usersAt) Rights(uid, gid uint32) (group uint32, groups []uint32, homes []string, err error) {
	c, err := u.credOf(uid, gid)
	return c.gid, c.groups, c.homes, err
}

// Methods lists the operations with the longest params of each.
func Methods() map[string]int {
	m := map[string]int{}
	for name, op := range closedTable {
		m[name] = op.params
	}
	return m
}

// Tidy removes what a killed tool left in etc, with the note in state.
func Tidy(ctx context.Context, etc, state, boot string) error {
	dir, err := os.Open(state)
	if err != nil {
		return err
	}
	defer dir.Close()
	_, err = (&users{etc: etc, state: dir, bootID: boot}).tidy(ctx)
	return err
}

// States lists the states in which each operation on a workspace is allowed.
func States() map[string][]string {
	m := map[string][]string{}
	for name, r := range rules {
		for _, s := range r.states {
			if s == absent {
				s = "absent"
			}
			m[name] = append(m[name], string(s))
		}
	}
	delete(m, methodDiscard)
	return m
}
