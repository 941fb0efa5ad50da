import { piece } from './command.js';
import { ConnectionLost, Unavailable } from './errors.js';
import { FileService } from './messages.js';
import { fromJSON, toJSON } from './wire.js';

/** @typedef {import('../types/carrel.d.ts').FileEntry} FileEntry */
/** @typedef {Uint8Array | string | Iterable<Uint8Array> | AsyncIterable<Uint8Array>} Data */
/** @typedef {string | Uint8Array} Path bytes are for names that are no UTF-8 */

/** @param {Path} path */
const parts = (path) => (typeof path === 'string' ? { path } : { rawPath: path });

const broken = () => new Unavailable('cannot read all of it: the daemon broke off before its end; try again', 'unavailable');

/** Files, with the rights of the workspace's commands. Paths are absolute, or relative to the home. */
export class Files {
  /** @param {import('./client.js').Client} client @param {string} ref */
  constructor(client, ref) {
    this.client = client;
    this.ref = ref;
  }

  /** The bytes of a regular file, or length of them from offset. @param {Path} path @param {{ offset?: number, length?: number }} [o] */
  async read(path, o = {}) {
    const all = [];
    for await (const b of this.stream(path, o)) all.push(b);
    return new Uint8Array(Buffer.concat(all));
  }

  /** A file as text in UTF-8. @param {Path} path */
  async readText(path) {
    return new TextDecoder('utf-8', { fatal: true }).decode(await this.read(path));
  }

  /**
   * As read, piece by piece. It throws Unavailable if the file was not read to its end.
   * @param {Path} path @param {{ offset?: number, length?: number }} [o] @returns {AsyncGenerator<Uint8Array, void, void>}
   */
  async *stream(path, o = {}) {
    let whole = false;
    for await (const a of this.client.watch(FileService.readFile, { workspace: this.ref, ...parts(path), ...o })) {
      if (a.file) whole = true;
      else if (a.data?.length) yield a.data;
    }
    if (!whole) throw broken();
  }

  /**
   * Writes a file whole: what was there stays until all is on disk. With keep a file that is there is AlreadyExists.
   * @param {Path} path @param {Data} data @param {{ mode?: number, parents?: boolean, keep?: boolean }} [o] @returns {Promise<FileEntry>}
   */
  async write(path, data, o = {}) {
    const start = toJSON('WriteFileRequest', { start: { workspace: this.ref, ...parts(path), ...o } });
    return fromJSON('WriteFileResponse', await this.#upload(FileService.writeFile.path, start, data)).file;
  }

  /** @param {string} path @param {Record<string, any>} start @param {Data} data */
  async #upload(path, start, data) {
    const s = await this.client.transport.open(path, [start], true);
    try {
      try {
        const all = typeof data === 'string' ? [new TextEncoder().encode(data)] : data instanceof Uint8Array ? [data] : data;
        for await (const b of until(all, s.response)) {
          for (let at = 0; at < b.length && !s.answered; at += piece) {
            await s.send(toJSON('WriteFileRequest', { data: b.subarray(at, at + piece) }));
          }
          if (s.answered) break; // before its end: the daemon takes no more
        }
        if (!s.answered) {
          await s.send(toJSON('WriteFileRequest', { finish: true }));
          s.end();
        }
      } catch (e) {
        if (!(e instanceof ConnectionLost)) throw e; // else it has said why
      }
      const answer = await s.receive();
      if (!answer) throw broken();
      await s.receive();
      return answer;
    } finally {
      await s.close();
    }
  }

  /** The entries of a directory in the order of their paths, all pages of them. @param {Path} [path] @param {{ depth?: number }} [o] */
  async list(path = '', o = {}) {
    /** @type {FileEntry[]} */ const entries = [];
    /** @type {any} */ let after = {};
    for (;;) {
      const a = await this.client.call(FileService.listFiles, { workspace: this.ref, ...parts(path), depth: o.depth ?? 1, ...after });
      entries.push(...a.entries);
      const last = a.entries.at(-1);
      if (!a.truncated || !last) return entries;
      after = { after: last.path, rawAfter: last.rawPath };
    }
  }

  /** What a path is. follow follows a link. @param {Path} path @param {{ follow?: boolean }} [o] @returns {Promise<FileEntry>} */
  async stat(path, o = {}) {
    return /** @type {FileEntry} */ ((await this.client.call(FileService.statFile, { workspace: this.ref, ...parts(path), ...o })).file);
  }

  /** Makes a directory. @param {Path} path @param {{ mode?: number, parents?: boolean }} [o] */
  async mkdir(path, o = {}) {
    await this.client.call(FileService.makeDirectory, { workspace: this.ref, ...parts(path), ...o });
  }

  /** Moves a file or a directory. @param {Path} path @param {Path} to @param {{ parents?: boolean, replace?: boolean }} [o] */
  async move(path, to, o = {}) {
    const target = typeof to === 'string' ? { to } : { rawTo: to };
    await this.client.call(FileService.moveFile, { workspace: this.ref, ...parts(path), ...target, ...o });
  }

  /** Removes a file, or with recursive a directory with all that is in it. @param {Path} path @param {{ recursive?: boolean }} [o] */
  async remove(path, o = {}) {
    await this.client.call(FileService.removeFile, { workspace: this.ref, ...parts(path), ...o }, { timeout: 0 });
  }

  /**
   * Names by pattern, and lines of text by regular expression (RE2), within bounds.
   * @param {Path} path @param {{ name?: string, text?: string, depth?: number, limit?: number }} o
   */
  async search(path, o) {
    return this.client.call(FileService.searchFiles, { workspace: this.ref, ...parts(path), ...o });
  }

  /**
   * What was changed below a directory since a time, or since the workspace was made, what programs act on first.
   * @param {Path} [path] @param {{ since?: Date, limit?: number }} [o]
   */
  async changes(path = '', { since, limit } = {}) {
    return this.client.call(FileService.listChanges, { workspace: this.ref, ...parts(path), limit, sinceUnixMs: since?.getTime() });
  }

  /**
   * The changes that agents made to files and that can be undone, those that were undone included. What runs in the workspace can
   * change what is said of them.
   */
  async patches() {
    return (await this.client.call(FileService.listPatches, { workspace: this.ref })).patches;
  }

  /**
   * Brings back what was there before such a change: all files, or none if one has changed since. What it returns undoes that.
   * @param {string} id
   */
  async undo(id) {
    return (await this.client.call(FileService.undoPatch, { workspace: this.ref, id })).id;
  }

  /**
   * What changes below a directory, from now on. The first event has an empty path and "ready" in what: from then on all is told.
   * @param {Path} [path] @param {{ depth?: number, signal?: AbortSignal }} [o]
   * @returns {AsyncGenerator<import('../types/carrel.d.ts').FileEvent, void, void>}
   */
  async *watch(path = '', { signal, ...o } = {}) {
    let ready = false;
    for await (const a of this.client.watch(FileService.watchFiles, { workspace: this.ref, ...parts(path), ...o }, { signal })) {
      if (!ready) yield fromJSON('FileEvent', { what: 'ready', directory: true });
      ready = true;
      yield* a.events;
    }
  }

  /**
   * A file or a tree as a tar stream. Names in it come from the workspace: unpack it as what a stranger sent.
   * @param {Path} [path] @param {{ as?: string }} [o] @returns {AsyncGenerator<Uint8Array, void, void>}
   */
  async *pack(path = '', o = {}) {
    let whole = false;
    for await (const a of this.client.watch(FileService.packFiles, { workspace: this.ref, ...parts(path), ...o })) {
      if (a.summary) whole = true;
      else if (a.data?.length) yield a.data;
    }
    if (!whole) throw broken();
  }

  /**
   * Makes what a tar stream has below a directory.
   * @param {Path} path @param {Data} data @param {{ parents?: boolean }} [o]
   * @returns {Promise<import('../types/carrel.d.ts').FilesSummary>}
   */
  async unpack(path, data, o = {}) {
    const start = toJSON('UnpackFilesRequest', { start: { workspace: this.ref, ...parts(path), ...o } });
    return fromJSON('UnpackFilesResponse', await this.#upload(FileService.unpackFiles.path, start, data)).summary;
  }
}

/**
 * What comes of all, until over is settled: what comes late, or never, is not waited for then.
 * @param {Iterable<Uint8Array> | AsyncIterable<Uint8Array>} all @param {Promise<unknown>} over
 */
async function* until(all, over) {
  const it = Symbol.asyncIterator in all ? all[Symbol.asyncIterator]() : all[Symbol.iterator]();
  const end = over.then(() => undefined, () => undefined);
  let done = false;
  try {
    for (;;) {
      const next = await Promise.race([it.next(), end]);
      if (!next) return;
      if ((done = next.done ?? false)) return;
      yield next.value;
    }
  } finally {
    if (!done) Promise.resolve(it.return?.()).catch(() => {}); // one that waits ends when it goes on
  }
}
