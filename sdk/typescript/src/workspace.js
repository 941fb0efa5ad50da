import { Command, Terminal, wholeInput } from './command.js';
import { AlreadyExists, NotFound } from './errors.js';
import { Files } from './files.js';
import { CommandService, WorkspaceService } from './messages.js';
import { Ports } from './port.js';
import { bytesOf, maxOutput, milliseconds } from './result.js';
import { commandOf } from './spec.js';
import { Tasks } from './task.js';
import { toJSON } from './wire.js';

/** @typedef {import('../types/carrel.d.ts').Workspace} Info */
/** @typedef {import('../types/carrel.d.ts').UpdateRequest} UpdateRequest */

/** @typedef {import('./spec.js').CommandOptions} CommandOptions */
/** @typedef {{ rows: number, cols: number }} Size */

/** A workspace of a client. info is what the daemon last said of it. Each method is one call of the API, or two. */
export class Workspace {
  /** @param {import('./client.js').Client} client @param {string} ref @param {Info} [info] */
  constructor(client, ref, info) {
    this.client = client;
    this.ref = ref;
    /** @type {Info | undefined} */ this.info = info;
    this.files = new Files(client, ref);
    this.egress = new Egress(this);
    this.tasks = new Tasks(this);
    this.ports = new Ports(this);
  }

  /** @param {Info | undefined} info */
  #now(info) {
    this.info = info ?? this.info;
    return this;
  }

  /** What the daemon says of it now. @returns {Promise<Info>} */
  async get() {
    this.#now((await this.client.call(WorkspaceService.get, { workspace: this.ref })).workspace);
    return /** @type {Info} */ (this.info);
  }

  /** Starts it. */
  async start() {
    return this.#now((await this.client.call(WorkspaceService.start, { workspace: this.ref })).workspace);
  }

  /** Ends its commands and stops it. */
  async stop() {
    return this.#now((await this.client.call(WorkspaceService.stop, { workspace: this.ref })).workspace);
  }

  /** Freezes its commands. */
  async pause() {
    return this.#now((await this.client.call(WorkspaceService.pause, { workspace: this.ref })).workspace);
  }

  /** Lets its commands go on. */
  async resume() {
    return this.#now((await this.client.call(WorkspaceService.resume, { workspace: this.ref })).workspace);
  }

  /** Brings it back, stopped, after destroy kept its home. */
  async revive() {
    return this.#now((await this.client.call(WorkspaceService.revive, { workspace: this.ref })).workspace);
  }

  /** Destroys it. Returns where its home was kept; with purge it is removed too. @param {{ purge?: boolean }} [o] */
  async destroy(o = {}) {
    return (await this.client.call(WorkspaceService.destroy, { workspace: this.ref, ...o })).retainedHome;
  }

  /** Changes limits, key, lifetime, rules, secrets or models. @param {import('../types/method.d.ts').Init<UpdateRequest>} change */
  async update(change) {
    const r = await this.client.call(WorkspaceService.update, { ...change, workspace: this.ref });
    if (change.key) {
      this.ref = change.key;
      this.files = new Files(this.client, this.ref);
    }
    return this.#now(r.workspace);
  }

  /**
   * Runs a command to its end. A stopped workspace is started first. The command is sent once and never again: after
   * ConnectionLost it is not known how far it came, and the daemon has hung it up.
   * @param {string[]} argv
   * @param {CommandOptions & { input?: Uint8Array | string, onStdout?: (b: Uint8Array) => void, onStderr?: (b: Uint8Array) => void,
   *   maxOutput?: number }} [o]
   */
  async exec(argv, o = {}) {
    const data = bytesOf(o.input);
    const first = [toJSON('StreamRequest', { start: { workspace: this.ref, command: commandOf(argv, o), stdin: data.length > 0 } })];
    const rest = data.length > wholeInput ? data : new Uint8Array();
    if (data.length && !rest.length) first.push(toJSON('StreamRequest', { stdin: data }));
    const c = await this.#attach(first, rest.length > 0, o.signal);
    try {
      return await c.collect(rest, o.maxOutput ?? maxOutput, o.onStdout, o.onStderr);
    } finally {
      await c.close();
    }
  }

  /** Starts a command and returns it, to write to and to read from. @param {string[]} argv
   * @param {CommandOptions & { stdin?: boolean, terminal?: Size }} [o] */
  async startCommand(argv, o = {}) {
    const start = { workspace: this.ref, command: commandOf(argv, o), stdin: o.stdin ?? false, terminal: o.terminal };
    return this.#attach([toJSON('StreamRequest', { start })], Boolean(o.stdin || o.terminal), o.signal);
  }

  /** @param {Record<string, any>[]} first @param {boolean} more @param {AbortSignal} [signal] */
  async #attach(first, more, signal) {
    const c = new Command(this, await this.client.transport.open(CommandService.stream.path, first, more, signal));
    try {
      return await c.begin();
    } catch (e) {
      await c.close();
      throw e;
    }
  }

  /**
   * Starts a command that outlives this client and the daemon, and returns its id.
   * @param {string[]} argv @param {CommandOptions & { outputLimit?: number, terminal?: Size, session?: string, record?: boolean }} [o]
   */
  async detach(argv, o = {}) {
    const { outputLimit = 0, terminal, session = '', record = false } = o;
    const r = { workspace: this.ref, command: commandOf(argv, o), outputLimit, terminal, session, record };
    return (await this.client.call(CommandService.detach, r, { timeout: 0, signal: o.signal })).commandId;
  }

  /** Its commands, and detached ones that have ended and are remembered. */
  async commands() {
    return (await this.client.call(CommandService.listCommands, { workspace: this.ref })).commands;
  }

  /** What is kept of a detached command's output and, with follow, what comes until it ends. The last one has the status.
   * @param {string} commandId @param {{ follow?: boolean, signal?: AbortSignal }} [o] */
  logs(commandId, { signal, ...o } = {}) {
    return this.client.watch(CommandService.logs, { workspace: this.ref, commandId, ...o }, { signal });
  }

  /** Waits for the end of a command. @param {string} commandId @param {{ signal?: AbortSignal }} [o] */
  async wait(commandId, o = {}) {
    const r = await this.client.call(CommandService.wait, { workspace: this.ref, commandId }, { timeout: 0, ...o });
    return /** @type {import('../types/carrel.d.ts').Status} */ (r.status);
  }

  /** Sends a signal to a command's process group; 0 ends the command: TERM, the grace, KILL.
   * @param {string} commandId @param {number} [signal] @param {number} [grace] */
  async signal(commandId, signal = 0, grace = undefined) {
    await this.client.call(CommandService.signal, { workspace: this.ref, commandId, signal, graceMs: milliseconds(grace) });
  }

  /** Sets the size of a command's terminal. @param {string} commandId @param {number} rows @param {number} cols */
  async resize(commandId, rows, cols) {
    await this.client.call(CommandService.resize, { workspace: this.ref, commandId, size: { rows, cols } });
  }

  /** How a command would be judged. decision is JSON. @param {string[]} argv @param {CommandOptions} [o] */
  async explain(argv, o = {}) {
    return this.client.call(CommandService.explain, { workspace: this.ref, command: commandOf(argv, o) });
  }

  /**
   * Joins a session, and opens it with argv if there is none. With readOnly it looks on, and nothing is opened.
   * @param {string} [session]
   * @param {{ rows?: number, cols?: number, argv?: string[], readOnly?: boolean, record?: boolean, source?: string }} [o]
   */
  async terminal(session = 'main', o = {}) {
    const { rows = 24, cols = 80, argv = ['bash', '-l'], readOnly = false, record = false, source = '' } = o;
    for (let i = 0; i < 3; i++) {
      // it may end, or be opened by another, between the calls
      try {
        return await this.#join(session, { rows, cols }, readOnly);
      } catch (e) {
        if (readOnly || !(e instanceof NotFound)) throw e;
      }
      try {
        await this.detach(argv, { terminal: { rows, cols }, session, record, source });
      } catch (e) {
        if (!(e instanceof AlreadyExists)) throw e;
      }
    }
    return this.#join(session, { rows, cols }, readOnly);
  }

  /** @param {string} session @param {Size} size @param {boolean} readOnly */
  async #join(session, size, readOnly) {
    const found = (await this.commands()).find((c) => c.session === session && !c.status);
    if (!found) {
      throw new NotFound(`cannot join session ${session} of ${this.ref}: there is none; "carrel shell ${this.ref}" opens one`, 'not_found');
    }
    const start = toJSON('JoinRequest', { start: { workspace: this.ref, commandId: found.commandId, size, readOnly } });
    const t = new Terminal(found.commandId, await this.client.transport.open(CommandService.join.path, [start], true));
    try {
      return await t.begin();
    } catch (e) {
      await t.close();
      throw e;
    }
  }

  /** What its commands use together, undefined while it does not run. */
  async stats() {
    return (await this.client.call(WorkspaceService.stats, { workspaces: [this.ref] })).usage.at(0);
  }

  /** What happens to it, from now on, or since the event with the number after. @param {{ after?: number, signal?: AbortSignal }} [o] */
  events({ signal, ...o } = {}) {
    return this.client.watch(WorkspaceService.watch, { workspaces: [this.ref], ...o }, { signal });
  }
}

/** What a workspace may reach. Rules are texts, as docs/egress.md has them; they hold at once. */
export class Egress {
  /** @param {Workspace} workspace */
  constructor(workspace) {
    this.workspace = workspace;
  }

  /** Lets the workspace reach what the rules name. @param {...string} rules */
  async allow(...rules) {
    await this.workspace.update({ reachAllow: rules });
  }

  /** Refuses what the rules name, whatever others allow. @param {...string} rules */
  async deny(...rules) {
    await this.workspace.update({ reachDeny: rules });
  }

  /** Has a person asked about each connection that the rules name. @param {...string} rules */
  async ask(...rules) {
    await this.workspace.update({ reachAsk: rules });
  }

  /** Removes rules by their text. @param {...string} rules */
  async remove(...rules) {
    await this.workspace.update({ reachRemove: rules });
  }

  /** The workspace, whose reachAllow, reachAsk, reachDeny and reachApproved are the rules. */
  async rules() {
    return this.workspace.get();
  }

  /** What the rules in force say of hosts. Nothing is connected to. @param {...string} hosts */
  async test(...hosts) {
    const w = this.workspace;
    return (await w.client.call(WorkspaceService.explainReach, { workspace: w.ref, hosts })).verdicts;
  }

  /** The connections that are open, and the newest that have ended or were refused. @param {{ after?: number }} [o] */
  async connections(o = {}) {
    const w = this.workspace;
    return w.client.call(WorkspaceService.listConnections, { workspace: w.ref, ...o });
  }
}
