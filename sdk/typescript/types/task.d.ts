/** The tasks of a workspace: programs that are given a prompt, report messages and ask for permissions. */
export class Tasks {
    /** @param {import('./workspace.js').Workspace} workspace */
    constructor(workspace: import("./workspace.js").Workspace);
    workspace: import("./workspace.js").Workspace;
    /** A task that is there, by its id. Nothing is asked yet. @param {string} id */
    of(id: string): Task;
    /**
     * Starts a task and returns it once the daemon keeps it. It goes on without this client. protocol is carrel, acp, agent or agent-acp; empty
     * is carrel. It is sent once and never again: after ConnectionLost look at list. timeout is how long the task may take, an hour
     * unless told otherwise, and approvalWait how long a person may take to answer what it asks. Its permissions wait as approvals
     * of the kind task.permission. With fd the program speaks on a socket that it inherits as this descriptor (CARREL_TASK_FD), and
     * its output is kept (logs). An aborted signal ends the call, not a task that has begun.
     * @param {string[]} argv @param {string} prompt
     * @param {CommandOptions & { protocol?: string, after?: string, planOnly?: boolean }} [o]
     */
    run(argv: string[], prompt: string, o?: CommandOptions & {
        protocol?: string;
        after?: string;
        planOnly?: boolean;
        fd?: number;
    }): Promise<Task>;
    /** Those that are kept, the newest first. */
    list(): Promise<import("../types/carrel.d.ts").Task[]>;
}
/** A task of a workspace. info is what the daemon last said of it. */
export class Task {
    /** @param {import('./workspace.js').Workspace} workspace @param {string} id @param {TaskInfo} [info] */
    constructor(workspace: import("./workspace.js").Workspace, id: string, info?: TaskInfo);
    workspace: import("./workspace.js").Workspace;
    id: string;
    /** @type {TaskInfo | undefined} */ info: TaskInfo | undefined;
    /** What the daemon says of it now. */
    get(): Promise<import("../types/carrel.d.ts").Task>;
    /**
     * Its messages with greater numbers than after, in their order, and new ones until it ends. The last answer has the task. With
     * now only those that there are. A message's body is JSON. lost counts those before it that are no longer kept. Where the
     * connection breaks it goes on behind the last message, so that none comes twice and none is left out.
     * @param {{ after?: number, now?: boolean, signal?: AbortSignal }} [o] @returns {AsyncGenerator<FollowTaskResponse, void, void>}
     */
    follow({ after, now, signal }?: {
        after?: number;
        now?: boolean;
        signal?: AbortSignal;
    }): AsyncGenerator<FollowTaskResponse, void, void>;
    /** Waits for its end, and returns how it ended. @param {{ signal?: AbortSignal }} [o] */
    wait(o?: {
        signal?: AbortSignal;
    }): Promise<import("../types/carrel.d.ts").Task>;
    /** Asks it to stop, ends its program if it does not, and returns when it has ended. */
    stop(): Promise<import("../types/carrel.d.ts").Task>;
    #private;
}
export type TaskInfo = import("../types/carrel.d.ts").Task;
export type FollowTaskResponse = import("../types/carrel.d.ts").FollowTaskResponse;
export type CommandOptions = import("./spec.js").CommandOptions;
