package namespace

import (
	"github.com/carrel-dev/carrel/internal/brokerapi"
	"github.com/carrel-dev/carrel/internal/workspace"
)

// HasID reports whether an id of the host is that of a workspace that is known here.
func (r *Runtime) HasID(uid uint32) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, ids := range r.ids {
		if ids.Executor > 0 && ids.Executor <= uid && uid <= ids.Agent { // root is no workspace's
			return true
		}
	}
	return false
}

// seen notes the ids that the peer of a later connection must have.
func (r *Runtime) seen(w brokerapi.Workspace) workspace.Real {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ids[w.Name] = w.IDs
	return convert(w)
}

func convert(w brokerapi.Workspace) workspace.Real {
	out := workspace.Real{
		State: w.State, InForce: w.Limits, User: w.User, IDs: w.IDs, Home: w.Home, Retained: w.Retained, Mounts: w.Mounts, Allow: w.Allow,
	}
	if w.Executor != nil {
		out.ExecutorPID = w.Executor.PID
	}
	return out
}
