/** @typedef {import('../types/carrel.d.ts').Workspace} Info */
/** @typedef {import('../types/carrel.d.ts').UpdateRequest} UpdateRequest */
/** @typedef {import('./spec.js').CommandOptions} CommandOptions */
/** @typedef {{ rows: number, cols: number }} Size */
/** A workspace of a client. info is what the daemon last said of it. Each method is one call of the API, or two. */
export class Workspace {
    /** @param {import('./client.js').Client} client @param {string} ref @param {Info} [info] */
    constructor(client: import("./client.js").Client, ref: string, info?: Info);
    client: import("./client.js").Client;
    ref: string;
    /** @type {Info | undefined} */ info: Info | undefined;
    files: Files;
    egress: Egress;
    tasks: Tasks;
    ports: Ports;
    /** What the daemon says of it now. @returns {Promise<Info>} */
    get(): Promise<Info>;
    /** Starts it. */
    start(): Promise<this>;
    /** Ends its commands and stops it. */
    stop(): Promise<this>;
    /** Freezes its commands. */
    pause(): Promise<this>;
    /** Lets its commands go on. */
    resume(): Promise<this>;
    /** Brings it back, stopped, after destroy kept its home. */
    revive(): Promise<this>;
    /** Destroys it. Returns where its home was kept; with purge it is removed too. @param {{ purge?: boolean }} [o] */
    destroy(o?: {
        purge?: boolean;
    }): Promise<string>;
    /** Changes limits, key, lifetime, rules, secrets or models. @param {import('../types/method.d.ts').Init<UpdateRequest>} change */
    update(change: import("../types/method.d.ts").Init<UpdateRequest>): Promise<this>;
    /**
     * Runs a command to its end. A stopped workspace is started first. The command is sent once and never again: after
     * ConnectionLost it is not known how far it came, and the daemon has hung it up.
     * @param {string[]} argv
     * @param {CommandOptions & { input?: Uint8Array | string, onStdout?: (b: Uint8Array) => void, onStderr?: (b: Uint8Array) => void,
     *   maxOutput?: number }} [o]
     */
    exec(argv: string[], o?: CommandOptions & {
        input?: Uint8Array | string;
        onStdout?: (b: Uint8Array) => void;
        onStderr?: (b: Uint8Array) => void;
        maxOutput?: number;
    }): Promise<import("./result.js").Result>;
    /** Starts a command and returns it, to write to and to read from. @param {string[]} argv
     * @param {CommandOptions & { stdin?: boolean, terminal?: Size }} [o] */
    startCommand(argv: string[], o?: CommandOptions & {
        stdin?: boolean;
        terminal?: Size;
    }): Promise<Command>;
    /**
     * Starts a command that outlives this client and the daemon, and returns its id.
     * @param {string[]} argv @param {CommandOptions & { outputLimit?: number, terminal?: Size, session?: string, record?: boolean }} [o]
     */
    detach(argv: string[], o?: CommandOptions & {
        outputLimit?: number;
        terminal?: Size;
        session?: string;
        record?: boolean;
    }): Promise<string>;
    /** Its commands, and detached ones that have ended and are remembered. */
    commands(): Promise<import("../types/carrel.d.ts").CommandInfo[]>;
    /** What is kept of a detached command's output and, with follow, what comes until it ends. The last one has the status.
     * @param {string} commandId @param {{ follow?: boolean, signal?: AbortSignal }} [o] */
    logs(commandId: string, { signal, ...o }?: {
        follow?: boolean;
        signal?: AbortSignal;
    }): AsyncGenerator<import("../types/carrel.d.ts").LogsResponse, void, void>;
    /** Waits for the end of a command. @param {string} commandId @param {{ signal?: AbortSignal }} [o] */
    wait(commandId: string, o?: {
        signal?: AbortSignal;
    }): Promise<import("../types/carrel.d.ts").Status>;
    /** Sends a signal to a command's process group; 0 ends the command: TERM, the grace, KILL.
     * @param {string} commandId @param {number} [signal] @param {number} [grace] */
    signal(commandId: string, signal?: number, grace?: number): Promise<void>;
    /** Sets the size of a command's terminal. @param {string} commandId @param {number} rows @param {number} cols */
    resize(commandId: string, rows: number, cols: number): Promise<void>;
    /** How a command would be judged. decision is JSON. @param {string[]} argv @param {CommandOptions} [o] */
    explain(argv: string[], o?: CommandOptions): Promise<import("../types/carrel.d.ts").ExplainResponse>;
    /**
     * Joins a session, and opens it with argv if there is none. With readOnly it looks on, and nothing is opened.
     * @param {string} [session]
     * @param {{ rows?: number, cols?: number, argv?: string[], readOnly?: boolean, record?: boolean, source?: string }} [o]
     */
    terminal(session?: string, o?: {
        rows?: number;
        cols?: number;
        argv?: string[];
        readOnly?: boolean;
        record?: boolean;
        source?: string;
    }): Promise<Terminal>;
    /** What its commands use together, undefined while it does not run. */
    stats(): Promise<import("../types/carrel.d.ts").Usage | undefined>;
    /** What happens to it, from now on, or since the event with the number after. @param {{ after?: number, signal?: AbortSignal }} [o] */
    events({ signal, ...o }?: {
        after?: number;
        signal?: AbortSignal;
    }): AsyncGenerator<import("../types/carrel.d.ts").WatchResponse, void, void>;
    #private;
}
/** What a workspace may reach. Rules are texts, as docs/egress.md has them; they hold at once. */
export class Egress {
    /** @param {Workspace} workspace */
    constructor(workspace: Workspace);
    workspace: Workspace;
    /** Lets the workspace reach what the rules name. @param {...string} rules */
    allow(...rules: string[]): Promise<void>;
    /** Refuses what the rules name, whatever others allow. @param {...string} rules */
    deny(...rules: string[]): Promise<void>;
    /** Has a person asked about each connection that the rules name. @param {...string} rules */
    ask(...rules: string[]): Promise<void>;
    /** Removes rules by their text. @param {...string} rules */
    remove(...rules: string[]): Promise<void>;
    /** The workspace, whose reachAllow, reachAsk, reachDeny and reachApproved are the rules. */
    rules(): Promise<import("../types/carrel.d.ts").Workspace>;
    /** What the rules in force say of hosts. Nothing is connected to. @param {...string} hosts */
    test(...hosts: string[]): Promise<import("../types/carrel.d.ts").ReachVerdict[]>;
    /** The connections that are open, and the newest that have ended or were refused. @param {{ after?: number }} [o] */
    connections(o?: {
        after?: number;
    }): Promise<import("../types/carrel.d.ts").ListConnectionsResponse>;
}
export type Info = import("../types/carrel.d.ts").Workspace;
export type UpdateRequest = import("../types/carrel.d.ts").UpdateRequest;
export type CommandOptions = import("./spec.js").CommandOptions;
export type Size = {
    rows: number;
    cols: number;
};
import { Files } from './files.js';
import { Tasks } from './task.js';
import { Ports } from './port.js';
import { Command } from './command.js';
import { Terminal } from './command.js';
