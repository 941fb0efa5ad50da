/** Rounded up, so that a short time does not become none. @param {number | undefined} seconds */
export function milliseconds(seconds: number | undefined): number;
/** @param {Uint8Array | string | undefined} data */
export function bytesOf(data: Uint8Array | string | undefined): Uint8Array<ArrayBufferLike>;
/** How much a Result keeps of each output unless told otherwise, in bytes. */
export const maxOutput: number;
/** A command that ran to its end. One that fails is no error: look at exitCode, or call check. */
export class Result {
    /**
     * @param {string} commandId @param {import('../types/carrel.d.ts').Status} status
     * @param {Uint8Array} stdout @param {Uint8Array} stderr @param {number} stdoutLost what came beyond maxOutput @param {number} stderrLost
     */
    constructor(commandId: string, status: import("../types/carrel.d.ts").Status, stdout: Uint8Array, stderr: Uint8Array, stdoutLost: number, stderrLost: number);
    commandId: string;
    status: import("../types/carrel.d.ts").Status;
    stdout: Uint8Array<ArrayBufferLike>;
    stderr: Uint8Array<ArrayBufferLike>;
    stdoutLost: number;
    stderrLost: number;
    /** The exit code, or 128 + the signal that ended it. */
    get exitCode(): number;
    get ok(): boolean;
    /** stdout as text; bytes that are no UTF-8 are replaced. */
    get text(): string;
    /** The result itself, or CommandFailed if the exit code is not 0. */
    check(): this;
}
/** Bytes up to a bound; the rest is counted. */
export class Collected {
    /** @param {number} most */
    constructor(most: number);
    most: number;
    have: number;
    lost: number;
    /** @type {Uint8Array[]} */ pieces: Uint8Array[];
    /** @param {Uint8Array} data */
    add(data: Uint8Array): void;
    all(): Uint8Array<ArrayBuffer>;
}
