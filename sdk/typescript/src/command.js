import { ConnectionLost, FailedPrecondition } from './errors.js';
import { Collected, Result } from './result.js';
import { fromJSON, toJSON } from './wire.js';

/** @typedef {import('../types/carrel.d.ts').Status} Status */
/** @typedef {{ stream: 'stdout' | 'stderr', data: Uint8Array }} Output */

/** How much stdin is sent with the request, and how much in a message after it, in bytes. */
export const wholeInput = 256 << 10;
export const piece = 256 << 10;

/**
 * A running command that this client is attached to. Iterate over it for its output, which has to be read: a command whose output
 * is full waits. close hangs it up.
 */
export class Command {
  id = '';
  /** @type {Status | undefined} */ status = undefined;

  /** @param {import('./workspace.js').Workspace} workspace @param {import('./http.js').Stream} stream */
  constructor(workspace, stream) {
    this.workspace = workspace;
    this.stream = stream;
  }

  /** @internal */
  async begin() {
    this.id = fromJSON('StreamResponse', (await this.stream.receive()) ?? {}).commandId ?? '';
    if (!this.id) throw this.#broken();
    return this;
  }

  #broken() {
    return new ConnectionLost(
      `cannot tell how ${this.id || 'the command'} ended: the stream ended before it; the daemon hangs its commands up with that`,
      'unavailable',
    );
  }

  /** The next piece of output, undefined at the end. @returns {Promise<Output | undefined>} */
  async read() {
    while (!this.status) {
      const j = await this.stream.receive();
      if (!j) throw this.#broken();
      const m = fromJSON('StreamResponse', j);
      if (m.exited) {
        this.status = m.exited;
        while (await this.stream.receive());
      } else if (m.stdout?.length) return { stream: 'stdout', data: m.stdout };
      else if (m.stderr?.length) return { stream: 'stderr', data: m.stderr };
    }
    return undefined;
  }

  /** @returns {AsyncGenerator<Output, void, void>} */
  async *[Symbol.asyncIterator]() {
    for (let o = await this.read(); o; o = await this.read()) yield o;
  }

  /** Writes to the command's stdin. It waits while the command does not read. @param {Uint8Array | string} data */
  async write(data) {
    const b = typeof data === 'string' ? new TextEncoder().encode(data) : data;
    for (let at = 0; at < b.length; at += piece) await this.stream.send(toJSON('StreamRequest', { stdin: b.subarray(at, at + piece) }));
  }

  /** Ends the command's stdin. */
  closeStdin() {
    this.stream.end();
  }

  /** Sets the size of its terminal. @param {number} rows @param {number} cols */
  async resize(rows, cols) {
    await this.stream.send(toJSON('StreamRequest', { resize: { rows, cols } }));
  }

  /** Sends a signal to its process group. It passes by what waits for stdin. @param {number} signal */
  async signal(signal) {
    await this.workspace.signal(this.id, signal);
  }

  /** Ends the command and all its processes: TERM, the grace in seconds, KILL. @param {number} [grace] */
  async stop(grace) {
    await this.workspace.signal(this.id, 0, grace);
  }

  /** Reads its output to the end and drops it, and returns how the command ended. @returns {Promise<Status>} */
  async wait() {
    while (await this.read());
    return /** @type {Status} */ (this.status);
  }

  /** Hangs the command up, if it still runs: HUP, TERM, KILL. */
  async close() {
    await this.stream.close();
  }

  /**
   * @internal
   * @param {Uint8Array} rest @param {number} most @param {((b: Uint8Array) => void) | undefined} onStdout
   * @param {((b: Uint8Array) => void) | undefined} onStderr
   */
  async collect(rest, most, onStdout, onStderr) {
    const out = new Collected(most);
    const err = new Collected(most);
    const feeder = rest.length ? this.write(rest).then(() => this.closeStdin(), () => {}) : undefined; // it need not read all
    try {
      for await (const o of this) {
        (o.stream === 'stdout' ? out : err).add(o.data);
        (o.stream === 'stdout' ? onStdout : onStderr)?.(o.data);
      }
    } finally {
      if (feeder) {
        await this.close();
        await feeder;
      }
    }
    return new Result(this.id, /** @type {Status} */ (this.status), out.all(), err.all(), out.lost, err.lost);
  }
}

/** A session that this client has joined. Iterate over it for what draws its terminal. close leaves it; the session goes on. */
export class Terminal {
  client = 0;
  /** @type {Status | undefined} */ status = undefined;

  /** @param {string} id @param {import('./http.js').Stream} stream */
  constructor(id, stream) {
    this.id = id;
    this.stream = stream;
  }

  /** @internal */
  async begin() {
    this.client = fromJSON('JoinResponse', (await this.stream.receive()) ?? {}).client ?? 0;
    if (!this.client) {
      throw new FailedPrecondition(
        `cannot join session ${this.id}: the daemon did not say which client this is; stop and start the workspace`, 'failed_precondition',
      );
    }
    return this;
  }

  /** What draws the terminal next, undefined at the end. @returns {Promise<Uint8Array | undefined>} */
  async read() {
    for (let j = await this.stream.receive(); j; j = await this.stream.receive()) {
      const m = fromJSON('JoinResponse', j);
      if (m.exited) this.status = m.exited;
      else if (m.stdout?.length) return m.stdout;
    }
    return undefined;
  }

  /** @returns {AsyncGenerator<Uint8Array, void, void>} */
  async *[Symbol.asyncIterator]() {
    for (let b = await this.read(); b; b = await this.read()) yield b;
  }

  /** Types. @param {Uint8Array | string} data */
  async write(data) {
    const b = typeof data === 'string' ? new TextEncoder().encode(data) : data;
    for (let at = 0; at < b.length; at += piece) await this.stream.send(toJSON('JoinRequest', { stdin: b.subarray(at, at + piece) }));
  }

  /** Says that the client's window has another size. @param {number} rows @param {number} cols */
  async resize(rows, cols) {
    await this.stream.send(toJSON('JoinRequest', { resize: { rows, cols } }));
  }

  /** Leaves the session. */
  async close() {
    await this.stream.close();
  }
}
