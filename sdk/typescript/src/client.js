import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { Unavailable } from './errors.js';
import { Host } from './host.js';
import { Transport } from './http.js';
import { ApprovalService, SecretService, SystemService, TokenService, WorkspaceService, schema } from './messages.js';
import { milliseconds } from './result.js';
import { fromJSON, toJSON } from './wire.js';
import { Workspace } from './workspace.js';

/** @typedef {import('../types/carrel.d.ts').Approval} Approval */
/** @typedef {import('../types/carrel.d.ts').Permission} Permission */
/** @typedef {import('../types/carrel.d.ts').CreateRequest} CreateRequest */
/** @typedef {import('../types/carrel.d.ts').SetSecretRequest} SetSecretRequest */
/** @typedef {import('../types/carrel.d.ts').Secret} Secret */

/**
 * @template Q, A
 * @typedef {import('../types/method.d.ts').Method<Q, A>} Method
 */
/**
 * @template T
 * @typedef {import('../types/method.d.ts').Init<T>} Init
 */

/** How long to wait before a call is made again, in milliseconds. */
const pauses = [100, 500];

/**
 * A client of one daemon. It connects when it first needs to. timeout bounds, in seconds, calls that do not wait for a command; 0
 * is none. There are at most maxConnections connections: what is more waits.
 *
 * A call that only reads, or that has a request id, is made again when the connection breaks. A command is sent once.
 */
export class Client {
  /** @param {import('./host.js').HostOptions & { timeout?: number, maxConnections?: number }} [o] */
  constructor(o = {}) {
    /** @internal */
    this.transport = new Transport(new Host(o), o.maxConnections ?? 32, o.timeout ?? 120);
    this.workspaces = new Workspaces(this);
    this.approvals = new Approvals(this);
    this.secrets = new Secrets(this);
  }

  /** The daemon. */
  get host() {
    return String(this.transport.host);
  }

  /** Closes its connections. */
  close() {
    this.transport.close();
  }

  /**
   * Calls a method that has one request and one answer.
   * @template Q, A
   * @param {Method<Q, A>} method @param {Init<Q>} request @param {import('./http.js').CallOptions} [o] @returns {Promise<A>}
   */
  async call(method, request, o = {}) {
    const message = toJSON(method.request, request);
    const named = schema[method.request].some((f) => f[0] === 'requestId');
    if (named) message.requestId ||= randomUUID();
    for (const pause of named || method.repeatable ? pauses : []) {
      try {
        return fromJSON(method.response, await this.transport.call(method.path, message, o));
      } catch (e) {
        if (!(e instanceof Unavailable)) throw e;
      }
      await sleep(pause);
    }
    return fromJSON(method.response, await this.transport.call(method.path, message, o));
  }

  /**
   * The answers of a method that returns a stream. Leave the loop to end it.
   * @template Q, A
   * @param {Method<Q, A>} method @param {Init<Q>} request @param {{ signal?: AbortSignal }} [o] @returns {AsyncGenerator<A, void, void>}
   */
  async *watch(method, request, o = {}) {
    const s = await this.transport.open(method.path, [toJSON(method.request, request)], false, o.signal);
    try {
      for (let j = await s.receive(); j; j = await s.receive()) yield fromJSON(method.response, j);
    } finally {
      await s.close();
    }
  }

  /** What happens to workspaces, from now on; without names to all that the caller may reach.
   * @param {string[]} [workspaces] @param {{ after?: number, signal?: AbortSignal }} [o] */
  events(workspaces = [], { signal, ...o } = {}) {
    return this.watch(WorkspaceService.watch, { workspaces, ...o }, { signal });
  }

  /** Who the daemon takes the caller for. */
  async whoami() {
    return this.call(TokenService.whoAmI, {});
  }

  /** The daemon's release. */
  async version() {
    return this.call(SystemService.version, {});
  }
}

/** Workspaces by key or name. */
export class Workspaces {
  /** @param {Client} client */
  constructor(client) {
    this.client = client;
  }

  /** A workspace that is there, by its key or name. Nothing is asked yet. @param {string} ref */
  of(ref) {
    return new Workspace(this.client, ref);
  }

  /**
   * Makes the workspace for a key and starts it, or returns the one there is. ttl, idleTimeout and approvalWait are in seconds.
   * @param {string} key
   * @param {Omit<Init<CreateRequest>, 'key' | 'noStart' | 'ttlMs' | 'idleTimeoutMs' | 'approvalWaitMs'> &
   *   { start?: boolean, ttl?: number, idleTimeout?: number, approvalWait?: number }} [o]
   */
  async create(key, o = {}) {
    const { start = true, ttl, idleTimeout, approvalWait, ...rest } = o;
    const r = await this.client.call(
      WorkspaceService.create,
      {
        ...rest, key, noStart: !start, ttlMs: milliseconds(ttl), idleTimeoutMs: milliseconds(idleTimeout),
        approvalWaitMs: milliseconds(approvalWait),
      },
      approvalWait ? { timeout: 0 } : {},
    );
    return new Workspace(this.client, key, r.workspace);
  }

  /** A workspace that is there; NotFound if it is not. @param {string} ref */
  async get(ref) {
    const w = this.of(ref);
    await w.get();
    return w;
  }

  /** Those that the caller may reach. */
  async list() {
    return (await this.client.call(WorkspaceService.list, {})).workspaces.map((w) => new Workspace(this.client, w.name, w));
  }

  /** What those that run use. */
  async stats() {
    return (await this.client.call(WorkspaceService.stats, {})).usage;
  }
}

/** What a person is asked about before it is done. */
export class Approvals {
  /** @param {Client} client */
  constructor(client) {
    this.client = client;
  }

  /** Approvals, the newest first. state is pending, approved, denied, spent or expired.
   * @param {{ state?: string, workspace?: string }} [o] */
  async list(o = {}) {
    /** @type {Approval[]} */ const all = [];
    let pageToken = '';
    do {
      const a = await this.client.call(ApprovalService.listApprovals, { ...o, pageToken });
      all.push(...a.approvals);
      pageToken = a.nextPageToken;
    } while (pageToken);
    return all;
  }

  /** One approval, with its parts. @param {string} id */
  async get(id) {
    return /** @type {Approval} */ ((await this.client.call(ApprovalService.getApproval, { id })).approval);
  }

  /** Answers one: once, thread, always or deny. Who asked for what a program wrote cannot approve it.
   * @param {string} id @param {string} kind @param {{ reason?: string }} [o] */
  async answer(id, kind, o = {}) {
    return /** @type {Approval} */ ((await this.client.call(ApprovalService.answerApproval, { id, kind, ...o })).approval);
  }

  /** Lets it be done once. @param {string} id @param {{ reason?: string }} [o] */
  async approve(id, o = {}) {
    return this.answer(id, 'once', o);
  }

  /** Refuses it. @param {string} id @param {{ reason?: string }} [o] */
  async deny(id, o = {}) {
    return this.answer(id, 'deny', o);
  }

  /** Lets commands of a shape pass unasked, until revoke. Without a workspace it is for all of the caller's. No token may do it.
   * @param {string[]} argv @param {{ workspace?: string, everybody?: boolean }} [o] @returns {Promise<Permission>} */
  async allow(argv, o = {}) {
    return /** @type {Permission} */ ((await this.client.call(ApprovalService.allowCommand, { ...o, argv })).permission);
  }

  /** What answers for a thread, and allow, let pass. @param {{ workspace?: string, thread?: string }} [o] */
  async permissions(o = {}) {
    return (await this.client.call(ApprovalService.listPermissions, o)).permissions;
  }

  /** Takes a permission back. @param {string} id */
  async revoke(id) {
    await this.client.call(ApprovalService.revokePermission, { id });
  }

  /** Those that are pending, and from then on each as it changes. @param {{ signal?: AbortSignal }} [o]
   * @returns {AsyncGenerator<Approval, void, void>} */
  async *watch(o = {}) {
    for await (const a of this.client.watch(ApprovalService.watchApprovals, {}, o)) if (a.approval) yield a.approval;
  }
}

/** Secrets that the daemon keeps for the caller's workspaces. No call returns a value. */
export class Secrets {
  /** @param {Client} client */
  constructor(client) {
    this.client = client;
  }

  /** Keeps a secret. @param {string} name @param {string} value @param {Omit<Init<SetSecretRequest>, 'name' | 'value'>} [limits] */
  async set(name, value, limits = {}) {
    return /** @type {Secret} */ ((await this.client.call(SecretService.setSecret, { ...limits, name, value })).secret);
  }

  /** Gives a secret another value. @param {string} name @param {string} value */
  async rotate(name, value) {
    return /** @type {Secret} */ ((await this.client.call(SecretService.rotateSecret, { name, value })).secret);
  }

  /** The caller's secrets by name, without their values. */
  async list() {
    return (await this.client.call(SecretService.listSecrets, {})).secrets;
  }

  /** Removes a secret. @param {string} name */
  async remove(name) {
    await this.client.call(SecretService.removeSecret, { name });
  }
}
