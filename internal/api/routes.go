package api

import (
	"github.com/carrel-dev/carrel/gen/carrel/v1/carrelv1connect"
	"github.com/carrel-dev/carrel/internal/fdapi"
)

// access says who may call a route at all. What they may reach through it is
// the gate's decision.
type access int

const (
	// anyone who authenticated: it reveals nothing of a workspace, or only the
	// caller's own.
	anyone access = iota + 1
	// reach: the gate lets through those who may reach the workspace named.
	reach
	// admins: the gate lets root and the members of the carrel group through.
	admins
)

// route is one row of the table of everything that the API serves.
type route struct {
	access access
	// maxRequest bounds one request message, in bytes after decompression.
	maxRequest int
	// stream: the exchange may last, so the body has no deadline.
	stream bool
}

const (
	small = 16 << 10
	large = 1 << 20
)

// routes is that table. A path that is not in it is not served.
var routes = map[string]route{
	carrelv1connect.WorkspaceServiceCreateProcedure:      {anyone, small, false},
	carrelv1connect.WorkspaceServiceGetProcedure:         {reach, small, false},
	carrelv1connect.WorkspaceServiceListProcedure:        {anyone, small, false},
	carrelv1connect.WorkspaceServiceStartProcedure:       {reach, small, false},
	carrelv1connect.WorkspaceServiceStopProcedure:        {reach, small, false},
	carrelv1connect.WorkspaceServiceDestroyProcedure:     {reach, small, false},
	carrelv1connect.WorkspaceServicePauseProcedure:       {reach, small, false},
	carrelv1connect.WorkspaceServiceResumeProcedure:      {reach, small, false},
	carrelv1connect.WorkspaceServiceUpdateProcedure:      {reach, small, false},
	carrelv1connect.WorkspaceServiceStatsProcedure:       {reach, large, false},
	carrelv1connect.WorkspaceServiceWatchProcedure:       {reach, large, true},
	carrelv1connect.CommandServiceExecProcedure:          {reach, large, false},
	carrelv1connect.CommandServiceStreamProcedure:        {reach, large, true},
	carrelv1connect.CommandServiceDetachProcedure:        {reach, large, false},
	carrelv1connect.CommandServiceListCommandsProcedure:  {reach, small, false},
	carrelv1connect.CommandServiceLogsProcedure:          {reach, small, true},
	carrelv1connect.CommandServiceSignalProcedure:        {reach, small, false},
	carrelv1connect.ArchiveServiceCreateArchiveProcedure: {reach, small, true},
	carrelv1connect.ArchiveServiceRestoreProcedure:       {anyone, large, true},
	carrelv1connect.ArchiveServiceListArchivesProcedure:  {anyone, small, false},
	carrelv1connect.ArchiveServiceReadArchiveProcedure:   {reach, small, true},
	carrelv1connect.ArchiveServiceRemoveArchiveProcedure: {reach, small, false},
	carrelv1connect.AuditServiceVerifyProcedure:          {admins, small, false},
	carrelv1connect.AuditServiceShowProcedure:            {admins, small, true},
	carrelv1connect.SystemServiceVersionProcedure:        {anyone, small, false},
	carrelv1connect.SystemServiceMendedProcedure:         {admins, small, false},
	fdapi.Path: {reach, large, true},
}
