// Run a task and follow what it reports, and reach what listens in its workspace.
import http from 'node:http';
import { Client } from '../src/index.js';

const agent = `read -r prompt
echo '{"jsonrpc":"2.0","method":"report_message","params":{"text":"hello"}}'
echo '{"jsonrpc":"2.0","method":"report_completion","params":{}}'`;
const server = `require('http').createServer((q, r) => r.end('hello from ' + q.url)).listen(8000, '127.0.0.1', () => console.log('ready'))`;

const client = new Client();
const ws = await client.workspaces.create('example-tasks');
try {
  const task = await ws.tasks.run(['sh', '-c', agent], 'Say hello');
  for await (const { message } of task.follow({ after: 1 })) { // 1 is the prompt
    if (message) console.log(message.number, message.kind, new TextDecoder().decode(message.body));
  }
  console.log((await task.get()).state);

  const command = await ws.startCommand(['/usr/bin/node', '-e', server]);
  await command.read(); // it says that it listens
  const connection = await ws.ports.connect(8000);
  const response = await new Promise((done, fail) =>
    http.get({ path: '/here', createConnection: () => connection.duplex() }, done).on('error', fail));
  let body = '';
  for await (const piece of response) body += piece;
  console.log(response.statusCode, body);
  await command.close();
} finally {
  await ws.destroy({ purge: true });
  client.close();
}

// Output:
// 2 message {"text":"hello"}
// 3 completion {}
// completed
// 200 hello from /here
