package broker

import (
	"time"

	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
)

// rule says how an operation on a workspace is carried out.
type rule struct {
	// verb is what errors call it.
	verb string
	// timeout bounds it once it has begun.
	timeout time.Duration
	// states are the states of the workspace in which it is allowed.
	states []workspace.State
}

// absent is the state of a name that the ledger does not have.
const absent workspace.State = ""

// methodDiscard is a destroy of what nobody has used. It has a rule of its own and no method.
const methodDiscard = "discard"

// live are the states in which a workspace has an executor.
var live = []workspace.State{workspace.StateRunning, workspace.StatePaused}

// rules apply to every operation on a workspace, from any client.
// docs/protocols/broker.md repeats the states for people.
var rules = map[string]rule{
	brokerapi.MethodCreate: {"create", userTimeout + stopTimeout, []workspace.State{
		absent, workspace.StateCreating, workspace.StateStopped, workspace.StateRunning, workspace.StatePaused, workspace.StateDestroyed,
	}},
	brokerapi.MethodStart: {"start", startTimeout + stopTimeout, []workspace.State{workspace.StateStopped, workspace.StateRunning}},
	brokerapi.MethodStop: {"stop", stopTimeout, []workspace.State{
		workspace.StateStopped, workspace.StateRunning, workspace.StatePaused,
	}},
	brokerapi.MethodDestroy: {"destroy", removeTimeout, []workspace.State{
		workspace.StateStopped, workspace.StateRunning, workspace.StatePaused, workspace.StateDestroying, workspace.StateDestroyed,
	}},
	methodDiscard:          {"discard", userTimeout + stopTimeout, []workspace.State{workspace.StateStopped, workspace.StateDestroyed}},
	brokerapi.MethodReport: {"report on", 0, live},
	brokerapi.MethodPause:  {"pause", freezeTimeout + stopTimeout, live},
	brokerapi.MethodResume: {"resume", freezeTimeout + stopTimeout, live},
	brokerapi.MethodUpdate: {"change the limits of", stopTimeout, []workspace.State{
		workspace.StateStopped, workspace.StateRunning, workspace.StatePaused,
	}},
	brokerapi.MethodStats:  {"measure", 0, live},
	brokerapi.MethodEgress: {"open a way out of", startTimeout, live},
	brokerapi.MethodRevive: {"bring back", userTimeout + stopTimeout, []workspace.State{workspace.StateDestroyed}},
	// It is about a kept home, whatever has become of the name since.
	brokerapi.MethodForget: {"forget the home of", removeTimeout, nil},
}
