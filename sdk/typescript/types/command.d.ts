/** @typedef {import('../types/carrel.d.ts').Status} Status */
/** @typedef {{ stream: 'stdout' | 'stderr', data: Uint8Array }} Output */
/** How much stdin is sent with the request, and how much in a message after it, in bytes. */
export const wholeInput: number;
export const piece: number;
/**
 * A running command that this client is attached to. Iterate over it for its output, which has to be read: a command whose output
 * is full waits. close hangs it up.
 */
export class Command {
    /** @param {import('./workspace.js').Workspace} workspace @param {import('./http.js').Stream} stream */
    constructor(workspace: import("./workspace.js").Workspace, stream: import("./http.js").Stream);
    id: string;
    /** @type {Status | undefined} */ status: Status | undefined;
    workspace: import("./workspace.js").Workspace;
    stream: import("./http.js").Stream;
    /** @internal */
    begin(): Promise<this>;
    /** The next piece of output, undefined at the end. @returns {Promise<Output | undefined>} */
    read(): Promise<Output | undefined>;
    /** Writes to the command's stdin. It waits while the command does not read. @param {Uint8Array | string} data */
    write(data: Uint8Array | string): Promise<void>;
    /** Ends the command's stdin. */
    closeStdin(): void;
    /** Sets the size of its terminal. @param {number} rows @param {number} cols */
    resize(rows: number, cols: number): Promise<void>;
    /** Sends a signal to its process group. It passes by what waits for stdin. @param {number} signal */
    signal(signal: number): Promise<void>;
    /** Ends the command and all its processes: TERM, the grace in seconds, KILL. @param {number} [grace] */
    stop(grace?: number): Promise<void>;
    /** Reads its output to the end and drops it, and returns how the command ended. @returns {Promise<Status>} */
    wait(): Promise<Status>;
    /** Hangs the command up, if it still runs: HUP, TERM, KILL. */
    close(): Promise<void>;
    /**
     * @internal
     * @param {Uint8Array} rest @param {number} most @param {((b: Uint8Array) => void) | undefined} onStdout
     * @param {((b: Uint8Array) => void) | undefined} onStderr
     */
    collect(rest: Uint8Array, most: number, onStdout: ((b: Uint8Array) => void) | undefined, onStderr: ((b: Uint8Array) => void) | undefined): Promise<Result>;
    /** @returns {AsyncGenerator<Output, void, void>} */
    [Symbol.asyncIterator](): AsyncGenerator<Output, void, void>;
    #private;
}
/** A session that this client has joined. Iterate over it for what draws its terminal. close leaves it; the session goes on. */
export class Terminal {
    /** @param {string} id @param {import('./http.js').Stream} stream */
    constructor(id: string, stream: import("./http.js").Stream);
    client: number;
    /** @type {Status | undefined} */ status: Status | undefined;
    id: string;
    stream: import("./http.js").Stream;
    /** @internal */
    begin(): Promise<this>;
    /** What draws the terminal next, undefined at the end. @returns {Promise<Uint8Array | undefined>} */
    read(): Promise<Uint8Array | undefined>;
    /** Types. @param {Uint8Array | string} data */
    write(data: Uint8Array | string): Promise<void>;
    /** Says that the client's window has another size. @param {number} rows @param {number} cols */
    resize(rows: number, cols: number): Promise<void>;
    /** Leaves the session. */
    close(): Promise<void>;
    /** @returns {AsyncGenerator<Uint8Array, void, void>} */
    [Symbol.asyncIterator](): AsyncGenerator<Uint8Array, void, void>;
}
export type Status = import("../types/carrel.d.ts").Status;
export type Output = {
    stream: "stdout" | "stderr";
    data: Uint8Array;
};
import { Result } from './result.js';
