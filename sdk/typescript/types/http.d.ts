/** @param {string} path @param {Error} e */
export function lost(path: string, e: Error): CarrelError;
export const maxMessage: number;
/** The connections of a client. */
export class Transport {
    /** @param {import('./host.js').Host} host @param {number} most @param {number} timeout in seconds */
    constructor(host: import("./host.js").Host, most: number, timeout: number);
    host: import("./host.js").Host;
    timeout: number;
    pool: Pool;
    close(): void;
    /**
     * One request and its answer.
     * @param {string} path @param {Json} message @param {CallOptions} [o] @returns {Promise<Json>}
     */
    call(path: string, message: Json, o?: CallOptions): Promise<Json>;
    /**
     * A stream that begins with some messages. Without more they are all.
     * @param {string} path @param {Json[]} first @param {boolean} more @param {AbortSignal} [signal] @returns {Promise<Stream>}
     */
    open(path: string, first: Json[], more: boolean, signal?: AbortSignal): Promise<Stream>;
    #private;
}
/** An exchange. It has to be closed. */
export class Stream {
    /** @param {string} path @param {http.ClientRequest} req @param {boolean} sends @param {AbortSignal} [signal] */
    constructor(path: string, req: http.ClientRequest, sends: boolean, signal?: AbortSignal);
    path: string;
    req: http.ClientRequest;
    sends: boolean;
    signal: AbortSignal | undefined;
    /** @type {Buffer} */ buffer: Buffer;
    ended: boolean;
    closed: boolean;
    /** @type {Error | undefined} */ why: Error | undefined;
    answered: boolean;
    /** @type {AsyncIterator<Buffer> | undefined} */ pieces: AsyncIterator<Buffer> | undefined;
    /** @type {Promise<http.IncomingMessage>} */
    response: Promise<http.IncomingMessage>;
    abort: () => void;
    /** Sends a message, and waits while the daemon does not take it. @param {Json} message */
    send(message: Json): Promise<void>;
    /** Says that nothing more comes. */
    end(): void;
    /** The next message, undefined at the end of the stream. @returns {Promise<Json | undefined>} */
    receive(): Promise<Json | undefined>;
    /** Reads to the end of the stream, for no longer than that. What comes of it, and how it ends, is dropped. @param {number} seconds */
    finish(seconds: number): Promise<void>;
    /** Ends the exchange. A connection that is at its end is kept. */
    close(): Promise<void>;
    #private;
}
export type Json = Record<string, any>;
/**
 * timeout is in seconds, 0 is none
 */
export type CallOptions = {
    timeout?: number;
    signal?: AbortSignal;
};
import { CarrelError } from './errors.js';
/** @typedef {Record<string, any>} Json */
/** @typedef {{ timeout?: number, signal?: AbortSignal }} CallOptions timeout is in seconds, 0 is none */
declare class Pool extends http.Agent {
    /** @param {import('./host.js').Host} host @param {number} most */
    constructor(host: import("./host.js").Host, most: number);
    host: import("./host.js").Host;
    free: number;
    /** @type {(() => void)[]} */ waiting: (() => void)[];
    /** Waits until there is room for a request. @param {AbortSignal} [signal] @returns {Promise<void>} */
    take(signal?: AbortSignal): Promise<void>;
    give(): void;
    /** @param {any} _ @param {(e: Error | null, s?: any) => void} done @returns {any} */
    createConnection(_: any, done: (e: Error | null, s?: any) => void): any;
}
import http from 'node:http';
export {};
