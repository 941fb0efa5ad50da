/** @typedef {import('../types/method.d.ts').Fields} Fields */
/** @typedef {import('../types/carrel.d.ts')} M */
/**
 * The fields of each message: name, kind, how often it is there, and the message that it is.
 * @type {Record<string, Fields>}
 */
export const schema: Record<string, Fields>;
export namespace WorkspaceService {
    let create: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").CreateRequest, import("../types/carrel.d.ts").CreateResponse>;
    let get: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").GetRequest, import("../types/carrel.d.ts").GetResponse>;
    let list: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").ListRequest, import("../types/carrel.d.ts").ListResponse>;
    let start: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").StartRequest, import("../types/carrel.d.ts").StartResponse>;
    let stop: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").StopRequest, import("../types/carrel.d.ts").StopResponse>;
    let destroy: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").DestroyRequest, import("../types/carrel.d.ts").DestroyResponse>;
    let revive: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").ReviveRequest, import("../types/carrel.d.ts").ReviveResponse>;
    let pause: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").PauseRequest, import("../types/carrel.d.ts").PauseResponse>;
    let resume: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").ResumeRequest, import("../types/carrel.d.ts").ResumeResponse>;
    let update: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").UpdateRequest, import("../types/carrel.d.ts").UpdateResponse>;
    let explainReach: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").ExplainReachRequest, import("../types/carrel.d.ts").ExplainReachResponse>;
    let listConnections: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").ListConnectionsRequest, import("../types/carrel.d.ts").ListConnectionsResponse>;
    let stats: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").StatsRequest, import("../types/carrel.d.ts").StatsResponse>;
    let watch: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").WatchRequest, import("../types/carrel.d.ts").WatchResponse>;
}
export namespace CommandService {
    let exec: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").ExecRequest, import("../types/carrel.d.ts").ExecResponse>;
    let stream: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").StreamRequest, import("../types/carrel.d.ts").StreamResponse>;
    let detach: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").DetachRequest, import("../types/carrel.d.ts").DetachResponse>;
    let listCommands: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").ListCommandsRequest, import("../types/carrel.d.ts").ListCommandsResponse>;
    let explain: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").ExplainRequest, import("../types/carrel.d.ts").ExplainResponse>;
    let logs: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").LogsRequest, import("../types/carrel.d.ts").LogsResponse>;
    let wait: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").WaitRequest, import("../types/carrel.d.ts").WaitResponse>;
    let signal: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").SignalRequest, import("../types/carrel.d.ts").SignalResponse>;
    let resize: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").ResizeRequest, import("../types/carrel.d.ts").ResizeResponse>;
    let spawn: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").SpawnRequest, import("../types/carrel.d.ts").SpawnResponse>;
    let attach: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").AttachRequest, import("../types/carrel.d.ts").AttachResponse>;
    let join: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").JoinRequest, import("../types/carrel.d.ts").JoinResponse>;
}
export namespace ArchiveService {
    let createArchive: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").CreateArchiveRequest, import("../types/carrel.d.ts").CreateArchiveResponse>;
    let restore: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").RestoreRequest, import("../types/carrel.d.ts").RestoreResponse>;
    let listArchives: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").ListArchivesRequest, import("../types/carrel.d.ts").ListArchivesResponse>;
    let readArchive: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").ReadArchiveRequest, import("../types/carrel.d.ts").ReadArchiveResponse>;
    let removeArchive: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").RemoveArchiveRequest, import("../types/carrel.d.ts").RemoveArchiveResponse>;
}
export namespace FileService {
    let readFile: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").ReadFileRequest, import("../types/carrel.d.ts").ReadFileResponse>;
    let writeFile: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").WriteFileRequest, import("../types/carrel.d.ts").WriteFileResponse>;
    let listFiles: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").ListFilesRequest, import("../types/carrel.d.ts").ListFilesResponse>;
    let statFile: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").StatFileRequest, import("../types/carrel.d.ts").StatFileResponse>;
    let makeDirectory: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").MakeDirectoryRequest, import("../types/carrel.d.ts").MakeDirectoryResponse>;
    let moveFile: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").MoveFileRequest, import("../types/carrel.d.ts").MoveFileResponse>;
    let removeFile: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").RemoveFileRequest, import("../types/carrel.d.ts").RemoveFileResponse>;
    let packFiles: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").PackFilesRequest, import("../types/carrel.d.ts").PackFilesResponse>;
    let unpackFiles: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").UnpackFilesRequest, import("../types/carrel.d.ts").UnpackFilesResponse>;
    let searchFiles: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").SearchFilesRequest, import("../types/carrel.d.ts").SearchFilesResponse>;
    let listChanges: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").ListChangesRequest, import("../types/carrel.d.ts").ListChangesResponse>;
    let watchFiles: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").WatchFilesRequest, import("../types/carrel.d.ts").WatchFilesResponse>;
    let listPatches: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").ListPatchesRequest, import("../types/carrel.d.ts").ListPatchesResponse>;
    let undoPatch: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").UndoPatchRequest, import("../types/carrel.d.ts").UndoPatchResponse>;
}
export namespace PortService {
    let publish: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").PublishRequest, import("../types/carrel.d.ts").PublishResponse>;
    let connect: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").ConnectRequest, import("../types/carrel.d.ts").ConnectResponse>;
}
export namespace AuditService {
    let verify: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").VerifyRequest, import("../types/carrel.d.ts").VerifyResponse>;
    let show: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").ShowRequest, import("../types/carrel.d.ts").ShowResponse>;
    let checkpoint: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").CheckpointRequest, import("../types/carrel.d.ts").CheckpointResponse>;
    let prove: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").ProveRequest, import("../types/carrel.d.ts").ProveResponse>;
}
export namespace TokenService {
    let createToken: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").CreateTokenRequest, import("../types/carrel.d.ts").CreateTokenResponse>;
    let listTokens: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").ListTokensRequest, import("../types/carrel.d.ts").ListTokensResponse>;
    let getToken: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").GetTokenRequest, import("../types/carrel.d.ts").GetTokenResponse>;
    let revokeToken: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").RevokeTokenRequest, import("../types/carrel.d.ts").RevokeTokenResponse>;
    let whoAmI: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").WhoAmIRequest, import("../types/carrel.d.ts").WhoAmIResponse>;
}
export namespace SecretService {
    let setSecret: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").SetSecretRequest, import("../types/carrel.d.ts").SetSecretResponse>;
    let rotateSecret: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").RotateSecretRequest, import("../types/carrel.d.ts").RotateSecretResponse>;
    let listSecrets: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").ListSecretsRequest, import("../types/carrel.d.ts").ListSecretsResponse>;
    let removeSecret: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").RemoveSecretRequest, import("../types/carrel.d.ts").RemoveSecretResponse>;
}
export namespace ModelService {
    let listModels: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").ListModelsRequest, import("../types/carrel.d.ts").ListModelsResponse>;
    let modelUsage: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").ModelUsageRequest, import("../types/carrel.d.ts").ModelUsageResponse>;
}
export namespace TaskService {
    let runTask: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").RunTaskRequest, import("../types/carrel.d.ts").RunTaskResponse>;
    let listTasks: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").ListTasksRequest, import("../types/carrel.d.ts").ListTasksResponse>;
    let getTask: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").GetTaskRequest, import("../types/carrel.d.ts").GetTaskResponse>;
    let stopTask: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").StopTaskRequest, import("../types/carrel.d.ts").StopTaskResponse>;
    let followTask: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").FollowTaskRequest, import("../types/carrel.d.ts").FollowTaskResponse>;
}
export namespace AgentService {
    let serve: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").ServeRequest, import("../types/carrel.d.ts").ServeResponse>;
}
export namespace ApprovalService {
    let listApprovals: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").ListApprovalsRequest, import("../types/carrel.d.ts").ListApprovalsResponse>;
    let getApproval: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").GetApprovalRequest, import("../types/carrel.d.ts").GetApprovalResponse>;
    let answerApproval: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").AnswerApprovalRequest, import("../types/carrel.d.ts").AnswerApprovalResponse>;
    let watchApprovals: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").WatchApprovalsRequest, import("../types/carrel.d.ts").WatchApprovalsResponse>;
    let allowCommand: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").AllowCommandRequest, import("../types/carrel.d.ts").AllowCommandResponse>;
    let listPermissions: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").ListPermissionsRequest, import("../types/carrel.d.ts").ListPermissionsResponse>;
    let revokePermission: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").RevokePermissionRequest, import("../types/carrel.d.ts").RevokePermissionResponse>;
}
export namespace SystemService {
    let version: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").VersionRequest, import("../types/carrel.d.ts").VersionResponse>;
    let reloadPolicy: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").ReloadPolicyRequest, import("../types/carrel.d.ts").ReloadPolicyResponse>;
    let mended: import("../types/method.d.ts").Method<import("../types/carrel.d.ts").MendedRequest, import("../types/carrel.d.ts").MendedResponse>;
}
export type Fields = import("../types/method.d.ts").Fields;
export type M = typeof import("../types/carrel.d.ts");
