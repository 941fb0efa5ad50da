export const defaultHost: "unix:///run/carrel/carrel.sock";
/** A daemon. Its token is no property that is shown. */
export class Host {
    /** As sdk/go: only where host is not given are the others read from the environment. @param {HostOptions} o */
    constructor(o: HostOptions);
    socket: string;
    name: string;
    port: number;
    fingerprint: string;
    /** @type {Buffer | undefined} */ authorities: Buffer | undefined;
    toString(): string;
    get authority(): string;
    /** @returns {Record<string, string>} */
    headers(): Record<string, string>;
    /**
     * Connects, and gives the connection only when the daemon's key is seen to be the right one: nothing is sent before.
     * @param {(e: Error | null, s?: import('node:stream').Duplex) => void} done
     */
    connect(done: (e: Error | null, s?: import("node:stream").Duplex) => void): void;
    /** What an error of a connection means to a person. @param {Error} e @returns {CarrelError} */
    unreachable(e: Error): CarrelError;
    #private;
}
export type HostOptions = {
    /**
     * unix:///ABSOLUTE/PATH or https://HOST:PORT; without it CARREL_HOST, or the socket of this host
     */
    host?: string | undefined;
    /**
     * authenticates requests
     */
    token?: string | undefined;
    /**
     * a file with a token, which only its owner may read
     */
    tokenFile?: string | undefined;
    /**
     * that of the daemon's key, as "carrel token create" prints it
     */
    fingerprint?: string | undefined;
    /**
     * certificate authorities in PEM, in place of the system's
     */
    caFile?: string | undefined;
};
import { CarrelError } from './errors.js';
