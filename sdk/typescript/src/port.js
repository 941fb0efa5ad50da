import { Duplex } from 'node:stream';
import { Aborted, ConnectionLost } from './errors.js';
import { PortService } from './messages.js';
import { bytesOf } from './result.js';
import { fromJSON, toJSON } from './wire.js';

/** How much of what is written one message carries, in bytes. */
const piece = 32 << 10;

/** How long close waits for the daemon to agree that both sides have ended, in seconds. */
const closing = 10;

/** TCP ports of a workspace's loopback. docs/protocols/ports.md has the rules. */
export class Ports {
  /** @param {import('./workspace.js').Workspace} workspace */
  constructor(workspace) {
    this.workspace = workspace;
  }

  /**
   * Keeps a port open for this caller, who alone can connect to it, until close or the workspace's stop. It is judged and recorded
   * once. Without it the first connection publishes the port, for as long as there are connections.
   * @param {number} port @param {{ signal?: AbortSignal }} [o]
   */
  async publish(port, o = {}) {
    const r = toJSON('PublishRequest', { workspace: this.workspace.ref, port });
    const s = await this.workspace.client.transport.open(PortService.publish.path, [r], false, o.signal);
    return new PublishedPort(port, await this.#opened(s, port));
  }

  /**
   * Connects to a port, by 127.0.0.1 inside and else by ::1. Unavailable: nothing listens there. FailedPrecondition: the workspace
   * does not run; it is not started for this. The signal ends the connection too.
   * @param {number} port @param {{ signal?: AbortSignal }} [o]
   */
  async connect(port, o = {}) {
    const r = toJSON('ConnectRequest', { start: { workspace: this.workspace.ref, port } });
    const s = await this.workspace.client.transport.open(PortService.connect.path, [r], true, o.signal);
    return new PortConnection(await this.#opened(s, port));
  }

  /** @param {import('./http.js').Stream} s @param {number} port */
  async #opened(s, port) {
    try {
      if (await s.receive()) return s;
      throw new ConnectionLost(`cannot open port ${port}: the stream ended before the answer; try again`, 'unavailable');
    } catch (e) {
      await s.close();
      throw e;
    }
  }
}

/** A port that is kept open. */
export class PublishedPort {
  /** @param {number} port @param {import('./http.js').Stream} stream */
  constructor(port, stream) {
    this.port = port;
    this.stream = stream;
  }

  /** Waits until it is no longer open, and throws why. */
  async wait() {
    while (await this.stream.receive());
  }

  /** Closes the port. Connections that are there go on. */
  async close() {
    await this.stream.close();
  }
}

/** A connection to a port. Iterate over it for what the service sends. */
export class PortConnection {
  #closed = false;
  #heard = false;

  /** @param {import('./http.js').Stream} stream */
  constructor(stream) {
    this.stream = stream;
  }

  /** Some bytes, undefined once the service has ended its side. What broke off before that is an error, as Aborted.
   * @returns {Promise<Uint8Array | undefined>} */
  async read() {
    while (!this.#heard) {
      const j = await this.stream.receive();
      if (!j) {
        const why = 'cannot read further: the connection was closed before the service had ended it; connect again';
        throw new Aborted(why, 'aborted');
      }
      const a = fromJSON('ConnectResponse', j);
      if (a.end) this.#heard = true;
      else if (a.data?.length) return a.data;
    }
    return undefined;
  }

  /** @returns {AsyncGenerator<Uint8Array, void, void>} */
  async *[Symbol.asyncIterator]() {
    for (let b = await this.read(); b; b = await this.read()) yield b;
  }

  /** Writes. It waits while the service does not read. @param {Uint8Array | string} data */
  async write(data) {
    const b = bytesOf(data);
    for (let at = 0; at < b.length; at += piece) await this.stream.send(toJSON('ConnectRequest', { data: b.subarray(at, at + piece) }));
  }

  /** Says that nothing more is written. What the service still sends can be read. */
  closeWrite() {
    if (this.#closed) return;
    this.#closed = true;
    this.stream.end();
  }

  /** Ends the connection. Unless both sides have ended, it breaks off: the service sees a reset. */
  async close() {
    if (this.#closed && this.#heard) await this.stream.finish(closing); // else what the service has not read yet would be lost
    await this.stream.close();
  }

  /** The connection as a stream of Node, as http.request takes it: { createConnection: () => c.duplex() }. Use it instead of read
   * and write. */
  duplex() {
    const d = new Duplex({
      allowHalfOpen: true,
      read: () => void this.read().then((b) => d.push(b ?? null), (e) => d.destroy(e)),
      write: (b, _, done) => void this.write(b).then(() => done(), done),
      final: (done) => {
        this.closeWrite();
        done();
      },
      destroy: (e, done) => void this.close().then(() => done(e), done),
    });
    return d;
  }
}
