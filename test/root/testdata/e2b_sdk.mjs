// Every row of docs/compatibility.md that says "works" for the JavaScript SDK of E2B, against a carrel that the environment names.
import { createRequire } from 'node:module'
import { isDeepStrictEqual, inspect } from 'node:util'
const { Sandbox, CommandExitError, TimeoutError, NotFoundError, SandboxError, ApiClient, ConnectionConfig } =
  createRequire(process.env.E2B_MODULES + '/')('e2b')

function same(what, got, want) {
  if (!isDeepStrictEqual(got, want)) { console.error(`${what}: ${inspect(got)}, want ${inspect(want)}`); process.exit(1) }
}
async function fails(what, kind, f) {
  let got
  try { got = await f() } catch (e) {
    same(what + ': kind of the error ' + e, e instanceof kind, true)
    return e
  }
  same(what + ': an error', got, 'an error')
}

let sb = await Sandbox.create({ timeoutMs: 120000, metadata: { k: 'v 1' }, envs: { FOO: 'bar' } })
// commands
const r = await sb.commands.run('echo hi $FOO $X; echo err >&2; pwd', { envs: { X: 'y' }, cwd: '/tmp' })
same('run', [r.stdout, r.stderr, r.exitCode], ['hi bar y\n/tmp\n', 'err\n', 0])
let seen = ''
await sb.commands.run('echo a; sleep 0.2; echo b', { onStdout: d => { seen += d } })
same('callbacks', seen, 'a\nb\n')
same('exit', (await fails('exit', CommandExitError, () => sb.commands.run('exit 3'))).exitCode, 3)
await fails('deadline', TimeoutError, () => sb.commands.run('sleep 60', { timeoutMs: 1000 }))
await fails('another user', Error, () => sb.commands.run('id', { user: 'root' }))
let h = await sb.commands.run('cat', { background: true, stdin: true })
same('list', (await sb.commands.list()).map(p => p.pid), [h.pid])
await sb.commands.sendStdin(h.pid, 'line\n')
await sb.commands.closeStdin(h.pid)
same('stdin', (await h.wait()).stdout, 'line\n')
h = await sb.commands.run('sleep 100', { background: true })
same('kill', [await h.kill(), await sb.commands.kill(99999)], [true, false])
await fails('killed', CommandExitError, () => h.wait())
h = await sb.commands.run('while ! test -e go; do sleep 0.05; done; echo went', { background: true })
await h.disconnect()
const again = await sb.commands.connect(h.pid)
await sb.files.write('go', '')
same('connect', (await again.wait()).stdout, 'went\n')
// files
same('write', (await sb.files.write('a/b.txt', 'hello')).path, '/home/work/a/b.txt')
same('read', await sb.files.read('a/b.txt'), 'hello')
same('bytes', Buffer.from(await sb.files.read('a/b.txt', { format: 'bytes' })).toString(), 'hello')
const blob = Buffer.alloc(1 << 20, 'abc')
await sb.files.write('big', new Blob([blob]))
same('a megabyte', blob.equals(Buffer.from(await sb.files.read('big', { format: 'bytes' }))), true)
same('several', (await sb.files.write([{ path: 'm/1', data: '1' }, { path: 'm/2', data: '22' }])).map(f => f.name), ['1', '2'])
same('list', (await sb.files.list('a')).map(e => [e.name, e.type, e.size]), [['b.txt', 'file', 5]])
same('exists', [await sb.files.exists('a/b.txt'), await sb.files.exists('nope')], [true, false])
await fails('no such file', NotFoundError, () => sb.files.read('nope'))
same('makeDir', [await sb.files.makeDir('d1/d2'), await sb.files.makeDir('d1/d2')], [true, false])
same('rename', (await sb.files.rename('a/b.txt', 'c/d.txt')).path, '/home/work/c/d.txt')
await sb.files.remove('c')
same('removed', await sb.files.exists('c'), false)
const events = []
const w = await sb.files.watchDir('d1', e => events.push(`${e.name} ${e.type}`))
await sb.files.write('d1/seen.txt', '1')
for (let i = 0; i < 100 && events.length === 0; i++) await new Promise(done => setTimeout(done, 50))
await w.stop()
same('watch', events.includes('seen.txt create'), true)
const url = await sb.downloadUrl('d1/seen.txt', { useSignatureExpiration: 60 })
same('signed URL', await (await fetch(url, { headers: { 'E2b-Sandbox-Id': sb.sandboxId } })).text(), '1')
// terminals
let out = ''
const p = await sb.pty.create({ cols: 80, rows: 24, onData: d => { out += Buffer.from(d) } })
await sb.pty.resize(p.pid, { cols: 100, rows: 30 })
await sb.pty.sendInput(p.pid, new TextEncoder().encode('stty size; exit 0\n'))
await p.wait()
same('terminal', out.includes('30 100'), true)
// life
same('list of sandboxes', (await Sandbox.list({ query: { metadata: { k: 'v 1' } } }).nextItems()).map(x => x.sandboxId), [sb.sandboxId])
const before = (await sb.getInfo()).endAt
await sb.setTimeout(600000)
same('timeout', (await sb.getInfo()).endAt > before, true)
same('metrics', (await sb.getMetrics())[0].memUsed > 0, true)
const logs = (await new ApiClient(new ConnectionConfig()).api.GET('/v2/sandboxes/{sandboxID}/logs', {
  params: { path: { sandboxID: sb.sandboxId }, query: { search: 'exit code 3', level: 'warn' } }
})).data.logs
same('logs', logs.map(e => [e.level, e.message.includes('exit 3'), typeof e.timestamp, e.fields.exit_code]), [['warn', true, 'string', '3']])
same('pause', await sb.pause(), true)
same('paused', [(await sb.getInfo()).state, await sb.isRunning()], ['paused', false])
sb = await Sandbox.connect(sb.sandboxId)
same('resumed', (await sb.commands.run('echo back')).stdout, 'back\n')
const woken = await Sandbox.create({ timeoutMs: 2000, lifecycle: { onTimeout: 'pause', autoResume: true } })
await woken.files.write('kept', 'it')
for (let i = 0; i < 200 && (await woken.getInfo()).state !== 'paused'; i++) await new Promise((r) => setTimeout(r, 50))
same('paused at the end', [(await woken.getInfo()).state, (await woken.getInfo()).lifecycle], ['paused', { onTimeout: 'pause', autoResume: true }])
same('woken', [await woken.files.read('kept'), (await woken.getInfo()).state, await woken.kill()], ['it', 'running', true])
await fails('a snapshot', SandboxError, () => sb.createSnapshot())
same('kill', [await sb.kill(), await sb.isRunning()], [true, false])
await fails('one that is gone', Error, () => sb.commands.run('true'))
await fails('a wrong key', Error, () => Sandbox.create({ apiKey: 'e2b_00' }))
console.log('all rows hold')
