package api

import (
	"github.com/carrel-dev/carrel/gen/carrel/v1/carrelv1connect"
	"github.com/carrel-dev/carrel/internal/action"
	"github.com/carrel-dev/carrel/internal/fdapi"
)

// route is one row of the table of everything that the API serves.
type route struct {
	// rule is the kind of action that a call of it is: who may not do that may not call it.
	// What they may do it to is the gate's decision.
	rule action.Kind
	// maxRequest bounds one request message, in bytes after decompression.
	maxRequest int
	// stream: the exchange may last, so the body has no deadline.
	stream bool
}

// metricsPath is where counters are read, as Prometheus does.
const metricsPath = "/metrics"

const (
	small = 16 << 10
	large = 1 << 20
)

// routes is that table. A path that is not in it is not served.
var routes = map[string]route{
	carrelv1connect.WorkspaceServiceCreateProcedure:          {action.Create, small, false},
	carrelv1connect.WorkspaceServiceGetProcedure:             {action.Inspect, small, false},
	carrelv1connect.WorkspaceServiceListProcedure:            {action.List, small, false},
	carrelv1connect.WorkspaceServiceStartProcedure:           {action.Start, small, false},
	carrelv1connect.WorkspaceServiceStopProcedure:            {action.Stop, small, false},
	carrelv1connect.WorkspaceServiceDestroyProcedure:         {action.Destroy, small, false},
	carrelv1connect.WorkspaceServicePauseProcedure:           {action.Pause, small, false},
	carrelv1connect.WorkspaceServiceResumeProcedure:          {action.Resume, small, false},
	carrelv1connect.WorkspaceServiceUpdateProcedure:          {action.Update, small, false},
	carrelv1connect.WorkspaceServiceStatsProcedure:           {action.Stats, large, false},
	carrelv1connect.WorkspaceServiceWatchProcedure:           {action.Watch, large, true},
	carrelv1connect.CommandServiceExecProcedure:              {action.Exec, large, false},
	carrelv1connect.CommandServiceStreamProcedure:            {action.Exec, large, true},
	carrelv1connect.CommandServiceDetachProcedure:            {action.Exec, large, false},
	carrelv1connect.CommandServiceListCommandsProcedure:      {action.Commands, small, false},
	carrelv1connect.CommandServiceLogsProcedure:              {action.Logs, small, true},
	carrelv1connect.CommandServiceSignalProcedure:            {action.Signal, small, false},
	carrelv1connect.ArchiveServiceCreateArchiveProcedure:     {action.Archive, small, true},
	carrelv1connect.ArchiveServiceRestoreProcedure:           {action.Restore, large, true},
	carrelv1connect.ArchiveServiceListArchivesProcedure:      {action.Archives, small, false},
	carrelv1connect.ArchiveServiceReadArchiveProcedure:       {action.ReadArchive, small, true},
	carrelv1connect.ArchiveServiceRemoveArchiveProcedure:     {action.RemoveArchive, small, false},
	carrelv1connect.AuditServiceVerifyProcedure:              {action.Audit, small, false},
	carrelv1connect.AuditServiceShowProcedure:                {action.Audit, small, true},
	carrelv1connect.SystemServiceVersionProcedure:            {action.Version, small, false},
	carrelv1connect.SystemServiceMendedProcedure:             {action.Mended, small, false},
	carrelv1connect.TokenServiceCreateTokenProcedure:         {action.CreateToken, small, false},
	carrelv1connect.TokenServiceListTokensProcedure:          {action.ListTokens, small, false},
	carrelv1connect.TokenServiceGetTokenProcedure:            {action.ListTokens, small, false},
	carrelv1connect.TokenServiceRevokeTokenProcedure:         {action.RevokeToken, small, false},
	carrelv1connect.TokenServiceWhoAmIProcedure:              {action.WhoAmI, small, false},
	carrelv1connect.ApprovalServiceListApprovalsProcedure:    {action.InspectApproval, small, false},
	carrelv1connect.ApprovalServiceGetApprovalProcedure:      {action.InspectApproval, small, false},
	carrelv1connect.ApprovalServiceAnswerApprovalProcedure:   {action.Answer, small, false},
	carrelv1connect.ApprovalServiceWatchApprovalsProcedure:   {action.InspectApproval, small, true},
	carrelv1connect.ApprovalServiceListPermissionsProcedure:  {action.InspectApproval, small, false},
	carrelv1connect.ApprovalServiceRevokePermissionProcedure: {action.Revoke, small, false},
	carrelv1connect.SystemServiceReloadPolicyProcedure:       {action.Policy, small, false},
	carrelv1connect.AuditServiceCheckpointProcedure:          {action.Audit, small, false},
	carrelv1connect.AuditServiceProveProcedure:               {action.Audit, small, true},
	fdapi.Path:  {action.Exec, large, true},
	metricsPath: {action.Audit, small, false},
}
