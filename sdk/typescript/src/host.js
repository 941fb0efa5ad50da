// Which daemon a client uses, and with which token.
import { createHash } from 'node:crypto';
import { closeSync, fstatSync, lstatSync, openSync, readFileSync } from 'node:fs';
import { connect as connectSocket } from 'node:net';
import { connect as connectTLS } from 'node:tls';
import { CarrelError, FailedPrecondition, InvalidArgument, PermissionDenied, Unauthenticated, Unavailable } from './errors.js';

export const defaultHost = 'unix:///run/carrel/carrel.sock';

/**
 * @typedef {object} HostOptions
 * @property {string} [host] unix:///ABSOLUTE/PATH or https://HOST:PORT; without it CARREL_HOST, or the socket of this host
 * @property {string} [token] authenticates requests
 * @property {string} [tokenFile] a file with a token, which only its owner may read
 * @property {string} [fingerprint] that of the daemon's key, as "carrel token create" prints it
 * @property {string} [caFile] certificate authorities in PEM, in place of the system's
 */

/** @param {string} message */
const invalid = (message) => new InvalidArgument(message, 'invalid_argument');

/** Whether a daemon has made its socket and not yet opened it to those who may use it. @param {string} socket */
function starting(socket) {
  try {
    return (lstatSync(socket).mode & 0o777) === 0;
  } catch {
    return false;
  }
}

/** A daemon. Its token is no property that is shown. */
export class Host {
  /** @type {string} */ #token = '';
  socket = '';
  name = '';
  port = 0;
  fingerprint = '';
  /** @type {Buffer | undefined} */ authorities;

  /** As sdk/go: only where host is not given are the others read from the environment. @param {HostOptions} o */
  constructor(o) {
    let { host, token, tokenFile, fingerprint, caFile } = o;
    const env = process.env;
    if (!host) {
      host = env.CARREL_HOST;
      if (!token && !tokenFile) {
        token = env.CARREL_TOKEN;
        tokenFile = env.CARREL_TOKEN_FILE;
      }
      fingerprint ||= env.CARREL_FINGERPRINT;
      caFile ||= env.CARREL_CA_FILE;
    }
    host ||= defaultHost;
    this.#token = token || (tokenFile ? readToken(tokenFile) : '');
    if (this.#token && !/^crl_[0-9a-f]{12}_[A-Za-z0-9_-]{43}$/.test(this.#token)) {
      throw invalid('cannot use the token: it does not have the form of one; see that all of its 60 characters are there');
    }
    if (host.startsWith('unix:///')) {
      this.socket = host.slice('unix://'.length);
      return;
    }
    const u = URL.canParse(host) ? new URL(host) : undefined;
    const port = /:(\d+)\/?$/.exec(host);
    if (!u || !port || u.protocol !== 'https:' || !u.hostname || u.username || u.pathname.replace(/\/+$/, '') || u.search || u.hash) {
      throw invalid(
        `cannot use ${JSON.stringify(host)} as the host: it must be unix:// and the absolute path of the daemon's socket, as in ` +
          `${defaultHost}, or https://HOST:PORT`,
      );
    }
    this.name = u.hostname.replace(/^\[|\]$/g, '');
    this.port = Number(port[1]);
    if (fingerprint && !/^sha256:[0-9a-f]{64}$/.test(fingerprint)) {
      throw invalid('cannot use the fingerprint: it must be sha256: and 64 hexadecimal digits, as "carrel token create" prints it');
    }
    this.fingerprint = fingerprint ?? '';
    if (caFile) {
      try {
        this.authorities = readFileSync(caFile);
      } catch (e) {
        const why = /** @type {Error} */ (e).message;
        throw invalid(`cannot read the certificate authorities: ${why}; CARREL_CA_FILE or caFile names the file`);
      }
    }
  }

  toString() {
    return this.socket ? `unix://${this.socket}` : `https://${this.authority}`;
  }

  get authority() {
    if (this.socket) return 'carrel';
    return this.name.includes(':') ? `[${this.name}]:${this.port}` : `${this.name}:${this.port}`;
  }

  /** @returns {Record<string, string>} */
  headers() {
    return this.#token ? { Authorization: `Bearer ${this.#token}` } : {};
  }

  /**
   * Connects, and gives the connection only when the daemon's key is seen to be the right one: nothing is sent before.
   * @param {(e: Error | null, s?: import('node:stream').Duplex) => void} done
   */
  connect(done) {
    let over = false;
    const end = (/** @type {Error | null} */ e, /** @type {import('node:stream').Duplex} */ s) => {
      if (over) return;
      over = true;
      if (e) {
        s.destroy();
        done(this.unreachable(e));
      } else done(null, s);
    };
    if (this.socket) {
      const s = connectSocket({ path: this.socket });
      s.once('connect', () => end(null, s));
      s.once('error', (e) => end(e, s));
      return;
    }
    const s = connectTLS({
      host: this.name, port: this.port, servername: /^[\d.]+$|:/.test(this.name) ? '' : this.name, minVersion: 'TLSv1.3',
      ca: this.authorities,
      rejectUnauthorized: !this.fingerprint, ALPNProtocols: ['http/1.1'],
    });
    const timer = setTimeout(() => end(new Error('it does not answer in time'), s), 30_000);
    s.once('secureConnect', () => {
      clearTimeout(timer);
      s.setNoDelay(true);
      s.setKeepAlive(true, 30_000);
      end(this.#wrongKey(s), s);
    });
    s.once('error', (e) => {
      clearTimeout(timer);
      end(e, s);
    });
  }

  /** @param {import('node:tls').TLSSocket} s */
  #wrongKey(s) {
    if (!this.fingerprint) return null;
    const key = s.getPeerX509Certificate()?.publicKey.export({ type: 'spki', format: 'der' });
    const got = 'sha256:' + createHash('sha256').update(key ?? '').digest('hex');
    if (got === this.fingerprint) return null;
    return new Unauthenticated(
      `cannot trust carrel at ${this}: its key has the fingerprint ${got}, and ${this.fingerprint} was expected; do not give it a token; ` +
        'if the daemon\'s key was replaced, "carrel version" on its host shows the new one',
      'unauthenticated',
    );
  }

  /** What an error of a connection means to a person. @param {Error} e @returns {CarrelError} */
  unreachable(e) {
    if (e instanceof CarrelError) return e;
    const code = /** @type {NodeJS.ErrnoException} */ (e).code ?? '';
    const at = `cannot reach carrel at ${this}: `;
    const gone = (/** @type {string} */ why) => new Unavailable(at + why, 'unavailable');
    if (code === 'ENOENT') {
      return gone('there is no such socket; start carrel with "sudo carrel up", or name another daemon with host or CARREL_HOST');
    }
    if (code === 'ECONNREFUSED' && this.socket) {
      return gone('nothing listens on it, so the daemon has ended; start it with "sudo carrel up"');
    }
    if (code === 'ECONNREFUSED') return gone('nothing listens there; see that the daemon runs and that its "listen" is set');
    if (code === 'EACCES' && this.socket && starting(this.socket)) {
      return gone('the daemon is starting; try again');
    }
    if (code === 'EACCES') {
      const why = 'this user may not use it; ask an administrator to be added to its group, or use sudo';
      return new PermissionDenied(at + why, 'permission_denied');
    }
    if (/CERT|SELF_SIGNED|UNABLE_TO/.test(code)) {
      return new Unauthenticated(
        at + `its certificate is not trusted here: ${e.message}; give the fingerprint of its key with fingerprint or CARREL_FINGERPRINT, ` +
          'as "carrel token create" prints it, or its authority with caFile or CARREL_CA_FILE',
        'unauthenticated',
      );
    }
    return new Unavailable(at + `${e.message}; see that the daemon runs, and try again`, 'unavailable');
  }
}

/** @param {string} path */
function readToken(path) {
  let text;
  try {
    const f = openSync(path, 'r');
    try {
      const st = fstatSync(f);
      if (st.isFile() && st.mode & 0o077) {
        throw new FailedPrecondition(
          `cannot use the token in ${path}: others may read the file, which has mode ${(st.mode & 0o777).toString(8)}; chmod 600 it, ` +
            'and revoke the token if somebody read it',
          'failed_precondition',
        );
      }
      text = readFileSync(f, 'utf8').trim();
    } finally {
      closeSync(f);
    }
  } catch (e) {
    if (e instanceof CarrelError) throw e;
    throw invalid(`cannot read the token: ${/** @type {Error} */ (e).message}; CARREL_TOKEN_FILE or tokenFile names the file`);
  }
  if (!text) throw invalid(`cannot use the token in ${path}: the file is empty; write a token there, as "carrel token create" prints it`);
  return text;
}
