package daemon

import (
	"context"
	"io"

	"github.com/carrel-dev/carrel/internal/state/config"
)

// Serve runs the daemon without its checks on the process.
func Serve(ctx context.Context, cfg *config.Config, log io.Writer, readyFD int, acceptDamage bool) error {
	return serve(ctx, cfg, options{readyFD: readyFD, archiverFD: -1, oldLogFD: -1, acceptDamage: acceptDamage}, backend{}, newLog(log, cfg))
}

// Listen is listen.
var Listen = listen

// AuditPath is auditPath.
var AuditPath = auditPath

// LoadRunbooks is loadRunbooks.
var LoadRunbooks = loadRunbooks

// Several is several.
var Several = several

// ArchiverProgram is archiverProgram.
var ArchiverProgram = archiverProgram
