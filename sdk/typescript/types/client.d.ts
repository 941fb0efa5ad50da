/**
 * A client of one daemon. It connects when it first needs to. timeout bounds, in seconds, calls that do not wait for a command; 0
 * is none. There are at most maxConnections connections: what is more waits.
 *
 * A call that only reads, or that has a request id, is made again when the connection breaks. A command is sent once.
 */
export class Client {
    /** @param {import('./host.js').HostOptions & { timeout?: number, maxConnections?: number }} [o] */
    constructor(o?: import("./host.js").HostOptions & {
        timeout?: number;
        maxConnections?: number;
    });
    /** @internal */
    transport: Transport;
    workspaces: Workspaces;
    approvals: Approvals;
    secrets: Secrets;
    /** The daemon. */
    get host(): string;
    /** Closes its connections. */
    close(): void;
    /**
     * Calls a method that has one request and one answer.
     * @template Q, A
     * @param {Method<Q, A>} method @param {Init<Q>} request @param {import('./http.js').CallOptions} [o] @returns {Promise<A>}
     */
    call<Q, A>(method: Method<Q, A>, request: Init<Q>, o?: import("./http.js").CallOptions): Promise<A>;
    /**
     * The answers of a method that returns a stream. Leave the loop to end it.
     * @template Q, A
     * @param {Method<Q, A>} method @param {Init<Q>} request @param {{ signal?: AbortSignal }} [o] @returns {AsyncGenerator<A, void, void>}
     */
    watch<Q, A>(method: Method<Q, A>, request: Init<Q>, o?: {
        signal?: AbortSignal;
    }): AsyncGenerator<A, void, void>;
    /** What happens to workspaces, from now on; without names to all that the caller may reach.
     * @param {string[]} [workspaces] @param {{ after?: number, signal?: AbortSignal }} [o] */
    events(workspaces?: string[], { signal, ...o }?: {
        after?: number;
        signal?: AbortSignal;
    }): AsyncGenerator<import("../types/carrel.d.ts").WatchResponse, void, void>;
    /** Who the daemon takes the caller for. */
    whoami(): Promise<import("../types/carrel.d.ts").WhoAmIResponse>;
    /** The daemon's release. */
    version(): Promise<import("../types/carrel.d.ts").VersionResponse>;
}
/** Workspaces by key or name. */
export class Workspaces {
    /** @param {Client} client */
    constructor(client: Client);
    client: Client;
    /** A workspace that is there, by its key or name. Nothing is asked yet. @param {string} ref */
    of(ref: string): Workspace;
    /**
     * Makes the workspace for a key and starts it, or returns the one there is. ttl, idleTimeout and approvalWait are in seconds.
     * @param {string} key
     * @param {Omit<Init<CreateRequest>, 'key' | 'noStart' | 'ttlMs' | 'idleTimeoutMs' | 'approvalWaitMs'> &
     *   { start?: boolean, ttl?: number, idleTimeout?: number, approvalWait?: number }} [o]
     */
    create(key: string, o?: Omit<Init<CreateRequest>, "key" | "noStart" | "ttlMs" | "idleTimeoutMs" | "approvalWaitMs"> & {
        start?: boolean;
        ttl?: number;
        idleTimeout?: number;
        approvalWait?: number;
    }): Promise<Workspace>;
    /** A workspace that is there; NotFound if it is not. @param {string} ref */
    get(ref: string): Promise<Workspace>;
    /** Those that the caller may reach. */
    list(): Promise<Workspace[]>;
    /** What those that run use. */
    stats(): Promise<import("../types/carrel.d.ts").Usage[]>;
}
/** What a person is asked about before it is done. */
export class Approvals {
    /** @param {Client} client */
    constructor(client: Client);
    client: Client;
    /** Approvals, the newest first. state is pending, approved, denied, spent or expired.
     * @param {{ state?: string, workspace?: string }} [o] */
    list(o?: {
        state?: string;
        workspace?: string;
    }): Promise<import("../types/carrel.d.ts").Approval[]>;
    /** One approval, with its parts. @param {string} id */
    get(id: string): Promise<import("../types/carrel.d.ts").Approval>;
    /** Answers one: once, thread, always or deny. Who asked for what a program wrote cannot approve it.
     * @param {string} id @param {string} kind @param {{ reason?: string }} [o] */
    answer(id: string, kind: string, o?: {
        reason?: string;
    }): Promise<import("../types/carrel.d.ts").Approval>;
    /** Lets it be done once. @param {string} id @param {{ reason?: string }} [o] */
    approve(id: string, o?: {
        reason?: string;
    }): Promise<import("../types/carrel.d.ts").Approval>;
    /** Refuses it. @param {string} id @param {{ reason?: string }} [o] */
    deny(id: string, o?: {
        reason?: string;
    }): Promise<import("../types/carrel.d.ts").Approval>;
    /** Lets commands of a shape pass unasked, until revoke. Without a workspace it is for all of the caller's. No token may do it.
     * @param {string[]} argv @param {{ workspace?: string, everybody?: boolean }} [o] @returns {Promise<Permission>} */
    allow(argv: string[], o?: {
        workspace?: string;
        everybody?: boolean;
    }): Promise<Permission>;
    /** What answers for a thread, and allow, let pass. @param {{ workspace?: string, thread?: string }} [o] */
    permissions(o?: {
        workspace?: string;
        thread?: string;
    }): Promise<import("../types/carrel.d.ts").Permission[]>;
    /** Takes a permission back. @param {string} id */
    revoke(id: string): Promise<void>;
    /** Those that are pending, and from then on each as it changes. @param {{ signal?: AbortSignal }} [o]
     * @returns {AsyncGenerator<Approval, void, void>} */
    watch(o?: {
        signal?: AbortSignal;
    }): AsyncGenerator<Approval, void, void>;
}
/** Secrets that the daemon keeps for the caller's workspaces. No call returns a value. */
export class Secrets {
    /** @param {Client} client */
    constructor(client: Client);
    client: Client;
    /** Keeps a secret. @param {string} name @param {string} value @param {Omit<Init<SetSecretRequest>, 'name' | 'value'>} [limits] */
    set(name: string, value: string, limits?: Omit<Init<SetSecretRequest>, "name" | "value">): Promise<import("../types/carrel.d.ts").Secret>;
    /** Gives a secret another value. @param {string} name @param {string} value */
    rotate(name: string, value: string): Promise<import("../types/carrel.d.ts").Secret>;
    /** The caller's secrets by name, without their values. */
    list(): Promise<import("../types/carrel.d.ts").Secret[]>;
    /** Removes a secret. @param {string} name */
    remove(name: string): Promise<void>;
}
export type Approval = import("../types/carrel.d.ts").Approval;
export type Permission = import("../types/carrel.d.ts").Permission;
export type CreateRequest = import("../types/carrel.d.ts").CreateRequest;
export type SetSecretRequest = import("../types/carrel.d.ts").SetSecretRequest;
export type Secret = import("../types/carrel.d.ts").Secret;
export type Method<Q, A> = import("../types/method.d.ts").Method<Q, A>;
export type Init<T> = import("../types/method.d.ts").Init<T>;
import { Transport } from './http.js';
import { Workspace } from './workspace.js';
