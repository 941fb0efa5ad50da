// HTTP/1.1 and Connect, as far as carrel.v1 needs them: calls, and streams in both directions.
//
//   head, body                                   a call
//   head, envelope(start), envelope(…)  ◄►  envelope(…), envelope(end)    a stream
//
// An envelope is a byte of flags (2 ends the stream), four bytes of length, and JSON.
import http from 'node:http';
import { Canceled, CarrelError, ConnectionLost, DeadlineExceeded, Internal, ResourceExhausted, errorOf } from './errors.js';

export const maxMessage = 16 << 20;

/** @typedef {Record<string, any>} Json */
/** @typedef {{ timeout?: number, signal?: AbortSignal }} CallOptions timeout is in seconds, 0 is none */

class Pool extends http.Agent {
  /** @param {import('./host.js').Host} host @param {number} most */
  constructor(host, most) {
    // A daemon closes idle connections after three minutes.
    // Node counts a connection when it stands, and so lets any number begin at once: take counts requests instead.
    super({ keepAlive: true, maxFreeSockets: Math.min(16, most), timeout: 0 });
    this.host = host;
    this.free = most;
    /** @type {(() => void)[]} */ this.waiting = [];
  }

  /** Waits until there is room for a request. @param {AbortSignal} [signal] @returns {Promise<void>} */
  async take(signal) {
    if (this.free > 0) {
      this.free--;
      return;
    }
    await new Promise((/** @type {(v: void) => void} */ done, fail) => {
      const next = () => {
        signal?.removeEventListener('abort', abort);
        done();
      };
      const abort = () => {
        this.waiting.splice(this.waiting.indexOf(next), 1);
        fail(new Canceled('cannot begin: the caller has cancelled it', 'canceled'));
      };
      signal?.addEventListener('abort', abort, { once: true });
      this.waiting.push(next);
    });
  }

  give() {
    const next = this.waiting.shift();
    if (next) next();
    else this.free++;
  }

  /** @param {any} _ @param {(e: Error | null, s?: any) => void} done @returns {any} */
  createConnection(_, done) {
    this.host.connect((e, s) => done(e, s));
  }
}

/** The connections of a client. */
export class Transport {
  /** @param {import('./host.js').Host} host @param {number} most @param {number} timeout in seconds */
  constructor(host, most, timeout) {
    this.host = host;
    this.timeout = timeout;
    this.pool = new Pool(host, most);
  }

  close() {
    this.pool.destroy();
  }

  /** @param {string} path @param {string} type @param {number | undefined} length */
  #request(path, type, length) {
    const req = http.request({
      agent: this.pool, method: 'POST', path: `/carrel.v1.${path}`, setHost: false,
      headers: {
        Host: this.host.authority, 'Content-Type': type, 'Connect-Protocol-Version': '1', ...this.host.headers(),
        ...(length === undefined ? { 'Transfer-Encoding': 'chunked' } : { 'Content-Length': length }),
      },
    });
    req.once('close', () => this.pool.give());
    return req;
  }

  /**
   * One request and its answer.
   * @param {string} path @param {Json} message @param {CallOptions} [o] @returns {Promise<Json>}
   */
  async call(path, message, o = {}) {
    const body = Buffer.from(JSON.stringify(message));
    if (o.signal?.aborted) throw canceled(path);
    await this.pool.take(o.signal);
    return new Promise((done, fail) => {
      const req = this.#request(path, 'application/json', body.length);
      const abort = () => give(canceled(path));
      const seconds = o.timeout ?? this.timeout;
      const timer = seconds
        ? setTimeout(
            () => give(new DeadlineExceeded(
              'cannot wait any longer: the time that the client gave is over; give a longer timeout, or try again',
              'deadline_exceeded', path,
            )),
            seconds * 1000,
          )
        : undefined;
      o.signal?.addEventListener('abort', abort, { once: true });
      const end = () => {
        clearTimeout(timer);
        o.signal?.removeEventListener('abort', abort);
      };
      const give = (/** @type {Error} */ e) => {
        end();
        req.destroy();
        fail(e);
      };
      req.on('error', (e) => give(lost(path, e)));
      req.on('response', (res) => {
        /** @type {Buffer[]} */ const pieces = [];
        let size = 0;
        res.on('data', (b) => {
          pieces.push(b);
          if ((size += b.length) > maxMessage) give(tooLong(path));
        });
        res.on('error', (e) => give(lost(path, e)));
        res.on('close', () => {
          if (!res.complete) give(lost(path, new Error('the connection was closed')));
        });
        res.on('end', () => {
          end();
          try {
            done(answer(path, res.statusCode ?? 0, Buffer.concat(pieces)));
          } catch (e) {
            fail(e);
          }
        });
      });
      req.end(body);
    });
  }

  /**
   * A stream that begins with some messages. Without more they are all.
   * @param {string} path @param {Json[]} first @param {boolean} more @param {AbortSignal} [signal] @returns {Promise<Stream>}
   */
  async open(path, first, more, signal) {
    if (signal?.aborted) throw canceled(path);
    await this.pool.take(signal);
    const data = Buffer.concat(first.map(envelope));
    const req = this.#request(path, 'application/connect+json', more ? undefined : data.length);
    const s = new Stream(path, req, more, signal);
    if (more) {
      req.flushHeaders();
      req.write(data);
    } else req.end(data);
    return s;
  }
}

/** An exchange. It has to be closed. */
export class Stream {
  /** @param {string} path @param {http.ClientRequest} req @param {boolean} sends @param {AbortSignal} [signal] */
  constructor(path, req, sends, signal) {
    this.path = path;
    this.req = req;
    this.sends = sends;
    this.signal = signal;
    /** @type {Buffer} */ this.buffer = Buffer.alloc(0);
    this.ended = false;
    this.closed = false;
    /** @type {Error | undefined} */ this.why = undefined;
    this.answered = false;
    /** @type {AsyncIterator<Buffer> | undefined} */ this.pieces = undefined;
    /** @type {Promise<http.IncomingMessage>} */
    this.response = new Promise((done, fail) => {
      req.once('response', (res) => {
        this.answered = true;
        done(res);
      });
      req.on('error', (e) => fail((this.why ??= e)));
      req.once('close', () => fail((this.why ??= new Error('the connection was closed'))));
    });
    this.response.catch(() => {});
    this.abort = () => {
      this.why = canceled(path);
      req.destroy();
    };
    if (signal?.aborted) this.abort();
    else signal?.addEventListener('abort', this.abort, { once: true });
  }

  /** @param {Error} e */
  #lost(e) {
    if (this.why instanceof CarrelError) return this.why;
    return lost(this.path, e);
  }

  /** Sends a message, and waits while the daemon does not take it. @param {Json} message */
  async send(message) {
    if (!this.sends || this.closed) throw this.#lost(new Error('the stream has ended'));
    if (this.req.destroyed) throw this.#lost(this.why ?? new Error('the connection was closed'));
    if (this.req.write(envelope(message))) return;
    await new Promise((done, fail) => {
      const over = () => {
        this.req.off('drain', over);
        this.req.off('close', over);
        if (this.req.destroyed) fail(this.#lost(this.why ?? new Error('the connection was closed')));
        else done(undefined);
      };
      this.req.on('drain', over);
      this.req.on('close', over);
    });
  }

  /** Says that nothing more comes. */
  end() {
    if (this.sends && !this.closed) {
      this.sends = false;
      this.req.end();
    }
  }

  /** The next message, undefined at the end of the stream. @returns {Promise<Json | undefined>} */
  async receive() {
    if (this.ended) return undefined;
    let head, message;
    try {
      if (!this.pieces) {
        const res = await this.response;
        this.pieces = res[Symbol.asyncIterator]();
        const status = res.statusCode ?? 0;
        if (status !== 200 || !(res.headers['content-type'] ?? '').startsWith('application/connect+json')) {
          this.ended = true;
          /** @type {Buffer[]} */ const all = [];
          for await (const b of res) all.push(b);
          answer(this.path, status === 200 ? 500 : status, Buffer.concat(all));
        }
      }
      head = await this.#exactly(5);
      const size = head.readUInt32BE(1);
      if (size > maxMessage) throw tooLong(this.path);
      message = JSON.parse((await this.#exactly(size)).toString());
    } catch (e) {
      this.ended = true;
      throw e instanceof CarrelError ? e : this.#lost(/** @type {Error} */ (e));
    }
    if (!(head[0] & 2)) return message;
    this.ended = true;
    if (message.error) throw errorOf(message.error.code ?? 'unknown', message.error.message ?? '', this.path);
    return undefined;
  }

  /** @param {number} n */
  async #exactly(n) {
    const pieces = /** @type {Uint8Array[]} */ ([this.buffer]);
    let have = this.buffer.length;
    while (have < n) {
      const got = await /** @type {AsyncIterator<Buffer>} */ (this.pieces).next();
      if (got.done) throw new Error('the stream was cut off');
      pieces.push(got.value);
      have += got.value.length;
    }
    const all = Buffer.concat(pieces);
    this.buffer = all.subarray(n);
    return all.subarray(0, n);
  }

  /** Reads to the end of the stream, for no longer than that. What comes of it, and how it ends, is dropped. @param {number} seconds */
  async finish(seconds) {
    const timer = setTimeout(() => this.req.destroy(), seconds * 1000);
    try {
      while (await this.receive());
    } catch {
      // the exchange is over
    } finally {
      clearTimeout(timer);
    }
  }

  /** Ends the exchange. A connection that is at its end is kept. */
  async close() {
    if (this.closed) return;
    this.closed = true;
    this.signal?.removeEventListener('abort', this.abort);
    if (this.ended && !this.sends && this.pieces) {
      try {
        if ((await this.pieces.next()).done) return; // at its end: the pool has it
      } catch {
        // it is destroyed below
      }
    }
    this.req.destroy();
  }
}

/** @param {Json} message */
function envelope(message) {
  const text = Buffer.from(JSON.stringify(message));
  const head = Buffer.alloc(5);
  head.writeUInt32BE(text.length, 1);
  return Buffer.concat([head, text]);
}

/** @param {string} path */
function canceled(path) {
  return new Canceled(`cannot finish ${path}: the caller has cancelled it`, 'canceled', path);
}

/** @param {string} path */
function tooLong(path) {
  return new ResourceExhausted(`cannot read a message of ${path}: it is longer than ${maxMessage} bytes`, 'resource_exhausted', path);
}

/** @param {string} path @param {Error} e */
export function lost(path, e) {
  if (e instanceof CarrelError) return e;
  return new ConnectionLost(
    `cannot tell how ${path} ended: the connection to the daemon broke off: ${e.message}; look at what is there before you ask again`,
    'unavailable', path,
  );
}

/** @param {string} path @param {number} status @param {Buffer} body @returns {Json} */
function answer(path, status, body) {
  let message;
  try {
    message = JSON.parse(body.toString() || '{}');
  } catch {
    message = undefined;
  }
  if (status === 200 && message && typeof message === 'object') return message;
  if (message && typeof message.code === 'string') throw errorOf(message.code, String(message.message ?? ''), path);
  throw new Internal(
    `cannot read the answer of ${path}: it has status ${status} and is not what carrel sends; see that the host is right`, 'internal', path,
  );
}
