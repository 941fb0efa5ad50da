// The client against a daemon: CARREL_HOST and its sisters name it, CARREL_TEST_SOCKET is its Unix socket if it has no other.
// Go tests of test/rootless and test/root bring the daemon up and run this. It needs nothing beside Node.
import assert from 'node:assert/strict';
import { createHash, randomBytes, randomUUID } from 'node:crypto';
import { unlinkSync } from 'node:fs';
import net from 'node:net';
import test from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { inspect } from 'node:util';
import * as carrel from '../src/index.js';

const text = (b) => new TextDecoder().decode(b);
const bytes = (s) => new TextEncoder().encode(s);

/** Runs a test in a workspace of its own. */
function inWorkspace(name, f) {
  test(name, { timeout: 120_000 }, async (t) => {
    const client = new carrel.Client();
    const ws = await client.workspaces.create(`sdk-${randomUUID().slice(0, 13)}`);
    try {
      await f({ client, ws, t });
    } finally {
      await ws.destroy({ purge: true });
      client.close();
    }
  });
}

async function until(condition) {
  const end = Date.now() + 60_000;
  while (!(await condition())) {
    assert.ok(Date.now() < end, 'it did not become true in a minute');
    await sleep(20);
  }
}

inWorkspace('exec', async ({ ws }) => {
  const r = await ws.exec(['sh', '-c', 'echo "$A"; pwd; cat; echo bad >&2; exit 3'], {
    input: 'in é\n', env: { A: 'vier é "\'\n' }, cwd: '/tmp',
  });
  assert.deepEqual([r.exitCode, r.text, text(r.stderr)], [3, 'vier é "\'\n\n/tmp\nin é\n', 'bad\n']);
  assert.throws(() => r.check(), carrel.CommandFailed);
  assert.equal((await ws.exec(['true'])).check().stdout.length, 0);
  const all = Uint8Array.from({ length: 4096 }, (_, i) => i % 256);
  assert.deepEqual((await ws.exec(['cat'], { input: all })).stdout, all);
});

inWorkspace('large input and output', async ({ ws }) => {
  const data = new Uint8Array(randomBytes(10 << 20));
  const r = await ws.exec(['sh', '-c', 'cat; head -c 100000 /dev/zero >&2'], { input: data });
  assert.equal(Buffer.compare(r.stdout, data), 0);
  assert.equal(r.stderr.length, 100000);
  const cut = await ws.exec(['head', '-c', '300000', '/dev/zero'], { maxOutput: 1000 });
  assert.deepEqual([cut.stdout.length, cut.stdoutLost], [1000, 299000]);
  assert.equal((await ws.exec(['true'], { input: data })).exitCode, 0); // which reads nothing of it
});

inWorkspace('output as it comes', async ({ ws }) => {
  const got = [];
  await ws.exec(['sh', '-c', 'echo a; echo b >&2'], {
    onStdout: (b) => got.push(`out ${text(b)}`), onStderr: (b) => got.push(`err ${text(b)}`),
  });
  assert.deepEqual(got.sort(), ['err b\n', 'out a\n']);
});

inWorkspace('a live command', async ({ ws }) => {
  const c = await ws.startCommand(['sh', '-c', 'read x; echo got $x; cat >&2; exit 5'], { stdin: true });
  await c.write('one\n');
  assert.equal(text((await c.read()).data), 'got one\n');
  await c.write('rest');
  c.closeStdin();
  const o = await c.read();
  assert.deepEqual([o.stream, text(o.data), await c.read(), c.status.code], ['stderr', 'rest', undefined, 5]);
  await c.close();
  const s = await ws.startCommand(['sleep', '600']);
  await s.signal(15);
  assert.equal((await s.wait()).signal, 15);
  await s.close();
  const e = await ws.startCommand(['sleep', '600']);
  await e.stop(0.1);
  assert.notEqual((await e.wait()).code, 0);
  await e.close();
  const t = await ws.startCommand(['sh', '-c', 'stty size; read x; stty size'], { terminal: { rows: 20, cols: 70 } });
  let seen = '';
  while (!seen.includes('20 70')) seen += text((await t.read()).data);
  await t.resize(30, 80);
  await t.write('x\n');
  for await (const p of t) seen += text(p.data);
  assert.match(seen, /30 80/);
  await t.close();
  assert.ok((await ws.exec(['sleep', '600'], { timeout: 0.2, grace: 0.1 })).status.timedOut);
});

inWorkspace('close and abort hang up', async ({ ws }) => {
  const none = async () => (await ws.commands()).every((c) => c.status);
  const c = await ws.startCommand(['sleep', '600']);
  await c.close();
  await until(none);
  const a = new AbortController();
  const r = ws.exec(['sh', '-c', 'sleep 600; true'], { signal: a.signal });
  await until(async () => !(await none()));
  a.abort();
  await assert.rejects(r, carrel.Canceled);
  await until(none);
});

inWorkspace('detached commands', async ({ ws }) => {
  const id = await ws.detach(['sh', '-c', 'echo out; echo more; exit 4']);
  let all = '';
  let last;
  for await (last of ws.logs(id, { follow: true })) all += text(last.data);
  assert.deepEqual([all, (await ws.wait(id)).code, last.status.code, typeof last.status.startedUnixNs], ['out\nmore\n', 4, 4, 'bigint']);
});

inWorkspace('a session', async ({ ws }) => {
  const t = await ws.terminal('main', { argv: ['sh', '-c', 'echo ready; read x; echo got $x; read y'] });
  let seen = '';
  while (!seen.includes('ready')) seen += text(await t.read());
  await t.resize(30, 90);
  await t.write('words\n');
  while (!seen.includes('got words')) seen += text(await t.read());
  const again = await ws.terminal('main', { readOnly: true });
  seen = '';
  while (!seen.includes('got words')) seen += text(await again.read());
  assert.equal(again.id, t.id);
  await again.close();
  await t.close();
  await assert.rejects(ws.terminal('other', { readOnly: true }), carrel.NotFound);
});

inWorkspace('files', async ({ ws }) => {
  const f = ws.files;
  const data = new Uint8Array(randomBytes(3 << 20));
  const e = await f.write('a/b/é.bin', data, { parents: true, mode: 0o600 });
  assert.deepEqual([e.size, e.mode], [data.length, 0o600]);
  assert.equal(Buffer.compare(await f.read('a/b/é.bin'), data), 0);
  assert.deepEqual(await f.read('a/b/é.bin', { offset: 10, length: 5 }), data.slice(10, 15));
  await f.write('text', 'é\n');
  assert.equal(await f.readText('text'), 'é\n');
  await assert.rejects(f.write('text', 'x', { keep: true }), carrel.AlreadyExists);
  await assert.rejects(f.write('text', data, { keep: true }), carrel.AlreadyExists);
  const silent = (async function* () { yield bytes('a'); await new Promise(() => {}); })(); // what never comes is not waited for
  await assert.rejects(f.write('text', silent, { keep: true }), carrel.AlreadyExists);
  await f.write('pieces', (async function* () { yield bytes('a'); yield new Uint8Array(600000); })());
  assert.equal((await f.stat('pieces')).size, 600001);
  await f.mkdir('d/e', { parents: true });
  await f.move('text', 'd/e/text');
  assert.deepEqual((await f.list('d', { depth: 3 })).map((x) => x.path), ['e', 'e/text']);
  const raw = Uint8Array.from([...bytes('d/'), 255]);
  await f.write(raw, 'no UTF-8');
  assert.equal(text(await f.read(raw)), 'no UTF-8');
  assert.deepEqual((await f.changes('d')).changes.map((x) => x.file?.path), ['e/text', '']);
  assert.deepEqual((await f.search('d', { text: 'é' })).matches.map((x) => [x.path, x.line, text(x.text)]), [['e/text', 1, 'é']]);
  const tar = [];
  for await (const b of f.pack('d/e')) tar.push(b);
  assert.equal((await f.unpack('tree', Buffer.concat(tar), { parents: true })).bytes, 3);
  assert.equal(await f.readText('tree/e/text'), 'é\n');
  await f.remove('d', { recursive: true });
  await assert.rejects(f.stat('d'), carrel.NotFound);
  await assert.rejects(f.read('missing'), carrel.NotFound);
});

inWorkspace('changes to files', async ({ ws }) => {
  const f = ws.files;
  assert.deepEqual(await f.patches(), []);
  await assert.rejects(f.undo('x'), carrel.InvalidArgument);
  // What the program for files keeps of a change that made a file.
  const [change, kept] = ['p-0123456789abcdef', '.local/state/carrel/patches'];
  await f.write('made', 'text\n');
  await f.mkdir(kept, { mode: 0o700, parents: true });
  const entry = {
    name: 'made', place: { root: { path: '/home/work', dev: 0, ino: 0 }, rel: 'made' }, action: 'create', temp: '', old: '', backup: '',
    new: createHash('sha256').update('text\n').digest('hex'),
  };
  const record = { version: 1, id: change, state: 'done', entries: [entry] };
  await f.write(`${kept}/${change}/record.json`, JSON.stringify(record), { parents: true });
  await assert.rejects(f.undo('p-00000000000000ff'), carrel.NotFound);
  assert.deepEqual((await f.patches()).map((p) => [p.id, p.undone, p.files]), [[change, false, ['/home/work/made']]]);
  const undoing = await f.undo(change);
  await assert.rejects(f.stat('made'), carrel.NotFound);
  assert.deepEqual((await f.patches()).filter((p) => p.id === change).map((p) => p.undone), [true]);
  await assert.rejects(f.undo(change), carrel.FailedPrecondition);
  await f.undo(undoing);
  assert.equal(await f.readText('made'), 'text\n');
});

inWorkspace('watching files', async ({ ws }) => {
  for await (const e of ws.files.watch()) {
    if (e.what === 'ready') await ws.files.write('new', 'x');
    if (e.path === 'new') break;
  }
});

inWorkspace('life and events', async ({ client, ws }) => {
  const a = new AbortController();
  let stopped;
  const told = (async () => {
    for await (const m of ws.events({ signal: a.signal })) if (m.event?.state === 'stopped') return (stopped = m.event);
  })();
  await until(async () => {
    await ws.start();
    await ws.stop();
    return stopped;
  });
  assert.equal((await told).status, 'ok');
  assert.equal((await ws.start()).info.state, 'running');
  assert.ok((await client.workspaces.list()).some((w) => w.info.key === ws.ref));
  await ws.update({ ttlMs: 3600_000 });
  assert.ok((await client.workspaces.get(ws.ref)).info.expiresUnixMs > 0);
  assert.equal((await ws.stats()).key, ws.ref);
  assert.ok((await client.version()).version);
  assert.ok((await client.whoami()).permissions.includes('run'));
});

inWorkspace('egress', async ({ ws }) => {
  // It runs without a way out, so that its rules hold from its next start on.
  await ws.egress.allow('example.org', '@github');
  assert.equal((await ws.get()).egress, false);
  await ws.stop();
  await ws.egress.deny('bad.example.org');
  assert.deepEqual((await ws.egress.test('example.org', 'other.test')).map((v) => v.action), ['allow', 'deny']);
  await ws.egress.remove('@github');
  const w = await ws.egress.rules();
  assert.deepEqual([w.reachAllow, w.reachDeny], [['example.org'], ['bad.example.org']]);
});

inWorkspace('secrets', async ({ client }) => {
  const name = `T${randomUUID().slice(0, 8).toUpperCase()}`;
  const value = `planted-${randomUUID()}`;
  await client.secrets.set(name, value, { hosts: ['api.example.org'] });
  await client.secrets.rotate(name, `${value}x`);
  const kept = (await client.secrets.list()).filter((s) => s.name === name);
  assert.deepEqual(kept[0].hosts, ['api.example.org']);
  const e = await client.secrets.set(name, value, { hosts: ['api.example.org'] }).catch((x) => x);
  assert.ok(e instanceof carrel.AlreadyExists);
  const shown = inspect(client, { depth: 9 }) + JSON.stringify(client.transport.host) + inspect(e, { depth: 9 }) + inspect(kept);
  assert.ok(!shown.includes(value));
  if (process.env.CARREL_TOKEN) assert.ok(!shown.includes(process.env.CARREL_TOKEN));
  await client.secrets.remove(name);
  await assert.rejects(client.secrets.remove(name), carrel.NotFound);
});

inWorkspace('errors', async ({ client, ws }) => {
  const e = await client.workspaces.of(`no-such-${randomUUID()}`).exec(['true']).catch((x) => x);
  assert.deepEqual([e.constructor, e.code, e.request], [carrel.NotFound, 'not_found', 'CommandService/Stream']);
  await assert.rejects(ws.exec(['no-such-program']), /cannot run/);
  await assert.rejects(ws.exec('true'), carrel.InvalidArgument);
  await assert.rejects(client.call(carrel.messages.WorkspaceService.get, { workspce: 'x' }), /has none of that name/);
  const nobody = new carrel.Client({ host: 'unix:///nonexistent/carrel.sock' });
  await assert.rejects(nobody.workspaces.of('x').exec(['true']), (err) =>
    /no such socket; start carrel/.test(err.message) && err.remedy.startsWith('start carrel'));
  const id = await ws.detach(['sleep', '600']);
  const waited = client.call(carrel.messages.CommandService.wait, { workspace: ws.ref, commandId: id }, { timeout: 0.2 });
  await assert.rejects(waited, carrel.DeadlineExceeded);
});

inWorkspace('1,000 commands at once, with 32 connections', async ({ ws }) => {
  const all = await Promise.all(Array.from({ length: 1000 }, (_, i) => ws.exec(['echo', String(i)])));
  all.forEach((r, i) => assert.equal(r.text, `${i}\n`));
});

inWorkspace('approvals', async ({ client, ws, t }) => {
  if (!process.env.CARREL_TEST_ASKS) return t.skip("skipped: no command of this daemon's policy takes an approval");
  const e = await ws.exec(['ask-me'], { approvalWait: 0 }).catch((x) => x);
  assert.ok(e instanceof carrel.NeedsApproval);
  assert.equal(e.command, `carrel approvals approve ${e.approval}`);
  assert.ok((await client.approvals.list({ state: 'pending', workspace: ws.ref })).some((a) => a.id === e.approval));
  for await (const a of client.approvals.watch()) if (a.id === e.approval) break;
  assert.equal((await client.approvals.deny(e.approval, { reason: 'no' })).state, 'denied');
  assert.deepEqual((await client.approvals.get(e.approval)).argv, ['ask-me']);
});

const say = `say() { echo '{"jsonrpc":"2.0","method":"'"$1"'","params":'"$2"'}'; }; read -r prompt; `;
const works = `${say}say report_message '{"text":"hello '$WHO'"}'; say report_message '{"n":2}'; say report_completion '{}'`;
const onDescriptor =
  `read -r prompt <&5; echo '{"jsonrpc":"2.0","method":"report_completion","params":{"reason":"on '$CARREL_TASK_FD'"}}' >&5`;
const json = (m) => JSON.parse(text(m.body));

/** What a generator yields. */
async function all(g) {
  const out = [];
  for await (const x of g) out.push(x);
  return out;
}

const messages = async (g) => (await all(g)).map((a) => a.message).filter(Boolean);

inWorkspace('tasks', async ({ ws }) => {
  const t = await ws.tasks.run(['sh', '-c', works], 'say hello', { env: { WHO: 'carrel' } });
  const got = await all(t.follow());
  const m = got.map((a) => a.message).filter(Boolean);
  assert.deepEqual(m.map((x) => [x.number, x.kind]), [[1, 'prompt'], [2, 'message'], [3, 'message'], [4, 'completion']]);
  assert.deepEqual(json(m[1]), { text: 'hello carrel' });
  assert.deepEqual([got.at(-1).task.state, t.info.state], ['completed', 'completed']);
  assert.deepEqual((await messages(t.follow({ after: 2 }))).map((x) => x.number), [3, 4]);
  assert.equal((await ws.tasks.of(t.id).wait()).state, 'completed');
  assert.deepEqual((await ws.tasks.list()).map((x) => x.id), [t.id]);
  const onFd = await (await ws.tasks.run(['sh', '-c', onDescriptor], 'speak', { fd: 5 })).wait();
  assert.deepEqual([onFd.state, onFd.reason], ['completed', 'on 5']);
  const failed = await (await ws.tasks.run(['sh', '-c', 'exit 4'], 'fail')).wait();
  assert.equal(failed.state, 'failed');
  assert.match(failed.reason, /exited with 4/);
});

inWorkspace('a task is stopped', async ({ ws }) => {
  const t = await ws.tasks.run(['sh', '-c', `${say}say report_message '{}'; read -r stop; exit 0`], 'wait', { timeout: 300 });
  for await (const a of t.follow()) if (a.message.kind === 'message') break;
  assert.equal((await messages(t.follow({ now: true }))).length, 2);
  const a = new AbortController();
  const followed = all(t.follow({ signal: a.signal }));
  a.abort();
  await assert.rejects(followed, carrel.Canceled);
  assert.equal((await t.get()).state, 'running');
  assert.equal((await t.stop()).state, 'stopped');
  await assert.rejects(ws.tasks.of('c-0123456789abcdef').get(), carrel.NotFound);
});

inWorkspace('what a task asks', async ({ client, ws, t: test }) => {
  if (!process.env.CARREL_TEST_ASKS) return test.skip('skipped: this caller may not answer what a task asks');
  const asks = `read -r p
echo '{"jsonrpc":"2.0","id":1,"method":"request_permission","params":{"title":"build","command":["make","all"]}}'
read -r answer; echo '{"jsonrpc":"2.0","method":"report_completion","params":{}}'`;
  const t = await ws.tasks.run(['sh', '-c', asks], 'ask', { approvalWait: 60 });
  for await (const a of client.approvals.watch()) {
    if (a.kind !== 'task.permission' || a.state !== 'pending') continue;
    assert.deepEqual(a.argv, ['make', 'all']);
    await client.approvals.deny(a.id, { reason: 'not now' });
    break;
  }
  const answers = (await messages(t.follow())).filter((m) => m.kind === 'answer').map(json);
  assert.equal(answers.length, 1);
  assert.equal(answers[0].allowed, false);
  assert.match(answers[0].why, /not now/);
});

inWorkspace('permissions', async ({ client, ws }) => {
  const denied = (e) => e instanceof carrel.PermissionDenied && /cannot (allow ask-me often|let token)/.test(e.message);
  await assert.rejects(client.approvals.allow(['ask-me', 'often'], { workspace: ws.ref }), denied); // no answer to it is remembered
  assert.deepEqual(await client.approvals.permissions({ workspace: ws.ref }), []);
  const gone = (e) => e instanceof carrel.NotFound || e instanceof carrel.PermissionDenied;
  await assert.rejects(client.approvals.revoke('al-0123456789abcdef'), gone);
});

inWorkspace('ports', async ({ ws }) => {
  await assert.rejects(ws.ports.connect(8123), /nothing listens/);
  const reverses = `require('net').createServer({ allowHalfOpen: true }, (c) => {
    const all = [];
    c.on('data', (b) => all.push(b));
    c.on('end', () => { c.end(Buffer.concat(all).reverse()); console.log('whole'); });
    c.on('error', (e) => console.log('reset'));
  }).listen(8123, '127.0.0.1', () => console.log('ready'));`;
  const c = await ws.startCommand(['/usr/bin/node', '-e', reverses]);
  assert.equal(text((await c.read()).data), 'ready\n');
  const published = await ws.ports.publish(8123);
  const data = randomBytes(3 << 20);
  const x = await ws.ports.connect(8123);
  await x.write(data);
  x.closeWrite();
  assert.equal(Buffer.compare(Buffer.concat(await all(x)), Buffer.from(data).reverse()), 0);
  await x.close();
  assert.equal(text((await c.read()).data), 'whole\n');
  const part = await ws.ports.connect(8123);
  await part.write('a part');
  await part.close(); // without an end
  assert.equal(text((await c.read()).data), 'reset\n');
  const gone = assert.rejects(published.wait(), carrel.CarrelError);
  await ws.stop();
  await gone;
  await published.close();
  await c.close();
  await assert.rejects(ws.ports.connect(8123), carrel.FailedPrecondition);
  await assert.rejects(ws.ports.connect(0), carrel.InvalidArgument);
});

inWorkspace('another size of a terminal', async ({ ws }) => {
  const until31 = 'while [ $(stty size | tr " " x) != 31x91 ]; do sleep 0.05; done';
  const id = await ws.detach(['sh', '-c', until31], { terminal: { rows: 20, cols: 70 } });
  await ws.resize(id, 31, 91);
  assert.equal((await ws.wait(id)).code, 0);
});

/** Stands between a client and the daemon, and cuts each connection after so many bytes of either direction. */
async function cutter(limits, f) {
  const path = `${process.env.CARREL_TEST_DIR}/cut-${process.pid}-${randomUUID().slice(0, 8)}.sock`;
  const o = { connections: 0, path };
  const server = net.createServer((near) => {
    o.connections++;
    const far = net.connect(process.env.CARREL_TEST_SOCKET);
    const end = () => { near.destroy(); far.destroy(); };
    for (const [from, to, most] of [[near, far, limits.up], [far, near, limits.down]]) {
      let left = most;
      from.on('error', end).on('close', end).on('data', (b) => {
        if (left === undefined) return to.write(b);
        const cut = b.subarray(0, left);
        left -= cut.length;
        if (left === 0) { from.pause(); to.write(cut, end); } else to.write(cut);
      });
    }
  });
  await new Promise((done) => server.listen(path, () => done()));
  try {
    await f(o);
  } finally {
    server.close();
    try { unlinkSync(path); } catch { /* it is gone with the server */ }
  }
}

inWorkspace('a command is run once, wherever the connection breaks', async ({ ws, t }) => {
  if (!process.env.CARREL_TEST_SOCKET) return t.skip('skipped: connections are cut on the way to a Unix socket');
  let lost = 0;
  let ran = 0;
  const places = [...[1, 100, 250, 330].map((up) => ({ up })), ...[1, 40, 120, 200, 260, 330, 400].map((down) => ({ down }))];
  for (const [n, limits] of places.entries()) {
    await cutter(limits, async (cut) => {
      const other = new carrel.Client({ host: `unix://${cut.path}` });
      await other.workspaces.of(ws.ref).exec(['sh', '-c', `echo x >> ran-${n}; echo ${n}; cat /dev/null`]).catch((e) => {
        assert.ok(e instanceof carrel.ConnectionLost, String(e));
        lost++;
      });
      assert.equal(cut.connections, 1);
      other.close();
      await until(async () => (await ws.commands()).every((c) => c.status));
    });
    const r = await ws.exec(['sh', '-c', `wc -l < ran-${n} 2>/dev/null || echo 0`]);
    assert.match(r.text.trim(), /^[01]$/);
    ran += Number(r.text);
  }
  assert.ok(lost > 5 && ran > 0, `${lost} were lost, ${ran} ran`);
});

inWorkspace('a task is run once, and its messages go on where they broke', async ({ ws, t: test }) => {
  if (!process.env.CARREL_TEST_SOCKET) return test.skip('skipped: connections are cut on the way to a Unix socket');
  await cutter({ down: 10 }, async (cut) => {
    const other = new carrel.Client({ host: `unix://${cut.path}` });
    await assert.rejects(other.workspaces.of(ws.ref).tasks.run(['sh', '-c', works], 'once'), carrel.ConnectionLost);
    assert.equal(cut.connections, 1);
    other.close();
  });
  await until(async () => (await ws.tasks.list()).every((t) => t.state !== 'running'));
  assert.ok((await ws.tasks.list()).length < 2);
  const many = `${say}for i in $(seq 40); do say report_message '{"text":"number '$i'"}'; done; say report_completion '{}'`;
  const t = await ws.tasks.run(['sh', '-c', many], 'many');
  await cutter({ down: 1500 }, async (cut) => {
    const other = new carrel.Client({ host: `unix://${cut.path}` });
    const followed = other.workspaces.of(ws.ref).tasks.of(t.id);
    const numbers = (await messages(followed.follow({ after: 2 }))).map((m) => m.number);
    assert.deepEqual(numbers, Array.from({ length: 40 }, (_, i) => i + 3));
    assert.ok(cut.connections > 2);
    assert.equal(followed.info.state, 'completed');
    other.close();
  });
});

inWorkspace('what has a request id is asked again', async ({ client, t }) => {
  if (!process.env.CARREL_TEST_SOCKET) return t.skip('skipped: connections are cut on the way to a Unix socket');
  const key = `cut-${randomUUID()}`;
  await cutter({ down: 10 }, async (cut) => {
    const other = new carrel.Client({ host: `unix://${cut.path}` });
    await assert.rejects(other.workspaces.create(key), carrel.ConnectionLost);
    assert.equal(cut.connections, 3);
    await assert.rejects(other.workspaces.of(key).pause(), carrel.ConnectionLost);
    assert.equal(cut.connections, 4);
    other.close();
  });
  assert.equal((await client.workspaces.list()).filter((w) => w.info.key === key).length, 1);
  await client.workspaces.of(key).destroy({ purge: true });
});
