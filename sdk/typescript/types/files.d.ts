/** Files, with the rights of the workspace's commands. Paths are absolute, or relative to the home. */
export class Files {
    /** @param {import('./client.js').Client} client @param {string} ref */
    constructor(client: import("./client.js").Client, ref: string);
    client: import("./client.js").Client;
    ref: string;
    /** The bytes of a regular file, or length of them from offset. @param {Path} path @param {{ offset?: number, length?: number }} [o] */
    read(path: Path, o?: {
        offset?: number;
        length?: number;
    }): Promise<Uint8Array<ArrayBuffer>>;
    /** A file as text in UTF-8. @param {Path} path */
    readText(path: Path): Promise<string>;
    /**
     * As read, piece by piece. It throws Unavailable if the file was not read to its end.
     * @param {Path} path @param {{ offset?: number, length?: number }} [o] @returns {AsyncGenerator<Uint8Array, void, void>}
     */
    stream(path: Path, o?: {
        offset?: number;
        length?: number;
    }): AsyncGenerator<Uint8Array, void, void>;
    /**
     * Writes a file whole: what was there stays until all is on disk. With keep a file that is there is AlreadyExists.
     * @param {Path} path @param {Data} data @param {{ mode?: number, parents?: boolean, keep?: boolean }} [o] @returns {Promise<FileEntry>}
     */
    write(path: Path, data: Data, o?: {
        mode?: number;
        parents?: boolean;
        keep?: boolean;
    }): Promise<FileEntry>;
    /** The entries of a directory in the order of their paths, all pages of them. @param {Path} [path] @param {{ depth?: number }} [o] */
    list(path?: Path, o?: {
        depth?: number;
    }): Promise<import("../types/carrel.d.ts").FileEntry[]>;
    /** What a path is. follow follows a link. @param {Path} path @param {{ follow?: boolean }} [o] @returns {Promise<FileEntry>} */
    stat(path: Path, o?: {
        follow?: boolean;
    }): Promise<FileEntry>;
    /** Makes a directory. @param {Path} path @param {{ mode?: number, parents?: boolean }} [o] */
    mkdir(path: Path, o?: {
        mode?: number;
        parents?: boolean;
    }): Promise<void>;
    /** Moves a file or a directory. @param {Path} path @param {Path} to @param {{ parents?: boolean, replace?: boolean }} [o] */
    move(path: Path, to: Path, o?: {
        parents?: boolean;
        replace?: boolean;
    }): Promise<void>;
    /** Removes a file, or with recursive a directory with all that is in it. @param {Path} path @param {{ recursive?: boolean }} [o] */
    remove(path: Path, o?: {
        recursive?: boolean;
    }): Promise<void>;
    /**
     * Names by pattern, and lines of text by regular expression (RE2), within bounds.
     * @param {Path} path @param {{ name?: string, text?: string, depth?: number, limit?: number }} o
     */
    search(path: Path, o: {
        name?: string;
        text?: string;
        depth?: number;
        limit?: number;
    }): Promise<import("../types/carrel.d.ts").SearchFilesResponse>;
    /**
     * What was changed below a directory since a time, or since the workspace was made, what programs act on first.
     * @param {Path} [path] @param {{ since?: Date, limit?: number }} [o]
     */
    changes(path?: Path, { since, limit }?: {
        since?: Date;
        limit?: number;
    }): Promise<import("../types/carrel.d.ts").ListChangesResponse>;
    /**
     * The changes that agents made to files and that can be undone, those that were undone included. What runs in the workspace can
     * change what is said of them.
     */
    patches(): Promise<import("../types/carrel.d.ts").FilePatch[]>;
    /**
     * Brings back what was there before such a change: all files, or none if one has changed since. What it returns undoes that.
     * @param {string} id
     */
    undo(id: string): Promise<string>;
    /**
     * What changes below a directory, from now on. The first event has an empty path and "ready" in what: from then on all is told.
     * @param {Path} [path] @param {{ depth?: number, signal?: AbortSignal }} [o]
     * @returns {AsyncGenerator<import('../types/carrel.d.ts').FileEvent, void, void>}
     */
    watch(path?: Path, { signal, ...o }?: {
        depth?: number;
        signal?: AbortSignal;
    }): AsyncGenerator<import("../types/carrel.d.ts").FileEvent, void, void>;
    /**
     * A file or a tree as a tar stream. Names in it come from the workspace: unpack it as what a stranger sent.
     * @param {Path} [path] @param {{ as?: string }} [o] @returns {AsyncGenerator<Uint8Array, void, void>}
     */
    pack(path?: Path, o?: {
        as?: string;
    }): AsyncGenerator<Uint8Array, void, void>;
    /**
     * Makes what a tar stream has below a directory.
     * @param {Path} path @param {Data} data @param {{ parents?: boolean }} [o]
     * @returns {Promise<import('../types/carrel.d.ts').FilesSummary>}
     */
    unpack(path: Path, data: Data, o?: {
        parents?: boolean;
    }): Promise<import("../types/carrel.d.ts").FilesSummary>;
    #private;
}
export type FileEntry = import("../types/carrel.d.ts").FileEntry;
export type Data = Uint8Array | string | Iterable<Uint8Array> | AsyncIterable<Uint8Array>;
/**
 * bytes are for names that are no UTF-8
 */
export type Path = string | Uint8Array;
