/** TCP ports of a workspace's loopback. docs/protocols/ports.md has the rules. */
export class Ports {
    /** @param {import('./workspace.js').Workspace} workspace */
    constructor(workspace: import("./workspace.js").Workspace);
    workspace: import("./workspace.js").Workspace;
    /**
     * Keeps a port open for this caller, who alone can connect to it, until close or the workspace's stop. It is judged and recorded
     * once. Without it the first connection publishes the port, for as long as there are connections.
     * @param {number} port @param {{ signal?: AbortSignal }} [o]
     */
    publish(port: number, o?: {
        signal?: AbortSignal;
    }): Promise<PublishedPort>;
    /**
     * Connects to a port, by 127.0.0.1 inside and else by ::1. Unavailable: nothing listens there. FailedPrecondition: the workspace
     * does not run; it is not started for this. The signal ends the connection too.
     * @param {number} port @param {{ signal?: AbortSignal }} [o]
     */
    connect(port: number, o?: {
        signal?: AbortSignal;
    }): Promise<PortConnection>;
    #private;
}
/** A port that is kept open. */
export class PublishedPort {
    /** @param {number} port @param {import('./http.js').Stream} stream */
    constructor(port: number, stream: import("./http.js").Stream);
    port: number;
    stream: import("./http.js").Stream;
    /** Waits until it is no longer open, and throws why. */
    wait(): Promise<void>;
    /** Closes the port. Connections that are there go on. */
    close(): Promise<void>;
}
/** A connection to a port. Iterate over it for what the service sends. */
export class PortConnection {
    /** @param {import('./http.js').Stream} stream */
    constructor(stream: import("./http.js").Stream);
    stream: import("./http.js").Stream;
    /** Some bytes, undefined once the service has ended its side. What broke off before that is an error, as Aborted.
     * @returns {Promise<Uint8Array | undefined>} */
    read(): Promise<Uint8Array | undefined>;
    /** Writes. It waits while the service does not read. @param {Uint8Array | string} data */
    write(data: Uint8Array | string): Promise<void>;
    /** Says that nothing more is written. What the service still sends can be read. */
    closeWrite(): void;
    /** Ends the connection. Unless both sides have ended, it breaks off: the service sees a reset. */
    close(): Promise<void>;
    /** The connection as a stream of Node, as http.request takes it: { createConnection: () => c.duplex() }. Use it instead of read
     * and write. */
    duplex(): Duplex;
    /** @returns {AsyncGenerator<Uint8Array, void, void>} */
    [Symbol.asyncIterator](): AsyncGenerator<Uint8Array, void, void>;
    #private;
}
import { Duplex } from 'node:stream';
