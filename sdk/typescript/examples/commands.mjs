// Run commands in a workspace, with input, live output and an error.
import { Client, NotFound } from '../src/index.js';

const client = new Client();
const ws = await client.workspaces.create('example-commands');
try {
  console.log((await ws.exec(['echo', 'hello'])).text.trim());
  console.log((await ws.exec(['sort'], { input: 'b\na\n' })).check().text.trim());
  const command = await ws.startCommand(['sh', '-c', 'read name; echo hello $name'], { stdin: true });
  await command.write('carrel\n');
  for await (const output of command) console.log(output.stream, new TextDecoder().decode(output.data).trim());
  await command.close();
  await ws.exec(['no-such-program']).catch((e) => console.log(e instanceof NotFound, e.code));
  await ws.files.write('notes/one.txt', 'first\nsecond\n', { parents: true });
  for (const entry of await ws.files.list('notes')) console.log(entry.path, entry.size);
} finally {
  await ws.destroy({ purge: true });
  client.close();
}

// Output:
// hello
// a
// b
// stdout hello carrel
// true not_found
// one.txt 13
