const http = require('http'), fs = require('fs');
let used = false;
http.createServer((req, res) => {
  let b = ''; req.on('data', d => b += d); req.on('end', () => {
    fs.appendFileSync('model.log', req.method + ' ' + req.url + ' ' + b.length + '\n');
    let r = {}; try { r = JSON.parse(b) } catch {}
    const tools = (r.tools || []).flatMap(t => t.type === 'namespace' ? t.tools.map(u => ({...u, name: t.name + u.name})) : [t]).map(t => t.name || (t.function || {}).name || t.type);
    // As an agent in the place of carrel's own, it proposes the plan in plan.json, and waits while that is not over.
    const seat = process.argv[2] === 'seat', last = [...b.matchAll(/outcome[\\"]+:[\\"]+(\w+)/g)].at(-1);
    const waits = seat && last && last[1] === 'waiting';
    const own = waits ? 'wait_plan' : seat ? 'propose_plan' : 'exec';
    const wanted = process.argv[2] && tools.find(n => new RegExp('carrel_*' + own + '$').test(n));
    const tool = process.argv[2] ? wanted : tools.find(n => /^(mcp__acp__)?bash$/i.test(n)) || tools.find(n => /^(exec_command|shell|shell_command|local_shell)$/.test(n));
    fs.appendFileSync('model.log', '  ' + (b.match(/"function_call_output".{0,400}/) || [''])[0] + ' tools ' + tools.join(',') + ' -> ' + tool + '\n');
    const space = wanted && (r.tools || []).find(t => t.type === 'namespace' && wanted === t.name + own);
    const anth = /messages/.test(req.url), resp = /responses/.test(req.url);
    if (!anth && !resp || /count_tokens/.test(req.url)) { res.writeHead(/count_tokens/.test(req.url) ? 200 : 404, {'content-type':'application/json'}); return res.end('{"input_tokens":1}') }
    const use = tool && (!used || waits); if (use) used = true;
    const cmd = 'echo called-by-a-model > proof; cat proof';
    let args = {command: cmd, description: 'prove it'};
    if (wanted) args = waits ? {} : seat ? JSON.parse(fs.readFileSync('plan.json')) : {command: cmd};
    if (tool === 'exec_command') args = {cmd, sandbox_permissions: 'require_escalated', justification: 'prove it'};
    if (tool === 'shell') args = {command: ['bash', '-lc', cmd], sandbox_permissions: 'require_escalated', justification: 'prove it'};
    if (tool === 'shell_command') args = {command: cmd, sandbox_permissions: 'require_escalated', justification: 'prove it'};
    res.writeHead(200, {'content-type': 'text/event-stream'});
    const ev = (k, o) => res.write(`event: ${k}\ndata: ${JSON.stringify({type: k, ...o})}\n\n`);
    if (resp) {
      const item = use ? {type:'function_call', id:'f1', call_id:'call1', ...(space ? {name: own, namespace: space.name} : {name: tool}), arguments: JSON.stringify(args), status:'completed'}
        : {type:'message', id:'m1', role:'assistant', status:'completed', content:[{type:'output_text', text:'scripted answer', annotations:[]}]};
      ev('response.created', {response: {id: 'r1'}});
      ev('response.output_item.done', {output_index: 0, item});
      ev('response.completed', {response: {id:'r1', usage:{input_tokens:1,input_tokens_details:null,output_tokens:1,output_tokens_details:null,total_tokens:2}, output:[item]}});
      return res.end();
    }
    ev('message_start', {message:{id:'msg_1',type:'message',role:'assistant',model:'m',content:[],stop_reason:null,stop_sequence:null,usage:{input_tokens:1,output_tokens:1}}});
    if (use) {
      ev('content_block_start', {index:0, content_block:{type:'tool_use',id:'toolu_1',name:tool,input:{}}});
      ev('content_block_delta', {index:0, delta:{type:'input_json_delta',partial_json:JSON.stringify(args)}});
    } else {
      ev('content_block_start', {index:0, content_block:{type:'text',text:''}});
      ev('content_block_delta', {index:0, delta:{type:'text_delta',text:'scripted answer'}});
    }
    ev('content_block_stop', {index:0});
    ev('message_delta', {delta:{stop_reason: use?'tool_use':'end_turn',stop_sequence:null},usage:{output_tokens:2}});
    ev('message_stop', {});
    res.end();
  });
}).listen(8123, '127.0.0.1', () => fs.writeFileSync('listening', ''));
