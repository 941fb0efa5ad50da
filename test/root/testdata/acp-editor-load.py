"""An editor made of the Python library of the Agent Client Protocol: it asks by the command that follows, ends it, opens the session with
another one and asks once more. It says what it was told, a line of JSON each."""
import asyncio
import json
import os
import sys

import acp


class Editor(acp.Client):
    how = "said"

    async def request_permission(self, session_id, tool_call, options, **_):
        raise RuntimeError("nothing is asked")

    async def session_update(self, session_id, update, **_):
        u = update.model_dump(mode="json", by_alias=True, exclude_none=True)
        line = {"said": u["content"]["text"]} if self.how == "said" else {"replayed": u["sessionUpdate"], "text": u["content"]["text"]}
        print(json.dumps(line), flush=True)

    def on_connect(self, conn):
        pass


async def main(*argv):
    editor = Editor()

    def agent():
        return acp.spawn_agent_process(lambda _: editor, argv[0], *argv[1:], env=dict(os.environ))

    async with agent() as (a, _):
        first = await a.initialize(protocol_version=acp.PROTOCOL_VERSION)
        print(json.dumps({"load": first.agent_capabilities.load_session}), flush=True)
        session = (await a.new_session(cwd=os.getcwd(), mcp_servers=[])).session_id
        await a.prompt(session_id=session, prompt=[acp.text_block("one?")])
    editor.how = "replayed"
    async with agent() as (a, _):
        await a.initialize(protocol_version=acp.PROTOCOL_VERSION)
        loaded = await a.load_session(cwd=os.getcwd(), session_id=session, mcp_servers=[])
        print(json.dumps({"loaded": [m.id for m in loaded.modes.available_modes]}), flush=True)
        editor.how = "said"
        end = await a.prompt(session_id=session, prompt=[acp.text_block("two?")])
        print(json.dumps({"end": end.stop_reason}), flush=True)


asyncio.run(main(*sys.argv[1:]))
