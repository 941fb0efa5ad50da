package main

import (
	"errors"
	"time"

	"connectrpc.com/connect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
	"github.com/carrel-dev/carrel/test/bench/measure"
	"github.com/carrel-dev/carrel/test/bench/report"
)

// start measures how long it takes until an executor runs and its isolation is proved:
// the broker's operation on a connection of our own, and Start of the API, which adds
// the record, the state and the connection to the executor. The stop between two starts
// is not counted, and neither is the removal of the peers' containers.
func (b *bench) start() error {
	h, err := b.host()
	if err != nil {
		return err
	}
	w, err := h.workspace("start")
	if err != nil {
		return err
	}
	if err := h.stopWorkspace("start"); err != nil {
		return err
	}
	if _, err := h.workspace("start api"); err != nil {
		return err
	}
	if err := h.stopWorkspace("start api"); err != nil {
		return err
	}
	conn, err := h.broker()
	if err != nil {
		return err
	}
	defer conn.Close()
	name := id.Workspace(w.GetName())
	contestants := []measure.Contestant{
		{Name: "executor start, proved (broker)", Op: func() (time.Duration, error) {
			var res brokerapi.StartResult
			began := time.Now()
			_, err := conn.Call(b.ctx, brokerapi.MethodStart, brokerapi.NameParams{Name: name}, &res)
			took := time.Since(began)
			if err == nil {
				err = res.Report.Err()
			}
			if err == nil && len(res.Report.Controls) == 0 {
				err = errors.New("the report is empty")
			}
			_, stop := conn.Call(b.ctx, brokerapi.MethodStop, brokerapi.NameParams{Name: name}, nil)
			return took, errors.Join(err, stop)
		}},
		{Name: "executor start, proved (API)", Op: func() (time.Duration, error) {
			for {
				began := time.Now()
				_, err := h.client.Workspaces().Start(b.ctx, connect.NewRequest(&carrelv1.StartRequest{Workspace: "start api"}))
				took := time.Since(began)
				if err == nil {
					return took, h.stopWorkspace("start api")
				}
				if _, again := h.startWorkspace("start api"); again != nil {
					return 0, again
				}
				b.Remark("a start had to be repeated and was not counted: %v", err)
				if err := h.stopWorkspace("start api"); err != nil {
					return 0, err
				}
			}
		}},
	}
	for _, r := range b.peers.oci {
		contestants = append(contestants, r.runs())
	}
	got := measure.Interleave(b.ctx, b.pace(3*slowest), contestants)
	if err := b.times(report.Start, time.Millisecond, got[0], got[2:]); err != nil {
		return err
	}
	return b.times(report.StartAPI, time.Millisecond, got[1], nil)
}
